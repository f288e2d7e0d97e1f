// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester/swtpmtest"
	"github.com/mcs-attest/mcs-attest/pkg/transcript"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
)

// later is long enough after an attestation for the machine to have another.
const later = 10 * time.Second

func TestAttest_EnrolledMachineFetchesAndIsRecorded(t *testing.T) {
	v := newVerifier(t)
	n := newNode(t, v, swtpmtest.Start(t, "sha256"))
	v.enroll("m1", "worker", n.id.EKSPKI)
	res, err := n.attest()
	if err != nil {
		t.Fatal(err)
	}
	if res.GetMachine() != "default/m1" || res.GetToken() == "" || res.GetReportTicket() == "" ||
		res.GetTokenLifetimeSeconds() != 600 {
		t.Errorf("got %v", res)
	}
	m := v.machine("m1")
	if m.Record == nil || m.Record.Phase != v1alpha1.PhaseAttested || m.Record.Identity.EKSHA256 != hexOf(n.id.EKSPKI) ||
		m.Record.Endorsement != v1alpha1.EndorsementEnrolled || len(m.Record.Evidence) != 1 {
		t.Errorf("recorded %+v", m.Record)
	}
	code, _, body := v.fetch(http.MethodGet, "/config/worker", res.GetToken())
	if code != http.StatusOK || body != fullConfig {
		t.Errorf("the gate answered %d %q", code, body)
	}
	if m := v.machine("m1"); m.Record.Phase != v1alpha1.PhaseFetched || m.Record.Token.Uses != 1 {
		t.Errorf("after the fetch: %+v", m.Record)
	}
	if strings.Contains(v.log.everything(), res.GetToken()) {
		t.Error("the token is in the log")
	}
}

func TestAttack_T13_EvidenceLeftOut(t *testing.T) {
	v := newVerifier(t)
	n := newNode(t, v, swtpmtest.Start(t, "sha256"))
	v.enroll("m1", "worker", n.id.EKSPKI)
	if _, err := n.attest(); err != nil {
		t.Fatal("honest:", err)
	}
	n.connect()
	n.changeChallenge = func(r *mcsattestv1.ChallengeRequest) { r.Offered, r.Tpm = nil, nil }
	if err := n.ask(); err == nil {
		t.Fatal("challenged without any evidence on offer")
	} else if d := denialOf(t, err); d.GetTemporary() || d.GetClass() != mcsattestv1.DenialClass_DENIAL_CLASS_EVIDENCE {
		t.Errorf("got %v", d)
	}
	v.wantReason("EvidenceMissing")
	n.connect()
	n.changeChallenge = nil
	n.changeAttest = func(r *mcsattestv1.AttestRequest) { r.Tpm2 = nil }
	v.advance(later)
	if _, err := n.attest(); err == nil {
		t.Fatal("attested without the required evidence")
	}
	v.wantReason("EvidenceMissing")
}

func TestAttack_T21_KeysSwappedBetweenChallengeAndAttest(t *testing.T) {
	v := newVerifier(t)
	a, b := swtpmtest.Start(t, "sha256"), swtpmtest.Start(t, "sha256")
	nodeA, nodeB := newNode(t, v, a), newNode(t, v, b)
	v.enroll("a", "worker", nodeA.id.EKSPKI)
	v.enroll("b", "worker", nodeB.id.EKSPKI)
	if _, err := nodeA.attest(); err != nil {
		t.Fatal("honest:", err)
	}
	// A's EK with B's AK: the credential opens in neither TPM, so the attacker
	// answers with the quote of B under an activation that he must guess.
	nodeA.connect()
	v.advance(later)
	nodeA.changeChallenge = func(r *mcsattestv1.ChallengeRequest) { r.Tpm.AkPublic = nodeB.id.AKPublic }
	if err := nodeA.ask(); err != nil {
		t.Fatal(err)
	}
	nodeB.connect()
	if err := nodeB.ask(); err != nil {
		t.Fatal(err)
	}
	ev := nodeB.evidence()
	ev.Sealed, ev.ServerSpkiSha256 = nodeA.challenge.GetSealed(), nodeA.channel.spki
	if _, err := nodeA.send(ev); err == nil {
		t.Fatal("A's EK was accepted with B's AK")
	}
	v.wantReason("ActivationInvalid")
	// B's EK certificate under A's EK.
	v.change("ek-roots/a.pem", string(a.Roots()))
	v.change("ek-roots/b.pem", string(b.Roots()))
	v.policy("  tpm2: {endorsements: [manufacturer]}\n")
	nodeA.changeChallenge = func(r *mcsattestv1.ChallengeRequest) { r.Tpm.EkCertificates = nodeB.id.EKCertificates }
	if _, err := nodeA.again(); err == nil {
		t.Fatal("B's certificate vouched for A's EK")
	}
	v.wantReason("EKCertificateInvalid")
}

