// SPDX-License-Identifier: Apache-2.0

package awssts_test

import (
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/testvm/cloud/aws"
)

// Everything except the request. The verifier has no signature to check.
func BenchmarkDocumentAndAnswer(b *testing.B) {
	w := newSetup(b)
	raw, i := w.own(), w.instance
	w.verifier.Caller = canned{200, "text/xml",
		string(aws.CallerIdentity("arn:aws:sts::123456789012:assumed-role/demo-worker-role/"+i.ID, i.RoleID+":"+i.ID,
			i.Account)), nil}
	b.ReportAllocs()
	for b.Loop() {
		claim, err := w.verifier.Verify(b.Context(), evidence.Document{Raw: raw}, w.binding, now)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := claim.Confirm(b.Context(), evidence.Candidate{ProviderID: i.ProviderID()}); err != nil {
			b.Fatal(err)
		}
	}
}
