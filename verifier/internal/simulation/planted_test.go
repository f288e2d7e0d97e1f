// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"encoding/json"
	"flag"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// planted are bugs that the simulation must find by a violation of the invariant that they break. Each replaces a text
// of the product that occurs once. The overlay of a build has it, so no file of the product names a bug.
var planted = []struct {
	name, violates, file, text, by string
}{
	{"a record is written without its version", `served \d+ configs`, "verifier/internal/kube/records/object.go",
		"client.MergeFromWithOptions(o, client.MergeFromWithOptimisticLock{})", "client.MergeFrom(o)"},
	{"a claim of another Machine counts", "gives the identity of", "verifier/internal/kube/records/claims.go",
		"if !kerrors.IsAlreadyExists(err) {", "if kerrors.IsAlreadyExists(err) {\n return nil, nil\n}\nif err != nil {"},
	{"a quarantine does not stop a redemption", "whose record is quarantined", "pkg/record/record.go",
		"if rec.Status.Quarantined || rec.Spec.Quarantined {", "if false {"},
	{"a quarantine in a record does not stop an attestation", "quarantined", "pkg/record/record.go",
		"if a.Machine.Quarantined() || s.Quarantined || next.Spec.Quarantined {", "if a.Machine.Quarantined() {"},
	{"a token has one use more", "counts 4 uses", "pkg/record/record.go",
		"if rec.Status.Token.Uses >= rec.Status.Token.MaxUses {", "if rec.Status.Token.Uses > rec.Status.Token.MaxUses {"},
	{"a joined machine needs no grant", "which joined|had a Node", "pkg/record/record.go",
		`return reason.Deny(reason.MachineJoined, "Machine %s joined and has no grant", m)`, "return nil"},
	{"another identity replaces the recorded one", "replaces the identity", "pkg/record/record.go",
		"if err := sameIdentity(s.Identity, id); err != nil {",
		"s.Identity = id\nif err := sameIdentity(s.Identity, id); err != nil {"},
	{"a join is not latched", "had a Node", "pkg/record/compare.go",
		"case s.Exists && !s.Joined && (s.Arrived || joined && !m.Granted(now)):", "case false:"},
	{"a certificate is not recorded as used", "its Node existed", "pkg/record/compare.go", "case s.Used:", "case false:"},
	{"a served use is returned", `served \d+ configs`, "verifier/internal/redeem/redeem.go",
		"r.unserved.remove(c.ID, before)", "for _, id := range taken {\nr.markUnserved(ctx, c, id)\n}"},
	{"an older record does not show a restore of etcd", `served \d+ configs|had a Node|quarantined`,
		"verifier/internal/kube/records/object.go", "if err == nil && version < cached {", "if false {"},
	{"a raised revision does not show a restore of etcd", "did not notice", "verifier/internal/kube/restore/detector.go",
		"if before != 0 && revision > before+suspendedWrites", "if before == 1<<63 && revision > before+suspendedWrites"},
	{"a grant allows any number of attestations", "which has one grant", "pkg/record/record.go",
		"if over || s.GrantAttestations >= maxGrantAttestations {", "if over {"},
	{"a grant has no end", "whose grant has ended", "pkg/machine/machine.go",
		"return left > 0 && left <= maxGrant", "return left <= maxGrant"},
	{"any number of first boots may be interrupted", "approves 4 keys", "pkg/approver/issued.go",
		"case x.c.issues(r) && len(x.Superseded) < maxInterrupted:", "case x.c.issues(r):"},
	{"a credential is good for every Machine", "with the credential of another machine", "pkg/approver/client.go",
		`if found[i].UID != "" && found[i].UID == x.RecordUID {`, `if found[i].UID != "" {`},
	{"a credential is deleted after it was published", "did not join|credential that was deleted",
		"verifier/internal/kube/controllers/bootstrapcredential/reconcile.go",
		"if r.unpublished(ctx, uid, own.ID, err) {", "if r.unpublished(ctx, uid, own.ID, err) || true {"},
	{"replicas that disagree write without a pause", "times in a minute",
		"verifier/internal/kube/controllers/bootstrapcredential/reconcile.go",
		"if t.token != tokenID || t.n < withoutPause {", "if t.token != tokenID || t.n >= 0 {"},
	{"a restore of etcd loses the latches", "was quarantined|had a Node", "verifier/internal/kube/restore/guard.go",
		"latches := maps.Clone(m.Latches)", "latches := map[string]rule.Latch{}"},
}

