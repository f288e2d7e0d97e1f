// SPDX-License-Identifier: Apache-2.0

package measuredboot

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	"github.com/mcs-attest/mcs-attest/pkg/eventlog"
)

// constants are the digests of constant values, in one bank.
type constants struct {
	separator [2][]byte // of 00000000 and ffffffff
	failed    []byte    // of [errorMark]
	actions   [][]byte  // of the messages of boot managers in PCR 4
}

// errorMark is what firmware measures instead of a separator if a measurement failed (Firmware
// Profile 1.05, 10.4.1, EV_SEPARATOR).
var errorMark = []byte{1, 0, 0, 0}

// Strings that firmware measures into PCR 4 without a NUL (Firmware Profile, 10.4.4; sources of
// EDK2 and SeaBIOS).
var bootActions = []string{
	"Calling EFI Application from Boot Option",
	"Returning from EFI Application from Boot Option",
	"Returned INT 18h",
	"Calling INT 19h",
	"Booting BCV device 00h (floppy)",
	"Booting BCV device 80h (HDD)",
	"Booting from CD ROM device",
}

// known has the constants of every bank that can be appraised.
var known = func() map[uint16]*constants {
	m := map[uint16]*constants{}
	for _, bank := range []uint16{eventlog.SHA256, eventlog.SHA384, eventlog.SHA512} {
		c := &constants{failed: eventlog.Hash(bank, errorMark)}
		c.separator[0] = eventlog.Hash(bank, []byte{0, 0, 0, 0})
		c.separator[1] = eventlog.Hash(bank, []byte{0xFF, 0xFF, 0xFF, 0xFF})
		for _, s := range bootActions {
			c.actions = append(c.actions, eventlog.Hash(bank, []byte(s)))
		}
		m[bank] = c
	}
	return m
}()

func (c *constants) isSeparator(digest []byte) bool {
	return bytes.Equal(digest, c.separator[0]) || bytes.Equal(digest, c.separator[1])
}

// firmwareMeasured requires that the firmware extended PCRs 0-7. In a bank that the firmware does
// not extend, the booted software can choose the values (CVE-2021-42299).
func firmwareMeasured(b *boot) *Finding {
	for pcr := range 8 {
		if isZero(b.quoted[pcr]) {
			return onPCR(pcr, "measurements by the firmware", "zeros")
		}
	}
	return nil
}

// separators requires exactly one separator in each of PCRs 0-7. It divides the firmware's own
// measurements from later ones. Real firmware also measures four zero bytes as another item (a
// version, in PCR 0) with the same digest. Only in PCRs 4 and 7, which are checked event by event,
// does such an event count as a second separator.
//
// Firmware that returns from a boot option and tries the next one does not repeat the separators
// (EDK2, U-Boot). A repeated separator is therefore the work of later software.
func separators(b *boot) *Finding {
	c := known[b.bank]
	var count [8]int
	var claimed [8]bool
	for i := range b.log.Events {
		e := &b.log.Events[i]
		if !e.Extends() || e.PCR > 7 {
			continue
		}
		switch {
		case bytes.Equal(e.Digest, c.failed) && !isBootOrder(e):
			return onEvent(e, "no error", "the firmware's mark for a failed measurement")
		case c.isSeparator(e.Digest):
			appraised := e.PCR == 4 || e.PCR == 7
			if count[e.PCR]++; count[e.PCR] > 1 && (appraised || e.Type == eventlog.Separator && claimed[e.PCR]) {
				return onEvent(e, "one separator", "a second one")
			}
			claimed[e.PCR] = claimed[e.PCR] || e.Type == eventlog.Separator
		}
	}
	for pcr, n := range count {
		if n == 0 {
			return onPCR(pcr, "one separator", "none")
		}
	}
	return nil
}

// isBootOrder reports whether an event with the digest of the error mark is the variable BootOrder in
// PCR 1 with the entries 0001 and 0000. Firmware measures only the value of a boot variable (EDK2,
// Tcg2Dxe). An error mark with this data is still detected: firmware writes the mark to all PCRs.
func isBootOrder(e *eventlog.Event) bool {
	v, ok := parseVariable(e.Data)
	return e.PCR == 1 && ok && v.vendor == globalVariable && v.name == "BootOrder" && bytes.Equal(v.data, errorMark)
}

// policyVariable is a variable that is measured into PCR 7 before the separator.
type policyVariable struct {
	vendor guid
	demand func(value []byte) string // the requirement, or "" if value meets it
}

func exactly(want byte) func([]byte) string {
	return func(v []byte) string {
		if len(v) == 1 && v[0] == want {
			return ""
		}
		return fmt.Sprintf("%02x", want)
	}
}

