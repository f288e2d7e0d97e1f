// SPDX-License-Identifier: Apache-2.0

package render_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coreos/ignition/v2/config/v3_5"
	"github.com/vincent-petithory/dataurl"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/render"
	"github.com/mcs-attest/mcs-attest/testvm/soak"
)

// goldenSets is the number of random sets in the golden file.
const goldenSets = 200

// TestRandomSetsRenderAsInTheMachineConfigOperator compares with the names that the
// operator's own code gave these sets. A name contains a hash of the full config. The golden
// file differs from the operator only where docs/configs.md lists a difference. Ignition must
// accept each file of each config.
func TestRandomSetsRenderAsInTheMachineConfigOperator(t *testing.T) {
	var b strings.Builder
	rendered, broken := 0, 0
	for seed := range soak.Or(uint64(goldenSets), 20_000) {
		in := parse(t, "set.yaml", randomSet(seed))
		for _, pool := range []string{"worker", "infra"} {
			name := "refused"
			if r, err := render.Full(pool, in); err == nil {
				name = r.Config.Name
				rendered++
				if err := readable(r.Config.Spec.Config.Raw); err != nil {
					broken++
					t.Logf("seed %d, pool %s: %v", seed, pool, err)
				}
				if r.Config.Annotations["machineconfiguration.openshift.io/generated-by-controller-version"] == "" {
					t.Errorf("seed %d, pool %s: no controller version", seed, pool)
				}
			}
			if seed < goldenSets {
				fmt.Fprintln(&b, seed, name)
			}
		}
	}
	if broken > 0 || rendered == 0 {
		t.Errorf("Ignition cannot read %d of %d configs", broken, rendered)
	}
	golden := filepath.Join("testdata", "sets.golden.txt")
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	was, is := strings.Split(string(want), "\n"), strings.Split(b.String(), "\n")
	for i := range min(len(was), len(is)) {
		if was[i] != is[i] {
			t.Errorf("%s, want %s", is[i], was[i])
		}
	}
	if len(was) != len(is) {
		t.Errorf("%d lines, want %d", len(is), len(was))
	}
}

// readable checks the contents of each file as Ignition reads them. Uncompressed contents
// are plain text in all sets.
func readable(raw []byte) error {
	config, rpt, err := v3_5.Parse(raw)
	if err != nil || rpt.IsFatal() {
		return fmt.Errorf("%s: %w", rpt, err)
	}
	for _, f := range config.Storage.Files {
		if f.Contents.Source == nil || !strings.HasPrefix(*f.Contents.Source, "data:") {
			continue
		}
		data, err := dataurl.DecodeString(*f.Contents.Source)
		if err != nil {
			return fmt.Errorf("%s: %w", f.Path, err)
		}
		packed := f.Contents.Compression != nil && *f.Contents.Compression == "gzip"
		if !packed {
			if bytes.HasPrefix(data.Data, []byte("\x1f\x8b")) {
				return fmt.Errorf("%s: gzip data without compression", f.Path)
			}
			continue
		}
		r, err := gzip.NewReader(bytes.NewReader(data.Data))
		if err == nil {
			_, err = io.Copy(io.Discard, r)
		}
		if err != nil {
			return fmt.Errorf("%s is not gzip: %w", f.Path, err)
		}
	}
	return nil
}

// withFile returns a MachineConfig with one file; lines are its fields besides the path.
func withFile(name, path string, lines ...string) string {
	const head = "config:\n  ignition:\n    version: 3.5.0\n  storage:\n    files:\n    - path: "
	return customer(name, "worker", head+path+"\n      "+strings.Join(lines, "\n      "))
}

// plain and empty are the contents of a file.
const (
	plain = "contents: {source: 'data:,plain'}"
	empty = "contents: {source: 'data:,plain', compression: ''}"
)

func TestCompressionFollowsTheContents(t *testing.T) {
	const path = "/etc/site.conf"
	packed := []string{"contents:", "  compression: gzip", "  source: data:;base64," + packedOne}
	for _, tc := range []struct {
		name        string
		configs     []string
		compression string
	}{
		{"plain contents over gzip",
			[]string{withFile("60-a", path, packed...), withFile("70-b", path, plain)}, "none"},
		{"plain contents over gzip, with the mode and more after it",
			[]string{withFile("60-a", path, packed...), withFile("70-b", path, "mode: 384", plain),
				withFile("80-c", path, "mode: 420", "overwrite: false")}, "none"},
		{"gzip over plain contents",
			[]string{withFile("60-a", path, plain), withFile("70-b", path, packed...)}, "gzip"},
		{"gzip over gzip", []string{withFile("60-a", path, packed...), withFile("70-b", path, packed...)}, "gzip"},
		// The machine-config-operator drops gzip here, and Ignition then writes compressed bytes.
		{"only a mode over gzip",
			[]string{withFile("60-a", path, packed...), withFile("70-b", path, "mode: 384", "overwrite: false")}, "gzip"},
		{"an empty compression",
			[]string{withFile("70-b", path, empty)}, "none"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := valid(t, full(t, "worker", cluster(t, tc.configs...)))
			for _, f := range c.Storage.Files {
				if f.Path != path {
					continue
				}
				got := "none"
				if f.Contents.Compression != nil {
					got = fmt.Sprintf("%q", *f.Contents.Compression)
					got = strings.Trim(got, `"`)
				}
				if got != tc.compression {
					t.Errorf("compression %q, want %q", got, tc.compression)
				}
			}
		})
	}
}

