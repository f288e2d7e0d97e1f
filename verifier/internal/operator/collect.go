// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	manifests "github.com/mcs-attest/mcs-attest/pkg/manifest"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
)

// Collector takes in what a support bundle is made of.
type Collector interface {
	// Add puts a file in; its error ends the collection.
	Add(name string, content []byte) error
	// Missed notes what could not be had.
	Missed(what string, err error)
}

// Known are secrets to be looked for in a bundle; those that cannot be read are in
// the errors.
func (f *Folder) Known(context.Context) ([]secret.Bytes, []error) {
	var known []secret.Bytes
	var errs []error
	for _, dir := range []string{"keys", "tls"} {
		entries, err := os.ReadDir(f.Config.Path(dir))
		if err != nil {
			errs = append(errs, err)
		}
		for _, e := range entries {
			if dir == "tls" && filepath.Ext(e.Name()) != ".key" {
				continue
			}
			raw, err := os.ReadFile(f.Config.Path(dir, e.Name()))
			if err != nil {
				errs = append(errs, err)
				continue
			}
			known = append(known, secret.New(raw))
			var doc map[string]string // the provisioning token is YAML
			if sigsyaml.Unmarshal(raw, &doc) == nil {
				for _, k := range []string{"token", "previous-token"} {
					known = append(known, secret.New([]byte(doc[k])))
				}
			}
		}
	}
	return known, errs
}

// Collect gathers what explains a standalone verifier: configuration, policies,
// Machines, enrollments, records, metrics. Keys and configs are named, not read.
func (f *Folder) Collect(ctx context.Context, _ time.Duration, to Collector) error {
	c := &collector{to: to}
	c.file("config/mcs-attest.yaml", func() ([]byte, error) {
		return os.ReadFile(cmp.Or(f.File, f.Config.Path("mcs-attest.yaml")))
	})
	c.json("state.json", func() (any, error) { return f.State(ctx) })
	own := func(kind string) schema.GroupKind { return v1alpha1.GroupVersion.WithKind(kind).GroupKind() }
	machines := []schema.GroupKind{{Group: machineAPI.Group, Kind: "Machine"}, {Group: clusterAPI.Group, Kind: "Machine"},
		{Group: hosts.Group, Kind: "BareMetalHost"}, own(v1alpha1.KindMachineAttestation)}
	for _, s := range []struct {
		dir   string
		kinds []schema.GroupKind
	}{
		{"policies", []schema.GroupKind{own(v1alpha1.KindAttestationPolicy)}},
		{"attestations", machines},
		{"reference-values", []schema.GroupKind{own(measuredboot.Kind)}},
		{"machines", machines},
	} {
		for _, name := range f.list(to, s.dir) {
			c.file(s.dir+"/"+name, func() ([]byte, error) {
				path := f.Config.Path(s.dir, name)
				raw, err := readManifest(path)
				if err != nil {
					return nil, err
				}
				return reduceManifests(path, raw, s.kinds)
			})
		}
	}
	c.file("files.txt", func() ([]byte, error) { return f.files(to) })
	for _, path := range []string{"metrics", "readyz", "healthz"} {
		c.file("verifier/"+path+".txt", func() ([]byte, error) { return f.ask(ctx, path) })
	}
	to.Missed("logs", errors.New("a standalone verifier logs to standard error: add the journal of its unit yourself"))
	return c.failed
}

// list names the manifests of a section.
func (f *Folder) list(to Collector, dir string) []string {
	entries, err := os.ReadDir(f.Config.Path(dir))
	if err != nil {
		to.Missed(dir, err)
		return nil
	}
	var names []string
	for _, e := range entries {
		if isManifest(e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names
}

// files lists every file of the folder with size and time, contents aside.
func (f *Folder) files(to Collector) ([]byte, error) {
	var out bytes.Buffer
	err := filepath.WalkDir(f.Config.Data, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			to.Missed(path, err)
			return nil
		}
		info, err := d.Info()
		if err != nil {
			to.Missed(path, err)
			return nil
		}
		rel, err := filepath.Rel(f.Config.Data, path)
		if err != nil {
			return err
		}
		fmt.Fprintf(&out, "%s %10d %s %s\n", info.Mode(), info.Size(), info.ModTime().UTC().Format(time.RFC3339), rel)
		return nil
	})
	return out.Bytes(), err
}

func (f *Folder) ask(ctx context.Context, path string) ([]byte, error) {
	scheme, address, transport := "http", f.Config.HealthListen, &http.Transport{}
	if path == "metrics" {
		scheme, address = "https", f.Config.MetricsListen
		transport.TLSClientConfig = &tls.Config{
			MinVersion:         tls.VersionTLS12,
			InsecureSkipVerify: true, // its certificate is one of the folder's: see below
			VerifyConnection:   func(state tls.ConnectionState) error { return f.served(state.PeerCertificates[0].Raw) },
		}
	}
	defer transport.CloseIdleConnections()
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+net.JoinHostPort(host, port)+"/"+path, nil)
	if err != nil {
		return nil, err
	}
	res, err := (&http.Client{Timeout: 10 * time.Second, Transport: transport}).Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", req.URL, err)
	}
	if res.StatusCode != http.StatusOK { // readyz says why in its body
		raw = append([]byte(res.Status+"\n"), raw...)
	}
	return raw, nil
}

