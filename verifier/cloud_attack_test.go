// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/awssts/request"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester/swtpmtest"
	"github.com/mcs-attest/mcs-attest/pkg/transcript"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
	"github.com/mcs-attest/mcs-attest/testvm/cloud/aws"
	"github.com/mcs-attest/mcs-attest/testvm/cloud/gcp"
)

// admitted requires that a machine gets in.
func (s *site) admitted(n *node) *mcsattestv1.AttestResponse {
	s.t.Helper()
	res, err := n.again()
	if err != nil {
		s.t.Fatalf("the honest variant: %v\n%s", err, s.log.everything())
	}
	s.reasons()
	return res
}

// denied requires a reason in the audit log, and returns what the caller learned.
func (s *site) denied(n *node, want string) *mcsattestv1.Denial {
	s.t.Helper()
	s.reasons()
	res, err := n.again()
	if err == nil {
		s.t.Fatalf("accepted as %s, want %s", res.GetMachine(), want)
	}
	if got := s.reasons(); len(got) != 1 || got[0] != want {
		s.t.Fatalf("reasons %v, want %s\n%s", got, want, s.log.everything())
	}
	return denialOf(s.t, err)
}

// copyOf is a neighbor of a machine. It has a copy of its document of one kind
// and everything else of its own.
func (s *site) copyOf(n *node, k evidence.Kind, victim string) *node {
	honest := n.gather
	n.gather = func(kind evidence.Kind, h transcript.Hash, c *mcsattestv1.CloudChallenge) *mcsattestv1.CloudEvidence {
		if kind == k {
			return s.gather(victim, kind, h, c)
		}
		return honest(kind, h, c)
	}
	return n
}

// An instance with a virtual TPM proves both, and the provider says that they are
// one: EC2 and Compute Engine by the EK, Azure's TPM by an enrollment.
func TestCloudIdentityWithTheInstancesTPM(t *testing.T) {
	tpm := swtpmtest.Start(t, "sha256")
	for _, cloud := range cloudNames {
		t.Run(cloud, func(t *testing.T) {
			s := newSite(t, cloud)
			id := s.add("worker-0", tpm)
			s.machine("worker-0", id)
			n := s.node("worker-0", id, tpm)
			if cloud == "azure" {
				s.change("attestations/worker-0.yaml",
					enrolment("worker-0", "  machineRef: {apiVersion: machine.openshift.io/v1beta1, kind: Machine, namespace: "+
						"openshift-machine-api, name: worker-0}\n", n.id.EKSPKI))
			}
			s.admitted(n)
			m := s.verifier.machine("openshift-machine-api/worker-0")
			want := map[string]string{"aws": "provider", "gcp": "provider", "azure": "enrolled"}[cloud]
			if string(m.Record.Endorsement) != want || m.Record.Identity.EKSHA256 != hexOf(n.id.EKSPKI) ||
				m.Record.Identity.InstanceID == "" {
				t.Errorf("endorsement %q, identity %+v", m.Record.Endorsement, m.Record.Identity)
			}
		})
	}
}

func TestAttack_T05_AnInstanceDocumentReplayedByANeighbor(t *testing.T) {
	victims, own := swtpmtest.Start(t, "sha256"), swtpmtest.Start(t, "sha256")
	s := newSite(t, "aws")
	victim := s.add("victim", victims)
	s.add("neighbor", own)
	s.machine("victim", victim)

	// Its own TPM is not the one that EC2 names for the document's instance.
	s.denied(s.copyOf(s.node("neighbor", victim, own), evidence.AWSIID, "victim"), "EKUntrusted")
	// Without a TPM, its own role's signature is that of its own instance.
	s.denied(s.copyOf(s.node("neighbor", victim, nil), evidence.AWSIID, "victim"), "EvidenceDisagrees")
	// No trace of it is left at the victim, who gets in.
	if m := s.verifier.machine("openshift-machine-api/victim"); m.Record != nil {
		t.Errorf("a copy left a record: %+v", m.Record)
	}
	s.admitted(s.node("victim", victim, victims))
}