func TestRender_EmptyCompressionDoesNotChangeTheName(t *testing.T) {
	with := full(t, "worker", cluster(t, withFile("70-a", "/etc/site.conf", empty)))
	without := full(t, "worker", cluster(t, withFile("70-a", "/etc/site.conf", plain)))
	if with.Config.Name != without.Config.Name {
		t.Errorf("%s, without it %s", with.Config.Name, without.Config.Name)
	}
}

// osImageStream returns the OSImageStream of a cluster with a default stream.
func osImageStream(version, def string, annotations ...string) string {
	s := "apiVersion: " + setGroup + "/" + version + "\nkind: OSImageStream\nmetadata:\n  name: cluster\n"
	if len(annotations) > 0 {
		s += "  annotations:\n    " + strings.Join(annotations, "\n    ") + "\n"
	}
	s += "status:\n  defaultStream: " + def + "\n  availableStreams:\n"
	for _, name := range []string{"rhel-9", "rhel-10"} {
		s += fmt.Sprintf("  - name: %s\n    osImage: registry.example/%[1]s@sha256:1\n", name)
		s += fmt.Sprintf("    osExtensionsImage: registry.example/%s-ext@sha256:1\n", name)
	}
	return s
}

const releaseOfStreams = "machineconfiguration.openshift.io/release-image-version: " + setController

func TestCustomPool_InheritsTheWorkersStream(t *testing.T) {
	for _, version := range []string{"v1", "v1alpha1"} {
		for _, tc := range []struct{ worker, infra, want string }{
			{"", "", "rhel-9"}, {"rhel-10", "", "rhel-10"}, {"rhel-10", "rhel-9", "rhel-9"}, {"", "rhel-10", "rhel-10"},
		} {
			in := cluster(t, osImageStream(version, "rhel-9", releaseOfStreams))
			for _, p := range in.Pools {
				p.Spec.OSImageStream.Name = map[string]string{"worker": tc.worker, "infra": tc.infra}[p.Name]
			}
			r, err := render.Full("infra", in)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := r.Config.Spec.OSImageURL, "registry.example/"+tc.want+"@sha256:1"; got != want {
				t.Errorf("%s, worker %q, infra %q: image %s, want %s", version, tc.worker, tc.infra, got, want)
			}
			got, want := r.Config.Spec.BaseOSExtensionsContainerImage, "registry.example/"+tc.want+"-ext@sha256:1"
			if got != want {
				t.Errorf("%s, worker %q, infra %q: extensions %s, want %s", version, tc.worker, tc.infra, got, want)
			}
		}
	}
}

// notMaster selects all MachineConfigs of the test cluster, even without labels.
var notMaster = metav1.LabelSelectorRequirement{
	Key: setGroup + "/role", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"master"},
}

// generatedBy returns a MachineConfig that a controller of a version generated.
func generatedBy(name, version string) string {
	return customer(name, "worker", "fips: false", setGroup+"/generated-by-controller-version: "+version)
}

