// SPDX-License-Identifier: Apache-2.0

package eventlog_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-eventlog/testdata"

	"github.com/mcs-attest/mcs-attest/pkg/eventlog"
	"github.com/mcs-attest/mcs-attest/pkg/eventlog/eventlogtest"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

func TestReplay_RealLogsGiveTheTPMsValues(t *testing.T) {
	banks := map[string]uint16{"sha256": eventlog.SHA256, "sha384": eventlog.SHA384, "sha512": eventlog.SHA512}
	compared := 0
	for _, name := range eventlogtest.Names(t) {
		c := eventlogtest.Load(t, name)
		for bank, id := range banks {
			if c.PCR(bank, 0) == nil {
				continue
			}
			log, err := eventlog.Parse(c.Log, id)
			if err != nil {
				t.Fatalf("%s, %s: %v", name, bank, err)
			}
			got := log.Replay()
			for pcr := range 16 {
				if pcr == 10 { // of IMA, from the running kernel
					continue
				}
				if want := c.PCR(bank, pcr); !bytes.Equal(got.Value(pcr), want) {
					t.Errorf("%s, %s: PCR %d replays to %x, the TPM has %x", name, bank, pcr, got.Value(pcr), want)
				}
				compared++
			}
		}
	}
	if compared < 11*15 {
		t.Errorf("only %d values were compared", compared)
	}
}

