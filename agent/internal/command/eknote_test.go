// SPDX-License-Identifier: Apache-2.0

package command

import (
	"bytes"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-tpm/tpm2"

	"github.com/mcs-attest/mcs-attest/agent/internal/console"
	"github.com/mcs-attest/mcs-attest/agent/internal/paths"
	"github.com/mcs-attest/mcs-attest/agent/internal/platform"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester/swtpmtest"
)

// A verifier that requires a certificate denies this machine, and an administrator needs the reason.
func TestNewFlow_PrintsWhyACertificateOfTheEKIsNotUsed(t *testing.T) {
	device := swtpmtest.Start(t, "sha256")
	conn := device.Dial()
	owner := tpm2.AuthHandle{Handle: tpm2.TPMRHOwner, Auth: tpm2.PasswordAuth(nil)}
	index := tpm2.TPMSNVPublic{NVIndex: 0x01C0000A, NameAlg: tpm2.TPMAlgSHA256, DataSize: 8,
		Attributes: tpm2.TPMANV{OwnerWrite: true, OwnerRead: true, AuthRead: true, NoDA: true}}
	_, err := tpm2.NVDefineSpace{AuthHandle: owner, PublicInfo: tpm2.New2B(index)}.Execute(conn)
	if name, nameErr := tpm2.NVName(&index); err == nil && nameErr == nil {
		_, err = tpm2.NVWrite{AuthHandle: owner, NVIndex: tpm2.NamedHandle{Handle: index.NVIndex, Name: *name},
			Data: tpm2.TPM2BMaxNVBuffer{Buffer: make([]byte, 8)}}.Execute(conn)
	}
	if err := errors.Join(err, conn.Close()); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	a := &agent{console: &console.Console{Out: &out, Err: &out},
		paths: paths.Paths{TPM: device.Socket, Run: filepath.Join(t.TempDir(), "run")}}
	_, done, err := a.newFlow(t.Context(), platform.Machine{Paths: a.paths, ID: "metal"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := done(); err != nil {
		t.Error(err)
	}
	if want := "a certificate of the TPM is not used: NV index 0x01c0000a contains no certificate"; !strings.Contains(
		out.String(), want) {
		t.Errorf("no %q in\n%s", want, &out)
	}
}