// A pod on the host's network of a node that has joined has all that the node has.
func TestAttack_T05_APodOnANodeThatJoined(t *testing.T) {
	for _, cloud := range cloudNames {
		t.Run(cloud, func(t *testing.T) {
			s := newSite(t, cloud)
			id := s.add("worker-0", nil)
			s.machine("worker-0", id)
			s.admitted(s.node("worker-0", id, nil))
			s.machine("worker-0", id, "spec: {", "status: {nodeRef: {name: worker-0}}\nspec: {")
			calls := s.calls()
			// Azure's document has no name in it: a caller that only names a Machine
			// does not learn anything about it.
			want := map[string]string{"aws": "MachineJoined", "gcp": "MachineJoined", "azure": "MachineNotFound"}[cloud]
			s.denied(s.node("worker-0", id, nil), want)
			if s.calls() != calls {
				t.Error("the cloud was asked for a machine that may not attest")
			}
		})
	}
}

func TestAttack_T09_ADocumentOfAnotherConversation(t *testing.T) {
	for _, cloud := range []string{"gcp", "azure"} {
		t.Run(cloud, func(t *testing.T) {
			s := newSite(t, cloud)
			id := s.add("worker-0", nil)
			s.machine("worker-0", id)
			n := s.node("worker-0", id, nil)
			s.admitted(n)
			honest := n.gather
			n.gather = func(k evidence.Kind, h transcript.Hash, c *mcsattestv1.CloudChallenge) *mcsattestv1.CloudEvidence {
				h[0] ^= 1
				return honest(k, h, c)
			}
			s.denied(n, "DocumentNotFresh")
		})
	}
}

func TestAttack_T14_ATPMOfOneInstanceAndADocumentOfAnother(t *testing.T) {
	a, b := swtpmtest.Start(t, "sha256"), swtpmtest.Start(t, "sha256")
	for _, cloud := range []string{"aws", "gcp"} {
		t.Run(cloud, func(t *testing.T) {
			s := newSite(t, cloud)
			idA, idB := s.add("a", a), s.add("b", b)
			s.machine("a", idA)
			s.machine("b", idB)
			n := s.node("a", idA, a)
			s.admitted(n)
			// The same TPM beside the other's documents.
			other := s.node("b", idB, nil)
			n.gather, n.says = other.gather, other.says
			s.denied(n, "EKUntrusted")
			s.admitted(s.node("b", idB, b))
		})
	}
}

func TestAttack_T40_AGenuineInstanceWithoutAMachineThatMayAttest(t *testing.T) {
	for _, c := range []struct {
		name   string
		change []string
		want   string // azure: MachineNotFound, since the document names no Machine
	}{
		{"a Machine that is being deleted",
			[]string{"uid:", "deletionTimestamp: \"2026-01-01T00:00:00Z\", finalizers: [x], uid:"}, "MachineDeleting"},
		{"a Machine that has joined", []string{"spec: {", "status: {nodeRef: {name: x}}\nspec: {"}, "MachineJoined"},
		{"a Machine of another pool", []string{"role: worker", "role: infra"}, "MachinePool"},
		{"a Machine that is too old", []string{"creationTimestamp: \"20", "creationTimestamp: \"19"}, "MachineTooOld"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSite(t, "gcp")
			id := s.add("worker-0", nil)
			s.machine("worker-0", id)
			n := s.node("worker-0", id, nil)
			s.admitted(n)
			fresh := newSite(t, "gcp")
			id = fresh.add("worker-0", nil)
			fresh.machine("worker-0", id, c.change...)
			if d := fresh.denied(fresh.node("worker-0", id, nil), c.want); d.GetTemporary() {
				t.Error("temporary")
			}
		})
	}
}

// A Machine whose object is still on its way is waited for.
func TestMachineThatDoesNotExistYet(t *testing.T) {
	for _, cloud := range cloudNames {
		t.Run(cloud, func(t *testing.T) {
			s := newSite(t, cloud)
			id := s.add("worker-0", nil)
			n := s.node("worker-0", id, nil)
			if d := s.denied(n, "MachineNotFound"); !d.GetTemporary() {
				t.Error("final")
			}
			s.machine("worker-0", "", `spec: {providerID: ""}`, "spec: {}")
			if d := s.denied(n, "MachineNotFound"); !d.GetTemporary() {
				t.Error("final")
			}
			if s.calls() != 0 {
				t.Error("the cloud was asked about an instance that no Machine has")
			}
			s.machine("worker-0", id)
			s.admitted(n)
		})
	}
}