var (
	findPlanted = flag.Uint64("simulation.planted", 0,
		"the maximum number of seeds to find each planted bug; 0: do not run")

	failedSeed = regexp.MustCompile(`(?m)^ {4}--- FAIL: TestSimulation/(\d+) .*\n((?: {8}.*\n)+)`)
)

// finds is how often a run looks for each planted bug.
const finds = 5

// TestPlantedBugs checks that each bug still fits the product. With -simulation.planted it also runs seeds until each
// bug is found. That builds the verifier once for each bug.
func TestPlantedBugs(t *testing.T) {
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, bug := range planted {
		t.Run(bug.name, func(t *testing.T) {
			at := filepath.Join(root, bug.file)
			raw, err := os.ReadFile(at)
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(string(raw), bug.text); n != 1 {
				t.Fatalf("%s has the text %d times", bug.file, n)
			}
			if *findPlanted > 0 {
				find(t, regexp.MustCompile(bug.violates), at, strings.Replace(string(raw), bug.text, bug.by, 1))
			}
		})
	}
}

// TestPlantedBugs_Compile builds the packages with all bugs together.
func TestPlantedBugs_Compile(t *testing.T) {
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	changed, packages := map[string]string{}, map[string]bool{}
	for _, bug := range planted {
		at := filepath.Join(root, bug.file)
		if changed[at] == "" {
			raw, err := os.ReadFile(at)
			if err != nil {
				t.Fatal(err)
			}
			changed[at] = string(raw)
		}
		changed[at] = strings.Replace(changed[at], bug.text, bug.by, 1)
		packages[filepath.Dir(at)] = true
	}
	args := append([]string{"build", "-overlay", overlay(t, changed)}, slices.Sorted(maps.Keys(packages))...)
	if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// overlay returns the file for go's option -overlay: the contents of some files, by their paths.
func overlay(t *testing.T, contents map[string]string) (file string) {
	t.Helper()
	dir, replace := t.TempDir(), map[string]string{}
	for path, content := range contents {
		replace[path] = filepath.Join(dir, strconv.Itoa(len(replace))+".go")
		if err := os.WriteFile(replace[path], []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	list, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(file, list, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// find fails if the simulation does not find a bug: content in place of a file. It logs how many seeds a find needs.
func find(t *testing.T, violation *regexp.Regexp, file, content string) {
	t.Helper()
	program := build(t, "-overlay", overlay(t, map[string]string{file: content}))
	out, _ := exec.Command(program, "-test.run=^TestSimulation$", "-test.timeout=0",
		"-simulation.enough="+strconv.Itoa(finds), "-simulation.first="+strconv.FormatUint(*first, 10),
		"-simulation.seeds="+strconv.FormatUint(*findPlanted, 10)).CombinedOutput()
	found, ran := 0, *findPlanted
	for i, failed := range failedSeed.FindAllStringSubmatch(string(out), -1) {
		if last, _ := strconv.ParseUint(failed[1], 10, 64); i+1 == finds {
			ran = last - *first + 1
		}
		if violation.MatchString(failed[2]) {
			found++
		}
		t.Logf("seed %s:\n%s", failed[1], failed[2])
	}
	if found == 0 {
		t.Fatalf("not found in %d seeds\n%.2000s", ran, out)
	}
	t.Logf("found %d times in %d seeds", found, ran)
}

// build builds the test program without the race detector.
func build(t *testing.T, flags ...string) (program string) {
	t.Helper()
	program = filepath.Join(t.TempDir(), "simulation.test")
	args := append([]string{"test", "-vet=off", "-c", "-o", program}, flags...)
	if out, err := exec.Command("go", append(args, ".")...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}
