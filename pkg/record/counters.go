// SPDX-License-Identifier: Apache-2.0

package record

import (
	"fmt"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// checkCounters checks that a TPM's counters did not decrease since the recorded attestation. If they did, the TPM was
// cleared or set back to an earlier state, or it is a copy. The clock is only compared between two resets, because
// virtual TPMs start it at zero on each boot. An earlier clock is that of an earlier quote, so it is not a conflict.
//
// The counters do not prove more than that: a reset of the TPM under a running system counts like a reboot.
func checkCounters(recorded, presented *v1alpha1.TPMCounters) error {
	if recorded == nil || presented == nil {
		return nil
	}
	switch {
	case presented.ResetCount > recorded.ResetCount:
		return nil
	case presented.ResetCount < recorded.ResetCount:
		return reason.Deny(reason.IdentityConflict, "the TPM's counter went back from %d resets to %d: it was cleared or "+
			"set back, or it is a copy", recorded.ResetCount, presented.ResetCount)
	case presented.RestartCount < recorded.RestartCount:
		return reason.Deny(reason.IdentityConflict, "the TPM's counter went back from %d restarts to %d: it was set back, "+
			"or it is a copy", recorded.RestartCount, presented.RestartCount)
	case presented.Clock < recorded.Clock:
		return reason.Deny(reason.QuoteNotFresh, "the TPM's clock went back from %d ms to %d ms since its last reset",
			recorded.Clock, presented.Clock)
	}
	return nil
}

// resets describes the resets and restarts of the TPM since the recorded attestation, for the history. A reset after
// TPM2_Shutdown(STATE) is a restart: it clears the PCRs and only counts there (TPM 2.0 Library, Part 1, 12.2.3).
func resets(recorded, presented *v1alpha1.TPMCounters) string {
	if recorded == nil || presented == nil {
		return ""
	}
	n, what := presented.ResetCount-recorded.ResetCount, "reset(s)"
	if n == 0 {
		n, what = presented.RestartCount-recorded.RestartCount, "restart(s)"
	}
	if n <= 0 {
		return ""
	}
	return fmt.Sprintf("; %d %s of the TPM since the last attestation", n, what)
}