// A name that is used again is another instance, and the holder keeps what it has.
func TestAttack_T42_ASecondInstanceUnderARecordedName(t *testing.T) {
	s := newSite(t, "gcp")
	id := s.add("worker-0", nil)
	s.machine("worker-0", id)
	s.admitted(s.node("worker-0", id, nil))
	before := s.verifier.machine("openshift-machine-api/worker-0").Record
	again := s.add("worker-0", nil) // the same name, another numeric id
	if again != id {
		t.Fatalf("%s is not %s", again, id)
	}
	s.denied(s.node("worker-0", id, nil), "IdentityConflict")
	after := s.verifier.machine("openshift-machine-api/worker-0").Record
	if after.Identity != before.Identity || after.Token == nil || after.Token.ID != before.Token.ID {
		t.Errorf("the challenger changed the holder's record: %+v, was %+v", after, before)
	}
}

// One TPM for two instances' Machines, with the provider's word for both: a clone.
func TestAttack_T42_TheSameTPMForASecondMachine(t *testing.T) {
	tpm := swtpmtest.Start(t, "sha256")
	s := newSite(t, "aws")
	a, b := s.add("a", tpm), s.add("b", tpm)
	s.machine("a", a)
	s.machine("b", b)
	s.admitted(s.node("a", a, tpm))
	s.denied(s.node("b", b, tpm), "EvidenceDisagrees")
}

func TestAttack_T10_AnInstanceOlderThanItsMachine(t *testing.T) {
	s := newSite(t, "gcp")
	old := gcp.Instance{Project: "demo", Zone: "europe-west1-b", Name: "worker-0", Created: time.Now().Add(-time.Hour)}
	oldID := s.gcp.Add(old)
	s.machine("worker-0", old.ProviderID())
	n := s.node("worker-0", old.ProviderID(), nil)
	n.gather = func(k evidence.Kind, h transcript.Hash, _ *mcsattestv1.CloudChallenge) *mcsattestv1.CloudEvidence {
		token, err := s.gcp.IdentityToken(oldID, testOrigin+"/mcs-attest/v1/"+h.Text())
		if err != nil {
			t.Fatal(err)
		}
		return &mcsattestv1.CloudEvidence{Kind: mcsattestv1.EvidenceKind(k), Document: []byte(token)}
	}
	s.denied(n, "InstanceUnacceptable")
	s.gcp.Remove(oldID)
	id := s.add("worker-0", nil)
	s.admitted(s.node("worker-0", id, nil))
}

// A cloud whose API is down makes machines wait; it never lets one in.
func TestUnavailableCloud_IsATemporaryDenial(t *testing.T) {
	for _, cloud := range []string{"aws", "azure"} {
		t.Run(cloud, func(t *testing.T) {
			s := newSite(t, cloud)
			id := s.add("worker-0", nil)
			s.machine("worker-0", id)
			n := s.node("worker-0", id, nil)
			s.down()
			if d := s.denied(n, "ProviderUnavailable"); !d.GetTemporary() {
				t.Error("final")
			}
			s.up()
			s.advance(2 * time.Second) // a denial is kept for a moment
			s.admitted(n)
		})
	}
}

// One attestation asks each API once; a TPM's key is not asked for again.
func TestCallsOfOneAttestation(t *testing.T) {
	tpm := swtpmtest.Start(t, "sha256")
	s := newSite(t, "aws")
	with, without := s.add("with", tpm), s.add("without", nil)
	s.machine("with", with)
	s.machine("without", without)
	n := s.node("with", with, tpm)
	for round := range 3 {
		s.admitted(n)
		for operation, want := range map[string]int{"DescribeInstances": round + 1, "GetInstanceTpmEkPub": 1,
			"GetCallerIdentity": 0} {
			if got := s.aws.Calls(operation); got != want {
				t.Errorf("%d attestations with a TPM: %d calls of %s, want %d", round+1, got, operation, want)
			}
		}
		s.advance(time.Minute)
	}
	s.admitted(s.node("without", without, nil))
	for operation, want := range map[string]int{"DescribeInstances": 4, "GetInstanceTpmEkPub": 1, "GetCallerIdentity": 1} {
		if got := s.aws.Calls(operation); got != want {
			t.Errorf("one more without a TPM: %d calls of %s, want %d", got, operation, want)
		}
	}
}

