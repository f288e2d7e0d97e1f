// SPDX-License-Identifier: Apache-2.0

// Package eventlog reads a TPM 2.0 firmware event log and replays one PCR bank.
//
// The log is the kernel's binary_bios_measurements: one legacy header event, then TCG_PCR_EVENT2
// structures ("crypto-agile", TCG PC Client Platform Firmware Profile 1.05, section 10). The log is
// not signed. It is only a claim about how the PCRs got their values. Compare [Log.Replay] with
// quoted PCR values before you trust a digest, and trust the data of an event only if its digest
// matches.
//
// # Promises of Parse
//
//   - Every event has exactly one digest of the chosen bank. The digests of other banks are skipped
//     and never used.
//   - The algorithm determines the size of a digest. The sizes in the log's header must match, and
//     an algorithm of unknown size is rejected.
//   - At most [MaxSize] bytes and [MaxEvents] events; no trailing bytes.
//   - StartupLocality is the first statement about PCR 0, occurs once, and is 0, 3 or 4.
//   - Two event types have an effect. EV_NO_ACTION extends no PCR. EV_EFI_HCRTM_EVENT as the first
//     extension of PCR 0 means that PCR 0 started at 4. A false type makes the replay fail. Unknown
//     types are ordinary events.
//   - Memory is proportional to the input. Events are slices of it, and every length is checked
//     before use.
//
// # Not included
//
// The package does not interpret events, does not read SHA-1-only (TPM 1.2) logs, and does not
// require events for any PCR. A log that omits a PCR is valid, but its replay differs from the
// quote. See package measuredboot.
package eventlog
