// SPDX-License-Identifier: Apache-2.0

package measuredboot

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"regexp"
	"slices"
	"unicode/utf16"

	"github.com/mcs-attest/mcs-attest/pkg/eventlog"
)

// Firmware is what one version of a model's firmware measures: its code (PCR 0), its settings (PCR 1), option ROMs
// and their settings (PCRs 2 and 3), and the PCRs 5 and 6. An administrator accepts it as one set. A boot must match
// all of one set, so values of two sets are never combined.
//
// Some events differ between machines with the same firmware, or between two boots of one machine: boot
// options, partition tables, and the attempts to leave the firmware. They are not in a set; see [perMachine].
type Firmware struct {
	// Locality is the locality at which the platform starts the TPM: 0, 3 or 4. The quote confirms it. Software
	// that resets the TPM later cannot choose 3 or 4.
	Locality byte `json:"locality,omitempty"`
	// Events are the other events of these PCRs. Their order counts within a PCR.
	Events []FirmwareEvent `json:"events"`
}

// FirmwareEvent is one measurement of the firmware.
type FirmwareEvent struct {
	PCR int `json:"pcr"`
	// Event describes the event for the administrator who reviews the set. It is text from a log.
	Event   string `json:"event,omitempty"`
	Digests `json:",inline"`
	// AnyDigest accepts each digest at this position. It is for settings that differ between machines, such as a
	// table with a serial number. Only PCRs 1, 3, 5 and 6 may have it, because the others measure code.
	AnyDigest bool `json:"anyDigest,omitempty"`
}

var (
	firmwarePCRs = []int{0, 1, 2, 3, 5, 6}
	settingsPCRs = []int{1, 3, 5, 6} // without code
)

// firmware requires that PCRs 0-3, 5 and 6 match one accepted set as a whole.
func firmware(b *boot) *Finding {
	if len(b.firmware) == 0 {
		return onPCR(0, "a firmware set of the reference values", "no firmware set")
	}
	seen := b.firmwareEvents()
	var nearest *Finding
	most := -1
	for _, r := range b.firmware {
		equal, f := r.Firmware.compare(b, seen)
		if f == nil {
			b.result.Firmware = r.Metadata.Name
			return nil
		}
		if equal > most {
			most, nearest = equal, f
			nearest.Expected += " of the firmware set " + r.Metadata.Name
		}
	}
	if n := len(b.firmware); n > 1 {
		nearest.Expected += fmt.Sprintf(" (the nearest of %d)", n)
	}
	return nearest
}

// firmwareEvents returns the events that a set lists, in the order of the log.
func (b *boot) firmwareEvents() []*eventlog.Event {
	var events []*eventlog.Event
	options := map[string]bool{}
	for i := range b.log.Events {
		e := &b.log.Events[i]
		if e.Extends() && slices.Contains(firmwarePCRs, e.PCR) && !perMachine(b.bank, e, options) {
			events = append(events, e)
		}
	}
	return events
}

// compare returns how many events are those of the set, and the first difference.
func (f *Firmware) compare(b *boot, seen []*eventlog.Event) (equal int, first *Finding) {
	if b.log.Locality != f.Locality {
		first = onPCR(0, fmt.Sprintf("a start of the TPM at locality %d", f.Locality),
			fmt.Sprint("locality ", b.log.Locality))
	}
	want := map[int][]FirmwareEvent{}
	for _, e := range f.Events {
		want[e.PCR] = append(want[e.PCR], e)
	}
	for _, e := range seen {
		next := want[e.PCR]
		if len(next) == 0 {
			first = cmp.Or(first, onEvent(e, "no such event", hexValue(e.Digest)))
			continue
		}
		want[e.PCR] = next[1:]
		if next[0].AnyDigest || next[0].is(b.bank, e.Digest) {
			equal++
			continue
		}
		first = cmp.Or(first, onEvent(e, next[0].describe(b.bank), hexValue(e.Digest)))
	}
	for _, pcr := range firmwarePCRs {
		if len(want[pcr]) > 0 {
			first = cmp.Or(first, onPCR(pcr, want[pcr][0].describe(b.bank), "no more events"))
		}
	}
	return equal, first
}

