// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"testing"
)

func TestAuditLine_ReadsDenialsOnly(t *testing.T) {
	const denied = `{"time":"2026-03-01T12:00:00Z","level":"WARN","msg":"decision","log":"audit","event":"attest",` +
		`"outcome":"denied","correlation_id":"b871e0c8ece82eb2","source":"10.0.2.15","pool":"worker",` +
		`"reason":"EKNotEnrolled","temporary":true,"detail":"EKNotEnrolled: EK 48\u001b[2J","ek":"48"}`
	d, ok := auditLine([]byte(denied))
	if !ok || d.Reason != "EKNotEnrolled" || !d.Temporary || d.EKSHA256 != "48" || d.Source != "10.0.2.15" ||
		len(d.CorrelationIDs) != 1 || d.CorrelationIDs[0] != "b871e0c8ece82eb2" || d.Detail != "EKNotEnrolled: EK 48?[2J" {
		t.Errorf("got %+v", d)
	}
	for _, line := range []string{
		"", "serving", `{"log":"audit","event":"attest","outcome":"allowed","machine":"default/m1"}`,
		`{"reason":"EKNotEnrolled","event":"attest"}`, `{"log":"audit","reason":7}`,
	} {
		if d, ok := auditLine([]byte(line)); ok {
			t.Errorf("%q is %+v", line, d)
		}
	}
}
