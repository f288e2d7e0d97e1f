// Package measuredboot decides whether quoted PCR values and the firmware's
// event log are those of an acceptable boot.
//
// A [Profile] says which PCRs are quoted and what is demanded of them:
//
//	identity-only  PCR 11. The initramfs still runs (see "The cap"); nothing
//	               is said about what was booted, and no log is needed.
//	secure-boot    PCRs 0-7, 11, 12 and 13. Secure Boot was on, with keys, from
//	               the first instruction, and it was used: something that db
//	               vouches for was started. A unified kernel image (UKI) is one
//	               of the reference values, with nothing added to it.
//	release        secure-boot, and each loaded component is one of a release's.
//	strict         release, and firmware and command line are known, too.
//
// The last two are carried by the types and not available yet.
//
// # Digest first
//
// A quote vouches for digests, and for nothing else in the log. So each event is
// judged by its digest: it is a constant known here (a separator), or the hash
// of the event's own data when that data parses as what it must be (a UEFI
// variable), or a reference value. Anything else in a judged PCR fails, unless
// the profile says what an unknown digest stands for (PCR 4: an application).
// An event's type decides nothing; calling one thing another neither hides it nor
// makes it pass.
//
// # Nothing may be left out
//
// Every quoted PCR must come out of the log's replay, and a PCR without events
// must be as a reset leaves it. PCRs 0-7 must each hold exactly one separator:
// firmware that measures nothing leaves the PCRs to whoever comes next.
//
// # The cap
//
// Once the initramfs is done (or has failed), PCR 11 is extended with
// [CapDigest] in every bank, so that nothing running later can attest as the
// initramfs did. Before, PCR 11 is zero (no UKI) or what systemd-stub measured
// of the UKI, possibly followed by the phase "enter-initrd". These pre-cap values
// are reference values; the event log cannot stand in for them, since anybody
// may append to a log. This holds for every profile, also one that only warns.
//
// # Findings
//
// A refusal is a denial (package reason) around a [Finding], which names the
// first offending event: PCR, index, type, expected, seen.
package measuredboot
