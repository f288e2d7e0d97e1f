// SPDX-License-Identifier: Apache-2.0

package command

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-tpm/tpm2"
	"github.com/google/go-tpm/tpm2/transport"

	"github.com/mcs-attest/mcs-attest/agent/internal/console"
	"github.com/mcs-attest/mcs-attest/agent/internal/flow"
	"github.com/mcs-attest/mcs-attest/agent/internal/paths"
	"github.com/mcs-attest/mcs-attest/agent/internal/platform"
	"github.com/mcs-attest/mcs-attest/agent/internal/tpmdev"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester/swtpmtest"
	"github.com/mcs-attest/mcs-attest/pkg/transcript"
)

// A device that loses a response is opened again, and the identity stays the same.
func TestAttest_ReopensAFailedDevice(t *testing.T) {
	a := &agent{paths: paths.Paths{TPM: swtpmtest.Start(t, "sha256").Socket}}
	tpm, err := a.waitForTPM(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	before := tpm.Identity()
	if err := tpm.device.Close(); err != nil {
		t.Fatal(err)
	}
	ch := attester.Challenge{Bank: 0x000B, PCRs: []int{11}}
	if _, err := tpm.Attest(ch, transcript.Hash{}); err == nil {
		t.Fatal("no error from a device that is closed")
	}
	if after := tpm.Identity(); after.EKSPKI != before.EKSPKI || string(after.AKName) != string(before.AKName) {
		t.Error("another identity")
	}
	if _, err := attester.Banks(tpm.device); err != nil {
		t.Errorf("the device does not answer: %v", err)
	}
	if err := tpm.close(); err != nil {
		t.Error(err)
	}
}

// lossy is the device of a TPM whose driver loses responses.
type lossy struct {
	socket string
	lose   atomic.Int64 // the next connections that get no response
	opened atomic.Int64
}

func (l *lossy) fail() error     { l.lose.Store(math.MaxInt64); return nil }
func (l *lossy) repair() error   { l.lose.Store(0); return nil }
func (l *lossy) leave() error    { return os.Rename(l.socket, l.socket+".away") }
func (l *lossy) comeBack() error { return os.Rename(l.socket+".away", l.socket) }

func newLossy(t *testing.T, tpm string) *lossy {
	t.Helper()
	dir, err := os.MkdirTemp("", "lossy") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	l := &lossy{socket: filepath.Join(dir, "tpm")}
	listener, err := net.Listen("unix", l.socket)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	t.Cleanup(func() { _ = listener.Close(); all.Wait() })
	all.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			l.opened.Add(1)
			if l.lose.Add(-1) >= 0 {
				_, _ = conn.Read(make([]byte, 1)) // the command, or nothing
				_ = conn.Close()
				continue
			}
			real, err := net.Dial("unix", tpm)
			if err != nil {
				_ = conn.Close()
				continue
			}
			all.Go(func() { _, _ = io.Copy(real, conn); _ = real.Close() })
			all.Go(func() { _, _ = io.Copy(conn, real); _ = conn.Close() })
		}
	})
	return l
}

// A response that is lost once stops no boot: each of these units would.
func TestCap_OpensAFailedDeviceAgain(t *testing.T) {
	tpm := swtpmtest.Start(t, "sha256")
	device := newLossy(t, tpm.Socket)
	for name, do := range map[string]func(*agent) error{
		"a cap":                  func(a *agent) error { return a.capPCR(true) },
		"what systemd ends":      func(a *agent) error { return a.onTPM(a.leavePCR) },
		"what systemd ended not": func(a *agent) error { return a.onTPM(a.capRest) },
	} {
		for _, lost := range []int64{1, deviceTries - 1, deviceTries} {
			tpm.Reboot()
			dir := t.TempDir()
			var out strings.Builder
			a := &agent{console: &console.Console{Out: &out, Err: &out},
				paths: paths.Paths{TPM: device.socket, BootID: filepath.Join(dir, "boot"), Run: dir}}
			device.opened.Store(0)
			device.lose.Store(lost)
			err := do(a)
			if lost < deviceTries && err != nil || lost == deviceTries && !errors.Is(err, tpmdev.ErrFailed) ||
				device.opened.Load() != min(lost+1, deviceTries) {
				t.Errorf("%s after %d lost responses: opened %d times: %v", name, lost, device.opened.Load(), err)
			}
		}
	}
}

