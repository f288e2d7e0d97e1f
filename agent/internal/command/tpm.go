// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/google/go-tpm/tpm2"
	"github.com/google/go-tpm/tpm2/transport"

	"github.com/mcs-attest/mcs-attest/agent/internal/flow"
	"github.com/mcs-attest/mcs-attest/agent/internal/paths"
	"github.com/mcs-attest/mcs-attest/agent/internal/platform"
	"github.com/mcs-attest/mcs-attest/agent/internal/tpmdev"
	"github.com/mcs-attest/mcs-attest/pkg/bounded"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester"
	"github.com/mcs-attest/mcs-attest/pkg/transcript"
)

// maxEventLog is the limit of the contract, in bytes.
const maxEventLog = 256 << 10

// machineTPM is an open TPM with its keys. It implements flow.TPM.
type machineTPM struct {
	*attester.Attester
	device transport.TPMCloser
	reopen func() (*machineTPM, error)
}

// openDevice opens the TPM. If this machine has a TPM, an absent device is one that failed: the driver removes the
// device of a TPM that fails.
func (a *agent) openDevice() (transport.TPMCloser, error) {
	device, err := tpmdev.Open(a.paths.TPM)
	absent := errors.Is(err, tpmdev.ErrAbsent)
	a.hasTPM = a.hasTPM || !absent || paths.Exists(a.paths.Own(tpmFile)) || paths.Exists(a.paths.Own(leftFile)) ||
		paths.Exists(filepath.Join(a.paths.FirstBoot, tpmFile))
	if absent && a.hasTPM {
		return nil, hinted{fmt.Errorf("%w: %w", tpmdev.ErrFailed, err), "turn the machine's power off and on. " +
			"If you removed the TPM, delete " + filepath.Join(a.paths.FirstBoot, tpmFile)}
	}
	return device, err
}

func (a *agent) openTPM(key attester.Key) (*machineTPM, error) {
	device, err := a.openDevice()
	if err != nil {
		return nil, err
	}
	keys, err := attester.Open(attester.NewRetrying(device, time.Sleep), attester.Options{Key: key, Banks: a.banks()})
	if err != nil {
		return nil, errors.Join(err, device.Close())
	}
	return &machineTPM{keys, device, func() (*machineTPM, error) { return a.openTPM(key) }}, nil
}

// addTPM gives a flow the TPM, now or in a later round. The caller calls done afterwards.
func (a *agent) addTPM(ctx context.Context, f *flow.Flow, key attester.Key) (done func() error) {
	var opened *machineTPM
	use := func(tpm *machineTPM) {
		opened = tpm
		id := tpm.Identity()
		a.console.Step("TPM ready: endorsement key %s %x", id.EKType, id.EKSPKI)
		if id.EKNote != "" {
			a.console.Step("a certificate of the TPM is not used: %s", id.EKNote)
		}
		if id.AKNote != "" {
			a.console.Step("the attestation key is the agent's own: %s", id.AKNote)
		}
	}
	tpm, err := a.waitForTPM(ctx, key)
	if err == nil {
		f.TPM = tpm
		use(tpm)
	} else {
		f.NoTPM = err
		a.console.Step("no TPM evidence: %v", err)
	}
	f.OpenTPM = func() (flow.TPM, error) {
		tpm, err := a.openTPM(key)
		remembered := a.rememberTPM() // also of a TPM that fails
		if err != nil {
			return nil, errors.Join(err, remembered)
		}
		if remembered != nil {
			return nil, errors.Join(remembered, tpm.close())
		}
		use(tpm)
		return tpm, nil
	}
	return func() error {
		if opened == nil {
			return nil
		}
		return opened.close()
	}
}

const (
	tpmTries   = 4
	tpmPause   = time.Second
	deviceWait = 7 * time.Second // with the pauses of tpmTries: ten seconds
)

