// SPDX-License-Identifier: Apache-2.0

package measuredboot

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"unicode/utf16"

	"github.com/mcs-attest/mcs-attest/pkg/eventlog"
)

// What the EFI stub of Linux measures into PCR 9, if GRUB starts the kernel as an EFI image (Linux,
// drivers/firmware/efi/libstub/efi-stub-helper.c): its load options, then the initramfs archives as one
// file. The data of the event has a TCG_PCClientTaggedEvent with one of these names.
const (
	loadOptionsName = "LOADED_IMAGE::LoadOptions"
	initrdName      = "Linux initrd"
)

// stubEvents are the events of the EFI stub at the end of PCR 9. GRUB measured what it passed to the kernel,
// so these events must follow from the command line in PCR 8 and from the document.
type stubEvents struct {
	n       int
	initrd  *eventlog.Event // or nil
	options *Finding        // of the load options
	bank    uint16
}

func (b *boot) stubEvents() stubEvents {
	var line string
	var events []*eventlog.Event // of PCR 9
	for i := range b.log.Events {
		e := &b.log.Events[i]
		switch {
		case e.PCR == 8:
			if text, ok := grubText(b.bank, e); ok && isCommandLine(text) {
				line = text
			}
		case e.PCR == 9 && e.Extends():
			events = append(events, e)
		}
	}
	s := stubEvents{bank: b.bank}
	if len(events) > s.n && isTagged(events[len(events)-1], initrdName) {
		s.initrd = events[len(events)-1]
		s.n++
	}
	if len(events) > s.n && isTagged(events[len(events)-1-s.n], loadOptionsName) {
		e := events[len(events)-1-s.n]
		if !bytes.Equal(eventlog.Hash(b.bank, loadOptions(line)), e.Digest) {
			s.options = onEvent(e, "the load options "+quoted(line)+", as GRUB passed them", hexValue(e.Digest))
		}
		s.n++
	}
	return s
}

// compare returns what does not follow from the command line or from a document.
func (s stubEvents) compare(r *ReferenceValues) *Finding {
	if s.options == nil && s.initrd != nil && !r.wholeInitrd().is(s.bank, s.initrd.Digest) {
		return onEvent(s.initrd, fmt.Sprintf("the initramfs of %s, as GRUB read it", r.Metadata.Name),
			hexValue(s.initrd.Digest))
	}
	return s.options
}

// loadOptions returns what GRUB passes to a kernel for a command line (GRUB,
// grub-core/loader/efi/linux.c): UTF-16, without a NUL.
func loadOptions(line string) (b []byte) {
	for _, c := range utf16.Encode([]rune("BOOT_IMAGE=" + line)) {
		b = binary.LittleEndian.AppendUint16(b, c)
	}
	return b
}

// wholeInitrd returns the digests of all archives as one file.
func (r *ReferenceValues) wholeInitrd() Digests {
	if len(r.Loads) == 2 {
		return r.Loads[1].Digests
	}
	return r.Initrd
}

// isTagged reports whether an event claims to be a tagged event with a name. It is only a hint.
func isTagged(e *eventlog.Event, name string) bool {
	return len(e.Data) > 8 && string(bytes.TrimRight(e.Data[8:], "\x00")) == name
}
