// SPDX-License-Identifier: Apache-2.0

package measuredboot

import (
	"bytes"
	"fmt"
	"maps"
	"slices"

	"github.com/mcs-attest/mcs-attest/pkg/eventlog"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/transcript"
)

// Result describes an accepted boot. Only [Appraise] returns one.
type Result struct {
	Profile Profile
	Bank    uint16
	Image   string // name of the reference values that match; empty if there are none
	Phase   string // of PCR 11: "" or "enter-initrd"

	Firmware string // name of the firmware set that matches, only with profile strict

	// Only with profile secure-boot and above.
	Locality     byte        // the TPM started at this locality
	Authorities  []Authority // authorities of the started images, in order
	Applications []Digest    // digests of the started images (PCR 4), in order
}

// Authority is an entry of db, MokList or shim's own list that allowed an image to start.
type Authority struct {
	Variable string // "db", "Shim", "MokList", ...
	Digest   Digest // of the measured UEFI_VARIABLE_DATA
}

// Digest is a digest in the bank of the [Result].
type Digest []byte

// boot is the input of a profile's checks: quoted values, and a log whose replay gives these
// values.
type boot struct {
	bank     uint16
	quoted   map[int][]byte
	log      *eventlog.Log
	refs     []ReferenceValues  // of images
	images   []*ReferenceValues // those that PCRs 11, 12 and 13 match
	firmware []*ReferenceValues
	result   *Result
}

// Appraise decides whether a boot is acceptable. The quoted values come from a verified quote. The
// log is the caller's untrusted claim, and refs are the documents that the policy selects. The
// checks, in order:
//
//   - The profile exists, the bank can be appraised, every PCR of the profile is quoted, and
//     each value has the size of the bank (PCRSelection).
//   - PCR 11 is zero or a pre-cap reference value (PCRCapped, MeasuredBoot).
//   - If the profile needs the log: the log is well-formed (EventLogMalformed), its replay gives
//     every quoted PCR (EventLogReplay), in the initramfs of a UKI also with systemd's separator, and
//     the profile's own requirements are met (MeasuredBoot).
func Appraise(p Profile, bank uint16, quoted map[int][]byte, rawLog []byte, refs []ReferenceValues) (*Result, error) {
	p, err := ParseProfile(string(p))
	if err != nil {
		return nil, reason.Wrap(reason.Internal, err, "the policy's profile")
	}
	if eventlog.Size(bank) == 0 {
		return nil, reason.Deny(reason.PCRSelection, "PCR bank %s cannot be appraised, only sha256, sha384 and sha512",
			transcript.BankName(bank))
	}
	for _, pcr := range profiles[p].pcrs {
		if _, ok := quoted[pcr]; !ok {
			return nil, reason.Deny(reason.PCRSelection, "profile %s needs PCR %d, which is not quoted", p, pcr)
		}
	}
	for pcr, v := range quoted {
		if pcr < 0 || pcr >= eventlog.NumPCRs || len(v) != eventlog.Size(bank) {
			return nil, reason.Deny(reason.PCRSelection, "PCR %d with %d bytes in bank %s", pcr, len(v),
				transcript.BankName(bank))
		}
	}

	b := &boot{bank: bank, quoted: quoted, result: &Result{Profile: p, Bank: bank}}
	for _, r := range refs {
		if r.Firmware != nil {
			b.firmware = append(b.firmware, &r)
		} else {
			b.refs = append(b.refs, r)
		}
	}
	if err := b.fresh(rawLog); err != nil {
		return nil, err
	}
	if !profiles[p].log {
		return b.result, nil
	}
	if b.log, err = eventlog.Parse(rawLog, bank); err != nil {
		return nil, err
	}
	if f := b.replay(); f != nil {
		return nil, reason.Wrap(reason.EventLogReplay, f, "profile %s", p)
	}
	b.result.Locality = b.log.Locality
	for _, c := range profiles[p].checks {
		if f := c(b); f != nil {
			return nil, reason.Wrap(reason.MeasuredBoot, f, "profile %s", p)
		}
	}
	return b.result, nil
}