func TestAttack_T24_T25_GenuineQuoteRelayedOrReplayed(t *testing.T) {
	v := newVerifier(t)
	n := newNode(t, v, swtpmtest.Start(t, "sha256"))
	v.enroll("m1", "worker", n.id.EKSPKI)
	if err := n.ask(); err != nil {
		t.Fatal(err)
	}
	old := n.evidence()
	if _, err := n.send(old); err != nil {
		t.Fatal("honest:", err)
	}
	issued := v.machine("m1").Record.Token.ID
	v.advance(later)

	// The same message on another connection.
	n.connect()
	if _, err := n.send(old); err == nil {
		t.Fatal("a whole exchange was replayed on another connection")
	}
	v.wantReason("BindingMismatch")

	// The old quote with a fresh activation.
	n.connect()
	if err := n.ask(); err != nil {
		t.Fatal(err)
	}
	fresh := n.evidence()
	fresh.Tpm2.Quote, fresh.Tpm2.Signature = old.GetTpm2().GetQuote(), old.GetTpm2().GetSignature()
	if _, err := n.send(fresh); err == nil {
		t.Fatal("an old quote passed with a fresh activation")
	}
	v.wantReason("QuoteNotFresh")

	// A relay: the challenge was made for the attacker's connection, the quote over the node's own.
	n.connect()
	n.changeFields = func(f *transcript.Fields) { f.Exporter = make([]byte, 32) }
	if _, err := n.attest(); err == nil {
		t.Fatal("evidence for another connection passed")
	}
	v.wantReason("ActivationInvalid")
	if got := v.machine("m1").Record; got.Token.ID != issued {
		t.Error("an attack changed the record")
	}
}

func TestAttack_T44_ChallengeUsedTwiceAlteredOrForAnotherPool(t *testing.T) {
	v := newVerifier(t)
	n := newNode(t, v, swtpmtest.Start(t, "sha256"))
	v.enroll("m1", "worker", n.id.EKSPKI)
	if err := n.ask(); err != nil {
		t.Fatal(err)
	}
	ev := n.evidence()
	if _, err := n.send(ev); err != nil {
		t.Fatal("honest:", err)
	}
	v.advance(later)
	if _, err := n.send(ev); err == nil {
		t.Fatal("a challenge was answered twice on its connection")
	}
	v.wantReason("ChallengeUsed")
	for name, c := range map[string]struct {
		change func(*mcsattestv1.AttestRequest)
		after  time.Duration
		want   string
	}{
		"altered": {func(r *mcsattestv1.AttestRequest) { r.Sealed[len(r.Sealed)-1] ^= 1 }, 0,
			"ChallengeInvalid"},
		"under an unknown key": {func(r *mcsattestv1.AttestRequest) { r.Sealed[3] ^= 1 }, 0, "ChallengeKeyUnknown"},
		"expired":              {func(*mcsattestv1.AttestRequest) {}, 3 * time.Minute, "ChallengeExpired"},
		"with a foreign server key": {func(r *mcsattestv1.AttestRequest) { r.ServerSpkiSha256 = make([]byte, 32) }, 0,
			"BindingMismatch"},
		"with a short server key": {func(r *mcsattestv1.AttestRequest) { r.ServerSpkiSha256 = nil }, 0, "Malformed"},
		"with a huge log": {func(r *mcsattestv1.AttestRequest) { r.Tpm2.EventLog = make([]byte, 256<<10+1) }, 0,
			"TooLarge"},
		"with huge claims":    {func(r *mcsattestv1.AttestRequest) { r.Claims = make([]byte, 5<<10) }, 0, "TooLarge"},
		"with changed claims": {func(r *mcsattestv1.AttestRequest) { r.Claims = []byte(`{"hostname":"other"}`) }, 0, "ActivationInvalid"},
		"for another pool": {func(r *mcsattestv1.AttestRequest) {
			n.changeFields = func(f *transcript.Fields) { f.Pool = "master" }
			r.Tpm2 = n.evidence().GetTpm2()
			n.changeFields = nil
		}, 0, "ActivationInvalid"},
	} {
		t.Run(name, func(t *testing.T) {
			v.advance(later)
			n.connect()
			if err := n.ask(); err != nil {
				t.Fatal(err)
			}
			ev := n.evidence()
			c.change(ev)
			v.advance(c.after)
			if _, err := n.send(ev); err == nil {
				t.Fatal("accepted")
			}
			v.wantReason(c.want)
		})
	}
}

