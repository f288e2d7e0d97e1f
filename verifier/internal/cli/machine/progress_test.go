// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/verifier/internal/admin"
	"github.com/mcs-attest/mcs-attest/verifier/internal/audit"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/setup"
	"github.com/mcs-attest/mcs-attest/verifier/internal/operator"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
)

// scaleUp is a cluster with 500 new machines, in every state, some with the names
// that clouds give them.
func scaleUp(now time.Time) *admin.State {
	s := &admin.State{Time: now, Serving: true, Cluster: "https://api.test:6443"}
	phases := []v1alpha1.Phase{"", v1alpha1.PhaseDenied, v1alpha1.PhaseAttested, v1alpha1.PhaseFetched,
		v1alpha1.PhaseJoined}
	for i := range 500 {
		m := admin.Machine{
			Name: fmt.Sprintf("openshift-machine-api/production-europe-west-4a-büro-xl-%s-%03d", strings.Repeat("x", i%40), i),
			Kind: "Machine", Created: now.Add(-time.Duration(i) * time.Hour), Quarantined: i == 7,
		}
		if phase := phases[i%5]; phase != "" {
			m.Record = &v1alpha1.MachineAttestationStatus{Phase: phase,
				History: []v1alpha1.HistoryEntry{{Time: metav1.NewTime(now.Add(-time.Duration(i) * time.Second)),
					Event: string(phase)}}}
			if phase == v1alpha1.PhaseDenied {
				m.Record.History[0].Reason = "MeasuredBoot"
			}
		}
		if i == 8 {
			m.Record.Report = &v1alpha1.FailureReport{Unit: "ignition-files.service" + strings.Repeat("\x1b[31m", 50)}
		}
		if i == 9 {
			m.Record.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionConflict, Status: metav1.ConditionTrue}}
		}
		s.Machines = append(s.Machines, m)
	}
	s.Machines = append(s.Machines, admin.Machine{Name: "break-glass/ticket-4711", Kind: "BreakGlass"})
	s.Problems = []string{"machines/worker-1.yaml: line 3: " + strings.Repeat("unknown field ", 30), "policy.yaml: empty",
		"c", "d", "e"}
	s.Pending = []store.Pending{{ID: "2c87d5a92a9a6ed6", FirstSeen: now.Add(-time.Minute)}}
	s.Conditions = []metav1.Condition{{Type: "Degraded", Status: metav1.ConditionTrue, Reason: "Etcd",
		Message: strings.Repeat("restored ", 30)}}
	return s
}

func TestProgress_FitsAScreenOf80Columns(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	p := newProgress(scaleUp(now))
	lines := p.lines()
	if len(lines) > 40 {
		t.Errorf("%d lines for 500 machines", len(lines))
	}
	for _, l := range lines {
		if n := utf8.RuneCountInString(l); n > 80 {
			t.Errorf("%d columns: %s", n, l)
		}
		if strings.ContainsRune(l, '\x1b') {
			t.Errorf("a control character of a machine's: %q", l)
		}
	}
	text := strings.Join(lines, "\n")
	for _, want := range []string{
		"500 machines, 200 provisioned (40%)", "waiting 100   denied 100   attested 100   fetched 100   joined 100",
		"waiting for approval 1   failed 1   conflicts 1   quarantined 1", "the verifier is degraded", "MeasuredBoot",
		"QUARANTINED", "problem: machines/worker-1.yaml: line 3", "problem: policy.yaml: empty", "(2 more problems: ",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	// Machines of one set differ at the end of their names.
	if !strings.Contains(text, "-001 ") {
		t.Errorf("the ends of the names are cut off:\n%s", text)
	}
	for _, empty := range []*admin.State{{Time: now}, {Time: now, Cluster: "https://api.test:6443"}} {
		if got := newProgress(empty).lines(); !strings.Contains(got[0], "0 machines") {
			t.Errorf("nothing there: %v", got)
		}
	}
}

func TestProgress_JSONHasTheSameContent(t *testing.T) {
	p := newProgress(scaleUp(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)))
	var out bytes.Buffer
	for range 2 {
		if err := showProgress(&out, p, env.OutputOf(&cobra.Command{}, env.JSON)); err != nil {
			t.Fatal(err)
		}
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 2 {
		t.Fatalf("two looks are %d lines", len(lines))
	}
	var back progress
	if err := json.Unmarshal([]byte(lines[1]), &back); err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(back.lines(), "\n"), strings.Join(p.lines(), "\n"); got != want {
		t.Errorf("the text made of the JSON differs:\n%s\n%s", got, want)
	}
}

func TestProgress_YAMLIsAStreamOfDocuments(t *testing.T) {
	p := newProgress(scaleUp(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)))
	var out bytes.Buffer
	for range 2 {
		if err := showProgress(&out, p, env.OutputOf(&cobra.Command{}, env.YAML)); err != nil {
			t.Fatal(err)
		}
	}
	documents := strings.Split(out.String(), "---\n")
	if len(documents) != 3 || documents[0] != "" || documents[1] != documents[2] || strings.Contains(documents[1], "{\"") {
		t.Errorf("%q", documents)
	}
	var back progress
	if err := yaml.Unmarshal([]byte(documents[1]), &back); err != nil || back.Machines != p.Machines {
		t.Errorf("%+v, %v", back, err)
	}
}