func (e FirmwareEvent) describe(bank uint16) string {
	text := "an event"
	if e.Event != "" {
		text = quoted(e.Event)
	}
	if e.AnyDigest {
		return text + " with any digest"
	}
	return text + " with " + hexValue(e.In(bank))
}

// perMachine reports whether an event is one that honestly differs between machines with the same firmware. The
// digest must be that of the data, and the data must be
//
//   - in PCR 1, the variable BootOrder or a boot option, each once. Firmware measures the variable, or only its value.
//   - in PCR 5, a partition table, or a constant text about ExitBootServices.
//
// So a false claim cannot hide a measurement of the set: the set would miss it. PCRs 4, 8 and 9 show what was booted.
func perMachine(bank uint16, e *eventlog.Event, options map[string]bool) bool {
	measured := func(data []byte) bool { return bytes.Equal(eventlog.Hash(bank, data), e.Digest) }
	switch e.PCR {
	case 1:
		v, ok := parseVariable(e.Data)
		if !ok || v.vendor != globalVariable || options[v.name] || !measured(e.Data) && !measured(v.data) {
			return false
		}
		options[v.name] = v.name == "BootOrder" && len(v.data)%2 == 0 ||
			bootOption.MatchString(v.name) && isLoadOption(v.data)
		return options[v.name]
	case 5:
		return bytes.HasPrefix(e.Data, []byte("EFI PART")) && measured(e.Data) || slices.ContainsFunc(exitBootServices,
			func(text string) bool { return measured([]byte(text)) })
	}
	return false
}

var bootOption = regexp.MustCompile(`^Boot[0-9A-F]{4}$`)

// exitBootServices are measured into PCR 5 for each attempt to leave the firmware (Firmware Profile 1.05, 10.4.4).
var exitBootServices = []string{
	"Exit Boot Services Invocation",
	"Exit Boot Services Returned with Failure",
	"Exit Boot Services Returned with Success",
}

// isLoadOption reports whether data is an EFI_LOAD_OPTION (UEFI 2.10, 3.1.3): attributes, the length of the device
// paths, a description that ends with a NUL, and complete device paths.
func isLoadOption(data []byte) bool {
	const fixed = 4 + 2
	if len(data) < fixed {
		return false
	}
	paths := int(binary.LittleEndian.Uint16(data[4:]))
	rest := data[fixed:]
	for {
		if len(rest) < 2 {
			return false
		}
		c := binary.LittleEndian.Uint16(rest)
		rest = rest[2:]
		if c == 0 {
			break
		}
	}
	if paths > len(rest) {
		return false
	}
	var last byte
	for rest = rest[:paths]; len(rest) > 0; {
		if len(rest) < 4 {
			return false
		}
		n := int(binary.LittleEndian.Uint16(rest[2:]))
		if n < 4 || n > len(rest) {
			return false
		}
		last, rest = rest[0], rest[n:]
	}
	return last == 0x7F // the end of a device path
}

// FromFirmwareLog computes the document of the firmware that wrote a log, for an administrator to review and accept.
// The log must explain quoted, the values by bank that a quote proves. If quoted is nil, the log is trusted, and the
// document has each bank of the log.
func FromFirmwareLog(name string, rawLog []byte, quoted map[uint16]map[int][]byte) (*ReferenceValues, error) {
	r := &ReferenceValues{APIVersion: APIVersion, Kind: Kind, Metadata: Metadata{Name: name}, Firmware: &Firmware{}}
	var unreadable error
	for _, bank := range []uint16{eventlog.SHA256, eventlog.SHA384} {
		values, ok := quoted[bank]
		if quoted != nil && !ok {
			continue
		}
		for pcr := range 8 {
			if _, ok := values[pcr]; quoted != nil && !ok {
				return nil, fmt.Errorf("the quote does not have PCR %d: use evidence of the profile %s, %s or %s", pcr,
					SecureBoot, Release, Strict)
			}
		}
		log, err := eventlog.Parse(rawLog, bank)
		if err != nil {
			unreadable = cmp.Or(unreadable, err)
			continue
		}
		if err := r.Firmware.add(bank, values, log); err != nil {
			return nil, err
		}
	}
	if len(r.Firmware.Events) == 0 {
		return nil, cmp.Or(unreadable, fmt.Errorf("the evidence has no quote of bank sha256 or sha384"))
	}
	return r, r.Validate()
}