func TestAttack_T40_NoMachineForAGenuineTPM(t *testing.T) {
	v := newVerifier(t)
	n := newNode(t, v, swtpmtest.Start(t, "sha256"))
	now := time.Now().UTC().Format(time.RFC3339)
	machine := func(extra string, created string) string {
		return "apiVersion: machine.openshift.io/v1beta1\nkind: Machine\nmetadata:\n  name: w0\n" +
			"  namespace: openshift-machine-api\n  uid: u-w0\n  creationTimestamp: " + created +
			"\n  labels: {machine.openshift.io/cluster-api-machine-role: worker}\n  annotations: {mcs-attest.dev/ek-sha256: " +
			hexOf(n.id.EKSPKI) + "}\n" + extra
	}
	attempt := func(name, want string, temporary bool) {
		t.Helper()
		_, err := n.again()
		if want == "" {
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			return
		}
		if err == nil {
			t.Fatalf("%s: accepted", name)
		}
		if d := denialOf(t, err); d.GetTemporary() != temporary {
			t.Errorf("%s: temporary %t, want %t", name, d.GetTemporary(), temporary)
		}
		v.wantReason(want)
	}
	attempt("no machine at all", "EKNotEnrolled", true)
	v.change("machines/w0.yaml", machine("", now))
	attempt("an honest Machine", "", false)
	v.advance(later)
	n.pool = "master"
	attempt("of another pool", "MachinePool", false)
	n.pool = "worker"
	v.change("machines/w0.yaml", strings.Replace(machine("", now), "  name:", "  deletionTimestamp: "+now+"\n  name:", 1))
	attempt("being deleted", "MachineDeleting", false)
	v.change("machines/w0.yaml", machine("status: {nodeRef: {kind: Node, name: w0}}\n", now))
	attempt("already a Node", "MachineJoined", false)
	if p := v.machine("openshift-machine-api/w0").Record.Phase; p != v1alpha1.PhaseJoined {
		t.Errorf("a Machine with a nodeRef is recorded as %s", p)
	}
	// Deleting the Machine deletes the record; a new one of the same name is another.
	if err := v.remove("machines/w0.yaml"); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-3 * time.Hour).UTC().Format(time.RFC3339)
	v.change("machines/w0.yaml", strings.Replace(machine("", old), "u-w0", "u-w1", 1))
	attempt("created too long ago", "MachineTooOld", false)
}

func TestAttack_T42_SecondIdentityAndSecondMachine(t *testing.T) {
	v := newVerifier(t)
	first, second := newNode(t, v, swtpmtest.Start(t, "sha256")), newNode(t, v, swtpmtest.Start(t, "sha256"))
	v.enroll("m1", "worker", first.id.EKSPKI, second.id.EKSPKI)
	if _, err := first.attest(); err != nil {
		t.Fatal("honest:", err)
	}
	token := v.machine("m1").Record.Token.ID
	v.advance(later)
	_, err := second.attest()
	if err == nil {
		t.Fatal("a second identity was accepted for one Machine")
	}
	if denialOf(t, err).GetTemporary() {
		t.Error("a conflict is final for the challenger")
	}
	v.wantReason("IdentityConflict")
	rec := v.machine("m1").Record
	if rec.Token.ID != token || rec.Identity.EKSHA256 != hexOf(first.id.EKSPKI) || rec.Phase != v1alpha1.PhaseAttested {
		t.Error("the challenger changed the holder's record")
	}
	if !slices.ContainsFunc(rec.Conditions,
		func(c metav1.Condition) bool { return c.Type == v1alpha1.ConditionConflict }) {
		t.Error("the conflict is not shown")
	}
	if _, err := first.again(); err != nil {
		t.Error("the rightful holder is locked out:", err)
	}
	// The same EK for a second Machine.
	v.advance(later)
	v.enroll("m2", "worker", first.id.EKSPKI)
	if _, err := first.again(); err == nil {
		t.Fatal("one EK was accepted although two Machines name it")
	} else if !denialOf(t, err).GetTemporary() {
		t.Error("an administrator must fix a duplicate, so it is temporary")
	}
	v.wantReason("MachineAmbiguous")
	if err := v.remove("attestations/m1.yaml"); err != nil {
		t.Fatal(err)
	}
	if _, err := first.again(); err != nil {
		t.Error("the claim of a Machine that is gone was not released:", err)
	}
}

