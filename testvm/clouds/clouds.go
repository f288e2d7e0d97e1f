// SPDX-License-Identifier: Apache-2.0

// Package clouds combines an emulated cloud, a verifier that is configured for it, and machines of
// the rig. The scenarios and the demo of a cloud use it.
//
//	r := rig.New(t)
//	site := clouds.New(t, r, "aws", rig.VerifierConfig{})
//	tpm := r.NewTPM()
//	machine := site.Add("worker-0", tpm)
//	node := site.Boot(machine, rig.VM{})
//
// The verifier's policy is the shipped one for the platform (deploy/policies). Each machine is a
// Machine in the verifier's folder, in the form of the Machine API, and an instance of the emulated
// cloud. Its metadata service is at 169.254.169.254. The verifier calls the emulated cloud's API.
package clouds

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

// Platforms are the supported platforms, by Ignition's names.
var Platforms = []string{"aws", "azure", "gcp"}

// provider is one emulated cloud.
type provider interface {
	// section returns the cloud's part of mcs-attest.yaml, with files for the verifier's folder and
	// its environment. Everything that it starts ends with the test.
	section(t rig.TB, dir string) (text string, files map[string]string, env []string)
	// add starts an instance. A nil TPM means none.
	add(t rig.TB, name string, userData []byte, tpm *rig.TPM) (providerID string, metadata http.Handler)
}

// Site is a cloud with a verifier.
type Site struct {
	V        *rig.Verifier
	Platform string

	t        rig.TB
	r        *rig.Rig
	provider provider
	machines int
}

// Machine is a Machine of the cluster and an instance of the cloud.
type Machine struct {
	Name, ProviderID string
	TPM              *rig.TPM // nil: no TPM
	// Metadata is its metadata service. It may be replaced before the boot.
	Metadata http.Handler
}

// New starts the cloud, and a verifier with the cloud's default policy.
func New(t rig.TB, r *rig.Rig, platform string, c rig.VerifierConfig) *Site {
	t.Helper()
	s := &Site{Platform: platform, t: t, r: r}
	switch platform {
	case "aws":
		s.provider = newAWS()
	case "azure":
		s.provider = newAzure(t)
	case "gcp":
		s.provider = newGCP(t)
	default:
		t.Fatalf("no cloud is called %q; there are %v", platform, Platforms)
	}
	dir, err := os.MkdirTemp("", "cloud-")
	if err != nil {
		t.Fatalf("cloud: %v", err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Logf("cloud: %v", err)
		}
	})
	c.Host = rig.CloudHost
	c.Extra, c.Files, c.Env = s.provider.section(t, dir)
	if c.Policy == "" {
		c.Policy = string(r.Source(filepath.Join("deploy", "policies", platform+".yaml")))
	}
	s.V = r.Verifier(c)
	return s
}

// Add creates a Machine of the pool worker and its instance, like the Machine API.
func (s *Site) Add(name string, tpm *rig.TPM) Machine {
	s.t.Helper()
	m := s.Stranger(name, tpm)
	s.machines++
	s.V.Write("machines/"+name+".yaml", fmt.Sprintf(`apiVersion: machine.openshift.io/v1beta1
kind: Machine
metadata:
  name: %s
  namespace: openshift-machine-api
  uid: 9b1deb4d-3b7d-4bad-9bdd-2b0d7b3dcb%02d
  creationTimestamp: "%s"
  labels:
    machine.openshift.io/cluster-api-machine-role: worker
    machine.openshift.io/cluster-api-machine-type: worker
spec:
  providerID: %s
`, name, s.machines, time.Now().UTC().Format(time.RFC3339), m.ProviderID))
	return m
}

// Stranger returns an instance of the cloud that is not a Machine of the cluster. Its user data is
// the same pointer config.
func (s *Site) Stranger(name string, tpm *rig.TPM) Machine {
	s.t.Helper()
	id, metadata := s.provider.add(s.t, name, s.V.Pointer("worker"), tpm)
	return Machine{Name: name, ProviderID: id, TPM: tpm, Metadata: metadata}
}

// Boot starts the machine.
func (s *Site) Boot(m Machine, vm rig.VM) *rig.Node {
	s.t.Helper()
	vm.Name, vm.TPM, vm.Platform, vm.Metadata = m.Name, m.TPM, s.Platform, m.Metadata
	return s.r.Boot(vm)
}

// Provisions boots a machine of the platform, and checks that it requests the document at path from
// its metadata service and receives its config. The machine has a TPM that is endorsed in the given
// way, or none if endorsement is empty.
func Provisions(t rig.TB, platform, path, endorsement string) {
	t.Helper()
	r := rig.New(t)
	site := New(t, r, platform, rig.VerifierConfig{})
	var tpm *rig.TPM
	if endorsement != "" {
		tpm = r.NewTPM()
	}
	node := site.Boot(site.Add("worker-0", tpm), rig.VM{})
	node.WantProvisioned()
	if got := node.ReadFile("/etc/provisioned"); got != "for worker" {
		t.Fatalf("the disk holds %q", got)
	}
	if !node.AskedMetadata(path, "") {
		t.Fatalf("the document was not requested: %q", node.Metadata())
	}
	node.WantNoTokensLeft()
	if rec := site.V.WantRecord("worker-0", "Fetched"); rec.Record.Endorsement != endorsement {
		t.Fatalf("endorsed by %q instead of %q", rec.Record.Endorsement, endorsement)
	}
}