func TestReplay_DynamicPCRsBeginWithOnes(t *testing.T) {
	log, err := eventlog.Parse(eventlogtest.Load(t, eventlogtest.SeaBIOS).Log, eventlog.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	got := log.Replay()
	for pcr := range eventlog.NumPCRs {
		want := byte(0)
		if pcr >= 17 && pcr <= 22 {
			want = 0xFF
		}
		if got.Events(pcr) == 0 && !bytes.Equal(got.Value(pcr), bytes.Repeat([]byte{want}, 32)) {
			t.Errorf("PCR %d begins as %x", pcr, got.Value(pcr))
		}
	}
}

// Edits of the header: offsets in the first event.
const (
	atHeaderPCR  = 0
	atHeaderType = 4
	atSpec       = 32
	atAlgorithms = atSpec + 24
	atFirstAlg   = atAlgorithms + 4
)

func TestParse_RejectsMalformedLogs(t *testing.T) {
	good := eventlogtest.Load(t, eventlogtest.SecureBootUKI4Banks).Log
	_, events := eventlogtest.Split(t, good)
	edit := func(f func([]eventlogtest.Event) []eventlogtest.Event) func([]byte) []byte {
		return func(raw []byte) []byte { return eventlogtest.Edit(t, raw, f) }
	}
	put32 := func(at int, v uint32) func([]byte) []byte {
		return func(raw []byte) []byte { binary.LittleEndian.PutUint32(raw[at:], v); return raw }
	}
	put16 := func(at int, v uint16) func([]byte) []byte {
		return func(raw []byte) []byte { binary.LittleEndian.PutUint16(raw[at:], v); return raw }
	}
	locality := func(data string) eventlogtest.Event {
		return eventlogtest.New(events[0], 0, eventlog.NoAction, append([]byte("StartupLocality\x00"), data...))
	}
	firstEvent := atSpec + int(binary.LittleEndian.Uint32(good[28:]))
	cases := map[string]func([]byte) []byte{
		"an empty log":               func([]byte) []byte { return nil },
		"a log of one byte":          func([]byte) []byte { return []byte{0} },
		"a truncated header":         func(raw []byte) []byte { return raw[:40] },
		"a header in another PCR":    put32(atHeaderPCR, 1),
		"a header of another type":   put32(atHeaderType, 8),
		"a header that states 4 GiB": put32(28, 0xFFFFFFFF),
		"a header of the TPM 1.2 format": func(raw []byte) []byte {
			copy(raw[atSpec:], "Spec ID Event02")
			return raw
		},
		"a header with no algorithm":                  put32(atAlgorithms, 0),
		"a header with 9 algorithms":                  put32(atAlgorithms, 9),
		"a header with 2^31 algorithms":               put32(atAlgorithms, 1<<31),
		"a header with a wrong digest size":           put16(atFirstAlg+2, 32),
		"a header with an unknown algorithm":          put16(atFirstAlg, 0x4242),
		"a header that lists a bank twice":            put32(atFirstAlg, 0x0020000B),
		"a header without the bank":                   put32(atFirstAlg+4, 0x00200012),
		"a header whose vendor information overflows": func(raw []byte) []byte { raw[firstEvent-1] = 9; return raw },
		"an event in PCR 24":                          put32(firstEvent, 24),
		"an event in PCR 0xffffffff that extends":     put32(firstEvent, 0xFFFFFFFF),
		"an event with more digests than banks":       put32(firstEvent+8, 5),
		"an event with 2^32-1 digests":                put32(firstEvent+8, 0xFFFFFFFF),
		"an event with no digest": edit(func(e []eventlogtest.Event) []eventlogtest.Event {
			e[3].Digests = nil
			return e
		}),
		"an event without the bank's digest": edit(func(e []eventlogtest.Event) []eventlogtest.Event {
			e[3].Digests = slices.Delete(e[3].Digests, 1, 2)
			return e
		}),
		"an EV_NO_ACTION without the bank's digest": edit(func(e []eventlogtest.Event) []eventlogtest.Event {
			e[0] = locality("\x00")
			e[0].Digests = e[0].Digests[:1]
			return e
		}),
		"an event with the bank's digest twice": edit(func(e []eventlogtest.Event) []eventlogtest.Event {
			e[3].Digests[2] = e[3].Digests[1]
			return e
		}),
		"an event whose data is 4 GiB":     put32(len(good)-4-len(events[len(events)-1].Data), 0xFFFFFFFF),
		"one trailing byte":                func(raw []byte) []byte { return append(raw, 0) },
		"trailing zeros":                   func(raw []byte) []byte { return append(raw, make([]byte, 64)...) },
		"a last byte that is missing":      func(raw []byte) []byte { return raw[:len(raw)-1] },
		"more than 256 KiB":                func([]byte) []byte { return make([]byte, eventlog.MaxSize+1) },
		"more events than any machine has": edit(func(e []eventlogtest.Event) []eventlogtest.Event { return many(e) }),
		"StartupLocality 1": edit(func(e []eventlogtest.Event) []eventlogtest.Event {
			return slices.Insert(e, 0, locality("\x01"))
		}),
		"StartupLocality without a value": edit(func(e []eventlogtest.Event) []eventlogtest.Event {
			return slices.Insert(e, 0, locality(""))
		}),
		"StartupLocality with two values": edit(func(e []eventlogtest.Event) []eventlogtest.Event {
			return slices.Insert(e, 0, locality("\x03\x03"))
		}),
		"StartupLocality after an extension": edit(func(e []eventlogtest.Event) []eventlogtest.Event {
			return slices.Insert(e, 1, locality("\x03"))
		}),
		"StartupLocality twice": edit(func(e []eventlogtest.Event) []eventlogtest.Event {
			return slices.Insert(e, 0, locality("\x03"), locality("\x03"))
		}),
		"StartupLocality in another PCR": edit(func(e []eventlogtest.Event) []eventlogtest.Event {
			l := locality("\x03")
			l.PCR = 1
			return slices.Insert(e, 0, l)
		}),
	}
	if _, err := eventlog.Parse(good, eventlog.SHA256); err != nil {
		t.Fatalf("the log that the cases start from: %v", err)
	}
	for name, change := range cases {
		t.Run(name, func(t *testing.T) {
			raw := change(slices.Clone(good))
			_, err := eventlog.Parse(raw, eventlog.SHA256)
			if d := reason.From(err); d == nil || d.Code != reason.EventLogMalformed {
				t.Errorf("got %v", err)
			}
		})
	}
	t.Run("every log that is truncated within an event", func(t *testing.T) {
		ends := map[int]bool{}
		header, events := eventlogtest.Split(t, good)
		for i := range len(events) + 1 {
			ends[len(eventlogtest.Join(header, events[:i]))] = true
		}
		for n := range good {
			if _, err := eventlog.Parse(good[:n], eventlog.SHA256); (err == nil) != ends[n] {
				t.Errorf("%d bytes: %v", n, err)
			}
		}
	})
}

// The texts name the event, so that an administrator can find it in the log.
func TestParse_NamesWhatIsWrong(t *testing.T) {
	good := eventlogtest.Load(t, eventlogtest.SecureBootUKI4Banks).Log
	header, events := eventlogtest.Split(t, good)
	spec := header[atSpec:]
	withSpec := func(spec []byte) []byte {
		raw := binary.LittleEndian.AppendUint32(bytes.Clone(header[:atSpec-4]), uint32(len(spec)))
		return append(append(raw, spec...), good[len(header):]...)
	}
	put32 := func(at int, v uint32) []byte {
		raw := bytes.Clone(good)
		binary.LittleEndian.PutUint32(raw[at:], v)
		return raw
	}
	edit := func(f func([]eventlogtest.Event) []eventlogtest.Event) []byte { return eventlogtest.Edit(t, good, f) }
	for name, c := range map[string]struct {
		raw  []byte
		want string
	}{
		"an empty log":                  {nil, "the event log is empty"},
		"a log of one byte":             {good[:1], "event 0: the log ends within its header"},
		"a header in another PCR":       {put32(atHeaderPCR, 1), "event 0: not a crypto-agile log: the first event"},
		"a header that states 4 GiB":    {put32(28, 0xFFFFFFFF), "event 0: the log ends within its header"},
		"a specification of 15 bytes":   {withSpec(spec[:15]), `event 0: not a crypto-agile log: no "Spec ID Event03"`},
		"a specification of 27 bytes":   {withSpec(spec[:27]), `event 0: not a crypto-agile log: no "Spec ID Event03"`},
		"a specification of 28 bytes":   {withSpec(spec[:28]), "event 0: the list of digest algorithms is truncated"},
		"no size of vendor information": {withSpec(spec[:28+4*4]), "event 0: the list of digest algorithms is truncated"},
		"no algorithm":                  {put32(atAlgorithms, 0), "event 0: 0 digest algorithms"},
		"nine algorithms":               {put32(atAlgorithms, 9), "event 0: 9 digest algorithms"},
		"a wrong digest size": {put32(atFirstAlg, 0x0020<<16|0x0004),
			"event 0: digest algorithm 0x0004 with 32 bytes"},
		"an unknown algorithm":       {put32(atFirstAlg, 0x4242), "event 0: digest algorithm 0x4242 with 0 bytes"},
		"an unknown one of one byte": {put32(atFirstAlg, 1<<16|0x4242), "event 0: digest algorithm 0x4242 with 1 bytes"},
		"the first algorithm twice": {put32(atFirstAlg, 0x0020000B),
			"event 0: digest algorithm 0x000b is listed twice"},
		"no bank": {put32(atFirstAlg+4, 0x00200012), "event 0: the log has no sha256 bank"},
		"too much vendor information": {withSpec(append(bytes.Clone(spec), 7, 7)),
			"event 0: 2 bytes of vendor information, 0 stated"},
		"an event in PCR 24":              {put32(len(header), 24), "event 1: PCR 24 does not exist"},
		"more digests than banks":         {put32(len(header)+8, 5), "event 1: 5 digests, but the header lists 4 algorithms"},
		"a log that ends within a digest": {good[:len(header)+12+2+20+2+10], "event 1: the log ends within it"},
		"an EV_NO_ACTION in PCR 24": {edit(func(e []eventlogtest.Event) []eventlogtest.Event {
			return append(e, eventlogtest.New(e[0], 24, eventlog.NoAction, []byte("hello")))
		}), fmt.Sprintf("event %d: PCR 24 does not exist", len(events)+1)},
		"a digest of algorithm 0": {edit(func(e []eventlogtest.Event) []eventlogtest.Event {
			e[0].Digests[0] = eventlogtest.Digest{}
			return e
		}), "event 1: a digest of algorithm 0x0000, which the header does not list"},
		"StartupLocality after other PCRs": {edit(func(e []eventlogtest.Event) []eventlogtest.Event {
			return append(e, eventlogtest.New(e[0], 1, eventlog.IPL, nil),
				eventlogtest.New(e[0], 0, eventlog.NoAction, []byte("StartupLocality\x00\x03")))
		}), "StartupLocality after PCR 0 was extended"},
		"4097 events": {edit(func(e []eventlogtest.Event) []eventlogtest.Event { return many(e) }),
			"the event log has more than 4096 events"},
		"262145 bytes": {ofSize(t, good, 262145), "the event log has 262145 bytes; the limit is 262144"},
	} {
		if _, err := eventlog.Parse(c.raw, eventlog.SHA256); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
}

func TestParse_AcceptsEachLimit(t *testing.T) {
	good := eventlogtest.Load(t, eventlogtest.SecureBootUKI4Banks).Log
	header, events := eventlogtest.Split(t, good)
	all := binary.LittleEndian.AppendUint32(bytes.Clone(header[:atAlgorithms]), 8)
	binary.LittleEndian.PutUint32(all[28:], 28+8*4+1)
	for _, a := range []struct{ id, size uint16 }{
		{0x0004, 20}, {0x000B, 32}, {0x000C, 48}, {0x000D, 64}, {0x0012, 32}, {0x0027, 32}, {0x0028, 48}, {0x0029, 64},
	} {
		all = binary.LittleEndian.AppendUint16(binary.LittleEndian.AppendUint16(all, a.id), a.size)
	}
	all = append(append(all, 0), good[len(header):]...)
	most := eventlogtest.Edit(t, good, func(e []eventlogtest.Event) []eventlogtest.Event { return many(e)[:4096] })
	for name, c := range map[string]struct {
		raw    []byte
		events int
	}{
		"262144 bytes": {ofSize(t, good, 262144), len(events) + 1},
		"4096 events":  {most, 4096},
		"8 algorithms": {all, len(events)},
	} {
		log, err := eventlog.Parse(c.raw, eventlog.SHA256)
		if err != nil || len(log.Events) != c.events {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// ofSize returns a log of n bytes, whose last event has most of them.
func ofSize(t *testing.T, raw []byte, n int) []byte {
	t.Helper()
	_, events := eventlogtest.Split(t, raw)
	add := func(data int) []byte {
		return eventlogtest.Edit(t, raw, func(e []eventlogtest.Event) []eventlogtest.Event {
			return append(e, eventlogtest.New(events[0], 8, eventlog.IPL, make([]byte, data)))
		})
	}
	return add(n - len(add(0)))
}

// many returns a log of small events that is within the size limit, but has too many events.
func many(e []eventlogtest.Event) []eventlogtest.Event {
	one := eventlogtest.Event{PCR: 8, Type: eventlog.IPL, Digests: e[0].Digests[1:2]}
	return slices.Repeat([]eventlogtest.Event{one}, eventlog.MaxEvents+1)
}

func TestParse_AcceptsUnusualEvents(t *testing.T) {
	good := eventlogtest.Load(t, eventlogtest.SecureBootUKI).Log
	_, events := eventlogtest.Split(t, good)
	cases := map[string]struct {
		event eventlogtest.Event
		pcr   int
	}{
		"an unknown event type": {eventlogtest.New(events[0], 2, 0x8401, []byte("vendor")), 2},
		"an event without data": {eventlogtest.New(events[0], 6, 0x00000001, nil), 6},
		"an EV_NO_ACTION that has no PCR": {eventlogtest.New(events[0], 0xFFFFFFFF, eventlog.NoAction,
			[]byte("SP800-155 Event3")), -1},
		"an EV_NO_ACTION of unknown content": {eventlogtest.New(events[0], 0, eventlog.NoAction, []byte("hello")), 0},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			raw := eventlogtest.Edit(t, good, func(e []eventlogtest.Event) []eventlogtest.Event { return append(e, c.event) })
			log, err := eventlog.Parse(raw, eventlog.SHA256)
			if err != nil {
				t.Fatal(err)
			}
			last := log.Events[len(log.Events)-1]
			if last.PCR != c.pcr || last.Index != len(events)+1 || !bytes.Equal(last.Data, c.event.Data) {
				t.Errorf("got %+v", last)
			}
		})
	}
}

func TestReplay_StartupLocalityIsTheInitialValueOfPCR0(t *testing.T) {
	for _, name := range []string{"\x00", "\x03", "\x04"} {
		raw := eventlogtest.Edit(t, eventlogtest.Load(t, eventlogtest.SecureBootUKI).Log,
			func(e []eventlogtest.Event) []eventlogtest.Event {
				l := eventlogtest.New(e[0], 0, eventlog.NoAction, []byte("StartupLocality\x00"+name))
				return slices.Insert(e, 0, eventlogtest.New(e[0], 0, eventlog.NoAction, []byte("SP800-155 Event3")), l)
			})
		log, err := eventlog.Parse(raw, eventlog.SHA256)
		if err != nil {
			t.Fatal(err)
		}
		want := eventlogtest.Forge(t, raw, eventlog.SHA256, 0)[0]
		if got := log.Replay().Value(0); log.Locality != name[0] || !bytes.Equal(got, want) {
			t.Errorf("locality %d: PCR 0 is %x, expected %x", log.Locality, got, want)
		}
	}
}

// The log of Google's host-gmes machine begins with an H-CRTM and has no StartupLocality.
func TestReplay_AnHCRTMStartsPCR0At4(t *testing.T) {
	_, real := eventlogtest.Split(t, testdata.HostGMESEventLog)
	hcrtm := real[0]
	if hcrtm.Type != eventlog.HCRTM || hcrtm.PCR != 0 {
		t.Fatalf("the log begins with %s in PCR %d", eventlog.TypeName(hcrtm.Type), hcrtm.PCR)
	}
	start := append(make([]byte, 31), 4)
	at := slices.IndexFunc(hcrtm.Digests, func(d eventlogtest.Digest) bool { return d.Algorithm == eventlog.SHA256 })
	want := eventlog.Extend(eventlog.SHA256, start, hcrtm.Digests[at].Value)
	log, err := eventlog.Parse(testdata.HostGMESEventLog, eventlog.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	if got := log.Replay().Value(0); log.Locality != 4 || !bytes.Equal(got, want) {
		t.Errorf("locality %d, PCR 0 is %x, expected %x", log.Locality, got, want)
	}
	if err := byGoEventlog(testdata.HostGMESEventLog, map[int][]byte{0: want}); err != nil {
		t.Errorf("go-eventlog: %v", err)
	}

	measured := func(pcr uint32) func(eventlogtest.Event) eventlogtest.Event {
		return func(like eventlogtest.Event) eventlogtest.Event {
			return eventlogtest.New(like, pcr, eventlog.HCRTM, []byte("HCRTM"))
		}
	}
	locality3 := func(like eventlogtest.Event) eventlogtest.Event {
		return eventlogtest.New(like, 0, eventlog.NoAction, []byte("StartupLocality\x00\x03"))
	}
	for name, c := range map[string]struct {
		at       int
		events   []func(eventlogtest.Event) eventlogtest.Event
		locality byte
	}{
		"after StartupLocality 3":             {0, []func(eventlogtest.Event) eventlogtest.Event{locality3, measured(0)}, 4},
		"after another event of PCR 0":        {1, []func(eventlogtest.Event) eventlogtest.Event{measured(0)}, 0},
		"in another PCR":                      {0, []func(eventlogtest.Event) eventlogtest.Event{measured(1)}, 0},
		"in another PCR, and StartupLocality": {0, []func(eventlogtest.Event) eventlogtest.Event{measured(1), locality3}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			raw := eventlogtest.Edit(t, eventlogtest.Load(t, eventlogtest.SecureBootUKI).Log,
				func(e []eventlogtest.Event) []eventlogtest.Event {
					var add []eventlogtest.Event
					for _, f := range c.events {
						add = append(add, f(e[0]))
					}
					return slices.Insert(e, c.at, add...)
				})
			log, err := eventlog.Parse(raw, eventlog.SHA256)
			if err != nil {
				t.Fatal(err)
			}
			if log.Locality != c.locality {
				t.Errorf("locality %d, expected %d", log.Locality, c.locality)
			}
		})
	}
}

func TestTypeNames(t *testing.T) {
	for typ, want := range map[uint32]string{
		eventlog.Separator:            "EV_SEPARATOR",
		eventlog.EFIVariableAuthority: "EV_EFI_VARIABLE_AUTHORITY",
		0x00000013:                    "EV_POST_CODE2",
		0x8000000D:                    "EV_EFI_GPT_EVENT2",
		0x800000E4:                    "EV_EFI_SPDM_DEVICE_AUTHORITY",
		0x8401:                        "0x00008401",
	} {
		if got := eventlog.TypeName(typ); got != want {
			t.Errorf("0x%08x: %s", typ, got)
		}
	}
}

func ExampleParse() {
	raw := eventlogtest.Load(nil, eventlogtest.SecureBootUKI).Log
	log, err := eventlog.Parse(raw, eventlog.SHA256)
	if err != nil {
		fmt.Println(err)
		return
	}
	pcrs := log.Replay()
	fmt.Printf("%d events; PCR 4 has %d and is %x...\n", len(log.Events), pcrs.Events(4), pcrs.Value(4)[:4])
	fmt.Println(eventlog.TypeName(log.Events[3].Type))
	// Output:
	// 35 events; PCR 4 has 3 and is 34481c02...
	// EV_EFI_VARIABLE_DRIVER_CONFIG
}