func TestAttack_T43_ConcurrentAttestationsWithTwoIdentities(t *testing.T) {
	v := newVerifier(t)
	tpms := []*swtpmtest.TPM{swtpmtest.Start(t, "sha256"), swtpmtest.Start(t, "sha256")}
	var honest []*node
	for _, tpm := range tpms {
		honest = append(honest, newNode(t, v, tpm))
	}
	v.enroll("m1", "worker", honest[0].id.EKSPKI, honest[1].id.EKSPKI)
	// Evidence is prepared one after another, because each TPM is used serially, and sent together.
	type shot struct {
		n   *node
		req *mcsattestv1.AttestRequest
	}
	var shots []shot
	for i := range 50 {
		n := *honest[i%2]
		n.connect()
		if err := n.ask(); err != nil {
			t.Fatal(err)
		}
		shots = append(shots, shot{&n, n.evidence()})
	}
	var wg sync.WaitGroup
	accepted := make([]bool, len(shots))
	for i, s := range shots {
		wg.Go(func() {
			_, err := s.n.send(s.req)
			accepted[i] = err == nil
		})
	}
	wg.Wait()
	rec := v.machine("m1").Record
	won := -1
	for i, ok := range accepted {
		if !ok {
			continue
		}
		if won >= 0 && won != i%2 {
			t.Fatal("two identities were accepted for one Machine")
		}
		won = i % 2
	}
	if won < 0 || rec.Identity.EKSHA256 != hexOf(honest[won].id.EKSPKI) {
		t.Errorf("identity %d won, recorded is %s", won, rec.Identity.EKSHA256)
	}
}

func TestAttack_T32_AttestingAfterTheCap(t *testing.T) {
	v := newVerifier(t)
	tpm := swtpmtest.Start(t, "sha256")
	n := newNode(t, v, tpm)
	v.enroll("m1", "worker", n.id.EKSPKI)
	if _, err := n.attest(); err != nil {
		t.Fatal("honest:", err)
	}
	_ = n.tpm.Close()
	if err := attester.Cap(tpm.Dial()); err != nil {
		t.Fatal(err)
	}
	v.advance(later)
	if _, err := newNode(t, v, tpm).attest(); err == nil {
		t.Fatal("attested with PCR 11 capped")
	}
	v.wantReason("PCRCapped")
	if rec := v.machine("m1").Record; rec.Phase != v1alpha1.PhaseAttested {
		t.Errorf("phase %s", rec.Phase)
	}
}

func TestAttest_GenuineTPMWaitsForApproval(t *testing.T) {
	v := newVerifier(t)
	tpm := swtpmtest.Start(t, "sha256")
	n := newNode(t, v, tpm)
	v.policy("  tpm2: {endorsements: [enrolled, manufacturer]}\n")
	if _, err := n.attest(); err == nil {
		t.Fatal("accepted without root or enrollment")
	}
	v.wantReason("EKNotEnrolled")
	if len(v.state().Pending) != 0 {
		t.Error("a TPM without an endorsement waits for approval")
	}
	v.change("ek-roots/swtpm.pem", string(tpm.Roots()))
	_, err := n.again()
	if err == nil {
		t.Fatal("first use of a genuine TPM named its own machine")
	}
	if !denialOf(t, err).GetTemporary() {
		t.Error("waiting for approval is temporary")
	}
	v.wantReason("PendingApproval")
	pending := v.state().Pending
	if len(pending) != 1 || pending[0].EKSHA256 != hexOf(n.id.EKSPKI) || pending[0].Pool != "worker" ||
		pending[0].Certificate["manufacturer"] == "" {
		t.Fatalf("pending: %+v", pending)
	}
	v.enroll("approved", "worker", n.id.EKSPKI)
	if res, err := n.again(); err != nil || res.GetMachine() != "default/approved" {
		t.Fatal("after the approval:", err)
	}
	if left := v.state().Pending; len(left) != 0 {
		t.Errorf("still waiting: %+v", left)
	}
}

