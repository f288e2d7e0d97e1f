// SPDX-License-Identifier: Apache-2.0

package command

import (
	"crypto/fips140"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// The agent attests in strict FIPS 140 mode, in which Go's cryptography rejects every algorithm that is not approved
// (status row E16). The mode is set when a program starts, so this runs a first boot in another process.
func TestFIPS_AgentAttestsInStrictMode(t *testing.T) {
	const inner = "MCS_ATTEST_TEST_STRICT"
	if os.Getenv(inner) != "" { // in that process
		if !fips140.Enforced() {
			t.Fatal("FIPS 140 mode is not strict")
		}
		return
	}
	const boot = "TestFirstboot_FromThePreApprovedToTheFullConfig"
	cmd := exec.Command(os.Args[0], "-test.v", "-test.run=^("+t.Name()+"|"+boot+")$")
	cmd.Env = append(os.Environ(), "GODEBUG=fips140=only", inner+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, name := range []string{t.Name(), boot} {
		if !strings.Contains(string(out), "--- PASS: "+name) {
			t.Errorf("%s did not pass in strict mode:\n%s", name, out)
		}
	}
}
