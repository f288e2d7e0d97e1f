// SPDX-License-Identifier: Apache-2.0

package measuredboot_test

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"

	"github.com/google/go-eventlog/testdata"

	"github.com/mcs-attest/mcs-attest/pkg/eventlog"
	"github.com/mcs-attest/mcs-attest/pkg/eventlog/eventlogtest"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// FuzzAppraise gives the attacker full control: the quote always agrees with the log. Everything
// that is accepted must still prove that Secure Boot was used.
func FuzzAppraise(f *testing.F) {
	for _, name := range eventlogtest.Names(f) {
		f.Add(eventlogtest.Load(f, name).Log)
	}
	f.Add(testdata.Rhel8EventLog)
	refs := []measuredboot.ReferenceValues{references(f, eventlogtest.SecureBootUKI), {}}
	off := []byte("S\x00e\x00c\x00u\x00r\x00e\x00B\x00o\x00o\x00t\x00\x00")
	f.Fuzz(func(t *testing.T, raw []byte) {
		log, err := eventlog.Parse(raw, eventlog.SHA256)
		if err != nil {
			return
		}
		replayed := log.Replay()
		quoted := map[int][]byte{}
		for _, i := range secureBootPCRs {
			quoted[i] = bytes.Clone(replayed.Value(i))
		}
		r, err := measuredboot.Appraise(measuredboot.SecureBoot, eventlog.SHA256, quoted, raw, refs)
		if err != nil {
			switch c := reason.From(err).Code; c {
			case reason.MeasuredBoot, reason.PCRCapped:
			default:
				t.Fatalf("reason %v of a log that replays", c)
			}
			return
		}
		if len(r.Authorities) == 0 || len(r.Applications) == 0 {
			t.Fatalf("accepted: %+v", r)
		}
		for _, e := range log.Events {
			if e.PCR == 7 && e.Extends() && bytes.Contains(e.Data, off) &&
				bytes.Equal(e.Digest, eventlog.Hash(eventlog.SHA256, e.Data)) && len(e.Data) == 32+21 {
				t.Fatal("accepted with SecureBoot at 00")
			}
		}
		for _, i := range []int{0, 7} {
			quoted[i][5] ^= 4
			if _, err := measuredboot.Appraise(measuredboot.SecureBoot, eventlog.SHA256, quoted, raw, refs); err == nil {
				t.Fatalf("PCR %d made no difference", i)
			}
			quoted[i][5] ^= 4
		}
	})
}

// FuzzRelease gives the attacker full control of PCRs 4, 8, 9 and 14. A log is accepted only if each of
// its digests there is one of the document.
func FuzzRelease(f *testing.F) {
	f.Add(eventlogtest.Load(f, eventlogtest.ShimGRUB).Log)
	refs := references(f, eventlogtest.ShimGRUB)
	known := map[string]bool{}
	for _, list := range [][]measuredboot.Component{refs.Applications, refs.Files, refs.Loads, refs.MOK} {
		for _, c := range list {
			known[string(c.SHA256)] = true
		}
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		log, err := eventlog.Parse(raw, eventlog.SHA256)
		if err != nil {
			return
		}
		replayed := log.Replay()
		quoted := map[int][]byte{}
		for _, i := range measuredboot.Release.PCRs() {
			quoted[i] = bytes.Clone(replayed.Value(i))
		}
		if _, err := measuredboot.Appraise(measuredboot.Release, eventlog.SHA256, quoted, raw,
			[]measuredboot.ReferenceValues{refs}); err != nil {
			return
		}
		for _, e := range log.Events {
			if (e.PCR == 9 || e.PCR == 14) && e.Extends() && !known[string(e.Digest)] {
				t.Fatalf("accepted event %d with an unknown digest", e.Index)
			}
		}
	})
}

// FuzzReferenceValues parses documents.
func FuzzReferenceValues(f *testing.F) {
	raw, err := os.ReadFile("testdata/ovmf-secureboot-uki.json")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Fuzz(func(t *testing.T, raw []byte) {
		var r measuredboot.ReferenceValues
		if json.Unmarshal(raw, &r) != nil || r.Validate() != nil {
			return
		}
		again, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		var s measuredboot.ReferenceValues
		if err := json.Unmarshal(again, &s); err != nil || s.Validate() != nil {
			t.Fatalf("written and read again: %v, %v", err, s.Validate())
		}
	})
}