func notEmpty(v []byte) string {
	if len(v) > 0 {
		return ""
	}
	return "a key"
}

func anything([]byte) string { return "" }

// policyVariables are the variables of the Secure Boot policy that firmware measures (Firmware
// Profile 1.05, 3.3.4.8). dbx may be empty: a machine may have no revocations yet. A later profile
// could require certain revocations.
var policyVariables = map[string]policyVariable{
	"SecureBoot":   {globalVariable, exactly(1)},
	"PK":           {globalVariable, notEmpty},
	"KEK":          {globalVariable, notEmpty},
	"db":           {imageSecurityDatabase, notEmpty},
	"dbx":          {imageSecurityDatabase, anything},
	"dbt":          {imageSecurityDatabase, anything},
	"dbr":          {imageSecurityDatabase, anything},
	"SetupMode":    {globalVariable, exactly(0)},
	"AuditMode":    {globalVariable, exactly(0)},
	"DeployedMode": {globalVariable, anything},
}

// requiredVariables are in the order in which firmware measures them.
var requiredVariables = []string{"SecureBoot", "PK", "KEK", "db", "dbx"}

// authorityVariable is a variable that is measured into PCR 7 when an image is authorized.
type authorityVariable struct {
	vendor guid
	ofShim bool // its entries authorize the images that shim starts
}

// authorityVariables are db, whose entries authorize images for the firmware and for shim, and the
// variables of shim (shim, README.tpm, verify.c and mok.c). shim has measured MokListRT since 15.7,
// and MokList before. SbatLevel (SBAT before 15.5) and MokListTrusted (only 15.6) are not
// authorities, but are measured among them.
//
// Three variables that shim can measure are not accepted: MokSBState, because shim then verifies
// nothing, and dbx and MokListX, because they mean that an image was rejected.
var authorityVariables = map[string]authorityVariable{
	"db":             {imageSecurityDatabase, false},
	"vendor_db":      {imageSecurityDatabase, true},
	"Shim":           {shimLock, true},
	"MokList":        {shimLock, true},
	"MokListRT":      {shimLock, true},
	"MokListTrusted": {shimLock, false},
	"SbatLevel":      {shimLock, false},
	"SBAT":           {shimLock, false},
}

// secureBootPolicy checks the events of PCR 7. Each event is the hash of its data, which is a
// variable, or a separator:
//
//   - Before the separator: the variables of the policy, each once. SecureBoot is 01; PK, KEK and
//     db are not empty; dbx exists. Then db again, if it authorized drivers: some firmware measures
//     this separator only before it starts the boot loader.
//   - After the separator: only authorities, and at least one of db. If SecureBoot is 01 and db
//     authorized no image, Secure Boot was not used (attack T36). Firmware measures an authority
//     once. So if db authorized drivers, an authority of shim is enough.
func secureBootPolicy(b *boot) *Finding {
	c := known[b.bank]
	seen := map[string]bool{}
	separated, drivers, shim, vouched := false, false, false, false
	for i := range b.log.Events {
		e := &b.log.Events[i]
		if e.PCR != 7 || !e.Extends() {
			continue
		}
		if c.isSeparator(e.Digest) {
			if name := missing(seen); name != "" {
				return onEvent(e, "variable "+name, "the separator before it")
			}
			separated = true
			continue
		}
		v, ok := parseVariable(e.Data)
		if !ok || !bytes.Equal(eventlog.Hash(b.bank, e.Data), e.Digest) {
			return onEvent(e, "the digest of the UEFI variable in its data", unexplained(b.bank, e))
		}
		if separated {
			a, ok := authorityVariables[v.name]
			if !ok || a.vendor != v.vendor {
				return onEvent(e, "an authority after the separator", "variable "+quoted(v.name))
			}
			vouched, shim = vouched || v.name == "db", shim || a.ofShim
			b.result.Authorities = append(b.result.Authorities, Authority{Variable: v.name, Digest: e.Digest})
			continue
		}
		want, ok := policyVariables[v.name]
		if !ok || want.vendor != v.vendor {
			return onEvent(e, "a variable of the Secure Boot policy", "variable "+quoted(v.name))
		}
		if v.name == "db" && missing(seen) == "" {
			drivers = true
			continue
		}
		if seen[v.name] {
			return onEvent(e, "variable "+v.name+" once", "a second time")
		}
		seen[v.name] = true
		if demand := want.demand(v.data); demand != "" {
			return onEvent(e, v.name+" = "+demand, shortValue(v.data))
		}
	}
	if !vouched && (!drivers || !shim) {
		return onPCR(7, "an authority of db that authorized a started image", "none, although SecureBoot is 01")
	}
	return nil
}