// What a machine says of itself, and what the API holds, cannot take over the
// administrator's terminal or forge a line.
func TestAttack_T50_NothingThatAMachineSaysControlsTheTerminal(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	const evil = "x\x1b[2J\x1b]0;owned\x07\r\nopenshift-machine-api/forged  worker  Joined\u202e"
	s := &admin.State{
		Time: now, Cluster: "https://api.test:6443", Problems: []string{evil},
		Conditions: []metav1.Condition{{Type: "Degraded", Status: metav1.ConditionTrue, Reason: "Etcd", Message: evil}},
		Machines: []admin.Machine{{Name: "a/m1", UID: "u", Kind: "Machine", Pools: []string{evil}, Created: now,
			Record: &v1alpha1.MachineAttestationStatus{
				Phase:    v1alpha1.PhaseFetched,
				Evidence: []v1alpha1.EvidenceSummary{{Kind: "tpm2", Summary: map[string]string{"manufacturer": evil}}},
				History:  []v1alpha1.HistoryEntry{{Time: metav1.NewTime(now), Event: "Fetched", Message: evil}},
				Report:   &v1alpha1.FailureReport{Time: metav1.NewTime(now), Unit: evil, Result: evil, Message: evil},
			}}},
		Pending: []store.Pending{{ID: "2c87d5a92a9a6ed6", Pool: evil, Source: evil, Claims: evil,
			Certificate: map[string]string{evil: evil}}},
		Denials: []audit.Denial{{Reason: evil, Event: "attest", Detail: evil, Source: evil, Pool: evil, EKSHA256: "ab",
			Last: now}},
	}
	var table, one, waits, unknown bytes.Buffer
	err := printState(&table, &env.Env{}, s, false)
	only := *s
	only.Pending = nil
	e := explained{env: &env.Env{Name: "kubectl attest"}, state: &only,
		events: []operator.Event{{Time: now, Type: evil, Reason: evil, Message: evil}}}
	err = errors.Join(err, e.print(&one, "m1", &env.Output{}))
	none := *s
	none.Machines = nil
	x := explained{env: &env.Env{}, state: &none}
	err = errors.Join(err, x.print(&waits, "2c87d5a92a9a6ed6", &env.Output{}))
	asked := *s
	asked.Machines, asked.Pending = nil, nil
	x.state = &asked
	err = errors.Join(err, x.print(&unknown, "ab", &env.Output{}))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"status": table.String(), "explain": one.String(),
		"one that waits": waits.String(), "one that is not enrolled": unknown.String(),
		"progress": strings.Join(newProgress(s).lines(), "\n")} {
		if !strings.Contains(text, "owned") {
			t.Errorf("%s: the text is missing:\n%s", name, text)
		}
		for _, r := range text {
			if r != '\n' && !unicode.IsPrint(r) {
				t.Errorf("%s: %q\n%q", name, r, text)
				break
			}
		}
		for _, l := range strings.Split(text, "\n") {
			if strings.HasPrefix(l, "openshift-machine-api/forged") {
				t.Errorf("%s: a forged line:\n%s", name, text)
			}
		}
	}
}

