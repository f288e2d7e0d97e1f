// SPDX-License-Identifier: Apache-2.0

package folder

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/manifest"
	"github.com/mcs-attest/mcs-attest/pkg/pki"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/verifier/internal/trust"
)

const (
	machineYAML = `apiVersion: machine.openshift.io/v1beta1
kind: Machine
metadata:
  name: worker-0
  namespace: openshift-machine-api
  uid: uid-0
  labels: {machine.openshift.io/cluster-api-machine-role: worker}
`
	enrolmentYAML = `apiVersion: mcs-attest.dev/v1alpha1
kind: MachineAttestation
metadata: {name: host-0, namespace: openshift-machine-api}
spec:
  machineRef: {name: worker-0}
  ekSHA256: [11a1b2c3d4e5f60718293a4b5c6d7e8f11a1b2c3d4e5f60718293a4b5c6d7e8f]
`
	policyYAML = `apiVersion: mcs-attest.dev/v1alpha1
kind: AttestationPolicy
metadata: {name: workers}
spec:
  pools: [worker]
`
	restYAML = `apiVersion: mcs-attest.dev/v1alpha1
kind: AttestationPolicy
metadata: {name: rest}
spec:
  mode: "Off"
`
	referencesYAML = `apiVersion: mcs-attest.dev/v1alpha1
kind: ReferenceValues
metadata: {name: rhcos}
pcr11:
- sha256: 11a1b2c3d4e5f60718293a4b5c6d7e8f11a1b2c3d4e5f60718293a4b5c6d7e8f
`
	ignition = `{"ignition": {"version": "3.4.0"}}`
)

// tree is a folder's files; write puts them there as an editor would, by renaming.
type tree map[string]string

func write(t testing.TB, dir string, files tree) {
	t.Helper()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		// A name that the folder passes over, until it is whole.
		whole := filepath.Join(filepath.Dir(path), "."+filepath.Base(path))
		if err := os.WriteFile(whole, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(whole, path); err != nil {
			t.Fatal(err)
		}
	}
}

func root(t testing.TB) string {
	t.Helper()
	ca, err := pki.NewCA("Root", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return "# from the test\n" + string(ca.Certificate)
}

func full(t testing.TB) tree {
	return tree{
		"machines/worker.yaml":        machineYAML,
		"attestations/host-0.yaml":    enrolmentYAML,
		"policies/workers.yaml":       policyYAML,
		"policies/rest.yml":           restYAML,
		"reference-values/rhcos.yaml": referencesYAML,
		"ek-roots/test.pem":           root(t),
		"configs/worker.ign":          ignition,
		"machines/.hidden.yaml":       "[",
		"machines/README.txt":         "[",
		"policies/old.yaml.bak":       "[",
	}
}

func open(t testing.TB, files tree) (*Folder, string) {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, files)
	f, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return f, dir
}

// texts are the problems without the folder's own path.
func texts(dir string, problems []manifest.Problem) []string {
	out := []string{}
	for _, p := range problems {
		out = append(out, strings.ReplaceAll(p.Error(), dir+"/", ""))
	}
	return out
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, full(t))
	s, err := Load(dir)
	if err != nil || len(s.Problems) > 0 || len(s.Incomplete) > 0 {
		t.Fatalf("%v, %v", err, s.Problems)
	}
	m := s.Machines.Machines()
	if len(m) != 1 || m[0].Enrollment == nil || len(m[0].EKSHA256) != 1 || time.Since(m[0].Created) > time.Hour {
		t.Errorf("machines: %+v", m)
	}
	if got := s.Policies.Pools(); !slices.Equal(got, []string{"worker", "*"}) {
		t.Errorf("policies: %v", got)
	}
	if len(s.Enrollments) != 1 || len(s.ReferenceValues) != 1 || s.EKRoots.Len() != 1 ||
		s.EKRoots.All()[0].Provenance != "from the test" || string(s.Configs["worker"]) != ignition {
		t.Errorf("%d enrollments, %d reference values, %d roots, configs %v", len(s.Enrollments), len(s.ReferenceValues),
			s.EKRoots.Len(), s.Configs)
	}
}