func TestRender_RejectsWhatTheOperatorRejects(t *testing.T) {
	one := func(lines ...string) []string { return []string{withFile("60-one", "/etc/a", lines...)} }
	spec := func(text string) []string { return []string{customer("60-own", "worker", text)} }
	const ignition = "config:\n  ignition:\n    version: 3.5.0\n"
	crio := func(name, path, contents string) string {
		return withFile(name, "/etc/crio/crio.conf.d/"+path, "contents: {source: '"+contents+"}")
	}
	text := func(runtime string) string {
		return "data:,%5Bcrio.runtime%5D%0Adefault_runtime%20%3D%20%22" + runtime + "%22'"
	}
	streams := osImageStream("v1", "rhel-9", releaseOfStreams)
	onTen := osImageStream("v1", "rhel-10", releaseOfStreams)
	for _, tc := range []struct {
		name    string
		more    []string
		change  func(*render.Input)
		refused string // empty: it renders
	}{
		{name: "a mode above 0777", more: one("mode: 644", plain), refused: "01204"},
		{name: "the mode 0777", more: one("mode: 511", plain)},
		{name: "an octal mode", more: one("mode: 0644", plain)},
		{name: "an unknown extension", more: spec(ignition + "extensions: [usbguard, telnetd]"), refused: "telnetd"},
		{name: "an unknown extension without an Ignition config", more: spec("extensions: [telnetd]")},
		{name: "an image of its own in a pool with a stream",
			more:   append(spec("osImageURL: registry.example/own"), streams),
			change: func(in *render.Input) { setStream(in, "rhel-10") }, refused: "60-own"},
		{name: "an image of its own in a pool on the default stream",
			more: append(spec("osImageURL: registry.example/own"), streams)},
		{name: "a default stream that is not available",
			more: []string{osImageStream("v1", "rhel-8", releaseOfStreams)}, refused: `"rhel-8", which is not available`},
		{name: "a stream that is not available", more: []string{streams},
			change: func(in *render.Input) { setStream(in, "rhel-11") }, refused: `"rhel-11", which is not available`},
		{name: "a cluster that should have an OSImageStream",
			change: func(in *render.Input) { in.StreamsErr = errors.New("it does not exist") }, refused: "OSImageStream"},
		{name: "an OSImageStream without a version",
			more: []string{osImageStream("v1", "rhel-9")}, refused: "release-image-version"},
		{name: "an OSImageStream of another controller version",
			more: []string{osImageStream("v1", "rhel-9", setGroup+"/release-image-version: older")}, refused: "older"},
		{name: "runc on rhel-10", more: []string{onTen, crio("60-crio", "99-site", text("runc"))}, refused: "60-crio"},
		{name: "crun on rhel-10", more: []string{onTen, crio("60-crio", "99-site", text("crun"))}},
		{name: "runc on rhel-9", more: []string{streams, crio("60-crio", "99-site", text("runc"))}},
		{name: "runc on rhel-10 under crun of a later file",
			more: []string{onTen, crio("60-crio", "98-site", text("runc")), crio("61-crio", "99-site", text("crun"))}},
		{name: "packed runc on rhel-10",
			more:    []string{onTen, crio("60-crio", "99-site", "data:;base64,"+packedRunc+"', compression: gzip")},
			refused: "60-crio"},
		{name: "a CRI-O configuration on rhel-10 that is not TOML",
			more: []string{onTen, crio("60-crio", "99-site", "data:,default_runtime%20runc'")}, refused: "60-crio"},
		{name: "a remote CRI-O configuration on rhel-10",
			more: []string{onTen, crio("60-crio", "99-site", "https://files.example/crio'")}, refused: "60-crio"},
		{name: "a MachineConfig of another controller version",
			more: []string{generatedBy("60-old", "older")}, refused: "60-old"},
		{name: "a MachineConfig of the same controller version", more: []string{generatedBy("60-new", setController)}},
		{name: "a ControllerConfig without its version",
			change:  func(in *render.Input) { delete(in.Controller.Annotations, setGroup+"/generated-by-version") },
			refused: "generated-by-version"},
		{name: "a MachineConfig without labels", change: func(in *render.Input) {
			for _, p := range in.Pools {
				p.Spec.MachineConfigSelector.MatchLabels = nil
				p.Spec.MachineConfigSelector.MatchExpressions = []metav1.LabelSelectorRequirement{notMaster}
			}
			in.Configs[0].Labels = nil
		}, refused: "labels"},
		{name: "a config above the size that etcd stores",
			more: one("contents: {source: 'data:," + strings.Repeat("a", 1<<20+1<<19) + "'}"), refused: "1572864"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := cluster(t, tc.more...)
			if tc.change != nil {
				tc.change(&in)
			}
			_, err := render.Full("worker", in)
			_, part := render.PreApproved("worker", in, render.Options{})
			if tc.refused == "" {
				if err != nil || part != nil {
					t.Errorf("refused: %v, %v", err, part)
				}
				return
			}
			contains(t, refusal(t, err), tc.refused)
			contains(t, refusal(t, part), tc.refused)
		})
	}
}

func setStream(in *render.Input, name string) {
	for _, p := range in.Pools {
		p.Spec.OSImageStream.Name = name
	}
}

func TestRender_NamesTheControllersVersion(t *testing.T) {
	const key = "machineconfiguration.openshift.io/generated-by-controller-version"
	in := cluster(t)
	for _, pool := range []string{"worker", "infra"} {
		if got := full(t, pool, in).Config.Annotations[key]; got != setController {
			t.Errorf("%s: %q", pool, got)
		}
		if got := preApproved(t, pool, in).Config.Annotations[key]; got != setController {
			t.Errorf("%s, pre-approved: %q", pool, got)
		}
	}
	own := "apiVersion: " + setGroup + "/v1\nkind: MachineConfigPool\nmetadata:\n  name: worker\nspec:\n" +
		"  machineConfigSelector:\n    matchLabels:\n      " + setGroup + "/role: worker\n---\n"
	single := full(t, "worker", parse(t, "f.yaml", own+needed("60-own", file("/etc/own", "own"))))
	if single.Config.Annotations[key] == "" {
		t.Error("a pool outside of OpenShift names no controller")
	}
}
