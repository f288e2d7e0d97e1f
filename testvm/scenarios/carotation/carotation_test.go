// SPDX-License-Identifier: Apache-2.0

// Package carotation rotates the Machine Config Server's CA and its serving certificate while a
// machine boots.
package carotation

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/testvm/cluster"
	"github.com/mcs-attest/mcs-attest/testvm/replicas"
	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

const policy = `apiVersion: mcs-attest.dev/v1alpha1
kind: AttestationPolicy
metadata:
  name: workers
spec:
  pools: [worker]
  tpm2:
    endorsements: [enrolled]
`

// A machine starts with the pointer config from after the first step of a rotation, while the
// server still uses a certificate of the old CA. It attests. The second step happens before the
// machine has its config: from then on the server uses a certificate of the new CA.
func TestMachineBootsThroughARotationOfTheCA(t *testing.T) {
	r := rig.New(t)
	c := cluster.Start(t, replicas.Controllers())
	c.InstallOpenShift(t)
	s := replicas.Start(t, r, c, replicas.Config{
		Replicas: 2, Policy: policy, Configs: map[string]string{"worker": rig.Config("by the MCS behind")},
		Components: []string{"certificates"}, Settings: map[string]any{"certificates": map[string]any{"rotate": "Always"}},
	})
	uid := s.Machine("worker-0", "worker")
	tpm := r.NewTPM()
	s.Enroll("worker-0", tpm)
	old := s.UserData("worker")

	// The CA of the serving certificate has no key here, so an administrator creates one that has.
	s.Attest("certs", "init")
	for deadline := time.Now().Add(3 * time.Minute); bytes.Equal(s.UserData("worker"),
		old); time.Sleep(200 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the pointer config has not followed:\n%s", s.Attest("certs", "status"))
		}
	}
	pointer := s.UserData("worker")
	if authorities := trusted(t, pointer); len(authorities) < 2 || authorities[0] == authorities[1] {
		t.Fatalf("the pointer config trusts %d CAs", len(authorities))
	}
	if want := s.Pointer("worker"); !bytes.Equal(without(t, pointer), without(t, want)) {
		t.Errorf("more than the CA was changed:\n%s\n%s", pointer, want)
	}

	s.MCS.SetDown(true)
	node := r.Boot(rig.VM{TPM: tpm, Pointer: pointer})
	s.WaitPhase(uid, "Attested")
	bundle := c.Kubectl(t, "-n", replicas.MCO, "get", "configmap", "machine-config-server-ca", "-o",
		`jsonpath={.data.ca-bundle\.crt}`)
	var before []string
	for _, v := range s.Verifiers {
		v.Write("tls/ca.crt", bundle)
		before = append(before, v.Leaf())
	}
	s.Attest("certs", "rotate", "--now")
	for i, v := range s.Verifiers {
		if v.WaitLeaf(before[i]) == before[i] {
			t.Fatalf("replica %d still serves with the previous certificate", i)
		}
	}
	s.MCS.SetDown(false)
	node.WantProvisioned()
	s.WaitPhase(uid, "Fetched")
}

// pointerConfig is the part of a pointer config that has its CAs.
type pointerConfig struct {
	Ignition struct {
		Security struct {
			TLS struct {
				CertificateAuthorities []struct{ Source string } `json:"certificateAuthorities"`
			} `json:"tls"`
		} `json:"security"`
	} `json:"ignition"`
}

func source(t *testing.T, pointer []byte) string {
	t.Helper()
	var p pointerConfig
	if err := json.Unmarshal(pointer, &p); err != nil || len(p.Ignition.Security.TLS.CertificateAuthorities) != 1 {
		t.Fatalf("pointer config: %v\n%s", err, pointer)
	}
	return p.Ignition.Security.TLS.CertificateAuthorities[0].Source
}

// trusted returns the CAs of a pointer config.
func trusted(t *testing.T, pointer []byte) []string {
	t.Helper()
	_, data, _ := strings.Cut(source(t, pointer), "base64,")
	pem, err := base64.StdEncoding.DecodeString(data)
	if err != nil {
		t.Fatalf("the pointer config's CA: %v", err)
	}
	all := strings.SplitAfter(string(pem), "-----END CERTIFICATE-----")
	return all[:len(all)-1]
}

// without returns a pointer config without its CAs.
func without(t *testing.T, pointer []byte) []byte {
	t.Helper()
	return bytes.ReplaceAll(pointer, []byte(source(t, pointer)), nil)
}
