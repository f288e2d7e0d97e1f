// SPDX-License-Identifier: Apache-2.0

// Package aws boots machines of an emulated Amazon EC2 under the policy that ships for it. Pointer
// config, documents and credentials all come from 169.254.169.254.
package aws

import (
	"net/http"
	"testing"

	"github.com/mcs-attest/mcs-attest/testvm/clouds"
	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

const identity = "/latest/dynamic/instance-identity/rsa2048"

// The instance's document names the instance, and EC2 names the instance's TPM.
func TestInstanceWithItsTPM(t *testing.T) {
	clouds.Provisions(t, "aws", identity, "provider")
}

// Without a TPM the instance signs the challenge with its role, and AWS names the signer.
func TestInstanceWithItsRole(t *testing.T) {
	clouds.Provisions(t, "aws", identity, "")
}

// The console reports that the metadata service is turned off.
func TestMetadataServiceThatIsOff(t *testing.T) {
	r := rig.New(t)
	site := clouds.New(t, r, "aws", rig.VerifierConfig{})
	machine := site.Add("worker-0", nil)
	machine.Metadata = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
	})
	node := site.Boot(machine, rig.VM{})
	node.WaitFor(`mcs-attest: .*AWS metadata service.* IMDSv2 token \(HTTP status 403\)`)
	node.Kill()
	site.V.WantNoAudit("", "allowed", "")
	site.V.WantRecord("worker-0", "")
}
