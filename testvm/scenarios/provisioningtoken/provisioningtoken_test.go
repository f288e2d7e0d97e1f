// SPDX-License-Identifier: Apache-2.0

// Package provisioningtoken boots machines whose only evidence is the shared provisioning token.
package provisioningtoken

import (
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

const tokenOnlyPolicy = `apiVersion: mcs-attest.dev/v1alpha1
kind: AttestationPolicy
metadata:
  name: default
spec:
  evidence:
  - all: [provisioning-token]
  provisioningTokenAlone: true
  provisioningToken:
    urlParameter: true
`

// verifier enforces the provisioning token; pointer contains it.
func verifier(r *rig.Rig) (v *rig.Verifier, pointer []byte) {
	v = r.Verifier(rig.VerifierConfig{Policy: tokenOnlyPolicy, Stopped: true})
	v.Run("token", "provisioning", "create")
	v.Start()
	return v, pointerOf(v, "worker")
}

// pointerOf returns the pointer config of a pool with the current token.
func pointerOf(v *rig.Verifier, pool string) []byte {
	return []byte(v.Run("token", "provisioning", "pointer", v.Dir+"/pointers/"+pool+".ign"))
}

func token(v *rig.Verifier) string {
	return strings.TrimSpace(v.Run("token", "provisioning", "show", "--reveal"))
}

// Ignition is not patched, and the image may have any age: no agent is needed. A17: a control-plane node is provisioned
// again with the current token. The pointer config of the installation has a token that was replaced since: 401, which
// is final.
func TestControlPlaneNodeIsProvisionedAgainWithTheCurrentToken(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	v := r.Verifier(rig.VerifierConfig{Policy: tokenOnlyPolicy, Pools: []string{"worker", "master"}, Stopped: true})
	v.Run("token", "provisioning", "create")
	v.Start()
	installation, first := pointerOf(v, "master"), token(v)
	v.Run("token", "provisioning", "rotate", "--now")
	for code := 0; code != 401; {
		code, _ = v.Get("/config/master", first)
	}
	node := r.Boot(rig.VM{Name: "again", Pointer: pointerOf(v, "master"), Initrd: rig.Initrd{Agent: rig.NoAgent}})
	node.WantProvisioned()
	if got := node.ReadFile("/etc/provisioned"); !strings.Contains(got, "for master") {
		t.Errorf("provisioned %q", got)
	}
	v.WantAudit("fetch", "allowed", "")
	current := token(v)
	if strings.Contains(v.Log(), current) || strings.Contains(node.Console()+node.Journal(), current) {
		t.Error("the token is in a log")
	}
	node = r.Boot(rig.VM{Name: "outdated", Pointer: installation, Initrd: rig.Initrd{Agent: rig.NoAgent}})
	node.WantEmergency()
	v.WantAudit("fetch", "denied", "ProvisioningTokenInvalid")
}

// Specification 3.0 has no headers.
func TestIgnitionFetchesWithTheProvisioningTokenInTheURL(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	v, _ := verifier(r)
	v.Write("old.ign", strings.Replace(string(v.Pointer("worker")), "3.2.0", "3.0.0", 1))
	pointer := v.Run("token", "provisioning", "pointer", v.Dir+"/old.ign", "--url-parameter")
	node := r.Boot(rig.VM{Pointer: []byte(pointer), Initrd: rig.Initrd{Agent: rig.NoAgent}})
	node.WantProvisioned()
	v.WantAudit("fetch", "allowed", "")
	if strings.Contains(v.Log(), token(v)) {
		t.Error("the token is in the verifier's log")
	}
}

// With the agent in the image nothing else has to change: the agent proves that it has the token
// and leaves the pointer config unchanged.
func TestAgentKeepsAPointerWithTheProvisioningToken(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	v, pointer := verifier(r)
	node := r.Boot(rig.VM{Pointer: pointer})
	node.WantProvisioned()
	v.WantAudit("attest", "allowed", "")
	v.WantAudit("fetch", "allowed", "")
	shared := token(v)
	if strings.Contains(v.Log(), shared) || strings.Contains(node.Console()+node.Journal(), shared) {
		t.Error("the token is in a log")
	}
	if !node.Said("it has the provisioning token") {
		t.Error("the agent does not report why the pointer config is unchanged")
	}
}

// The image contains the token and the server that it is for.
func TestAttack_T64_TokenInTheImageGoesToItsOwnServerOnly(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	v, withToken := verifier(r)
	image := rig.Initrd{Agent: rig.Appended,
		Extra: map[string]string{"etc/mcs-attest/provisioning-token": string(withToken)}}
	node := r.Boot(rig.VM{Pointer: v.Pointer("worker"), Initrd: image})
	node.WantProvisioned()
	v.WantAudit("attest", "allowed", "")
	v.WantAudit("fetch", "allowed", "")
	shared := token(v)
	if strings.Contains(v.Log(), shared) || strings.Contains(node.Console()+node.Journal(), shared) {
		t.Error("the token is in a log")
	}

	other := r.NewMCS(map[string]string{"worker": rig.Config("by another server")})
	node = r.Boot(rig.VM{Name: "misled", Pointer: other.Pointer("worker"), Initrd: image})
	node.WantProvisioned()
	if !node.Said("the provisioning token of the image is not used") {
		t.Error("the agent does not report why it does not use the token")
	}
	if seen := strings.Join(other.Requests(),
		", "); seen != "POST /mcsattest.v1.Attestation/Challenge, GET /config/worker" {
		t.Errorf("the other server saw %s", seen)
	}
}
