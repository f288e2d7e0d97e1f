// Package eventlog reads a TPM 2.0 firmware event log and replays one PCR bank.
//
// The log is what the kernel shows as binary_bios_measurements: one legacy
// header event, then TCG_PCR_EVENT2 structures ("crypto-agile", TCG PC Client
// Platform Firmware Profile 1.05, section 10). Nothing in it is signed. It is
// a claim about how the PCRs came to be, and worth as much as its replay:
// compare [Log.Replay] with quoted PCR values before believing a digest, and
// believe an event's data only as far as its digest says so.
//
// # What Parse promises
//
//   - The chosen bank's digest is there exactly once in every event; the other
//     banks' digests are stepped over and never used.
//   - A digest's size comes from its algorithm; the sizes in the log's header
//     must agree, and an algorithm of unknown size is refused.
//   - At most [MaxSize] bytes and [MaxEvents] events; no byte is left over.
//   - StartupLocality is the first thing said about PCR 0, once, and 0, 3 or 4.
//   - The event type decides one thing only: EV_NO_ACTION extends no PCR.
//     A lie about that breaks the replay. Unknown types are ordinary.
//   - Memory is proportional to the input: events are slices of it, and a
//     length is compared with what is left before anything is done with it.
//
// # What it does not do
//
// It does not interpret events, knows no SHA-1-only (TPM 1.2) log, and does not
// know which PCRs ought to have events: a log that leaves out a PCR is a valid
// log, whose replay differs from the quote. See package measuredboot.
package eventlog