// A machine whose TPM disappears while the cap fails has a TPM: the cap must not count as done.
func TestCap_ADeviceThatDisappearsIsAFault(t *testing.T) {
	device := newLossy(t, swtpmtest.Start(t, "sha256").Socket)
	dir := t.TempDir()
	a := &agent{console: &console.Console{}, paths: paths.Paths{TPM: device.socket, Run: dir}}
	err := a.onTPM(func(transport.TPM) error { return errors.Join(tpmdev.ErrFailed, os.Remove(device.socket)) })
	if !errors.Is(err, tpmdev.ErrFailed) || !errors.Is(err, tpmdev.ErrAbsent) || a.capped() {
		t.Errorf("%v", err)
	}
}

// The cap is another process than the attestation. Without an attestation, an absent device is no TPM.
func TestCap_ADeviceThatDisappearsAfterTheAttestationIsAFault(t *testing.T) {
	device := newLossy(t, swtpmtest.Start(t, "sha256").Socket)
	p := paths.Paths{TPM: device.socket, Run: t.TempDir(), FirstBoot: t.TempDir()}
	cap := func() error { return (&agent{console: &console.Console{}, paths: p}).capPCR(true) }
	if err := device.leave(); err != nil {
		t.Fatal(err)
	}
	if err := cap(); err != nil {
		t.Errorf("without a TPM: %v", err)
	}
	if err := device.comeBack(); err != nil {
		t.Fatal(err)
	}
	a := &agent{console: &console.Console{}, paths: p}
	_, done, err := a.newFlow(t.Context(), platform.Machine{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(a.rememberTPM(), done(), device.leave()); err != nil {
		t.Fatal(err)
	}
	if err := cap(); !errors.Is(err, tpmdev.ErrFailed) {
		t.Errorf("after an attestation with the TPM: %v", err)
	}
}

// A driver may load while the agent waits for its network. From then on, the machine has a TPM for the cap, too.
func TestNewFlow_FindsATPMThatAppearsLate(t *testing.T) {
	device := newLossy(t, swtpmtest.Start(t, "sha256").Socket)
	a := &agent{console: &console.Console{}, paths: paths.Paths{TPM: device.socket, Run: t.TempDir()}}
	if err := device.leave(); err != nil {
		t.Fatal(err)
	}
	f, done, err := a.newFlow(t.Context(), platform.Machine{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.OpenTPM(); f.TPM != nil || !errors.Is(f.NoTPM, tpmdev.ErrAbsent) || !errors.Is(err, tpmdev.ErrAbsent) {
		t.Fatalf("%v, %v", f.NoTPM, err)
	}
	// Its driver may remove the device again before the cap, so it is recorded before it answers.
	if err := errors.Join(device.comeBack(), device.fail()); err != nil {
		t.Fatal(err)
	}
	if _, err := f.OpenTPM(); err == nil || !paths.Exists(a.paths.Own(tpmFile)) {
		t.Errorf("a TPM that fails is not recorded: %v", err)
	}
	if err := errors.Join(device.repair(), os.Remove(a.paths.Own(tpmFile))); err != nil {
		t.Fatal(err)
	}
	tpm, err := f.OpenTPM()
	if err != nil || len(tpm.Identity().EKPublic) == 0 || !paths.Exists(a.paths.Own(tpmFile)) {
		t.Errorf("%v", err)
	}
	if err := done(); err != nil {
		t.Error(err)
	}
}

// A TPM that hangs takes minutes. Other errors are the TPM's answer.
func TestCap_RepeatsOnlyForTheDevice(t *testing.T) {
	device := newLossy(t, swtpmtest.Start(t, "sha256").Socket)
	a := &agent{console: &console.Console{}, paths: paths.Paths{TPM: device.socket, Run: t.TempDir()}}
	for _, want := range []error{fmt.Errorf("%w: %w", tpmdev.ErrFailed, tpmdev.ErrTimeout), tpm2.TPMRCFailure} {
		tries := 0
		err := a.onTPM(func(transport.TPM) error { tries++; return want })
		if !errors.Is(err, want) || tries != 1 {
			t.Errorf("%d tries: %v", tries, err)
		}
	}
}

// The driver removes the device of a TPM that fails. That machine does have a TPM, in each of the attempts.
func TestAttest_ADeviceThatDisappearsIsAFault(t *testing.T) {
	tpm := swtpmtest.Start(t, "sha256")
	a := &agent{paths: paths.Paths{TPM: tpm.Socket}}
	m, err := a.waitForTPM(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(m.device.Close(), os.Remove(tpm.Socket)); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := m.Attest(attester.Challenge{Bank: 0x000B, PCRs: []int{11}}, transcript.Hash{}); !flow.TPMFault(err) {
			t.Errorf("%v", err)
		}
	}
}

// Each attempt on a TPM that hangs takes minutes, in which the console shows nothing.
func TestWaitForTPM_DoesNotRepeatATimeout(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want int
	}{
		"a TPM that hangs":                {fmt.Errorf("reading the EK: %w", tpmdev.ErrTimeout), 1},
		"an endorsement hierarchy in use": {attester.ErrEndorsementOwned, 1},
		"a driver that loads late":        {tpmdev.ErrAbsent, tpmTries},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tries := 0
				_, err := untilOpen(t.Context(), func() (*machineTPM, error) {
					tries++
					return nil, c.err
				})
				if !errors.Is(err, c.err) || tries != c.want {
					t.Errorf("%d tries, want %d: %v", tries, c.want, err)
				}
			})
		})
	}
}

