// SPDX-License-Identifier: Apache-2.0

package measuredboot_test

import (
	"testing"

	"github.com/google/go-eventlog/testdata"

	"github.com/mcs-attest/mcs-attest/pkg/eventlog"
	"github.com/mcs-attest/mcs-attest/pkg/eventlog/eventlogtest"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot"
)

// BenchmarkAppraise measures profile secure-boot on a real log with Secure Boot on: RHEL 8 on GCE
// from go-eventlog's test data (82 events, 34 KB, of which the variables of PCR 7 are 19 KB).
// "go-eventlog" and "go-attestation" measure the comparable part on the same log.
func BenchmarkAppraise(b *testing.B) {
	raw := testdata.Rhel8EventLog
	quoted := eventlogtest.Forge(b, raw, eventlog.SHA256, secureBootPCRs...)
	honest := boot{measuredboot.SecureBoot, eventlog.SHA256, quoted, raw, nil}
	for name, f := range map[string]func() error{
		"ours":           func() error { _, err := honest.appraise(); return err },
		"go-attestation": func() error { _, err := byGoAttestation(honest); return err },
		"go-eventlog":    func() error { _, err := byGoEventlog(honest); return err },
	} {
		b.Run("82-events/"+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := f(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
