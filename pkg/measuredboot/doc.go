// SPDX-License-Identifier: Apache-2.0

// Package measuredboot decides whether quoted PCR values and the firmware's event log belong to an
// acceptable boot.
//
// A [Profile] defines which PCRs are quoted and what they must show:
//
//	identity-only  PCR 11. The initramfs still runs (see "The cap"). The booted
//	               software is not checked, and no log is needed.
//	secure-boot    PCRs 0-7, 11, 12 and 13. Secure Boot was enabled, with keys, from
//	               the first instruction, and it was used: an image that db
//	               authorizes was started. A unified kernel image (UKI) matches one
//	               of the reference values, with nothing added to it.
//	release        PCRs 0-9 and 11-14. As secure-boot, and all that shim and GRUB load
//	               and execute is one of the reference values.
//	strict         The same PCRs. As release, and PCRs 0-3, 5 and 6 match one set that an
//	               administrator accepted for this firmware.
//
// # Digest first
//
// A quote covers only the digests in the log. So each event is checked by its digest. It must be a
// known constant (a separator), the hash of the event's own data if that data parses as the
// expected type (a UEFI variable), or a reference value. Any other digest in a checked PCR fails,
// unless the profile defines the meaning of an unknown digest (PCR 4 under secure-boot: an application). The event's
// type never decides, so a false type neither hides an event nor makes it pass.
//
// # Nothing may be omitted
//
// The log's replay must give every quoted PCR. A PCR without events must have its value after a
// reset. PCRs 0-7 must each have exactly one separator: if firmware measures nothing, later
// software can fill the PCRs.
//
// Systemd extends a separator of its own in the initramfs of a UKI. It is accepted once, in all of its
// PCRs, if PCR 11 is a reference value. The checks apply to the values before it.
//
// # The cap
//
// After the initramfs has finished or failed, PCR 11 is extended in every bank, so that nothing that
// runs later can attest as the initramfs: with [CapDigest], or with systemd's phase "leave-initrd"
// where systemd-pcrphase runs. Both are denied as PCRCapped. Before that, PCR 11 is zero (no UKI),
// or the value that systemd-stub measured for the UKI, possibly followed by the phase
// "enter-initrd". These pre-cap values are reference values. The event log cannot replace them,
// because any program can append to a log. This applies to every profile, even to one that only
// warns.
//
// # Findings
//
// A rejection is a denial (package reason) around a [Finding] that names the first offending event:
// PCR, index, type, expected, seen.
package measuredboot