// served returns an error unless leaf is the certificate that the verifier of this
// folder serves its metrics with.
func (f *Folder) served(leaf []byte) error {
	paths := []string{f.Config.Path("tls", "tls.crt")}
	if dir := f.Config.MetricsCertificate; dir != "" {
		paths = append(paths, filepath.Join(dir, "tls.crt"))
	}
	for _, path := range paths {
		raw, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		if block, _ := pem.Decode(raw); block != nil && bytes.Equal(block.Bytes, leaf) {
			return nil
		}
	}
	return fmt.Errorf("the server at %s has another certificate than this folder", f.Config.MetricsListen)
}

// maxAnswer bounds one answer that goes into a bundle.
const maxAnswer = 32 << 20

// collector adds what can be had and notes the rest; a failure to write ends it.
type collector struct {
	to     Collector
	failed error
}

func (c *collector) add(name string, raw []byte) {
	if c.failed == nil {
		c.failed = c.to.Add(name, raw)
	}
}

func (c *collector) file(name string, get func() ([]byte, error)) {
	if c.failed != nil {
		return
	}
	raw, err := get()
	if err != nil {
		c.to.Missed(name, err)
		return
	}
	c.add(name, raw)
}

func (c *collector) json(name string, get func() (any, error)) {
	c.file(name, func() ([]byte, error) {
		v, err := get()
		if err != nil {
			return nil, err
		}
		return json.MarshalIndent(v, "", "  ")
	})
}

// reduceManifests is the file's objects of these kinds without what may hold a
// secret, as JSON lines. Of other objects it has only the kind and the name.
func reduceManifests(path string, raw []byte, kinds []schema.GroupKind) ([]byte, error) {
	docs, problems := manifests.Split(path, raw)
	var out bytes.Buffer
	for _, doc := range docs {
		var o map[string]any
		if problems = doc.DecodeKnown(&o); len(problems) > 0 {
			break
		}
		u := unstructured.Unstructured{Object: o}
		if !slices.Contains(kinds, u.GroupVersionKind().GroupKind()) {
			o = map[string]any{"apiVersion": doc.APIVersion, "kind": doc.Kind, "content": notHere,
				"metadata": map[string]any{"namespace": u.GetNamespace(), "name": u.GetName()}}
		}
		if err := json.NewEncoder(&out).Encode(reduce(o)); err != nil {
			return nil, err
		}
	}
	if len(problems) > 0 {
		return nil, fmt.Errorf("left out, since it does not parse: %w", problems[0])
	}
	return out.Bytes(), nil
}

// notHere replaces what a bundle must not have.
const notHere = "[not in this bundle]"

// reduce is an object without what is not needed and may hold a secret: what
// clients keep in annotations and managedFields, a Machine's provider part and
// bootstrap data, the values of a pod's environment.
func reduce(o map[string]any) map[string]any {
	o = maps.Clone(o)
	if meta, ok := o["metadata"].(map[string]any); ok {
		meta = maps.Clone(meta)
		delete(meta, "managedFields")
		if notes, ok := meta["annotations"].(map[string]any); ok {
			notes = maps.Clone(notes)
			delete(notes, "kubectl.kubernetes.io/last-applied-configuration")
			meta["annotations"] = notes
		}
		o["metadata"] = meta
	}
	kind, _ := o["kind"].(string)
	spec, _ := o["spec"].(map[string]any)
	if spec == nil {
		return o
	}
	spec = maps.Clone(spec)
	o["spec"] = spec
	switch kind {
	case "Machine":
		provider, _ := spec["providerSpec"].(map[string]any)
		value, _ := provider["value"].(map[string]any)
		namespace, userData := machine.UserDataSecret(value)
		delete(spec, "providerSpec")
		if userData != "" {
			reference := map[string]any{"name": userData}
			if namespace != "" {
				reference["namespace"] = namespace
			}
			spec["providerSpec"] = map[string]any{"value": map[string]any{"userDataSecret": reference}}
		}
		if b, ok := spec["bootstrap"].(map[string]any); ok {
			b = maps.Clone(b)
			delete(b, "data")
			spec["bootstrap"] = b
		}
		if status, ok := o["status"].(map[string]any); ok {
			status = maps.Clone(status)
			delete(status, "providerStatus")
			o["status"] = status
		}
	case "BareMetalHost":
		for _, k := range slices.Collect(maps.Keys(spec)) {
			if k != "consumerRef" && k != "online" {
				delete(spec, k)
			}
		}
	case "Pod", "DaemonSet":
		omitEnv(spec)
	}
	return o
}

// omitEnv replaces the values of every environment variable in v.
func omitEnv(v any) {
	switch v := v.(type) {
	case map[string]any:
		for k, inner := range v {
			list, ok := inner.([]any)
			if k != "env" || !ok {
				omitEnv(inner)
				continue
			}
			for _, e := range list {
				if e, ok := e.(map[string]any); ok && e["value"] != nil {
					e["value"] = notHere
				}
			}
		}
	case []any:
		for _, inner := range v {
			omitEnv(inner)
		}
	}
}
