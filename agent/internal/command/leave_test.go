// SPDX-License-Identifier: Apache-2.0

package command

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/mcs-attest/mcs-attest/agent/internal/console"
	"github.com/mcs-attest/mcs-attest/agent/internal/paths"
	"github.com/mcs-attest/mcs-attest/agent/internal/tpmdev"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester/swtpmtest"
)

// On a boot without an attestation, only the recorded values of PCR 11 prove that the machine has a TPM.
func TestCapRest_FailsIfTheDeviceDisappears(t *testing.T) {
	var out bytes.Buffer
	dir := t.TempDir()
	p := paths.Paths{Run: filepath.Join(dir, "run"), TPM: swtpmtest.Start(t, "sha256").Socket,
		Phase: filepath.Join(dir, "phase"), FirstBoot: filepath.Join(dir, "etc"), BootID: filepath.Join(dir, "id")}
	if err := os.WriteFile(p.Phase, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	process := func() *agent { return &agent{paths: p, console: &console.Console{Out: &out, Err: &out}} }
	if err := process().capPCR(false); err != nil {
		t.Fatal(err)
	}
	p.TPM = filepath.Join(dir, "none")
	a := process()
	if err := a.onTPM(a.capRest); !errors.Is(err, tpmdev.ErrFailed) || a.capped() {
		t.Errorf("%v, capped %v\n%s", err, a.capped(), &out)
	}
}
