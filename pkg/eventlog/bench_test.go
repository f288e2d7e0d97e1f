// SPDX-License-Identifier: Apache-2.0

package eventlog_test

import (
	"crypto"
	"fmt"
	"testing"

	"github.com/google/go-attestation/attest"
	"github.com/google/go-eventlog/register"
	"github.com/google/go-eventlog/tcg"
	"github.com/google/go-eventlog/testdata"

	"github.com/mcs-attest/mcs-attest/pkg/eventlog"
)

// BenchmarkParseAndReplay reads two real logs from go-eventlog's test data: RHEL 8 on a GCE
// shielded VM with Secure Boot (82 events, 34 KB), and Ubuntu 24.04 on Intel TDX (166 events, 60
// KB). "hashing" is the minimum: one SHA-256 of 64 bytes per event.
func BenchmarkParseAndReplay(b *testing.B) {
	for _, raw := range [][]byte{testdata.Rhel8EventLog, testdata.Ubuntu2404IntelTdxA4HighGpu8GEventLog} {
		log, err := eventlog.Parse(raw, eventlog.SHA256)
		if err != nil {
			b.Fatal(err)
		}
		n := len(log.Events)
		replayed := log.Replay()
		var quoted []attest.PCR
		var registers []register.MR
		for i := range 16 {
			quoted = append(quoted, attest.PCR{Index: i, Digest: replayed.Value(i), DigestAlg: crypto.SHA256})
			registers = append(registers, register.PCR{Index: i, Digest: replayed.Value(i), DigestAlg: crypto.SHA256})
		}
		run := func(who string, f func() error) {
			b.Run(fmt.Sprintf("%d-events/%s", n, who), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if err := f(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
		run("hashing", func() error {
			buf := make([]byte, 64)
			for range n {
				copy(buf, eventlog.Hash(eventlog.SHA256, buf))
			}
			return nil
		})
		run("ours", func() error {
			log, err := eventlog.Parse(raw, eventlog.SHA256)
			if err == nil {
				log.Replay()
			}
			return err
		})
		run("go-attestation", func() error {
			log, err := attest.ParseEventLog(raw)
			if err == nil {
				_, err = log.Verify(quoted)
			}
			return err
		})
		run("go-eventlog", func() error {
			_, err := tcg.ParseAndReplay(raw, registers, tcg.ParseOpts{})
			return err
		})
	}
}
