// SPDX-License-Identifier: Apache-2.0

package render_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/coreos/ignition/v2/config/v3_5"
	"github.com/coreos/ignition/v2/config/v3_5/types"
	"sigs.k8s.io/yaml"

	"github.com/mcs-attest/mcs-attest/pkg/manifest"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/render"
)

var update = flag.Bool("update", false, "update the golden files")

// cluster returns the input of testdata/cluster and of additional files.
func cluster(t testing.TB, more ...string) render.Input {
	t.Helper()
	names, err := filepath.Glob("testdata/cluster/*.yaml")
	if err != nil || len(names) == 0 {
		t.Fatal("no manifests", err)
	}
	var all []render.Input
	for _, name := range names {
		raw, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, parse(t, filepath.Base(name), string(raw)))
	}
	for _, text := range more {
		all = append(all, parse(t, "more.yaml", text))
	}
	in, problems := render.Join(all...)
	if manifest.Failed(problems) {
		t.Fatal(problems)
	}
	return in
}

func parse(t testing.TB, file, text string) render.Input {
	t.Helper()
	in, problems := render.Parse(file, []byte(text))
	if manifest.Failed(problems) {
		t.Fatal(problems)
	}
	return in
}

// customer returns an administrator's MachineConfig; spec has no indentation.
func customer(name, role, spec string, annotations ...string) string {
	s := fmt.Sprintf("apiVersion: machineconfiguration.openshift.io/v1\nkind: MachineConfig\nmetadata:\n  name: %s\n  "+
		"labels:\n    machineconfiguration.openshift.io/role: %s\n", name, role)
	if len(annotations) > 0 {
		s += "  annotations:\n"
		for _, a := range annotations {
			s += "    " + a + "\n"
		}
	}
	return s + "spec:\n  " + strings.ReplaceAll(strings.TrimSpace(spec), "\n", "\n  ") + "\n"
}

// needed returns a MachineConfig that every caller may have.
func needed(name, spec string) string {
	return customer(name, "worker", spec, `mcs-attest.dev/needed-before-node-approved: "true"`)
}

// file returns a spec with one file of these contents.
func file(path, contents string) string {
	return fmt.Sprintf("config:\n  ignition:\n    version: 3.4.0\n  storage:\n    files:\n    - path: %s\n      "+
		"contents:\n        source: %s\n", path, quoted("data:;base64,"+b64(contents)))
}

func quoted(s string) string {
	raw, _ := json.Marshal(s)
	return string(raw)
}

func full(t testing.TB, pool string, in render.Input) *render.Rendered {
	t.Helper()
	r, err := render.Full(pool, in)
	if err != nil {
		t.Fatal(err)
	}
	valid(t, r)
	return r
}

func preApproved(t testing.TB, pool string, in render.Input, allow ...string) *render.Rendered {
	t.Helper()
	r, err := render.PreApproved(pool, in, render.Options{Allow: allow})
	if err != nil {
		t.Fatal(err)
	}
	valid(t, r)
	return r
}

// refusal returns the text of a denial, which must be ConfigUnavailable.
func refusal(t testing.TB, err error) string {
	t.Helper()
	if err == nil {
		t.Fatal("not refused")
	}
	if got := reason.From(err).Code; got != reason.ConfigUnavailable {
		t.Fatalf("refused as %v: %v", got, err)
	}
	return err.Error()
}

func contains(t testing.TB, text string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(text, w) {
			t.Errorf("%q does not say %q", text, w)
		}
	}
}

// ignitionValidate is Ignition's own program, built from the module once.
var ignitionValidate = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "ignition-validate")
	if err != nil {
		return "", err
	}
	out := filepath.Join(dir, "ignition-validate")
	text, err := exec.Command("go", "build", "-o", out, "github.com/coreos/ignition/v2/validate").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build ignition-validate: %w: %s", err, text)
	}
	return out, nil
})

func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	if tool, err := ignitionValidate(); err == nil {
		os.RemoveAll(filepath.Dir(tool))
	}
	os.Exit(code)
}

