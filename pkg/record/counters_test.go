// SPDX-License-Identifier: Apache-2.0

package record_test

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/record"
)

func counted(reset, restart, clock int64) *v1alpha1.TPMCounters {
	return &v1alpha1.TPMCounters{ResetCount: reset, RestartCount: restart, Clock: clock}
}

// counting is an attestation with a TPM's counters, and the same machine's next one.
func counting(t *testing.T, first, second *v1alpha1.TPMCounters,
	change ...func(*record.Attestation, *rec)) (*rec, error) {
	t.Helper()
	a := honest(t)
	a.TPM = first
	r, err := record.Attest(nil, a, start)
	if err != nil {
		t.Fatal(err)
	}
	a.TPM, a.TokenID = second, "token2"
	for _, c := range change {
		c(&a, r)
	}
	return record.Attest(r, a, start.Add(time.Minute))
}

func TestAttest_TheTPMsCountersNeverDecrease(t *testing.T) {
	for _, c := range []struct {
		name  string
		next  *v1alpha1.TPMCounters
		want  reason.Code // 0: accepted
		words string
	}{
		{"later in the same boot", counted(7, 2, 60_000), 0, ""},
		{"at the same moment", counted(7, 2, 50_000), 0, ""},
		{"after a reboot", counted(8, 0, 61_000), 0, "by enrolled; 1 reset(s) of the TPM since"},
		{"after two reboots", counted(9, 0, 61_000), 0, "by enrolled; 2 reset(s) of the TPM since"},
		{"after a restart", counted(7, 3, 61_000), 0, "by enrolled; 1 restart(s) of the TPM since"},
		// Virtual TPMs start the clock at zero on each boot.
		{"after a reboot, with a clock from zero", counted(8, 0, 1000), 0, ""},
		{"fewer resets", counted(6, 2, 90_000), reason.IdentityConflict, "7 resets to 6"},
		{"no resets: the TPM was cleared", counted(0, 0, 5), reason.IdentityConflict, "7 resets to 0"},
		{"fewer restarts in the same boot", counted(7, 1, 90_000), reason.IdentityConflict, "2 restarts to 1"},
		{"an earlier moment of the same boot", counted(7, 2, 49_999), reason.QuoteNotFresh, "50000 ms to 49999 ms"},
		{"after a resume, with an earlier clock", counted(7, 3, 49_999), reason.QuoteNotFresh, "50000 ms to 49999 ms"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := counting(t, counted(7, 2, 50_000), c.next)
			if c.want != 0 {
				wantCode(t, err, c.want)
				if !strings.Contains(err.Error(), c.words) {
					t.Errorf("%q does not contain %q", err, c.words)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if *r.Status.TPM != *c.next {
				t.Errorf("recorded %+v", r.Status.TPM)
			}
			if last := r.Status.History[len(r.Status.History)-1].Message; !strings.Contains(last, c.words) ||
				c.words == "" && strings.Contains(last, "restart") {
				t.Errorf("history has %q", last)
			}
		})
	}
}

func TestAttest_RecordsFromBeforeTheCounters(t *testing.T) {
	r, err := counting(t, nil, counted(3, 0, 1))
	if err != nil || *r.Status.TPM != *counted(3, 0, 1) {
		t.Errorf("%v, %+v", err, r)
	}
	// Evidence without a quote says nothing about the TPM.
	r, err = counting(t, counted(3, 0, 1), nil)
	if err != nil || *r.Status.TPM != *counted(3, 0, 1) {
		t.Errorf("%v, %+v", err, r)
	}
}

// A grant is how an administrator admits a TPM that was cleared for a new installation.
func TestAttest_AGrantAdmitsATPMThatWasCleared(t *testing.T) {
	until := metav1.NewTime(start.Add(time.Hour))
	granted := func(t *testing.T) *machine.Machine {
		return enrolled(t, "  reattest: {until: \""+until.Format(time.RFC3339)+"\"}\n")
	}
	for name, c := range map[string]struct {
		phase v1alpha1.Phase
		node  string // of the Machine
	}{
		"joined": {v1alpha1.PhaseJoined, ""}, "not joined": {v1alpha1.PhaseFetched, ""},
		"joined, but not on the record": {v1alpha1.PhaseFetched, "node1"},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := counting(t, counted(7, 0, 50), counted(1, 0, 5), func(a *record.Attestation, r *rec) {
				a.Machine, r.Status.Phase = granted(t), c.phase
				a.Machine.NodeRef = c.node
			})
			if err != nil {
				t.Fatal(err)
			}
			h := r.Status.History
			if *r.Status.TPM != *counted(1, 0, 5) || r.Status.GrantAttestations != 1 || h[len(h)-1].Event != "Warning" ||
				!strings.Contains(h[len(h)-1].Message, "7 resets to 1") || h[len(h)-2].Message != "by enrolled" {
				t.Errorf("got %+v", r.Status)
			}
			// The grant is used once for an attestation, not a second time for its counters.
			again := honest(t)
			again.Machine, again.TPM = granted(t), counted(2, 0, 6)
			next, err := record.Attest(r, again, start.Add(2*time.Minute))
			if err != nil || next.Status.GrantAttestations != 1 {
				t.Errorf("%v, %+v", err, next)
			}
		})
	}
}
