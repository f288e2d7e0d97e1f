// SPDX-License-Identifier: Apache-2.0

package appraisal_test

import (
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

func TestStage_DefaultAcceptsOnlyTheInitramfs(t *testing.T) {
	for _, c := range []struct {
		name   string
		claims string
		policy v1alpha1.Stage
		want   reason.Code // 0: accepted
		stage  string      // in the summary of the evidence
	}{
		{name: "an agent without the claim", claims: `{}`},
		{name: "the initramfs", claims: `{"stage":"Initramfs"}`},
		{name: "the initramfs, where the real root is accepted", claims: `{"stage":"Initramfs"}`,
			policy: v1alpha1.StageRealRoot},
		{name: "the real root", claims: `{"stage":"RealRoot"}`, want: reason.EvidenceUnacceptable},
		{name: "the real root, by name", claims: `{"stage":"RealRoot"}`, policy: v1alpha1.StageInitramfs,
			want: reason.EvidenceUnacceptable},
		{name: "the real root, where it is accepted", claims: `{"stage":"RealRoot"}`, policy: v1alpha1.StageRealRoot,
			stage: "RealRoot"},
		{name: "an unknown stage", claims: `{"stage":"Kubelet"}`, policy: v1alpha1.StageRealRoot, want: reason.Malformed},
		{name: "no text", claims: `{"stage":2}`, policy: v1alpha1.StageRealRoot, want: reason.Malformed},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr := newTrial(evidence.GCPIdentity)
			tr.claims, tr.spec.Stage = c.claims, c.policy
			if c.want == 0 {
				if got := tr.passes(t, "a").Evidence[0].Summary[v1alpha1.SummaryStage]; got != c.stage {
					t.Errorf("the record has the stage %q, not %q", got, c.stage)
				}
				return
			}
			m := tr.refused(t, c.want)
			if proven := c.want == reason.EvidenceUnacceptable; (m != nil) != proven {
				t.Errorf("the denial is noted at Machine %v", m)
			}
		})
	}
}
