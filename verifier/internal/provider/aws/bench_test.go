// SPDX-License-Identifier: Apache-2.0

package aws_test

import "testing"

// The three questions over HTTPS to the emulator on this machine, without any of
// the evidence's own signatures: what a call costs here, not at AWS.
func BenchmarkCalls(b *testing.B) {
	w := newFixture(b)
	for name, ask := range map[string]func() error{
		"DescribeInstances": func() error {
			_, err := w.provider.Describer().Describe(b.Context(), region, w.machine.ID)
			return err
		},
		"GetInstanceTpmEkPub, kept": func() error {
			_, err := w.endorse(w.machine.ProviderID(), endorsementKeys()[0])
			return err
		},
		"GetCallerIdentity": func() error { _, err := w.sts(w.machine); return err },
	} {
		b.Run(name, func(b *testing.B) {
			before, n := w.cloud.Calls(""), 0
			for b.Loop() {
				n++
				if err := ask(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(1000*float64(w.cloud.Calls("")-before)/float64(n), "calls/1000")
		})
	}
}