// valid checks a render with ignition-validate.
func valid(t testing.TB, r *render.Rendered) types.Config {
	t.Helper()
	config, rpt, err := v3_5.Parse(r.Config.Spec.Config.Raw)
	if err != nil {
		t.Fatalf("%v %v", err, rpt)
	}
	if _, ok := t.(*testing.F); ok {
		return config
	}
	tool, err := ignitionValidate()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(tool, "-")
	cmd.Stdin = bytes.NewReader(r.Config.Spec.Config.Raw)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("ignition-validate: %v: %s", err, out)
	}
	return config
}

func contentsOf(t testing.TB, c types.Config, path string) string {
	t.Helper()
	for _, f := range c.Storage.Files {
		if f.Path == path {
			if f.Contents.Source == nil {
				t.Fatalf("%s has no contents", path)
			}
			return *f.Contents.Source
		}
	}
	t.Fatalf("there is no %s", path)
	return ""
}

func TestFull_AgreesWithTheMachineConfigController(t *testing.T) {
	// The golden files were compared byte for byte with the machine-config-controller's encoder
	// and its hash.
	in := cluster(t)
	for _, pool := range []string{"worker", "infra"} {
		r := full(t, pool, in)
		text, err := yaml.Marshal(r.Config)
		if err != nil {
			t.Fatal(err)
		}
		for golden, got := range map[string][]byte{pool + ".golden.yaml": text,
			pool + ".golden.ign": r.Config.Spec.Config.Raw} {
			golden = filepath.Join("testdata", golden)
			if *update {
				if err := os.WriteFile(golden, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%s differs from %s:\n%s", pool, golden, got)
			}
		}
	}
}

func TestRender_MergesInTheMachineConfigControllersOrder(t *testing.T) {
	in := cluster(t)
	slices.Reverse(in.Configs) // the order of the input does not matter
	worker, infra := full(t, "worker", in), full(t, "infra", in)

	c := valid(t, worker)
	if got := contentsOf(t, c, "/etc/sysctl.d/arp.conf"); !strings.Contains(got, "1") {
		t.Errorf("50-worker-chrony comes after 00-worker, but the file has %s", got)
	}
	// 10-infra-tuning sorts before 50-worker-chrony, but overrides it nevertheless.
	if got := contentsOf(t, valid(t, infra), "/etc/chrony.conf"); !strings.Contains(got, "ntp.infra.example") {
		t.Errorf("a custom pool's config does not win over the workers': %s", got)
	}
	if got := worker.Config.Spec.KernelArguments; !slices.Equal(got, []string{"nosmt", "audit=1"}) {
		t.Errorf("kernel arguments %v", got)
	}
	if got := infra.Config.Spec.KernelArguments; !slices.Equal(got, []string{"nosmt", "audit=1", "nosmt"}) {
		t.Errorf("kernel arguments are not appended, as they are: %v", got)
	}
	if w, i := worker.Config.Spec.KernelType, infra.Config.Spec.KernelType; w != "default" || i != "realtime" {
		t.Errorf("kernel types %s, %s", w, i)
	}
	if !worker.Config.Spec.FIPS || !slices.Equal(worker.Config.Spec.Extensions, []string{"usbguard"}) {
		t.Error("fips or an extension is lost")
	}
	for _, f := range c.Storage.Files {
		if f.Overwrite == nil || !*f.Overwrite {
			t.Errorf("%s is not overwritten", f.Path)
		}
	}
}

func TestImages(t *testing.T) {
	controller := "quay.io/openshift-release-dev/ocp-v4.0-art-dev@sha256:" + strings.Repeat("1", 64)
	extensions := "quay.io/openshift-release-dev/ocp-v4.0-art-dev@sha256:" + strings.Repeat("2", 64)
	generated := strings.Replace(customer("02-worker-old", "worker", "osImageURL: registry.example/old"), "  labels:",
		"  annotations:\n    machineconfiguration.openshift.io/generated-by-controller-version: "+
			"5e7f1c4f3a2c0f0e1d7d2b9e6b8f0a1c2d3e4f50\n  labels:", 1)
	stream := `apiVersion: machineconfiguration.openshift.io/v1alpha1
kind: OSImageStream
metadata:
  name: cluster
  annotations:
    machineconfiguration.openshift.io/release-image-version: 5e7f1c4f3a2c0f0e1d7d2b9e6b8f0a1c2d3e4f50
status:
  defaultStream: rhel-9
  availableStreams:
  - name: rhel-9
    osImage: registry.example/nine@sha256:` + strings.Repeat("9", 64) + `
    osExtensionsImage: registry.example/nine-ext@sha256:` + strings.Repeat("9", 64) + `
  - name: rhel-10
    osImage: registry.example/ten@sha256:` + strings.Repeat("a", 64) + `
    osExtensionsImage: registry.example/ten-ext@sha256:` + strings.Repeat("a", 64) + "\n"
	ten := "registry.example/ten@sha256:" + strings.Repeat("a", 64)
	for _, tc := range []struct {
		name              string
		more              []string
		stream            string
		image, extensions string
		overridden        bool
		refused           string
	}{
		{name: "without anything else they are the ControllerConfig's", image: controller, extensions: extensions},
		{name: "a MachineConfig that a controller generated names none", more: []string{generated}, image: controller,
			extensions: extensions},
		{name: "the last MachineConfig that names one counts", more: []string{customer("98-a", "worker",
			"osImageURL: registry.example/a"), customer("98-b", "worker",
			"osImageURL: registry.example/b\nbaseOSExtensionsContainerImage: registry.example/be")},
			image: "registry.example/b", extensions: "registry.example/be", overridden: true},
		{name: "a pool on a stream has the stream's", more: []string{stream}, stream: "rhel-10", image: ten,
			extensions: "registry.example/ten-ext@sha256:" + strings.Repeat("a", 64)},
		{name: "a pool on no stream has the default stream's", more: []string{stream},
			image:      "registry.example/nine@sha256:" + strings.Repeat("9", 64),
			extensions: "registry.example/nine-ext@sha256:" + strings.Repeat("9", 64)},
		{name: "a pool on an unknown stream does not render", more: []string{stream}, stream: "rhel-11",
			refused: `"rhel-11", which is not available`},
		{name: "a pool on a stream where there are none does not render", stream: "rhel-10",
			refused: "but the cluster has none"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := cluster(t, tc.more...)
			for _, p := range in.Pools {
				p.Spec.OSImageStream.Name = tc.stream
			}
			r, err := render.Full("worker", in)
			if tc.refused != "" {
				contains(t, refusal(t, err), tc.refused)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := r.Config.Spec; got.OSImageURL != tc.image || got.BaseOSExtensionsContainerImage != tc.extensions {
				t.Errorf("images %s, %s", got.OSImageURL, got.BaseOSExtensionsContainerImage)
			}
			if _, ok := r.Config.Annotations["machineconfiguration.openshift.io/os-image-url-overridden"]; ok != tc.overridden {
				t.Errorf("overridden: %t", ok)
			}
		})
	}
}

func TestRendered_IsImmutable(t *testing.T) {
	in := cluster(t)
	first := full(t, "worker", in)
	before := bytes.Clone(first.Config.Spec.Config.Raw)
	for range 3 {
		preApproved(t, "worker", in)
		full(t, "infra", in)
		if again := full(t, "worker", in); !bytes.Equal(again.Config.Spec.Config.Raw, before) ||
			again.Config.Name != first.Config.Name {
			t.Fatal("rendering again gives something else")
		}
	}
	if !bytes.Equal(first.Config.Spec.Config.Raw, before) {
		t.Fatal("an older render changed")
	}
}

func TestPoolsMayBeRenderedAtTheSameTime(t *testing.T) {
	in := cluster(t)
	var all sync.WaitGroup
	for range 4 {
		for _, pool := range []string{"worker", "infra"} {
			all.Go(func() {
				if _, err := render.Full(pool, in); err != nil {
					t.Error(err)
				}
				if _, err := render.PreApproved(pool, in, render.Options{}); err != nil {
					t.Error(err)
				}
			})
		}
	}
	all.Wait()
}