func TestEmptyFolder_CoversNoPool(t *testing.T) {
	s, err := Load(t.TempDir())
	if err != nil || len(s.Problems) > 0 {
		t.Fatalf("%v, %v", err, s.Problems)
	}
	if _, err := s.Policies.For("worker"); reason.From(err).Code != reason.PoolUnknown {
		t.Error("a pool is covered")
	}
	if _, err := Load(filepath.Join(t.TempDir(), "missing")); err == nil {
		t.Error("a folder that does not exist was read")
	}
}

func TestProblemsNameFileAndLine(t *testing.T) {
	for name, c := range map[string]struct{ file, content, want string }{
		"a Machine that is not YAML": {"machines/worker.yaml", "a: [", "machines/worker.yaml:1: not YAML"},
		"a Machine with a wrong type": {"machines/worker.yaml", strings.Replace(machineYAML, "uid-0", "7", 1),
			"machines/worker.yaml:6: metadata.uid is a number"},
		"a misspelled enrollment": {"attestations/host-0.yaml", strings.Replace(enrolmentYAML, "ekSHA256",
			"ekSha256", 1), `attestations/host-0.yaml:6: unknown field "spec.ekSha256"; did you mean "ekSHA256"?`},
		"a policy for an unknown mode": {"policies/workers.yaml", policyYAML + "  mode: Strict\n",
			"policies/workers.yaml:6: spec.mode: \"Strict\" is not a valid value"},
		"two policies for one pool": {"policies/two.yaml", policyYAML,
			"policies/workers.yaml:5: spec.pools[0]: pool \"worker\" already has a policy: policies/two.yaml:1"},
		"reference values that are too short": {"reference-values/rhcos.yaml", strings.Replace(referencesYAML, "sha256: 11a1",
			"sha256: ", 1), "reference-values/rhcos.yaml:5: pcr11[0].sha256: 30 bytes"},
		"reference values under one name": {"reference-values/two.yaml", referencesYAML,
			`reference-values/two.yaml: reference values "rhcos" are in two files`},
		"a policy among reference values": {"reference-values/rhcos.yaml", policyYAML,
			"reference-values/rhcos.yaml:2: a AttestationPolicy of mcs-attest.dev/v1alpha1 does not belong here"},
		"a root that is not PEM": {"ek-roots/test.pem", "hello", "ek-roots/test.pem: no certificate in it"},
		"a root that is truncated": {"ek-roots/test.pem", "\n-----BEGIN CERTIFICATE-----\n",
			"ek-roots/test.pem:2: a PEM block that is truncated or damaged"},
		"a config that is YAML": {"configs/worker.ign", "ignition:\n  version: 3.4.0\n",
			"configs/worker.ign: not an Ignition config: line 1: "},
		"a config with a comma too many": {"configs/worker.ign", "{\n\"ignition\": {},\n}",
			"configs/worker.ign: not an Ignition config: line 3: "},
		"a config without a version": {"configs/worker.ign", "{}",
			"configs/worker.ign: not an Ignition config: ignition.version is missing"},
		"a config whose version is none": {"configs/worker.ign", `{"ignition":{"version":"3"}}`,
			"configs/worker.ign: not an Ignition config: ignition.version: "},
	} {
		t.Run(name, func(t *testing.T) {
			files := full(t)
			files[c.file] = c.content
			f, dir := open(t, files)
			s := f.Snapshot()
			got := texts(dir, s.Problems)
			if !s.Failed() || !slices.ContainsFunc(got, func(p string) bool { return strings.HasPrefix(p, c.want) }) {
				t.Errorf("%q\nexpected %q", got, c.want)
			}
		})
	}
}