// stateBackend is a backend that only returns a state.
type stateBackend struct {
	env.Backend
	state func() (*admin.State, error)
}

func (b stateBackend) State(context.Context) (*admin.State, error) { return b.state() }

func TestWatch_SurvivesAShortOutageOfTheAPI(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cmd := &cobra.Command{}
	cmd.SetContext(ctx)
	output := env.OutputOf(&cobra.Command{}, env.JSON)
	var out, errOut bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&errOut)
	n := 0
	b := stateBackend{state: func() (*admin.State, error) {
		switch n++; n {
		case 2:
			return nil, errors.New("the API server does not answer")
		case 4:
			cancel()
		}
		return scaleUp(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)), nil
	}}
	if err := follow(cmd, b, output, 100*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(out.String(), "\n"); got != 2 {
		t.Errorf("%d looks", got)
	}
	if !strings.Contains(errOut.String(), "error: the API server does not answer") {
		t.Errorf("not reported: %s", errOut.String())
	}
	// The first look tells whether it can work at all.
	broken := stateBackend{state: func() (*admin.State, error) { return nil, errors.New("forbidden") }}
	if err := follow(cmd, broken, output, time.Second); err != nil && !strings.Contains(err.Error(), "forbidden") {
		t.Error(err)
	}
	cmd.SetContext(t.Context())
	if err := follow(cmd, broken, output, time.Second); err == nil {
		t.Error("goes on although it never worked")
	}
}

// onWrite is an output that calls a function after each write.
type onWrite struct {
	all strings.Builder
	f   func(all string)
}

func (o *onWrite) Write(b []byte) (int, error) {
	n, err := o.all.Write(b)
	o.f(o.all.String())
	return n, err
}

func TestStatus_WatchPrintsAgainAfterAChange(t *testing.T) {
	for form, want := range map[string]struct{ before, after string }{
		env.Table: {"  1 machines, 0 provisioned", "  2 machines, 0 provisioned"},
		env.JSON:  {`"machines":1,`, `"machines":2,`},
		env.YAML:  {"\nmachines: 1\n", "\nmachines: 2\n"},
	} {
		t.Run(form, func(t *testing.T) {
			dir := t.TempDir()
			o := setup.InitOptions{Origins: []string{"https://api-int.example.com:22623"}, Pools: []string{"worker"}}
			if err := setup.Init(io.Discard, dir, o, time.Now()); err != nil {
				t.Fatal(err)
			}
			enroll := func(name string) {
				ek := sha256.Sum256([]byte(name))
				object := fmt.Sprintf("apiVersion: mcs-attest.dev/v1alpha1\nkind: MachineAttestation\n"+
					"metadata: {name: %s, namespace: default}\nspec: {pool: worker, ekSHA256: [%x]}\n", name, ek)
				if err := os.WriteFile(filepath.Join(dir, "attestations", name+".yaml"), []byte(object), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			enroll("worker-0")
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			seen, writes := false, 0
			out := &onWrite{f: func(all string) {
				switch writes++; {
				case strings.Contains(all, want.after), writes == 20:
					cancel()
				case strings.Contains(all, want.before) && !seen:
					seen = true
					enroll("worker-1")
				}
			}}
			cmd, _, stderr := command(t)
			cmd.AddCommand(statusCommand(&env.Env{Name: env.Verifier}))
			cmd.SetOut(out)
			cmd.SetArgs([]string{"status", "--config", filepath.Join(dir, "mcs-attest.yaml"), "--watch", "--interval", "100ms",
				"-o", form})
			if err := cmd.ExecuteContext(ctx); err != nil || stderr.String() != "" {
				t.Fatalf("%v; %s", err, stderr)
			}
			all := out.all.String()
			if strings.Count(all, want.before) != 1 || strings.Count(all, want.after) != 1 {
				t.Errorf("not one update before and one after the change:\n%s", all)
			}
		})
	}
}
