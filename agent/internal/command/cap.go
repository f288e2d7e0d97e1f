// SPDX-License-Identifier: Apache-2.0

package command

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/google/go-tpm/tpm2/transport"

	"github.com/mcs-attest/mcs-attest/agent/internal/delivery"
	"github.com/mcs-attest/mcs-attest/agent/internal/nextboot"
	"github.com/mcs-attest/mcs-attest/agent/internal/paths"
	"github.com/mcs-attest/mcs-attest/agent/internal/tpmdev"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester"
)

const (
	// cappedFile has the id of the boot in which PCR 11 was capped.
	cappedFile = "capped"
	// leftFile has the values of PCR 11 with which the agent left the end of the initramfs to
	// systemd: a JSON object from the bank's number to the value. mcs-attest-leave.service runs if
	// it exists.
	leftFile = "pcr11"
	// tpmFile exists after an attestation of a machine with a TPM. Attestation and cap are different processes, and on a
	// stock image different boots.
	tpmFile = "tpm"
)

// rememberTPM records before an attestation that this process has seen the device of a TPM, even of one that fails.
func (a *agent) rememberTPM() error {
	if !a.hasTPM {
		return nil
	}
	if a.realRoot {
		if err := nextboot.WriteFile(filepath.Join(a.paths.FirstBoot, tpmFile), nil); err != nil {
			return err
		}
	}
	return delivery.WriteFile(a.paths.Own(tpmFile), nil)
}

// capPCR caps PCR 11 once per boot. If systemd will end the initramfs in it, capPCR leaves that to
// systemd, unless now is true.
func (a *agent) capPCR(now bool) error {
	if _, err := os.Stat(a.paths.Phase); err == nil && !now {
		return a.onTPM(a.leavePCR)
	}
	return a.onTPM(func(tpm transport.TPM) error {
		if err := attester.Cap(tpm); err != nil {
			return err
		}
		a.console.Step("capped PCR %d: this boot can no longer attest", attester.CapPCR)
		return delivery.WriteFile(a.paths.Own(cappedFile), []byte(a.bootID()))
	})
}

// capped reports whether PCR 11 was capped in this boot.
func (a *agent) capped() bool {
	of, err := os.ReadFile(a.paths.Own(cappedFile))
	// The unit of the real root writes an empty file. /run is empty when the machine boots, so a file of
	// another boot can only be a copy.
	return err == nil && (len(of) == 0 || string(of) == a.bootID())
}

// deviceTries is how often onTPM tries a device that fails, as some drivers do occasionally.
const deviceTries = 3

// onTPM runs do on the TPM, if there is one and PCR 11 is not capped yet. If the device fails, onTPM opens it again
// and repeats do, which must permit that.
func (a *agent) onTPM(do func(transport.TPM) error) error {
	if a.capped() {
		return nil
	}
	for try := 1; ; try++ {
		err := a.onceOnTPM(do)
		if errors.Is(err, tpmdev.ErrAbsent) && !a.hasTPM {
			return a.withoutTPM()
		}
		if !errors.Is(err, tpmdev.ErrFailed) || errors.Is(err, tpmdev.ErrTimeout) || try == deviceTries {
			return err
		}
		time.Sleep(tpmPause)
	}
}

// withoutTPM is for a machine without the device of a TPM: there is nothing to cap.
func (a *agent) withoutTPM() error {
	if paths.Exists(a.paths.TPMTable) {
		a.console.Step("the firmware lists a TPM, but no driver has found it: PCR %d is not capped", attester.CapPCR)
	}
	return nil
}

func (a *agent) onceOnTPM(do func(transport.TPM) error) error {
	device, err := a.openDevice()
	if err != nil {
		return err
	}
	return errors.Join(do(attester.NewRetrying(device, time.Sleep)), device.Close())
}

// leavePCR records the values of PCR 11 while systemd-pcrphase-initrd.service is active.
func (a *agent) leavePCR(tpm transport.TPM) error {
	if _, err := os.Stat(a.paths.Own(leftFile)); err == nil {
		return nil
	}
	values, err := attester.CapValues(tpm)
	if err != nil {
		return err
	}
	raw, err := json.Marshal(values)
	if err != nil {
		return err
	}
	a.console.Step("systemd ends the initramfs in PCR %d: no cap", attester.CapPCR)
	return delivery.WriteFile(a.paths.Own(leftFile), raw)
}

// capRest caps the banks that still have the values of leavePCR. If these cannot be read, it caps
// all.
func (a *agent) capRest(tpm transport.TPM) error {
	var left map[uint16][]byte
	raw, err := os.ReadFile(a.paths.Own(leftFile))
	if err == nil {
		err = json.Unmarshal(raw, &left)
	}
	if err != nil {
		a.console.Step("PCR %d is capped in every bank: %v", attester.CapPCR, err)
		left = nil
	}
	capped, err := attester.CapUnchanged(tpm, left)
	if err != nil {
		return err
	}
	if capped > 0 {
		a.console.Step("capped PCR %d in %d banks that systemd did not extend", attester.CapPCR, capped)
	}
	return delivery.WriteFile(a.paths.Own(cappedFile), []byte(a.bootID()))
}
