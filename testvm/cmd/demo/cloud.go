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

// cloud is what a story has in its own words for each of them.
type cloud struct {
	name     string
	document string // what the machine shows
	tpm      string // who vouches for the TPM
	copied   string // what the neighbour has of it
	reason   string // why he is refused
	because  string
}

var stories = map[string]cloud{
	"aws": {
		name: "Amazon EC2", document: "EC2's signed identity document", tpm: "EC2 itself says which TPM is this instance's",
		copied: "the document has no nonce: the copy is as good as the original",
		reason: "EKUntrusted", because: "the TPM that answers is not the one that EC2 has for that instance",
	},
	"gcp": {
		name: "Google Cloud", document: "Google's identity token, made for this conversation",
		tpm:    "Google's API says which TPM is this instance's",
		copied: "the token is genuine and has not expired",
		reason: "DocumentNotFresh", because: "its audience is another conversation's",
	},
	"azure": {
		name: "Azure", document: "Azure's attested document, with this conversation as its nonce",
		tpm:    "Azure's certificate says that its TPM is a virtual machine's",
		copied: "the document is genuine, and six hours are not over",
		reason: "DocumentNotFresh", because: "its nonce is another conversation's",
	},
}

// tellOf is the story of a cloud.
func tellOf(platform string) func(*stage.Stage) {
	return func(s *stage.Stage) {
		c := stories[platform]
		r := rig.New(s)
		s.Say("demo", "an instance of %s (emulated) comes in by its cloud identity and its TPM;", c.name)
		s.Say("demo", "then a neighbour shows a copy of what it has shown, and is refused")
		s.Rule("the cluster's side: a verifier with the policy that ships for " + c.name)
		site := clouds.New(s, r, platform, rig.VerifierConfig{OnAudit: func(a rig.Audit) { s.Audit("verifier", a) }})
		site.V.Write("configs/worker.ign", rig.Config(content))
		s.Say("you", "$ cat deploy/policies/%s.yaml", platform)
		_, spec, _ := strings.Cut(string(r.Source("deploy/policies/"+platform+".yaml")), "\nspec:")
		s.Lines("policy", "spec:"+spec)

		s.Rule("the Machine API makes a Machine, and its instance")
		machine := site.Add("worker-0", r.NewTPM())
		s.Say("cluster", "Machine worker-0, providerID %s", machine.ProviderID)
		copied := clouds.Record(machine.Metadata)
		machine.Metadata = watched(s, copied)
		node := site.Boot(machine, rig.VM{OnLine: s.Console})
		node.WantProvisioned()
		s.Say("demo", "it showed %s;", c.document)
		s.Say("demo", "%s", c.tpm)

		s.Rule("the machine's disk, read from outside")
		s.Say("you", "$ debugfs -R 'cat /etc/provisioned' DISK")
		got := node.ReadFile("/etc/provisioned")
		s.Say("disk", "%s", strings.TrimSpace(got))
		if got != content {
			s.Fatalf("the disk does not hold what the config says")
		}
		before := site.V.WantRecord("worker-0", "Fetched")

		s.Rule("a neighbour, with a TPM of its own, has copied what the metadata service said")
		s.Say("demo", "it claims to be worker-0; %s", c.copied)
		neighbour := site.Stranger("neighbour", r.NewTPM())
		neighbour.Metadata = copied.InPlaceOf(neighbour.Metadata)
		thief := site.Boot(neighbour, rig.VM{OnLine: s.Console})
		thief.WantEmergency()
		denied := site.V.WantAudit("attest", "denied", c.reason)
		s.Say("demo", "refused: %s", c.because)
		s.Lines("verifier", denied.Detail)

		s.Rule("what the cluster knows now")
		s.Say("you", "$ mcs-attest-verifier status --config DIR/mcs-attest.yaml")
		s.Lines("verifier", site.V.Run("status"))
		if after := site.V.WantRecord("worker-0", "Fetched"); after.Record.Token.ID != before.Record.Token.ID {
			s.Fatalf("the neighbour changed the machine's record")
		}
		s.Rule("anybody else who asks, without a token")
		curl(s, site.V)
	}
}

// watched tells, once each, what is asked of a machine's metadata service.
func watched(s *stage.Stage, next http.Handler) http.Handler {
	var mu sync.Mutex
	seen := map[string]bool{}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		line := fmt.Sprintf("%s %s", req.Method, req.URL.Path)
		mu.Lock()
		told := seen[line]
		seen[line] = true
		mu.Unlock()
		if !told {
			s.Say("metadata", "%s", line)
		}
		next.ServeHTTP(w, req)
	})
}