func TestBrokenFile_KeepsItsLastGoodStateAndAffectsNoOther(t *testing.T) {
	good := full(t)
	f, dir := open(t, good)
	before := f.Snapshot()
	broken := tree{}
	for name := range good {
		if !strings.Contains(name, "README") && !strings.HasSuffix(name, ".bak") {
			broken[name] = "\n{"
		}
	}
	write(t, dir, broken)
	s, changed := f.Refresh()
	if !changed || len(s.Problems) != 7 || len(s.Incomplete) > 0 {
		t.Fatalf("changed %v, incomplete %v, problems %q", changed, s.Incomplete, texts(dir, s.Problems))
	}
	if len(s.Machines.Machines()) != 1 || len(s.Enrollments) != 1 || len(s.ReferenceValues) != 1 || s.EKRoots.Len() != 1 ||
		string(s.Configs["worker"]) != ignition {
		t.Error("a good state was lost")
	}
	for _, pool := range []string{"worker", "master"} {
		was, err := before.Policies.For(pool)
		if err != nil {
			t.Fatal(err)
		}
		if is, err := s.Policies.For(pool); err != nil || is.Hash() != was.Hash() {
			t.Errorf("the policy for %s: %v", pool, err)
		}
	}

	// Another file changes meanwhile, and one is fixed.
	write(t, dir, tree{"machines/second.yaml": strings.NewReplacer("worker-0", "worker-1", "uid-0",
		"uid-1").Replace(machineYAML), "policies/rest.yml": restYAML})
	s, _ = f.Refresh()
	if len(s.Machines.Machines()) != 2 || len(s.Problems) != 6 {
		t.Errorf("%d machines, problems %q", len(s.Machines.Machines()), texts(dir, s.Problems))
	}
	if err := os.Remove(filepath.Join(dir, "machines/worker.yaml")); err != nil {
		t.Fatal(err)
	}
	if s, _ = f.Refresh(); len(s.Machines.Machines()) != 1 {
		t.Error("a file that was removed is still in force")
	}
	if _, changed := f.Refresh(); changed {
		t.Error("nothing changed, but a change is reported")
	}
}

func TestPoliciesThatContradictEachOtherKeepTheLastGoodSet(t *testing.T) {
	f, dir := open(t, full(t))
	before, _ := f.Snapshot().Policies.For("worker")
	write(t, dir, tree{"policies/two.yaml": strings.Replace(policyYAML, "spec:", "spec:\n  mode: \"Off\"", 1)})
	s, _ := f.Refresh()
	if !s.Failed() {
		t.Fatal("no problem")
	}
	if p, err := s.Policies.For("worker"); err != nil || p.Hash() != before.Hash() {
		t.Errorf("%+v, %v", p, err)
	}

	// At the start there is nothing to fall back to.
	files := full(t)
	files["policies/two.yaml"] = policyYAML
	f, _ = open(t, files)
	for _, pool := range []string{"worker", "master"} {
		if _, err := f.Snapshot().Policies.For(pool); reason.From(err) == nil || reason.From(err).Code != reason.PoolUnknown {
			t.Errorf("pool %s: %v", pool, err)
		}
	}
}

// The broken file might be the policy of any pool; "*" says Off here.
func TestLoad_PolicyBrokenAtTheStartDoesNotFailOpen(t *testing.T) {
	files := full(t)
	files["policies/master.yaml"] = "spec: ["
	f, dir := open(t, files)
	s := f.Snapshot()
	if !slices.Equal(s.Incomplete, []string{filepath.Join(dir, "policies/master.yaml")}) {
		t.Errorf("incomplete: %v", s.Incomplete)
	}
	if _, err := s.Policies.For("master"); reason.From(err) == nil || reason.From(err).Code != reason.PoolUnknown {
		t.Errorf("master: %v", err)
	}
	if _, err := s.Policies.For("worker"); err != nil {
		t.Errorf("worker has its own policy: %v", err)
	}
	write(t, dir,
		tree{"policies/master.yaml": strings.NewReplacer("[worker]", "[master]", "workers", "masters").Replace(policyYAML)})
	s, _ = f.Refresh()
	if p, err := s.Policies.For("master"); err != nil || p.Name != "masters" || len(s.Incomplete) > 0 {
		t.Errorf("fixed: %+v, %v", p, err)
	}
	if p, err := s.Policies.For("infra"); err != nil || p.Name != "rest" {
		t.Errorf("fixed, every other pool: %+v, %v", p, err)
	}

	// A new file that is broken changes nothing: "*" was in force for that pool before.
	write(t, dir, tree{"policies/infra.yaml": "spec: ["})
	s, _ = f.Refresh()
	if p, err := s.Policies.For("infra"); err != nil || p.Name != "rest" || !s.Failed() {
		t.Errorf("a new broken file: %+v, %v", p, err)
	}
}