// The firmware lists a TPM before its driver is loaded.
func TestTPMThatTheFirmwareLists_IsAwaitedLonger(t *testing.T) {
	for _, listed := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			dir := t.TempDir()
			var out strings.Builder
			a := &agent{console: &console.Console{Out: &out, Err: &out},
				paths: paths.Paths{TPM: filepath.Join(dir, "tpmrm0"), TPMTable: filepath.Join(dir, "TPM2"), Run: dir}}
			wait, capWait := 3*time.Second, time.Duration(0)
			if listed {
				wait, capWait = 10*time.Second, deviceWait
				if err := os.WriteFile(a.paths.TPMTable, nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			start := time.Now()
			if _, err := a.waitForTPM(t.Context(), ""); !errors.Is(err, tpmdev.ErrAbsent) || time.Since(start) != wait {
				t.Errorf("listed %v: after %v: %v", listed, time.Since(start), err)
			}
			// Before a shell.
			start = time.Now()
			a.waitForDevice(t.Context())
			if err := a.capPCR(true); err != nil || time.Since(start) != capWait ||
				strings.Contains(out.String(), "PCR 11 is not capped") != listed {
				t.Errorf("listed %v: after %v: %v\n%s", listed, time.Since(start), err, out.String())
			}
			// On each boot.
			start = time.Now()
			if err := a.capPCR(false); err != nil || time.Since(start) != 0 {
				t.Errorf("listed %v: after %v: %v", listed, time.Since(start), err)
			}
		})
	}
}

func TestAdvice_NamesHowToResetATPMThatHangs(t *testing.T) {
	err := &flow.MissingEvidence{Kinds: []evidence.Kind{evidence.TPM2},
		Err: fmt.Errorf("reading the EK: %w", tpmdev.ErrTimeout)}
	if got := advice(err); !strings.Contains(got, "power") {
		t.Errorf("the hint is %q", got)
	}
}

// Clouds publish an instance's RSA-2048 key; elsewhere the default may be another key.
func TestEKTypeByPlatform(t *testing.T) {
	for _, c := range []struct {
		asked, platform string
		want            attester.Key
	}{
		{"", "metal", ""}, {"", "azure", ""}, {"", "vmware", ""}, {"", "gcp", attester.RSA2048},
		{"", "aws", attester.RSA2048},
		{"ecc-p384", "aws", attester.ECCP384}, {"ecc-p256", "gcp", attester.ECCP256}, {"ecc-p256", "metal", attester.ECCP256},
	} {
		if got := ekType(c.asked, c.platform); got != c.want {
			t.Errorf("%q on %q: %q, want %q", c.asked, c.platform, got, c.want)
		}
	}
}
