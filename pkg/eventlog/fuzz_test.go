// SPDX-License-Identifier: Apache-2.0

package eventlog_test

import (
	"slices"
	"testing"

	"github.com/google/go-eventlog/testdata"

	"github.com/mcs-attest/mcs-attest/pkg/eventlog"
	"github.com/mcs-attest/mcs-attest/pkg/eventlog/eventlogtest"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// FuzzParse searches for panics, for memory use beyond a few times the input, and for an accepted
// log that does not consist of exactly its events.
func FuzzParse(f *testing.F) {
	for _, name := range eventlogtest.Names(f) {
		f.Add(eventlogtest.Load(f, name).Log, eventlog.SHA256)
	}
	f.Add(eventlogtest.Load(f, eventlogtest.SecureBootUKI4Banks).Log, eventlog.SHA384)
	f.Add(testdata.GlinuxAlexEventLog, eventlog.SHA256)
	f.Add(testdata.HostGMESEventLog, eventlog.SHA256)
	f.Fuzz(func(t *testing.T, raw []byte, bank uint16) {
		before := slices.Clone(raw)
		log, err := eventlog.Parse(raw, bank)
		if !slices.Equal(before, raw) {
			t.Fatal("the input was changed")
		}
		if err != nil {
			if c := reason.From(err).Code; c != reason.EventLogMalformed && c != reason.PCRSelection {
				t.Fatalf("reason %v", c)
			}
			return
		}
		if len(log.Events) > eventlog.MaxEvents || len(raw) > eventlog.MaxSize {
			t.Fatal("beyond the bounds")
		}
		header, events := eventlogtest.Split(t, raw)
		if len(events) != len(log.Events) || !slices.Equal(eventlogtest.Join(header, events), raw) {
			t.Fatal("the log is not exactly its events")
		}
		replayed := log.Replay()
		want := eventlogtest.Forge(t, raw, bank, 0, 4, 7, 11)
		for pcr, v := range want {
			if !slices.Equal(v, replayed.Value(pcr)) {
				t.Fatalf("PCR %d replays to %x, expected %x", pcr, replayed.Value(pcr), v)
			}
		}
	})
}
