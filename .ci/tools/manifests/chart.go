// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

// Name is the name of the chart, and of the bundle's package.
const Name = "mcs-attest"

// uidRange is the annotation of the namespace that the nftables rules depend on.
const uidRange = "openshift.io/sa.scc.uid-range"

// values replaces the words that forChart writes by expressions of Helm, and quotes what looks like one.
var values = strings.NewReplacer(
	"{{", `{{ "{{" }}`,
	"CHART_IMAGE", `{{ include "mcs-attest.image" . }}`,
	"CHART_REPLICAS", `{{ .Values.controller.replicas }}`,
	"CHART_CHECKSUM", `{{ .Values.config | sha256sum }}`,
	"CHART_CONFIG", `|{{ required "config is required: --set-file config=mcs-attest.yaml" .Values.config | nindent 4 }}`,
)

// Chart returns the files of the chart of a version such as v0.3.0, by their paths in the chart.
func Chart(source, version string) (map[string][]byte, error) {
	files, err := written(source)
	if err != nil {
		return nil, err
	}
	var about object
	if err := yaml.Unmarshal(files["Chart.yaml"], &about); err != nil {
		return nil, err
	}
	about["version"], about["appVersion"] = strings.TrimPrefix(version, "v"), version
	if files["Chart.yaml"], err = yaml.Marshal(about); err != nil {
		return nil, err
	}
	t, err := load(source)
	if err != nil {
		return nil, err
	}
	lines, options := map[string][]line{}, map[string]string{}
	for i, v := range variants() {
		objects, err := t.renderVariant(v)
		if err != nil {
			return nil, err
		}
		for _, o := range objects {
			if annotation := text(o.get("metadata", "annotations", uidRange)); annotation != "" {
				checks := "templates/checks.yaml"
				files[checks] = bytes.ReplaceAll(files[checks], []byte("CHART_UID_RANGE"), []byte(annotation))
			}
			file := "templates/" + o.file()
			options[file] = o.forChart()
			raw, err := yaml.Marshal(o)
			if err != nil {
				return nil, err
			}
			lines[file] = merge(lines[file], strings.Split(strings.TrimSpace(string(raw)), "\n"), 1<<i)
		}
	}
	for file, all := range lines {
		if files[file], err = template(all, options[file]); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	}
	return files, nil
}

// written returns the files that are copied: those of the chart that are not objects, and what an
// administrator starts from.
func written(source string) (map[string][]byte, error) {
	files := map[string][]byte{}
	for from, to := range map[string]string{
		"deploy/chart/*.*":                           "",
		"deploy/chart/templates/*":                   "templates",
		"deploy/policies/*":                          "policies",
		"deploy/overlays/openshift/mcs-attest.yaml":  "configs/openshift.yaml",
		"deploy/overlays/kubernetes/mcs-attest.yaml": "configs/kubernetes.yaml",
		"LICENSE": "LICENSE",
	} {
		paths, err := filepath.Glob(filepath.Join(source, from))
		if err != nil {
			return nil, err
		}
		if len(paths) == 0 {
			return nil, fmt.Errorf("no file %s", from)
		}
		for _, p := range paths {
			name := to
			if strings.Contains(from, "*") {
				name = path.Join(to, filepath.Base(p))
			}
			if files[name], err = os.ReadFile(p); err != nil {
				return nil, err
			}
		}
	}
	return files, nil
}

// file is the name of an object's template.
func (o object) file() string {
	parts := []string{o.kind(), o.name()}
	if n := o.namespace(); n != "" && n != namespace {
		parts = append(parts, n)
	}
	return strings.ToLower(strings.Join(parts, "-")) + ".yaml"
}

// forChart writes placeholders where the chart has values. It returns the value on which the object depends,
// if there is one.
func (o object) forChart() (option string) {
	switch o.kind() {
	case "CustomResourceDefinition":
		// The deletion of a CRD deletes every record.
		o.at("metadata", "annotations")["helm.sh/resource-policy"] = "keep"
		return ".Values.crds.enabled"
	case "Namespace":
		if o.name() == namespace {
			return ".Values.namespace.create"
		}
	case "ConfigMap":
		if o.name() == configMap {
			o["data"] = map[string]any{configKey: "CHART_CONFIG"}
		}
	case "Deployment":
		o.at("spec")["replicas"] = "CHART_REPLICAS"
		fallthrough
	case "DaemonSet":
		for _, c := range o.containers() {
			c["image"] = "CHART_IMAGE"
		}
		// A process reads its configuration when it starts.
		o.at("spec", "template", "metadata", "annotations")["checksum/config"] = "CHART_CHECKSUM"
	}
	return ""
}

// The verifier's configuration.
const (
	configMap = "mcs-attest-config"
	configKey = "mcs-attest.yaml"
)

// template returns the text of a template. Lines that not all variants have are between conditions.
func template(lines []line, option string) ([]byte, error) {
	var whole set // the variants that have the object
	for _, l := range lines {
		whole |= l.in
	}
	outer, err := condition(whole)
	if err != nil {
		return nil, err
	}
	var ends int
	var out bytes.Buffer
	for _, c := range []string{option, outer} {
		if c != "" && c != always {
			fmt.Fprintf(&out, "{{- if %s }}\n", c)
			ends++
		}
	}
	open := whole
	for _, l := range lines {
		if l.in != open && open != whole {
			out.WriteString("{{- end }}\n")
		}
		if l.in != open && l.in != whole {
			c, err := condition(l.in)
			if err != nil {
				return nil, errors.Join(err, fmt.Errorf("line %q", l.text))
			}
			fmt.Fprintf(&out, "{{- if %s }}\n", c)
		}
		open = l.in
		out.WriteString(values.Replace(l.text) + "\n")
	}
	if open != whole {
		ends++
	}
	out.WriteString(strings.Repeat("{{- end }}\n", ends))
	return out.Bytes(), nil
}
