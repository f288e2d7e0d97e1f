// SPDX-License-Identifier: Apache-2.0

package eventlog_test

import (
	"bytes"
	"encoding/binary"
	"runtime"
	"slices"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/eventlog"
	"github.com/mcs-attest/mcs-attest/pkg/eventlog/eventlogtest"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/transcript"
)

// allocated returns how many bytes f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func TestAttack_T29_FalseLengthsAllocateNothing(t *testing.T) {
	good := eventlogtest.Load(t, eventlogtest.SecureBootUKI).Log
	if n := allocated(func() { _, _ = eventlog.Parse(good, eventlog.SHA256) }); n > 3*uint64(len(good)) {
		t.Fatalf("a valid log of %d bytes allocates %d", len(good), n)
	}
	header, _ := eventlogtest.Split(t, good)
	huge := binary.LittleEndian.AppendUint32(nil, 0xFFFFFFFF)
	for name, raw := range map[string][]byte{
		"a header of 4 GiB":              slices.Concat(header[:28], huge, header[32:]),
		"4 billion algorithms":           slices.Concat(header[:56], huge, header[60:]),
		"4 billion digests in one event": slices.Concat(header, make([]byte, 8), huge, good[len(header)+12:]),
		"4 GiB of data in one event": slices.Concat(header, good[len(header):len(header)+12+34], huge,
			good[len(header)+12+34+4:]),
	} {
		var err error
		n := allocated(func() { _, err = eventlog.Parse(raw, eventlog.SHA256) })
		if d := reason.From(err); d == nil || d.Code != reason.EventLogMalformed {
			t.Errorf("%s: %v", name, err)
		}
		if n > 64<<10 {
			t.Errorf("%s: %d bytes allocated", name, n)
		}
	}
}

func TestAttack_T29_ManySmallEventsNeedLittleMemory(t *testing.T) {
	raw := eventlogtest.Edit(t, eventlogtest.Load(t, eventlogtest.SecureBootUKI).Log,
		func(e []eventlogtest.Event) []eventlogtest.Event {
			one := eventlogtest.Event{PCR: 8, Type: eventlog.IPL, Digests: e[0].Digests}
			return slices.Repeat([]eventlogtest.Event{one}, eventlog.MaxEvents)
		})
	var err error
	n := allocated(func() { _, err = eventlog.Parse(raw, eventlog.SHA256) })
	if err != nil {
		t.Fatal(err)
	}
	if n > 8*uint64(len(raw)) {
		t.Errorf("%d bytes in, %d allocated", len(raw), n)
	}
}

func TestAttack_T28_TheDigestsOfAnotherBankAreNeverUsed(t *testing.T) {
	c := eventlogtest.Load(t, eventlogtest.SecureBootUKI4Banks)
	honest, err := eventlog.Parse(c.Log, eventlog.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	forged := eventlogtest.Edit(t, c.Log, func(events []eventlogtest.Event) []eventlogtest.Event {
		for i := range events {
			for j := range events[i].Digests {
				if d := &events[i].Digests[j]; d.Algorithm != eventlog.SHA256 {
					d.Value = make([]byte, len(d.Value))
				}
			}
		}
		return events
	})
	log, err := eventlog.Parse(forged, eventlog.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	if *log.Replay() != *honest.Replay() {
		t.Error("another bank's digests changed the replay")
	}
	other, err := eventlog.Parse(forged, eventlog.SHA384)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(other.Replay().Value(7), c.PCR("sha384", 7)) {
		t.Error("a bank that replays made another bank pass")
	}
}

func TestAttack_T30_TheSHA1BankIsNotReplayed(t *testing.T) {
	raw := eventlogtest.Load(t, eventlogtest.SecureBootUKI4Banks).Log
	if _, err := eventlog.Parse(raw, eventlog.SHA256); err != nil {
		t.Fatal(err)
	}
	for _, bank := range []uint16{0x0004, 0x0012, 0x0000, 0x0010} {
		if d := reason.From(second(eventlog.Parse(raw, bank))); d == nil || d.Code != reason.PCRSelection {
			t.Errorf("bank %s: %v", transcript.BankName(bank), d)
		}
	}
}

func TestAttack_T31_ALogOfAnotherStartupLocalityReplaysToAnotherPCR0(t *testing.T) {
	c := eventlogtest.Load(t, eventlogtest.SecureBootUKI)
	forged := eventlogtest.Edit(t, c.Log, func(e []eventlogtest.Event) []eventlogtest.Event {
		return slices.Insert(e, 0, eventlogtest.New(e[0], 0, eventlog.NoAction, []byte("StartupLocality\x00\x03")))
	})
	honest, err := eventlog.Parse(c.Log, eventlog.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(honest.Replay().Value(0), c.PCR("sha256", 0)) {
		t.Fatal("the valid log does not replay")
	}
	log, err := eventlog.Parse(forged, eventlog.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(log.Replay().Value(0), c.PCR("sha256", 0)) {
		t.Error("the locality made no difference")
	}
}

func second[T any](_ T, err error) error { return err }