func TestQuarantineStopsAttestationAndRedemption(t *testing.T) {
	v := newVerifier(t)
	n := newNode(t, v, swtpmtest.Start(t, "sha256"))
	v.enroll("m1", "worker", n.id.EKSPKI)
	res, err := n.attest()
	if err != nil {
		t.Fatal("honest:", err)
	}
	v.change("attestations/m1.yaml", enrolment("m1", "  pool: worker\n  quarantined: true\n", n.id.EKSPKI))
	if code, _, _ := v.fetch(http.MethodGet, "/config/worker", res.GetToken()); code != http.StatusServiceUnavailable {
		t.Errorf("a quarantined machine's token: %d", code)
	}
	v.advance(later)
	if _, err := n.again(); err == nil || !denialOf(t, err).GetTemporary() {
		t.Errorf("a quarantined machine: %v", err)
	}
	v.wantReason("Quarantined")
	v.enroll("m1", "worker", n.id.EKSPKI)
	if _, err := n.again(); err != nil {
		t.Error("after the quarantine was lifted:", err)
	}
}

func TestAttest_JoinedMachineNeedsAGrant(t *testing.T) {
	v := newVerifier(t)
	n := newNode(t, v, swtpmtest.Start(t, "sha256"))
	created := time.Now().UTC().Format(time.RFC3339)
	machine := func(status string) string {
		return "apiVersion: cluster.x-k8s.io/v1beta2\nkind: Machine\nmetadata:\n  name: w0\n  namespace: capi\n" +
			"  uid: u0\n  creationTimestamp: " + created + "\nspec: {clusterName: c}\n" + status
	}
	grant := func(until time.Time) string {
		return enrolment("w0", "  machineRef: {namespace: capi, name: w0}\n  reattest: {until: "+
			until.UTC().Format(time.RFC3339)+"}\n", n.id.EKSPKI)
	}
	v.change("machines/w0.yaml", machine(""))
	v.change("attestations/w0.yaml", enrolment("w0", "  machineRef: {namespace: capi, name: w0}\n", n.id.EKSPKI))
	if _, err := n.attest(); err != nil {
		t.Fatal("honest:", err)
	}
	v.change("machines/w0.yaml", machine("status: {nodeRef: {name: w0}}\n"))
	v.advance(later)
	if _, err := n.again(); err == nil {
		t.Fatal("a joined machine attested without a grant")
	}
	v.wantReason("MachineJoined")
	v.change("attestations/w0.yaml", grant(time.Now().Add(48*time.Hour)))
	if _, err := n.again(); err == nil {
		t.Fatal("a grant of two days was honored")
	}
	v.change("attestations/w0.yaml", grant(time.Now().Add(time.Hour)))
	res, err := n.again()
	if err != nil {
		t.Fatal("with a grant:", err)
	}
	if code, _, _ := v.fetch(http.MethodGet, "/config/worker", res.GetToken()); code != http.StatusOK {
		t.Errorf("the granted token: %d", code)
	}
	for i := range 3 { // two more first boots are within the grant, a third is not
		v.advance(later)
		if _, err := n.again(); (err == nil) != (i < 2) {
			t.Errorf("attestation %d under one grant: %v", i+2, err)
		}
	}
	v.advance(2 * time.Hour)
	v.refresh()
	if _, err := n.again(); err == nil {
		t.Fatal("the grant outlived its end")
	}
	v.wantReason("MachineJoined")
}

func TestAuditModeIssuesNoTokenAndOffRequiresNothing(t *testing.T) {
	v := newVerifier(t)
	n := newNode(t, v, swtpmtest.Start(t, "sha256"))
	v.enroll("m1", "worker", n.id.EKSPKI)
	v.policy("  mode: Audit\n")
	res, err := n.attest()
	if err != nil || res.GetToken() != "" || res.GetMachine() != "default/m1" {
		t.Errorf("audit: %v, %v", res, err)
	}
	if n.challenge.GetMode() != mcsattestv1.Mode_MODE_AUDIT {
		t.Errorf("the challenge has %v", n.challenge.GetMode())
	}
	v.policy("  mode: \"Off\"\n")
	n.connect()
	if err := n.ask(); err != nil || len(n.challenge.GetRequired()) != 0 ||
		n.challenge.GetMode() != mcsattestv1.Mode_MODE_OFF {
		t.Errorf("off: %v, %v", n.challenge, err)
	}
	for _, mode := range []string{"Audit", "\"Off\""} {
		v.policy("  mode: " + mode + "\n")
		if code, _, body := v.fetch(http.MethodGet, "/config/worker", ""); code != http.StatusOK || body != fullConfig {
			t.Errorf("%s: an anonymous fetch got %d", mode, code)
		}
	}
	v.policy("  mode: Enforce\n")
	if code, _, _ := v.fetch(http.MethodGet, "/config/worker", ""); code != http.StatusUnauthorized {
		t.Errorf("Enforce: an anonymous fetch got %d", code)
	}
}