// Without this document a policy for all documents would accept boots that it denies with it.
func TestLoad_ReferenceValuesBrokenAtTheStartDoNotFailOpen(t *testing.T) {
	files := full(t)
	files["reference-values/rhcos.yaml"] = "pcr11: ["
	f, dir := open(t, files)
	for _, pool := range []string{"worker", "master"} {
		if p, err := f.Snapshot().Policies.For(pool); err != nil ||
			p.UnreadReferences != filepath.Join(dir, "reference-values/rhcos.yaml") {
			t.Errorf("pool %s: %q, %v", pool, p.UnreadReferences, err)
		}
	}
	// As root, a file in place of the folder is what cannot be listed.
	other := full(t)
	delete(other, "reference-values/rhcos.yaml")
	other["reference-values"] = ""
	unlisted, at := open(t, other)
	if p, err := unlisted.Snapshot().Policies.For("worker"); err != nil ||
		p.UnreadReferences != filepath.Join(at, "reference-values") {
		t.Errorf("a folder that cannot be listed: %q, %v", p.UnreadReferences, err)
	}
	if err := os.Remove(filepath.Join(at, "reference-values")); err != nil {
		t.Fatal(err)
	}
	write(t, at, tree{"reference-values/rhcos.yaml": "pcr11: ["})
	if s, _ := unlisted.Refresh(); len(s.Incomplete) != 1 {
		t.Errorf("a broken file in it: incomplete %v", s.Incomplete)
	} else if p, err := s.Policies.For("worker"); err != nil || p.UnreadReferences != s.Incomplete[0] {
		t.Errorf("a broken file in it: %q, %v", p.UnreadReferences, err)
	}
	write(t, dir, tree{"reference-values/rhcos.yaml": referencesYAML})
	fixed, _ := f.Refresh()
	write(t, dir, tree{"reference-values/rhcos.yaml": "pcr11: [", "reference-values/new.yaml": "pcr11: ["})
	later, _ := f.Refresh()
	for name, s := range map[string]*Snapshot{"fixed": fixed, "the last good state, and a new file": later} {
		if p, err := s.Policies.For("worker"); err != nil || p.UnreadReferences != "" || len(s.ReferenceValues) != 1 {
			t.Errorf("%s: %q, %d documents, %v", name, p.UnreadReferences, len(s.ReferenceValues), err)
		}
	}
}

// A shell empties a file before the command that writes it starts, and the command can fail.
func TestAnEmptyFileRemovesNothing(t *testing.T) {
	for _, name := range []string{"machines/worker.yaml", "attestations/host-0.yaml", "policies/workers.yaml",
		"reference-values/rhcos.yaml", "ek-roots/test.pem", "configs/worker.ign"} {
		for _, content := range []string{"", "\n", "# comment\n"} {
			f, dir := open(t, full(t))
			before := f.Snapshot()
			write(t, dir, tree{name: content})
			s, _ := f.Refresh()
			if !s.Failed() || len(s.Machines.Machines()) != 1 || len(s.Enrollments) != 1 || len(s.ReferenceValues) != 1 ||
				s.EKRoots.Len() != 1 || string(s.Configs["worker"]) != ignition ||
				!slices.Equal(s.Policies.Pools(), before.Policies.Pools()) {
				t.Errorf("%s with %q: problems %q", name, content, texts(dir, s.Problems))
			}
		}
	}
}