// An instance document without a TPM, if a policy accepts that, is valid once.
func TestAttack_T05_AnInstanceDocumentWithoutATPMIsValidOnce(t *testing.T) {
	s := newSite(t, "aws")
	s.policy("  evidence: [{all: [aws-iid]}]\n")
	id := s.add("worker-0", nil)
	s.machine("worker-0", id)
	n := s.node("worker-0", id, nil)
	s.admitted(n)
	before := s.verifier.machine("openshift-machine-api/worker-0").Record.History
	s.advance(time.Minute)
	s.denied(n, "EvidenceUnacceptable")
	// The second could be anybody with a copy: it leaves no trace at the Machine.
	if after := s.verifier.machine("openshift-machine-api/worker-0").Record.History; len(after) != len(before) {
		t.Errorf("a copy changed the record: %+v", after)
	}
}

// Evidence sets: and within, or between; the server chooses.
func TestEvidenceSets(t *testing.T) {
	const (
		both   = "  evidence: [{all: [gcp-identity, tpm2]}]\n  tpm2: {endorsements: [provider]}\n"
		either = "  evidence: [{all: [tpm2]}, {all: [gcp-identity]}]\n  tpm2: {endorsements: [provider]}\n"
	)
	for _, c := range []struct {
		name, spec string
		tpm, cloud bool   // what the machine offers and shows
		want       string // "" passes
	}{
		{"both of both", both, true, true, ""},
		{"the cloud of both", both, false, true, "EvidenceMissing"},
		{"the TPM of both", both, true, false, "EvidenceMissing"},
		{"the TPM of either", either, true, false, ""},
		{"the cloud of either", either, false, true, ""},
		{"either of either: the first that it has", either, true, true, ""},
		{"neither of either", either, false, false, "EvidenceMissing"},
		{"a TPM without an endorsement", "  evidence: [{all: [tpm2]}]\n", true, true, "EKNotEnrolled"},
		{"neither, where that is audited", "  mode: Audit\n" + both, false, true, "EvidenceMissing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSite(t, "gcp")
			s.policy(c.spec)
			var own, tpm *swtpmtest.TPM = swtpmtest.Start(t, "sha256"), nil
			id := s.add("worker-0", own)
			s.machine("worker-0", id)
			if c.tpm {
				tpm = own
			}
			n := s.node("worker-0", id, tpm)
			if !c.cloud {
				n.offers = nil
				n.gather = func(evidence.Kind, transcript.Hash, *mcsattestv1.CloudChallenge) *mcsattestv1.CloudEvidence {
					return &mcsattestv1.CloudEvidence{}
				}
			}
			if c.want == "" {
				s.admitted(n)
				return
			}
			s.denied(n, c.want)
			status, _, _ := s.fetch("GET", "/config/worker", "")
			if audited := strings.Contains(c.spec, "Audit"); (status == 200) != audited {
				t.Errorf("the gate answers %d", status)
			}
		})
	}
}

// A genuine TPM that is not enrolled is bound to the Machine that the cloud names
// in the same breath, where the policy says so; an instance document is no such word.
func TestFirstUseNeedsAStatementOfThisConversation(t *testing.T) {
	tpm := swtpmtest.Start(t, "sha256")
	first := "  tpm2: {endorsements: [manufacturer], approval: FirstUse}\n"
	s := newSite(t, "gcp")
	s.change("ek-roots/swtpm.pem", string(tpm.Roots()))
	s.policy("  evidence: [{all: [gcp-identity, tpm2]}]\n" + first)
	id := s.add("worker-0", nil)
	s.machine("worker-0", id)
	s.admitted(s.node("worker-0", id, tpm))

	a := newSite(t, "aws")
	a.change("ek-roots/swtpm.pem", string(tpm.Roots()))
	a.policy("  evidence: [{all: [aws-iid, tpm2]}]\n" + first)
	id = a.add("worker-0", nil)
	a.machine("worker-0", id)
	a.denied(a.node("worker-0", id, tpm), "PendingApproval")
}

