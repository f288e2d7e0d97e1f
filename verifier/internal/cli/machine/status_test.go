// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/record"
	"github.com/mcs-attest/mcs-attest/verifier/internal/admin"
	"github.com/mcs-attest/mcs-attest/verifier/internal/audit"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
	"github.com/mcs-attest/mcs-attest/verifier/internal/operator"
)

// installed is a machine that attested, fetched its config and became a Node.
func installed(now time.Time) admin.Machine {
	at := func(ago time.Duration) metav1.Time { return metav1.NewTime(now.Add(-ago)) }
	attested := at(40 * time.Second)
	return admin.Machine{
		Name: "demo/worker-0", UID: "u-0", Kind: "Machine", Pools: []string{"worker"}, Created: now.Add(-time.Minute),
		NodeRef: "node-0", Record: &v1alpha1.MachineAttestationStatus{
			Phase: v1alpha1.PhaseJoined, LastAttested: &attested,
			History: []v1alpha1.HistoryEntry{
				{Time: attested, Event: "Attested"}, {Time: at(38 * time.Second), Event: "Fetched"},
				{Time: at(5 * time.Second), Event: "Joined"},
			},
			Credentials: []v1alpha1.CredentialStatus{{
				ID: "JTI=5f0c", Issued: at(38 * time.Second), Expiry: metav1.NewTime(now.Add(4 * time.Hour)),
				Secret: "ns/mcs-attest-bootstrap-u-0",
			}, {ID: "JTI=old", Issued: at(9 * time.Hour), Expiry: at(time.Hour)}},
			Certificate: &v1alpha1.CertificateStatus{Node: "node-0", PublicKeySHA256: strings.Repeat("ab", 32),
				Request: "csr-x7", CredentialID: "JTI=5f0c", Approved: at(5 * time.Second)},
		},
	}
}