// ekType returns which endorsement key identifies this machine: the requested one, or else the
// attester's choice. On EC2 and Compute Engine the default is RSA-2048. EC2 publishes that key and
// the P-384 key, neither with a certificate. Compute Engine publishes RSA-2048 as the encryptionKey
// of every Shielded VM, and other keys only on newer machines.
func ekType(asked, platform string) attester.Key {
	if asked == "" && (platform == "aws" || platform == "gcp") {
		return attester.RSA2048
	}
	return attester.Key(asked)
}

// checkEKType returns an error if an administrator requests a type that does not exist.
func checkEKType(asked string) error {
	if k := attester.Key(asked); asked != "" && k != attester.RSA2048 && k != attester.ECCP256 && k != attester.ECCP384 {
		return fmt.Errorf("%q is none of %s, %s and %s", asked, attester.RSA2048, attester.ECCP256, attester.ECCP384)
	}
	return nil
}

// bootKey returns the endorsement key that the kernel command line requests.
func bootKey(machine platform.Machine) (attester.Key, error) {
	word, _ := machine.Cmdline.Last("mcs-attest.ek")
	if err := checkEKType(word); err != nil {
		return "", hinted{fmt.Errorf("kernel argument mcs-attest.ek: %w", err), "correct the kernel argument, or remove it"}
	}
	return ekType(word, machine.ID), nil
}

// waitForTPM waits a few seconds for a driver that loads late or a TPM that is busy. A TPM that hangs
// has already taken minutes, so waitForTPM does not try again.
func (a *agent) waitForTPM(ctx context.Context, key attester.Key) (*machineTPM, error) {
	a.waitForDevice(ctx)
	return untilOpen(ctx, func() (*machineTPM, error) { return a.openTPM(key) })
}

// waitForDevice waits for the driver of a TPM that the firmware lists. Drivers of TPMs on SPI and I2C may load late.
func (a *agent) waitForDevice(ctx context.Context) {
	for range deviceWait / tpmPause {
		if paths.Exists(a.paths.TPM) || !paths.Exists(a.paths.TPMTable) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(tpmPause):
		}
	}
}

func untilOpen(ctx context.Context, open func() (*machineTPM, error)) (*machineTPM, error) {
	for try := 1; ; try++ {
		tpm, err := open()
		if err == nil || errors.Is(err, attester.ErrEndorsementOwned) || errors.Is(err, tpmdev.ErrTimeout) ||
			try == tpmTries {
			return tpm, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(tpmPause):
		}
	}
}

// Attest calls the attester. If the device fails, as some drivers do occasionally, it opens the
// device again for the next attempt. The keys stay the same, because the agent derives them
// deterministically.
func (m *machineTPM) Attest(ch attester.Challenge, h transcript.Hash) (*attester.Evidence, error) {
	ev, err := m.Attester.Attest(ch, h)
	var rc tpm2.TPMRC
	if err == nil || errors.As(err, &rc) {
		return ev, err
	}
	_ = m.close()
	again, openErr := m.reopen()
	if openErr != nil {
		return nil, errors.Join(err, openErr)
	}
	*m = *again
	return nil, err
}

func (m *machineTPM) close() error { return errors.Join(m.Close(), m.device.Close()) }

// sysfsBanks maps the kernel's names of PCR banks to algorithms.
var sysfsBanks = []struct {
	dir string
	alg uint16 // TPM_ALG_ID
}{{"pcr-sha1", 0x0004}, {"pcr-sha256", 0x000B}, {"pcr-sha384", 0x000C}, {"pcr-sha512", 0x000D}}

// banks returns the PCR banks that the kernel lists, which saves a TPM command. It returns nil if
// the kernel lists none; the attester then asks the TPM.
func (a *agent) banks() []uint16 {
	var banks []uint16
	for _, b := range sysfsBanks {
		if _, err := os.Stat(filepath.Join(a.paths.TPMSysfs, b.dir, "23")); err == nil {
			banks = append(banks, b.alg)
		}
	}
	return banks
}

// eventLog reads the firmware's event log. The kernel reports the size of that file as 0.
func (a *agent) eventLog() ([]byte, error) {
	f, err := os.Open(a.paths.EventLog)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return bounded.Read(f, maxEventLog)
}