func TestAttest_TokenHasTheClaimsOfTheMachine(t *testing.T) {
	v := newVerifier(t)
	n := newNode(t, v, swtpmtest.Start(t, "sha256"))
	v.enroll("m1", "worker", n.id.EKSPKI)
	v.freeze()
	for _, tt := range []struct {
		name, policy string
		lifetime     time.Duration
	}{
		{"the default lifetime", "  mode: Enforce\n", 10 * time.Minute},
		{"the shortest lifetime", "  token: {lifetime: 1m}\n", time.Minute},
		{"another lifetime", "  token: {lifetime: 7m30s}\n", 7*time.Minute + 30*time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v.policy(tt.policy)
			issued := v.now()
			res, err := n.again()
			if err != nil {
				t.Fatal(err)
			}
			c, err := v.standalone().Tokens.Load().Verify(v.now(), []byte(res.GetToken()))
			if err != nil {
				t.Fatal(err)
			}
			m := v.machine("m1")
			if c.Subject != "default/m1" || c.MachineUID != m.UID || c.Pool != "worker" || c.ID != m.Record.Token.ID ||
				c.Issuer != testOrigin || c.Audience != "mcs" {
				t.Errorf("claims %+v", c)
			}
			if c.IssuedAt.Unix() != issued.Unix() || !c.NotBefore.Equal(c.IssuedAt) ||
				c.Expiry.Sub(c.IssuedAt) != tt.lifetime ||
				res.GetTokenLifetimeSeconds() != uint32(tt.lifetime/time.Second) {
				t.Errorf("issued at %s, valid from %s to %s; the response has %d s", c.IssuedAt, c.NotBefore, c.Expiry,
					res.GetTokenLifetimeSeconds())
			}
			v.advance(tt.lifetime)
			v.wantFetch("after its lifetime", "/config/worker", res.GetToken(), http.StatusUnauthorized)
			v.wantReason("TokenExpired")
		})
	}
}

func TestDenial_ReportsThePoolsModeSoThatAuditStopsNoBoot(t *testing.T) {
	v := newVerifier(t)
	n := newNode(t, v, swtpmtest.Start(t, "sha256"))
	v.policy("  mode: Audit\n")
	n.changeChallenge = func(r *mcsattestv1.ChallengeRequest) { r.Offered, r.Tpm = nil, nil }
	err := n.ask()
	if err == nil {
		t.Fatal("challenged without evidence")
	}
	if d := denialOf(t, err); d.GetMode() != mcsattestv1.Mode_MODE_AUDIT ||
		d.GetUnattested() != mcsattestv1.Unattested_UNATTESTED_DENY {
		t.Errorf("got %v", d)
	}
}

func TestUnattestedMachinesReceiveOnlyThePreApprovedConfig(t *testing.T) {
	v := newVerifier(t)
	v.policy("  unattested: PreApproved\n")
	if code, _, _ := v.fetch(http.MethodGet, "/config/worker", ""); code != http.StatusServiceUnavailable {
		t.Errorf("without a pre-approved config: %d", code)
	}
	const pre = `{"ignition":{"version":"3.2.0"}}`
	v.change("configs/worker.pre-approved.ign", pre)
	if code, _, body := v.fetch(http.MethodGet, "/config/worker", ""); code != http.StatusOK || body != pre {
		t.Errorf("anonymous: %d %q", code, body)
	}
	if code, _, body := v.fetch(http.MethodGet, "/config/worker", "broken"); code != http.StatusUnauthorized ||
		strings.Contains(body, "ignition") {
		t.Errorf("an invalid token fell back to anonymous: %d %q", code, body)
	}
	n := newNode(t, v, swtpmtest.Start(t, "sha256"))
	v.enroll("m1", "worker", n.id.EKSPKI)
	res, err := n.attest()
	if err != nil {
		t.Fatal(err)
	}
	v.wantFetch("attested", "/config/worker", res.GetToken(), http.StatusOK)
}
