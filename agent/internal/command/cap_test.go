// SPDX-License-Identifier: Apache-2.0

package command_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-tpm/tpm2"

	"github.com/mcs-attest/mcs-attest/agent/internal/command"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester/swtpmtest"
	"github.com/mcs-attest/mcs-attest/pkg/firstboot"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot"
)

const (
	sha256Bank = 0x000B
	sha384Bank = 0x000C
)

// initramfs is the end of an initramfs with a TPM.
type initramfs struct {
	t     *testing.T
	tpm   *swtpmtest.TPM
	phase string
	run   string
}

// newInitramfs starts an initramfs in which systemd-pcrphase-initrd.service is active, or not.
func newInitramfs(t *testing.T, phases bool) *initramfs {
	t.Helper()
	dir := t.TempDir()
	m := &initramfs{t: t, tpm: swtpmtest.Start(t, "sha256,sha384"), phase: filepath.Join(dir, "phase"),
		run: filepath.Join(dir, "mcs-attest")}
	t.Setenv("MCS_ATTEST_RUN", m.run)
	t.Setenv("MCS_ATTEST_PHASE", m.phase)
	t.Setenv("MCS_ATTEST_TPM", m.tpm.Socket)
	t.Setenv("MCS_ATTEST_IGNITION_JSON", filepath.Join(dir, "ignition.json"))
	if phases {
		if err := os.Mkdir(m.phase, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

func (m *initramfs) scrub(args ...string) string {
	m.t.Helper()
	var out bytes.Buffer
	if status := command.Main(context.Background(), append([]string{"scrub"}, args...), &out, &out); status != 0 {
		m.t.Fatalf("scrub %q: exit status %d\n%s", args, status, &out)
	}
	return out.String()
}

// extend measures a phase, as systemd does: only into the banks that are in use.
func (m *initramfs) extend(phase string, banks ...uint16) {
	m.t.Helper()
	sum256, sum384 := sha256.Sum256([]byte(phase)), sha512.Sum384([]byte(phase))
	var values []tpm2.TPMTHA
	for _, bank := range banks {
		sum := sum256[:]
		if bank == sha384Bank {
			sum = sum384[:]
		}
		values = append(values, tpm2.TPMTHA{HashAlg: tpm2.TPMIAlgHash(bank), Digest: sum})
	}
	conn := m.tpm.Dial()
	_, err := tpm2.PCRExtend{
		PCRHandle: tpm2.AuthHandle{Handle: tpm2.TPMHandle(attester.CapPCR), Auth: tpm2.PasswordAuth(nil)},
		Digests:   tpm2.TPMLDigestValues{Digests: values},
	}.Execute(conn)
	if err := errors.Join(err, conn.Close()); err != nil {
		m.t.Fatal(err)
	}
}

func (m *initramfs) values() map[uint16][]byte {
	m.t.Helper()
	conn := m.tpm.Dial()
	values, err := attester.CapValues(conn)
	if err := errors.Join(err, conn.Close()); err != nil || len(values) != 2 {
		m.t.Fatalf("PCR 11 is %x, %v", values, err)
	}
	return values
}

// denied requires that no bank passes an appraisal in which the value before is accepted.
func (m *initramfs) denied(before map[uint16][]byte) {
	m.t.Helper()
	for bank, value := range m.values() {
		refs := measuredboot.ReferenceValues{PCR11: []measuredboot.PCRValue{{
			Digests: measuredboot.Digests{SHA256: before[sha256Bank], SHA384: before[sha384Bank]},
		}}}
		_, err := measuredboot.Appraise(measuredboot.IdentityOnly, bank, map[int][]byte{11: value}, nil,
			[]measuredboot.ReferenceValues{refs})
		if err == nil || measuredboot.MayWarn(err) {
			m.t.Errorf("PCR 11 of bank %#x is %x, which attests: %v", bank, value, err)
		}
	}
}

func (m *initramfs) exists(name string) bool {
	_, err := os.Stat(filepath.Join(m.run, name))
	return err == nil
}

// Where systemd ends the initramfs in PCR 11, the values that it predicts stay correct.
func TestScrub_LeavesPCR11ToSystemdWhereItEndsTheInitramfs(t *testing.T) {
	for _, first := range [][]string{nil, {"--cap-only"}} {
		m := newInitramfs(t, true)
		m.extend("enter-initrd", sha256Bank, sha384Bank)
		before := m.values()
		if out := m.scrub(first...); strings.Contains(out, "capped") || !m.exists("pcr11") || m.exists("capped") {
			t.Errorf("scrub %q: %s", first, out)
		}
		m.scrub("--cap-only")
		if now := m.values(); !bytes.Equal(now[sha256Bank], before[sha256Bank]) {
			t.Fatalf("scrub %q changed PCR 11", first)
		}
		m.extend("leave-initrd", sha256Bank, sha384Bank)
		left := m.values()
		if out := m.scrub("--cap-rest"); out != "" || !m.exists("capped") {
			t.Errorf("scrub --cap-rest: %q", out)
		}
		for bank, value := range m.values() {
			if !bytes.Equal(value, left[bank]) {
				t.Errorf("the agent extended bank %#x", bank)
			}
		}
		m.denied(before)
	}
}

// Attack T32, if systemd does not end the initramfs in every bank: it skips one in which the stub
// measured nothing, and all of them without its TPM libraries.
func TestAttack_T32_BankThatSystemdDoesNotExtendIsCapped(t *testing.T) {
	for name, extended := range map[string][]uint16{"one bank": {sha256Bank}, "no bank": nil} {
		t.Run(name, func(t *testing.T) {
			m := newInitramfs(t, true)
			before := m.values()
			m.scrub("--cap-only")
			if extended != nil {
				m.extend("leave-initrd", extended...)
			}
			left := m.values()
			if out := m.scrub("--cap-rest"); !strings.Contains(out, "capped PCR 11 in") {
				t.Errorf("scrub --cap-rest: %q", out)
			}
			m.denied(before)
			if extended != nil && !bytes.Equal(m.values()[sha256Bank], left[sha256Bank]) {
				t.Error("a bank that systemd extended was capped")
			}
		})
	}
	t.Run("a record that cannot be read", func(t *testing.T) {
		m := newInitramfs(t, true)
		before := m.values()
		m.scrub("--cap-only")
		if err := os.WriteFile(filepath.Join(m.run, "pcr11"), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		m.extend("leave-initrd", sha256Bank)
		m.scrub("--cap-rest")
		m.denied(before)
	})
}

// A shell starts while systemd's unit may still be active.
func TestAttack_T32_ShellIsCappedAlsoWhereSystemdEndsTheInitramfs(t *testing.T) {
	for _, phases := range []bool{true, false} {
		m := newInitramfs(t, phases)
		before := m.values()
		m.scrub("--cap-only")
		if out := m.scrub("--cap-now"); phases != strings.Contains(out, "capped PCR 11") {
			t.Errorf("phases %t: scrub --cap-now: %q", phases, out)
		}
		m.denied(before)
	}
}

// On a later boot of a stock image, a process of its own caps. It reports its own error.
func TestFirstboot_CapsInAnotherProcessOnALaterBoot(t *testing.T) {
	m, dir := newInitramfs(t, false), t.TempDir()
	for name, file := range map[string]string{"CMDLINE": "cmdline", "BOOT_ID": "boot-id", "BOOT": "boot",
		"FIRSTBOOT": "firstboot"} {
		t.Setenv("MCS_ATTEST_"+name, filepath.Join(dir, file))
	}
	state := filepath.Join(dir, "firstboot")
	err := os.Mkdir(state, 0o755)
	for file, content := range map[string]string{"cmdline": "quiet", "boot-id": strings.Repeat("b", 36),
		"firstboot/config": firstboot.FullConfig, "firstboot/capped-once": ""} {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, file), []byte(content), 0o600))
	}
	program, noProgram := os.Executable()
	if err := errors.Join(err, noProgram); err != nil {
		t.Fatal(err)
	}
	run := func() string {
		t.Helper()
		out, err := (&exec.Cmd{Path: program, Args: []string{"mcs-attest-agent", "firstboot"}}).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return string(out)
	}
	before := m.values()
	if out := run(); out != "mcs-attest: capped PCR 11: this boot can no longer attest\n" || !m.exists("capped") {
		t.Errorf("the console has %q", out)
	}
	m.denied(before)
	if out := run(); out != "" {
		t.Errorf("after the cap: %q", out)
	}
	t.Setenv("MCS_ATTEST_RUN", filepath.Join(dir, "run"))
	t.Setenv("MCS_ATTEST_TPM", filepath.Join(dir, "no-tpm"))
	if err := os.WriteFile(filepath.Join(state, "tpm"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if out := run(); !strings.Contains(out, "error: the TPM's device failed: ") ||
		!strings.Contains(out, "error: PCR 11 is not capped: exit status 1\nhint: the boot continues") {
		t.Errorf("the console has %q", out)
	}
}