// fresh requires that PCR 11 has its value from before the end of the initramfs. Only the value
// decides; the log only adds detail to the denial.
func (b *boot) fresh(rawLog []byte) error {
	value := b.quoted[11]
	if isZero(value) {
		return nil
	}
	for i := range b.refs {
		r := &b.refs[i]
		if phase, ok := r.phase11(b.bank, value); ok {
			b.result.Image, b.result.Phase = r.Metadata.Name, phase
			return nil
		}
	}
	begun := starts(b.bank, b.refs)
	log, err := eventlog.Parse(rawLog, b.bank)
	if err == nil {
		begun = append(begun, log.Replay().Value(11))
	}
	for _, start := range begun {
		if leftFrom(b.bank, start, value) {
			return reason.Wrap(reason.PCRCapped, onPCR(11, "the value it has while the initramfs runs", "that value, capped"),
				"profile %s", b.result.Profile)
		}
	}
	f := b.namePCR11(log)
	f.freshness = true
	return reason.Wrap(reason.MeasuredBoot, f, "profile %s", b.result.Profile)
}

// namePCR11 returns the event that first differs from the closest reference values, if the log
// explains the quoted value. The log may be nil.
func (b *boot) namePCR11(log *eventlog.Log) *Finding {
	f := onPCR(11, "a value of the reference values", hexValue(b.quoted[11]))
	if len(b.refs) == 0 {
		f.Expected = "zeros (no UKI), since the policy names no reference values"
	}
	if log == nil || !reproduces(b.bank, 11, log.Replay().Value(11), b.quoted[11]) {
		return f
	}
	var events []*eventlog.Event
	for i := range log.Events {
		if e := &log.Events[i]; e.PCR == 11 && e.Extends() {
			events = append(events, e)
		}
	}
	best := -1
	for i := range b.refs {
		r := &b.refs[i]
		if len(r.Sections) == 0 {
			continue
		}
		at := 0
		for at < len(events) && at < 2*len(r.Sections) && bytes.Equal(events[at].Digest, r.measured(b.bank, at)) {
			at++
		}
		if at <= best || at == len(events) {
			continue
		}
		best = at
		expected := "no more measurements of " + r.Metadata.Name
		if at < 2*len(r.Sections) {
			what := "content"
			if at%2 == 0 {
				what = "name"
			}
			expected = fmt.Sprintf("the %s of section %s of %s, %x", what, r.Sections[at/2].Name, r.Metadata.Name,
				r.measured(b.bank, at))
		}
		f = onEvent(events[at], expected, hexValue(events[at].Digest))
	}
	return f
}

// measured returns the i-th digest that the stub extends: name and content in turn.
func (r *ReferenceValues) measured(bank uint16, i int) []byte {
	s := r.Sections[i/2]
	if i%2 == 0 {
		return sectionName(bank, s.Name)
	}
	return s.In(bank)
}

// replay requires that the log gives every quoted value. A PCR without events replays to its value
// after a reset, so omitted events are detected here. Systemd's separator is in all of its PCRs or in
// none, and the checks that follow use the values before it.
func (b *boot) replay() *Finding {
	got := b.log.Replay()
	separated := b.separatedByOS(got)
	before := maps.Clone(b.quoted)
	for pcr := range eventlog.NumPCRs {
		want, ok := b.quoted[pcr]
		if !ok {
			continue
		}
		value, then := got.Value(pcr), ""
		if separated && slices.Contains(osSeparatorPCRs, pcr) {
			before[pcr] = value
			value, then = afterOSSeparator(b.bank, value), " and systemd's separator"
		}
		if !reproduces(b.bank, pcr, value, want) {
			seen := fmt.Sprintf("%s from a log with %d events for it%s", hexValue(value), got.Events(pcr), then)
			return onPCR(pcr, "the quoted value "+hexValue(want)+" from the log's replay", seen)
		}
	}
	b.quoted = before
	return nil
}

// reproduces compares a replayed value with a quoted one. The running system extends the phase
// enter-initrd, so that phase is not in the firmware's log.
func reproduces(bank uint16, pcr int, replayed, quoted []byte) bool {
	if bytes.Equal(replayed, quoted) {
		return true
	}
	return pcr == 11 && bytes.Equal(eventlog.Extend(bank, replayed, eventlog.Hash(bank, []byte(EnterInitrd))), quoted)
}