// missing returns the first required variable that was not measured yet, or "".
func missing(seen map[string]bool) string {
	for _, name := range requiredVariables {
		if !seen[name] {
			return name
		}
	}
	return ""
}

// unexplained describes an event of PCR 7 that is not a variable.
func unexplained(bank uint16, e *eventlog.Event) string {
	if bytes.Equal(eventlog.Hash(bank, e.Data), e.Digest) {
		return quoted(string(e.Data))
	}
	return hexValue(e.Digest) + ", which is not the digest of its data"
}

func shortValue(v []byte) string {
	switch {
	case len(v) == 0:
		return "an empty value"
	case len(v) > 16:
		return fmt.Sprintf("%x... (%d bytes)", v[:16], len(v))
	}
	return fmt.Sprintf("%x", v)
}

// application requires at least one image in PCR 4.
func application(b *boot) *Finding {
	for i := range b.log.Events {
		e := &b.log.Events[i]
		if e.PCR != 4 || !e.Extends() || b.isMessage(e) {
			continue
		}
		b.result.Applications = append(b.result.Applications, e.Digest)
	}
	if len(b.result.Applications) == 0 {
		return onPCR(4, "a boot application", "none")
	}
	return nil
}

// isMessage reports whether an event of PCR 4 is a text of the firmware or a separator, and not a
// started image. The digest of an image does not cover the event's data, but a log can have the bytes
// of an image as data. A text that only has printable characters is not an image.
func (b *boot) isMessage(e *eventlog.Event) bool {
	c := known[b.bank]
	same := func(known []byte) bool { return bytes.Equal(known, e.Digest) }
	if c.isSeparator(e.Digest) || slices.ContainsFunc(c.actions, same) {
		return true
	}
	printable := !bytes.ContainsFunc(e.Data, func(r rune) bool { return r < ' ' || r > '~' })
	return printable && same(eventlog.Hash(b.bank, e.Data))
}

// image requires that PCRs 11, 12 and 13 together match one document of reference values. Without
// documents, all three must be zero. If the document is of a UKI, PCR 4 must match it, too: any
// program that was started can extend PCR 11 with the digests of a UKI.
func image(b *boot) *Finding {
	var closest *ReferenceValues
	var another *Finding // in PCR 4
	for i := range b.refs {
		r := &b.refs[i]
		phase, ok := r.phase11(b.bank, b.quoted[11])
		if !ok {
			continue
		}
		if closest == nil {
			closest = r
		}
		if !fits(b.bank, r.PCR12, b.quoted[12]) || !fits(b.bank, r.PCR13, b.quoted[13]) {
			continue
		}
		if r.ofUKI() {
			if f := b.started(r); f != nil {
				another = cmp.Or(another, f)
				continue
			}
		}
		if len(b.images) == 0 {
			b.result.Image, b.result.Phase = r.Metadata.Name, phase
		}
		b.images = append(b.images, r)
	}
	var none ReferenceValues
	switch {
	case len(b.images) > 0:
		return nil
	case another != nil:
		return another
	case len(b.refs) > 0 && closest == nil:
		// Only zeros reach this line: every other value was compared before the log was parsed.
		return onPCR(11, "a value of the reference values (the image is a UKI)", hexValue(b.quoted[11]))
	case len(b.refs) == 0:
		closest = &none
	}
	if !fits(b.bank, closest.PCR12, b.quoted[12]) {
		return b.extra(12, closest.PCR12)
	}
	if !fits(b.bank, closest.PCR13, b.quoted[13]) {
		return b.extra(13, closest.PCR13)
	}
	return nil
}

// started requires that each image in PCR 4 is one of a UKI's document, and that no image of the
// document is missing.
func (b *boot) started(r *ReferenceValues) *Finding {
	images := r.images()
	for i := range b.log.Events {
		e := &b.log.Events[i]
		if e.PCR != 4 || !e.Extends() || b.isMessage(e) {
			continue
		}
		if f := images.admit(b.bank, e, r); f != nil {
			return f
		}
	}
	return images.absent(4, r)
}

// extra returns the first event of a PCR that should be zero.
func (b *boot) extra(pcr int, list []Digests) *Finding {
	what := map[int]string{12: "command line or credentials", 13: "system extensions"}[pcr]
	if len(list) > 0 {
		return onPCR(pcr, "a value of the reference values", hexValue(b.quoted[pcr]))
	}
	for i := range b.log.Events {
		if e := &b.log.Events[i]; e.PCR == pcr && e.Extends() {
			return onEvent(e, "no "+what+" from outside the image", hexValue(e.Digest))
		}
	}
	return onPCR(pcr, "zeros", hexValue(b.quoted[pcr]))
}