// Without anything of a cloud's, an instance of a cloud is a machine like any other.
func TestUserProvisionedAWSIsLikeBareMetal(t *testing.T) {
	tpm := swtpmtest.Start(t, "sha256")
	v := newVerifier(t)
	n := newNode(t, v, tpm)
	v.enroll("worker-0", "worker", n.id.EKSPKI)
	if _, err := n.attest(); err != nil {
		t.Fatal(err)
	}
	// And a stand-in may be named by its instance instead of a TPM.
	s := newSite(t, "aws")
	s.policy("  evidence: [{all: [aws-iid, aws-sts]}]\n")
	id := s.add("worker-0", nil)
	s.change("attestations/worker-0.yaml",
		enrolment("worker-0", fmt.Sprintf("  pool: worker\n  expectedProviderID: %q\n", id)))
	s.admitted(s.node("worker-0", id, nil))
}

// Text of a document or of the claims is in the log only as quoted text.
func TestAttack_T50_HostileTextInDocumentsAndClaims(t *testing.T) {
	const evil = "x\n{\"log\":\"audit\",\"outcome\":\"allowed\"}\x1b[2J\u2028"
	honest := newSite(t, "aws")
	honest.policy("  evidence: [{all: [aws-sts]}]\n")
	id := honest.add("worker-0", nil)
	honest.machine("worker-0", id)
	honest.admitted(honest.node("worker-0", id, nil))

	with := func(s *site, document []byte) *node {
		n := s.node("worker-0", id, nil)
		n.gather = func(k evidence.Kind, _ transcript.Hash, _ *mcsattestv1.CloudChallenge) *mcsattestv1.CloudEvidence {
			return &mcsattestv1.CloudEvidence{Kind: mcsattestv1.EvidenceKind(k), Document: document}
		}
		return n
	}
	for name, c := range map[string]struct {
		node         func(*site) *node
		policy       string // the evidence
		code, detail string // of the denial
	}{
		"the claims": {func(s *site) *node { return s.node("worker-0", evil, nil) }, "aws-sts", "MachineNotFound",
			fmt.Sprintf("the machine claims to be %q", evil)},
		"a document without a signature": {func(s *site) *node {
			return with(s, request.Document{Region: "eu-central-1",
				AmzDate: s.now().UTC().Format(request.TimeFormat), SecurityToken: "AAAA", Authorization: evil}.Encode())
		}, "aws-sts", "DocumentInvalid", fmt.Sprintf("not of the form of Signature Version 4: %q", evil)},
		"a signed document": {func(s *site) *node {
			i := s.aws.Add(aws.Instance{Zone: "eu-central-1a", Account: "123456789012"})
			content := strings.Replace(string(s.aws.IdentityDocument(i.ID)), `"instanceId"`, "\"\u2028owned\"", 1)
			return with(s, s.aws.SignDocument("eu-central-1", []byte(content), s.now()))
		}, "aws-iid", "DocumentInvalid", fmt.Sprintf("key %q", "\"\u2028owned\"")},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, "aws")
			s.policy("  evidence: [{all: [" + c.policy + "]}]\n")
			s.denied(c.node(s), c.code)
			decisions := 0
			for line := range strings.Lines(s.log.everything()) {
				var entry map[string]any
				if err := json.Unmarshal([]byte(line), &entry); err != nil || !strings.HasPrefix(line, `{"time":`) ||
					strings.ContainsFunc(strings.TrimSuffix(line, "\n"), func(r rune) bool { return !unicode.IsPrint(r) }) {
					t.Errorf("not one printable line of the log: %q", line)
				}
				if entry["log"] != "audit" {
					continue
				}
				decisions++
				detail, _ := entry["detail"].(string)
				if entry["outcome"] != "denied" || !strings.Contains(detail, c.detail) ||
					strings.ContainsFunc(detail, func(r rune) bool { return !unicode.IsPrint(r) }) {
					t.Errorf("the detail of %v is %q, want %s", entry["outcome"], detail, c.detail)
				}
			}
			if decisions != 1 {
				t.Errorf("%d decisions in the log", decisions)
			}
		})
	}
}
