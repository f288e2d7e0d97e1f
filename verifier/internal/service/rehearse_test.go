// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/appraisal"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/policy"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
	"github.com/mcs-attest/mcs-attest/verifier/internal/rehearsal"
	"github.com/mcs-attest/mcs-attest/verifier/internal/view"
)

// claimed is a store in which Machines have components of identities.
type claimed struct {
	oneRecord
	holders map[string]string
	err     error
}

func (c *claimed) Holder(_ context.Context, component string) (string, error) {
	return c.holders[component], c.err
}

// An attestation makes more checks after its evidence was accepted. A rehearsal reports them, too.
func TestRehearse_ChecksWhatFollowsTheAppraisal(t *testing.T) {
	for name, c := range map[string]struct {
		holders  map[string]string
		storeErr error
		mirror   *machine.Machine
		mode     v1alpha1.Mode
		names    []string
		copied   bool
		unread   bool   // a file, in which another Machine may be
		known    string // another Machine
		want     reason.Code
	}{
		"the Machine's own identity": {holders: map[string]string{"ek:e": "u1", "instance:i": "u1"}, names: []string{"w"}},
		"that of its other object": {holders: map[string]string{"ek:e": "u2"}, mirror: &machine.Machine{UID: "u2"},
			names: []string{"w"}},
		"another Machine's EK": {holders: map[string]string{"ek:e": "u2"}, known: "u2", want: reason.IdentityConflict},
		"another Machine's instance": {holders: map[string]string{"ek:e": "u1", "instance:i": "u2"}, known: "u2",
			want: reason.IdentityConflict},
		"that of a Machine beside a file that cannot be read": {holders: map[string]string{"ek:e": "u2"}, known: "u2",
			unread: true, want: reason.IdentityConflict},
		"that of a deleted Machine": {holders: map[string]string{"ek:e": "u2"}, names: []string{"w"}},
		"that of a Machine in a file that cannot be read, or deleted": {holders: map[string]string{"ek:e": "u2"},
			unread: true, want: reason.StoreUnavailable},
		"a store that does not read": {storeErr: reason.Deny(reason.StoreUnavailable, "lost"), want: reason.StoreUnavailable},
		"an error without a reason":  {storeErr: context.Canceled, want: reason.Internal},
		"a Machine without a name":   {want: reason.NodeNameUnknown},
		"an audit of such a Machine": {mode: v1alpha1.ModeAudit},
		"a document without a key":   {names: []string{"w"}, copied: true, want: reason.EvidenceMissing},
	} {
		t.Run(name, func(t *testing.T) {
			x := newCertifying(t)
			rec := x.records.rec
			rec.Status.Identity = v1alpha1.RecordedIdentity{EKSHA256: "e", InstanceID: "i"}
			store := &claimed{oneRecord{rec: rec}, c.holders, c.storeErr}
			mode := c.mode
			if mode == "" {
				mode = v1alpha1.ModeEnforce
			}
			set, err := policy.Compile(v1alpha1.AttestationPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p"},
				Spec: v1alpha1.AttestationPolicySpec{Pools: []string{"worker"}, Mode: mode,
					Evidence: []v1alpha1.EvidenceAlternative{{All: []string{"tpm2"}}}}})
			if err != nil {
				t.Fatal(err)
			}
			x.Records, x.View = store, func() *view.View {
				return &view.View{Policies: set, Complete: !c.unread, Machines: knowing{uid: c.known}}
			}
			x.names, x.NodeCertificate = c.names, mcsattestv1.NodeCertificate_NODE_CERTIFICATE_REQUIRED
			m := &machine.Machine{UID: "u1", Mirror: c.mirror}
			end, err := recorder{x.Service}.Rehearse(t.Context(), rehearsal.Result{Machine: m, TicketSHA256: "h",
				Pool: "worker", Proven: true, Verdict: &appraisal.Verdict{Machine: m, Replayable: c.copied,
					Identity: v1alpha1.RecordedIdentity{EKSHA256: "e", InstanceID: "i"}}})
			if err != nil {
				if got := reason.From(err).Code; got != c.want || c.storeErr == nil && !c.unread || store.writes != 0 {
					t.Errorf("%v, %d writes", err, store.writes)
				}
				return
			}
			want := ""
			if c.want != 0 {
				want = c.want.String()
			}
			if end.Reason != want || end.Passed != (want == "") || store.writes != 1 || c.storeErr != nil {
				t.Errorf("%+v, %d writes", end, store.writes)
			}
		})
	}
}
