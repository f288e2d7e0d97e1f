// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/http"
	"strings"
	"sync"

	"github.com/mcs-attest/mcs-attest/testvm/clouds"
	"github.com/mcs-attest/mcs-attest/testvm/rig"
	"github.com/mcs-attest/mcs-attest/testvm/stage"
)

// cloud has the text of the demo that differs between clouds.
type cloud struct {
	name     string
	document string // what the machine presents
	tpm      string // the endorser of the TPM
	copied   string // what the neighbor copied
	reason   string // why the neighbor is denied
	because  string
}

var stories = map[string]cloud{
	"aws": {
		name: "Amazon EC2", document: "EC2's signed identity document",
		tpm:    "EC2 confirms which TPM belongs to this instance",
		copied: "the document has no nonce, so the copy equals the original",
		reason: "EKUntrusted", because: "the TPM that answers is not the one that EC2 has for that instance",
	},
	"gcp": {
		name: "Google Cloud", document: "Google's identity token, issued for this conversation",
		tpm:    "Google's API confirms which TPM belongs to this instance",
		copied: "the token is genuine and has not expired",
		reason: "DocumentNotFresh", because: "its audience is another conversation's",
	},
	"azure": {
		name: "Azure", document: "Azure's attested document, with this conversation as its nonce",
		tpm:    "Azure's certificate confirms that its TPM belongs to a virtual machine",
		copied: "the document is genuine and has not expired",
		reason: "DocumentNotFresh", because: "its nonce is another conversation's",
	},
}

// storyOf returns the script for a cloud.
func storyOf(platform string) func(*stage.Stage) {
	return func(s *stage.Stage) {
		c := stories[platform]
		r := rig.New(s)
		s.Say("demo", "an instance of %s (emulated) attests with its cloud identity and its TPM;", c.name)
		s.Say("demo", "then a neighbor presents a copy of its evidence and is denied")
		s.Rule("the cluster's side: a verifier with the policy that ships for " + c.name)
		site := clouds.New(s, r, platform, rig.VerifierConfig{OnAudit: func(a rig.Audit) { s.Audit("verifier", a) }})
		site.V.Write("configs/worker.ign", rig.Config(content))
		s.Say("you", "$ cat deploy/policies/%s.yaml", platform)
		_, spec, _ := strings.Cut(string(r.Source("deploy/policies/"+platform+".yaml")), "\nspec:")
		s.Lines("policy", "spec:"+spec)

		s.Rule("the Machine API creates a Machine and its instance")
		machine := site.Add("worker-0", r.NewTPM())
		s.Say("cluster", "Machine worker-0, providerID %s", machine.ProviderID)
		copied := clouds.Record(machine.Metadata)
		machine.Metadata = watched(s, copied)
		node := site.Boot(machine, rig.VM{OnLine: s.Console})
		node.WantProvisioned()
		s.Say("demo", "it presented %s;", c.document)
		s.Say("demo", "%s", c.tpm)

		s.Rule("the machine's disk, read from outside")
		s.Say("you", "$ debugfs -R 'cat /etc/provisioned' DISK")
		got := node.ReadFile("/etc/provisioned")
		s.Say("disk", "%s", strings.TrimSpace(got))
		if got != content {
			s.Fatalf("the disk does not have the content of the config")
		}
		before := site.V.WantRecord("worker-0", "Fetched")

		s.Rule("a neighbor with its own TPM has copied the metadata service's answers")
		s.Say("demo", "it claims to be worker-0; %s", c.copied)
		neighbor := site.Stranger("neighbor", r.NewTPM())
		neighbor.Metadata = copied.InPlaceOf(neighbor.Metadata)
		attacker := site.Boot(neighbor, rig.VM{OnLine: s.Console})
		attacker.WantEmergency()
		denied := site.V.WantAudit("attest", "denied", c.reason)
		s.Say("demo", "denied: %s", c.because)
		s.Lines("verifier", denied.Detail)

		s.Rule("the cluster's records")
		s.Say("you", "$ mcs-attest-verifier status --config DIR/mcs-attest.yaml")
		s.Lines("verifier", site.V.Run("status"))
		if after := site.V.WantRecord("worker-0", "Fetched"); after.Record.Token.ID != before.Record.Token.ID {
			s.Fatalf("the neighbor changed the machine's record")
		}
		s.Rule("another client, without a token")
		curl(s, site.V)
	}
}

// watched prints each request to a machine's metadata service once.
func watched(s *stage.Stage, next http.Handler) http.Handler {
	var mu sync.Mutex
	seen := map[string]bool{}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		line := fmt.Sprintf("%s %s", req.Method, req.URL.Path)
		mu.Lock()
		printed := seen[line]
		seen[line] = true
		mu.Unlock()
		if !printed {
			s.Say("metadata", "%s", line)
		}
		next.ServeHTTP(w, req)
	})
}