func TestStatusShowsWhatAMachineReachedAndWhen(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		name   string
		change func(*admin.Machine)
		want   string
	}{
		{"a Node that attested, fetched and joined", func(*admin.Machine) {},
			"demo/worker-0 worker Joined 11:59:20 11:59:22 11:59:55"},
		{"joined without a certificate that was approved here", func(m *admin.Machine) { m.Record.Certificate = nil },
			"demo/worker-0 worker Joined 11:59:20 11:59:22 11:59:55"},
		{"a join whose time is no longer recorded", func(m *admin.Machine) {
			m.Record.Certificate, m.Record.History = nil, m.Record.History[:2]
		}, "demo/worker-0 worker Joined 11:59:20 11:59:22 yes"},
		{"attested and fetched", func(m *admin.Machine) {
			m.NodeRef, m.Record.Phase, m.Record.Certificate, m.Record.History = "", v1alpha1.PhaseFetched, nil,
				m.Record.History[:2]
		}, "demo/worker-0 worker Fetched 11:59:20 11:59:22 -"},
		{"reinstalled: events before the last attestation do not count", func(m *admin.Machine) {
			again := metav1.NewTime(now.Add(-time.Second))
			m.NodeRef, m.Record.Phase, m.Record.Certificate, m.Record.LastAttested = "", v1alpha1.PhaseAttested, nil, &again
		}, "demo/worker-0 worker Attested 11:59:59 - -"},
		{"another day", func(m *admin.Machine) {
			before := metav1.NewTime(now.Add(-30 * time.Hour))
			m.Record.LastAttested = &before
		}, "demo/worker-0 worker Joined 2026-02-28 11:59:22 11:59:55"},
		{"a Node that was there before the verifier", func(m *admin.Machine) { m.Record = nil },
			"demo/worker-0 worker - - - yes never attested; it is Node node-0"},
		{"never seen", func(m *admin.Machine) { m.Record, m.NodeRef = nil, "" },
			"demo/worker-0 worker - - - - never seen for 60s"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := installed(now)
			tt.change(&m)
			s := &admin.State{Time: now, Serving: true, Machines: []admin.Machine{m}}
			var out bytes.Buffer
			if err := printState(&out, &env.Env{Name: "PROGRAM"}, s, false); err != nil {
				t.Fatal(err)
			}
			lines := strings.Split(strings.TrimSpace(out.String()), "\n")
			if got := strings.Join(strings.Fields(lines[len(lines)-1]), " "); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
	// As OpenShift names them, a machine that needs no administrator fits 80 columns.
	m := installed(now)
	m.Name = "openshift-machine-api/worker-0"
	var table, wide bytes.Buffer
	s := &admin.State{Time: now, Serving: true, Machines: []admin.Machine{m}}
	if err := printState(&table, &env.Env{}, s, false); err != nil {
		t.Fatal(err)
	}
	if line := strings.Split(table.String(), "\n")[1]; len(line) > 80 {
		t.Errorf("%d columns: %s", len(line), line)
	}
	if err := printState(&wide, &env.Env{}, s, true); err != nil {
		t.Fatal(err)
	}
	if want := "2026-03-01T11:59:55Z  node-0"; !strings.Contains(wide.String(), want) {
		t.Errorf("%q is not in\n%s", want, wide.String())
	}
}

// A machine without a note does not change where the notes of others are.
func TestStatusAlignsTheNotes(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	fresh := admin.Machine{Name: "demo/worker-1", UID: "u-1", Kind: "Machine", Pools: []string{"worker"}, Created: now}
	for _, wide := range []bool{false, true} {
		s := &admin.State{Time: now, Serving: true, Machines: []admin.Machine{installed(now), fresh}}
		var out bytes.Buffer
		if err := printState(&out, &env.Env{}, s, wide); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(out.String(), "\n")
		if note := strings.Index(lines[0], "NOTE"); note < 0 || strings.Index(lines[2], "never seen") != note {
			t.Errorf("the notes are not below each other:\n%s", out.String())
		}
		if strings.Contains(out.String(), " \n") {
			t.Errorf("a line ends in a blank:\n%q", out.String())
		}
	}
}

func TestExplainShowsTheCredentialsAndTheCertificate(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	s := &admin.State{Time: now, Serving: true, Machines: []admin.Machine{installed(now)}}
	var out bytes.Buffer
	if err := (explained{env: &env.Env{Name: "kubectl attest"}, state: s}).print(&out, "worker-0",
		&env.Output{}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"credential        JTI=5f0c, until 2026-03-01T16:00:00Z (4h left), Secret ns/mcs-attest-bootstrap-u-0",
		"credential        JTI=old, ended 2026-03-01T11:00:00Z",
		"certificate       for node node-0, approved 2026-03-01T11:59:55Z",
		"  request         csr-x7", "  asked with      JTI=5f0c",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
}

// A break-glass token belongs to no machine, so no TPM can be enrolled for it. A folder has no time of its creation.
func TestExplain_OfABreakGlassTokenAdvisesNoEnrollment(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	token := admin.BreakGlass(&v1alpha1.MachineAttestation{Status: v1alpha1.MachineAttestationStatus{Pool: "worker",
		MachineUID: record.BreakGlassUID("0a")}})
	s := &admin.State{Time: now, Serving: true, Machines: []admin.Machine{token}}
	var out bytes.Buffer
	if err := (explained{env: &env.Env{Name: "mcs-attest-verifier"}, state: s}).print(&out, token.Name,
		&env.Output{}); err != nil {
		t.Fatal(err)
	}
	for _, wrong := range []string{"enroll", "0001-01-01"} {
		if strings.Contains(out.String(), wrong) {
			t.Errorf("%q is in\n%s", wrong, out.String())
		}
	}
}

// A script that reads -o json must not take a missing part for an empty one.
func TestStatus_ReportsMissingDenialsInEveryForm(t *testing.T) {
	b := &fakeBackend{denials: func() ([]audit.Denial, error) { return nil, errors.New("pods/log is forbidden") }}
	for _, form := range []string{env.Table, env.JSON, env.YAML, env.Name} {
		cmd, stdout, stderr := command(t)
		output := env.OutputFlag(cmd, "wide")
		if err := cmd.Flags().Set("output", form); err != nil {
			t.Fatal(err)
		}
		if err := showState(cmd, &env.Env{Name: "kubectl attest"}, b, output); err != nil {
			t.Fatal(err)
		}
		const missing = "machines that are not enrolled may be missing: pods/log is forbidden"
		inTable := strings.Contains(stdout.String(), "("+missing+")")
		beside := strings.Contains(stderr.String(), "warning: "+missing)
		if inTable != (form == env.Table) || beside == inTable {
			t.Errorf("%s:\n%s%s", form, stdout, stderr)
		}
	}
}

// A release that fails midway must not hide what it released.
func TestQuarantine_ReportsWhatARefusedReleaseReleased(t *testing.T) {
	refused := errors.New("patch machineattestations: refused")
	b := &fakeBackend{quarantine: func() ([]operator.Written, error) {
		return []operator.Written{{Where: "machineattestation.mcs-attest.dev/first", Done: "changed"}}, refused
	}}
	for _, release := range []bool{true, false} {
		cmd, stdout, _ := command(t)
		wait := time.Second
		err := quarantine(cmd, &env.Env{}, b, "worker-7", release, env.WriteFlags(cmd), wait)
		if !errors.Is(err, refused) || strings.Contains(stdout.String(), "first changed") != release {
			t.Errorf("release %v: %v; %s", release, err, stdout)
		}
	}
}

func TestReattest_ADryRunClaimsNoGrant(t *testing.T) {
	b := &fakeBackend{reattest: func() ([]operator.Written, error) {
		return []operator.Written{{Where: "the record", Done: "changed"}}, nil
	}}
	for _, dry := range []operator.DryRun{operator.DryRunNone, operator.DryRunClient, operator.DryRunServer} {
		cmd, _, stderr := command(t)
		w := env.WriteFlags(cmd)
		w.DryRun = dry
		if err := reattest(cmd, &env.Env{}, b, "worker-7", time.Now().Add(time.Hour), w, 0); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(stderr.String(), "may attest again until") != (dry == operator.DryRunNone) {
			t.Errorf("%s: %s", dry, stderr)
		}
	}
}

func TestExplain_ReportsMissingEventsInEveryForm(t *testing.T) {
	b := &fakeBackend{
		state: func() (*admin.State, error) {
			return &admin.State{Cluster: "https://api", Machines: []admin.Machine{{Name: "m/worker-7", UID: "u-7"}}}, nil
		},
		events: func() ([]operator.Event, error) { return nil, errors.New("you may not list events") },
	}
	for _, form := range []string{env.Table, env.JSON, env.YAML} {
		cmd, stdout, stderr := command(t)
		output := env.OutputFlag(cmd)
		if err := cmd.Flags().Set("output", form); err != nil {
			t.Fatal(err)
		}
		if err := explain(cmd, &env.Env{Name: "kubectl attest"}, b, "worker-7", exportOptions{}, output); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(stdout.String()+stderr.String(), "you may not list events") {
			t.Errorf("%s:\n%s%s", form, stdout, stderr)
		}
		// The command that the hint names accepts these flags.
		if !strings.Contains(stdout.String(), "kubectl attest enroll --machine m/worker-7 --identity FILE") {
			t.Errorf("%s: the hint is not a whole command:\n%s", form, stdout)
		}
	}
}