// add adds the digests of one bank.
func (f *Firmware) add(bank uint16, quoted map[int][]byte, log *eventlog.Log) error {
	if quoted == nil {
		quoted = map[int][]byte{}
		replayed := log.Replay()
		for pcr := range 8 {
			quoted[pcr] = replayed.Value(pcr)
		}
	}
	b := &boot{bank: bank, quoted: quoted, log: log}
	for _, c := range []check{(*boot).replay, firmwareMeasured, separators} {
		if finding := c(b); finding != nil {
			return finding
		}
	}
	events := b.firmwareEvents()
	if f.Events == nil {
		f.Locality, f.Events = log.Locality, make([]FirmwareEvent, len(events))
	}
	if len(events) != len(f.Events) {
		return fmt.Errorf("the log has %d events of the firmware in one bank and %d in another", len(f.Events), len(events))
	}
	for i, e := range events {
		f.Events[i].PCR, f.Events[i].Event = e.PCR, eventText(e)
		switch bank {
		case eventlog.SHA256:
			f.Events[i].SHA256 = e.Digest
		case eventlog.SHA384:
			f.Events[i].SHA384 = e.Digest
		}
	}
	return nil
}

// eventText returns the type of an event, and its data if that is a variable or a text.
func eventText(e *eventlog.Event) string {
	name := eventlog.TypeName(e.Type)
	if v, ok := parseVariable(e.Data); ok {
		return name + " " + v.name
	}
	text := bytes.TrimRight(e.Data, "\x00")
	if len(e.Data)%2 == 0 && len(text) > 1 && text[1] == 0 {
		wide := make([]uint16, len(e.Data)/2)
		for i := range wide {
			wide[i] = binary.LittleEndian.Uint16(e.Data[2*i:])
		}
		text = bytes.TrimRight([]byte(string(utf16.Decode(wide))), "\x00")
	}
	if len(text) == 0 || len(text) > longestName ||
		bytes.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' }) {
		return name
	}
	return name + " " + string(text)
}

// validateFirmware reports a set that is incomplete or too permissive, and a document that has more than the set.
func (r *ReferenceValues) validateFirmware() error {
	f := r.Firmware
	if f == nil {
		return nil
	}
	if r.Stub != "" || len(r.PCR11)+len(r.Sections)+len(r.PCR12)+len(r.PCR13)+len(r.Applications)+len(r.Files)+
		len(r.Loads)+len(r.Initrd.SHA256)+len(r.Initrd.SHA384)+len(r.Commands)+len(r.CommandLines)+len(r.MOK) > 0 {
		return fmt.Errorf("firmware: the document also has values of an image; write two documents")
	}
	if f.Locality != 0 && f.Locality != 3 && f.Locality != 4 {
		return fmt.Errorf("firmware.locality: %d is not 0, 3 or 4", f.Locality)
	}
	measured := map[int]bool{}
	for i, e := range f.Events {
		switch {
		case !slices.Contains(firmwarePCRs, e.PCR):
			return fmt.Errorf("firmware.events[%d].pcr: %d is not one of %v", i, e.PCR, firmwarePCRs)
		case e.AnyDigest && !slices.Contains(settingsPCRs, e.PCR):
			return fmt.Errorf("firmware.events[%d].anyDigest: PCR %d measures code; only %v may have it", i, e.PCR,
				settingsPCRs)
		case e.AnyDigest && len(e.SHA256)+len(e.SHA384) > 0:
			return fmt.Errorf("firmware.events[%d].anyDigest: the event also has a digest; delete one of them", i)
		case !e.AnyDigest:
			if err := e.validate("firmware.events", i); err != nil {
				return err
			}
		}
		measured[e.PCR] = true
	}
	for _, pcr := range firmwarePCRs {
		if !measured[pcr] {
			return fmt.Errorf("firmware.events: none of PCR %d, which has a separator at least", pcr)
		}
	}
	return nil
}