func TestFilesOfUnusualTypes(t *testing.T) {
	f, dir := open(t, full(t))
	if err := os.Mkdir(filepath.Join(dir, "machines/folder.yaml"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("nowhere", filepath.Join(dir, "machines/dangling.yaml")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "machines/huge.yaml"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(dir, "machines/huge.yaml"), manifest.MaxFile+1); err != nil {
		t.Fatal(err)
	}
	s, _ := f.Refresh()
	got := strings.Join(texts(dir, s.Problems), "\n")
	for _, want := range []string{"machines/folder.yaml: cannot be read: not a regular file",
		"machines/dangling.yaml: cannot be read", "machines/huge.yaml: cannot be read: 16777217 bytes"} {
		if !strings.Contains(got, want) {
			t.Errorf("%s\nexpected %q", got, want)
		}
	}
	if _, changed := f.Refresh(); changed {
		t.Error("nothing changed, but a change is reported")
	}
	// A file that could not be read for a while is as good as before.
	if err := os.Rename(filepath.Join(dir, "machines/worker.yaml"), filepath.Join(dir, "worker")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("worker.yaml", filepath.Join(dir, "machines/worker.yaml")); err != nil {
		t.Fatal(err)
	}
	if s, _ = f.Refresh(); len(s.Machines.Machines()) != 1 {
		t.Error("a file that cannot be read lost its last good state")
	}
	if err := os.Rename(filepath.Join(dir, "worker"), filepath.Join(dir, "machines/worker.yaml")); err != nil {
		t.Fatal(err)
	}
	if s, _ = f.Refresh(); len(s.Machines.Machines()) != 1 ||
		strings.Contains(strings.Join(texts(dir, s.Problems), "\n"), "worker.yaml") {
		t.Errorf("readable again: %q", texts(dir, s.Problems))
	}
}

// Two writes may leave the same time and size.
func TestLoad_ReadsAChangeWithoutANewTime(t *testing.T) {
	f, dir := open(t, full(t))
	path := filepath.Join(dir, "machines/worker.yaml")
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir, tree{"machines/worker.yaml": strings.Replace(machineYAML, "uid-0", "uid-9", 1)})
	if err := os.Chtimes(path, info.ModTime(), info.ModTime()); err != nil {
		t.Fatal(err)
	}
	s, _ := f.Refresh()
	if _, ok := s.Machines.ByUID("uid-9"); !ok {
		t.Error("the change was not seen")
	}
}

// A writer may pause after any line, and a part of a policy can be laxer than the policy.
func TestWatch_WaitsForTheEndOfAChange(t *testing.T) {
	const strict = policyYAML + "  tpm2: {profile: strict}\n"
	f, dir := open(t, tree{"policies/workers.yaml": strict, "policies/rest.yaml": restYAML})
	const long = time.Hour
	path := filepath.Join(dir, "policies/workers.yaml")
	inPlace := func(name, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	profile := func(pool string) string {
		t.Helper()
		p, err := f.Snapshot().Policies.For(pool)
		if err != nil {
			t.Fatal(err)
		}
		return p.Name + " " + string(p.Profile)
	}
	// stays requires that reads of a change do not use it, however many there are.
	stays := func(what string) {
		t.Helper()
		for range 3 {
			if _, changed, later := f.refresh(long); changed || !later || profile("worker") != "workers strict" {
				t.Errorf("%s: changed %v, later %v, policy %s", what, changed, later, profile("worker"))
			}
		}
	}
	wait := func() {
		for _, state := range f.files {
			state.since = state.since.Add(-2 * long)
			if !state.missing.IsZero() {
				state.missing = state.missing.Add(-2 * long)
			}
		}
	}
	inPlace("policies/workers.yaml", policyYAML)
	stays("a part of the policy")
	wait()
	inPlace("policies/workers.yaml", strict+"  mode: Enforce\n")
	stays("the next part")
	wait()
	if s, changed, later := f.refresh(long); !changed || later || len(s.Problems) > 0 {
		t.Errorf("the complete file: changed %v, later %v, problems %v", changed, later, s.Problems)
	}

	inPlace("policies/infra.yaml", strings.NewReplacer("[worker]", "[infra]", "workers", "infra").Replace(policyYAML))
	stays("a new file")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	stays("a deleted file")
	inPlace("policies/workers.yaml", strict+"  mode: Enforce\n")
	wait()
	if f.refresh(long); profile("worker") != "workers strict" || strings.HasPrefix(profile("infra"), "rest ") {
		t.Errorf("a file that exists again: %s; a new one: %s", profile("worker"), profile("infra"))
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	stays("a file that was deleted again")
	wait()
	if f.refresh(long); !strings.HasPrefix(profile("worker"), "rest") {
		t.Errorf("a file that is missing: %s", profile("worker"))
	}
}

func TestWatch(t *testing.T) {
	for name, poll := range map[string]time.Duration{"by events": time.Hour, "by looking": 50 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			f, dir := open(t, tree{"policies/rest.yaml": restYAML})
			f.poll, f.settle = poll, 50*time.Millisecond
			ctx, cancel := context.WithCancel(t.Context())
			snapshots, done := make(chan *Snapshot, 16), make(chan struct{})
			go func() {
				f.Watch(ctx, func(s *Snapshot) { snapshots <- s })
				close(done)
			}()
			// machines/ does not exist yet when the watch begins.
			eventually := func(what string, good func(*Snapshot) bool) {
				t.Helper()
				deadline := time.After(2 * time.Minute)
				for {
					select {
					case s := <-snapshots:
						if good(s) {
							return
						}
					case <-deadline:
						t.Fatalf("%s was not seen", what)
					}
				}
			}
			write(t, dir, tree{"machines/worker.yaml": machineYAML})
			eventually("a new file", func(s *Snapshot) bool { return len(s.Machines.Machines()) == 1 })
			write(t, dir, tree{"machines/worker.yaml": strings.Replace(machineYAML, "uid-0", "uid-9", 1)})
			eventually("a changed file", func(s *Snapshot) bool { _, ok := s.Machines.ByUID("uid-9"); return ok })
			write(t, dir, tree{"machines/worker.yaml": "["})
			eventually("a broken file", func(s *Snapshot) bool { return s.Failed() && len(s.Machines.Machines()) == 1 })
			if err := os.Remove(filepath.Join(dir, "machines/worker.yaml")); err != nil {
				t.Fatal(err)
			}
			eventually("a removed file", func(s *Snapshot) bool { return len(s.Machines.Machines()) == 0 && !s.Failed() })
			if f.Snapshot().Failed() {
				t.Error("Snapshot is not the last one")
			}
			cancel()
			<-done
		})
	}
}

func BenchmarkRefreshWithoutChange(b *testing.B) {
	files := tree{}
	for i := range 1000 {
		files[fmt.Sprintf("machines/%d.yaml", i)] = strings.NewReplacer("worker-0", fmt.Sprintf("worker-%d", i), "uid-0",
			fmt.Sprintf("uid-%d", i)).Replace(machineYAML)
	}
	f, dir := open(b, files)
	old := time.Now().Add(-time.Hour)
	for name := range files {
		if err := os.Chtimes(filepath.Join(dir, name), old, old); err != nil {
			b.Fatal(err)
		}
	}
	f.Refresh()
	for b.Loop() {
		f.Refresh()
	}
}

// An administrator who replaces anchors distrusts the others: what cannot be read, or not even
// listed, brings none of them back.
func TestAttack_T15_AnchorsThatCannotBeReadOrListed(t *testing.T) {
	f, dir := open(t, tree{})
	if n := f.Snapshot().Trust.Count()[trust.AKRoots]; n == 0 {
		t.Fatal("the honest variant: no anchors without files")
	}
	if err := os.MkdirAll(filepath.Join(dir, "ak-roots"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "ak-roots", "own.pem"), []byte("-----BEGIN CERTIFICATE-----\nbroken"),
		0o600); err != nil {
		t.Fatal(err)
	}
	s, _ := f.Refresh()
	again, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if s.Trust.Count()[trust.AKRoots] != 0 || again.Trust.Count()[trust.AKRoots] != 0 {
		t.Errorf("a broken file leaves %d anchors, and %d after a restart", s.Trust.Count()[trust.AKRoots],
			again.Trust.Count()[trust.AKRoots])
	}
	other := t.TempDir()
	// A file in a folder's place cannot be listed, as one without permission cannot.
	if err := os.WriteFile(filepath.Join(other, "azure-roots"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err = Load(other); err != nil {
		t.Fatal(err)
	}
	if n := s.Trust.Count()[trust.AzureRoots]; n != 0 || len(s.Incomplete) != 1 {
		t.Errorf("a folder that cannot be listed leaves %d anchors, incomplete %v", n, s.Incomplete)
	}
}

func TestLoad_ReadsTheAnchorsOfEverySection(t *testing.T) {
	files := tree{}
	for s, endings := range trust.Sections {
		for _, ending := range endings {
			files[string(s)+"/own"+ending] = "damaged"
		}
	}
	f, dir := open(t, files)
	got := strings.Join(texts(dir, f.Snapshot().Problems), "\n")
	for file := range files {
		if !strings.Contains(got, file) {
			t.Errorf("nothing is said of %s", file)
		}
	}
}
