// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester/swtpmtest"
	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
	"github.com/mcs-attest/mcs-attest/pkg/transcript"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
	"github.com/mcs-attest/mcs-attest/verifier/internal/backend"
	"github.com/mcs-attest/mcs-attest/verifier/internal/listen"
	"github.com/mcs-attest/mcs-attest/verifier/internal/server"
)

const (
	sharedA = "AAAA+bbb/CCC+ddd/EEE+fff/GGG+hhh/III+jjj/KKK="
	sharedB = "1111-bbb_2222-ddd_3333-fff_4444-hhh_5555-jjj"
	sharedC = "zzzz-bbb_yyyy-ddd_xxxx-fff_wwww-hhh_vvvv-jjj"

	sharedFile = "keys/machineconfig-auth"
	// sharedAlone is a policy for which the token is enough.
	sharedAlone = "  evidence: [{all: [provisioning-token]}]\n  provisioningTokenAlone: true\n"
	sharedWith  = "  evidence: [{all: [tpm2, provisioning-token]}]\n"

	kindShared = mcsattestv1.EvidenceKind_EVIDENCE_KIND_PROVISIONING_TOKEN
)

// share writes the file as an administrator does, and waits until it is taken up.
func (v *verifier) share(content string) {
	v.t.Helper()
	v.write(sharedFile, content)
	v.refreshShared()
}

// refreshShared reads the file twice, because a change is used only after two equal reads.
func (v *verifier) refreshShared() {
	for range 2 {
		v.standalone().Shared.Refresh()
	}
}

// newShared is a verifier of one such policy, with a token, or without if it is "".
func newShared(t *testing.T, spec, token string) *verifier {
	t.Helper()
	return newVerifier(t, func(dir string) {
		policy := "apiVersion: mcs-attest.dev/v1alpha1\nkind: AttestationPolicy\nmetadata: {name: default}\nspec:\n" + spec
		if err := os.WriteFile(filepath.Join(dir, "policies/default.yaml"), []byte(policy), 0o600); err != nil {
			t.Fatal(err)
		}
		if token != "" {
			if err := os.WriteFile(filepath.Join(dir, sharedFile), []byte("token: "+token+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// want asks as Ignition does, with GET and HEAD.
func (v *verifier) wantShared(what, token string, status int) {
	v.t.Helper()
	v.wantFetch(what, "/config/worker", token, status)
	if got, _, _ := v.fetch(http.MethodHead, "/config/worker", token); got != status {
		v.t.Errorf("%s: HEAD %d, want %d", what, got, status)
	}
}

// A1, A5, A9, A12, A23: from no token to one, edited by hand, through its grace,
// with a restart in the middle.
func TestProvisioningTokenOverItsLife(t *testing.T) {
	const opens = sharedAlone + "  provisioningToken: {whenAbsent: Open}\n"
	v := newShared(t, opens, "")
	// A13: nothing breaks for lack of it, where the policy says so.
	v.wantShared("there is none", "", http.StatusOK)
	v.wantReason("TokenMissing")
	v.share("token: " + sharedA + "\n")
	v.wantShared("without it", "", http.StatusUnauthorized)
	v.wantReason("TokenMissing")
	v.wantShared("the right one", sharedA, http.StatusOK)
	v.wantShared("a wrong one", sharedB, http.StatusUnauthorized)
	v.wantReason("ProvisioningTokenInvalid")

	// An administrator writes another one, and leaves the rest of the file out.
	v.share("token: " + sharedB + "\n")
	for _, token := range []string{sharedA, sharedB} {
		v.wantShared("after the edit", token, http.StatusOK)
	}
	written, err := os.ReadFile(filepath.Join(v.dir, sharedFile))
	if err != nil || !strings.Contains(string(written), `previous-token: "`+sharedA) {
		t.Errorf("the grace is not in the file: %v", err)
	}
	v.advance(59 * time.Minute)
	v.stop()
	v.start()
	for _, token := range []string{sharedA, sharedB} {
		v.wantShared("after a restart, in the grace", token, http.StatusOK)
	}
	// The file is not read again: the time of the request counts.
	v.advance(2 * time.Minute)
	v.wantShared("after the grace", sharedA, http.StatusUnauthorized)
	v.wantReason("ProvisioningTokenInvalid")
	v.wantShared("the current one after the grace", sharedB, http.StatusOK)

	// A15: deleted, and for a moment it goes on, since it may be coming back. The moment is 10 seconds of a clock that
	// stands, as a slow machine needs longer for the next lines.
	v.freeze()
	if err := os.Remove(filepath.Join(v.dir, sharedFile)); err != nil {
		t.Fatal(err)
	}
	v.refreshShared()
	v.wantShared("a moment after it was deleted", "", http.StatusUnauthorized)
	v.advance(11 * time.Second)
	v.refreshShared()
	v.wantShared("after it was deleted", "", http.StatusOK)
	for _, token := range []string{sharedA, sharedB} {
		v.wantShared("after it was deleted", token, http.StatusServiceUnavailable)
	}
	if n := strings.Count(v.log.everything(), "has whenAbsent: Open"); n != 2 {
		t.Errorf("reported %d times that nothing is enforced, want once at the start and once at the end", n)
	}
}

// A4, A6.
func TestProvisioningTokenInTheURLIsOptIn(t *testing.T) {
	v := newShared(t, sharedAlone, sharedA)
	path := "/config/worker?token=" + url.QueryEscape(sharedA)
	v.wantFetch("without the opt-in", path, "", http.StatusUnauthorized)
	v.policy(sharedAlone + "  provisioningToken: {urlParameter: true}\n")
	v.wantFetch("with it", path, "", http.StatusOK)
	v.wantFetch("both, and equal", path, sharedA, http.StatusOK)
	v.wantFetch("both, and different", path, sharedB, http.StatusUnauthorized)
	v.wantFetch("as people write it", "/config/worker?token="+sharedA, "", http.StatusOK)
}

// A14: day 2, per pool, and back.
func TestProvisioningTokenFromAuditToEnforceAndBack(t *testing.T) {
	v := newShared(t, "  mode: Audit\n"+sharedAlone, sharedA)
	v.wantShared("audited, with a wrong one", sharedB, http.StatusOK)
	v.wantReason("ProvisioningTokenInvalid")
	v.wantShared("audited, without", "", http.StatusOK)
	v.change("policies/workers.yaml",
		"apiVersion: mcs-attest.dev/v1alpha1\nkind: AttestationPolicy\nmetadata: {name: workers}\nspec:\n  pools: [worker]\n"+
			sharedAlone)
	v.wantShared("enforced, without", "", http.StatusUnauthorized)
	v.wantShared("enforced, with", sharedA, http.StatusOK)
	v.wantFetch("the other pool", "/config/master", "", http.StatusOK)
	v.change("policies/workers.yaml",
		"apiVersion: mcs-attest.dev/v1alpha1\nkind: AttestationPolicy\nmetadata: {name: workers}\nspec:\n"+
			"  pools: [worker]\n  mode: \"Off\"\n"+sharedAlone)
	v.wantShared("off again", "", http.StatusOK)
}

func TestProvisioningTokenOpensNoPoolThatDoesNotListIt(t *testing.T) {
	v := newShared(t, "  evidence: [{all: [tpm2]}]\n", sharedA)
	v.wantShared("for a TPM's pool", sharedA, http.StatusUnauthorized)
	v.wantReason("TokenInvalid")
	// Nor one that wants it beside a TPM.
	v.policy(sharedWith)
	v.wantShared("for a pool that wants more", sharedA, http.StatusUnauthorized)
	v.wantReason("TokenInvalid")
}

func TestProvisioningTokenFileThatIsBroken(t *testing.T) {
	v := newShared(t, sharedAlone, sharedA)
	v.share("token: short\n")
	v.wantShared("the last good state", sharedA, http.StatusOK)
	v.wantShared("is enforced", "", http.StatusUnauthorized)
	// The folder of keys is unavailable: that is not the absence of a token.
	keys := filepath.Join(v.dir, "keys")
	if err := os.Rename(keys, keys+".away"); err != nil {
		t.Fatal(err)
	}
	v.refreshShared()
	v.advance(time.Minute)
	v.wantShared("while the folder is unavailable", "", http.StatusUnauthorized)
	v.wantShared("while the folder is unavailable", sharedA, http.StatusOK)
	if err := os.Rename(keys+".away", keys); err != nil {
		t.Fatal(err)
	}
	// Never read: it is unknown what is valid, so all machines wait.
	v.stop()
	v.start()
	for _, token := range []string{"", sharedA} {
		v.wantShared("broken from the start", token, http.StatusServiceUnavailable)
		v.wantReason("StoreUnavailable")
	}
	if problems := v.server.Unready(v.now()); len(problems) != 1 ||
		!strings.Contains(problems[0], "provisioning token: token: the token has 5 characters") {
		t.Errorf("ready in spite of it: %q", problems)
	}
	v.share("token: " + sharedA)
	v.wantShared("fixed", sharedA, http.StatusOK)
	if text := v.log.everything(); strings.Contains(text, "short\\n") || strings.Contains(text, sharedA) ||
		!strings.Contains(text, "the provisioning token cannot be read") {
		t.Error("the log")
	}
}

// Half of a file that is written in place may look like a whole one.
func TestProvisioningTokenFileIsUsedWhenItIsStable(t *testing.T) {
	v := newShared(t, sharedAlone, sharedA)
	file := v.standalone().Shared
	v.write(sharedFile, "token: "+strings.Repeat(sharedB, 2)[:50])
	file.Refresh()
	v.wantShared("half written", sharedA, http.StatusOK)
	v.write(sharedFile, "token: "+strings.Repeat(sharedB, 2)+"\n")
	v.refreshShared()
	v.wantShared("whole", strings.Repeat(sharedB, 2), http.StatusOK)
	v.wantShared("the one before is the previous one", sharedA, http.StatusOK)
}

// A19, T51: wrong ones cost their source its answer, and the right one gets in
// behind the same address.
func TestAttack_T51_GuessingTheProvisioningToken(t *testing.T) {
	v := newShared(t, sharedAlone, sharedA)
	v.freeze()
	codes := map[int]int{}
	for range 60 {
		code, _, _ := v.fetch(http.MethodGet, "/config/worker", sharedB)
		codes[code]++
	}
	if codes[http.StatusUnauthorized] < server.WrongPerSourceBurst || codes[http.StatusServiceUnavailable] == 0 {
		t.Errorf("answers %v", codes)
	}
	v.wantReason("RateLimited")
	v.wantShared("the right one behind the same address", sharedA, http.StatusOK)

	// A flood without any token, against the ordinary limit.
	v.stop()
	v.write("mcs-attest.yaml", "origins: [\""+testOrigin+"\"]\nrequestsPerSecond: 0.1\n")
	v.start()
	v.fetch(http.MethodGet, "/config/worker", "")
	v.wantFetch("flooding", "/config/worker", "", http.StatusServiceUnavailable)
	v.wantFetch("the right one behind the same address", "/config/worker", sharedA, http.StatusOK)
}

// sharedNode is a machine that knows a token beside its TPM.
func sharedNode(t *testing.T, v *verifier, token string) *node {
	t.Helper()
	n := newNode(t, v, swtpmtest.Start(t, "sha256"))
	n.share(token)
	return n
}

func (n *node) share(token string) {
	var h transcript.Hash
	n.changeChallenge = func(r *mcsattestv1.ChallengeRequest) { r.Offered = append(r.Offered, kindShared) }
	n.changeFields = func(f *transcript.Fields) { h = f.Hash() }
	n.changeAttest = func(r *mcsattestv1.AttestRequest) {
		r.ProvisioningToken = transcript.ProvisioningToken([]byte(token), h)
	}
}

func TestTPMAndProvisioningTokenTogether(t *testing.T) {
	v := newShared(t, sharedWith, sharedA)
	n := sharedNode(t, v, sharedA)
	v.enroll("m1", "worker", n.id.EKSPKI)
	res, err := n.attest()
	if err != nil {
		t.Fatal(err)
	}
	v.wantFetch("attested", "/config/worker", res.GetToken(), http.StatusOK)
	claims, err := v.standalone().Tokens.Load().Verify(v.now(), []byte(res.GetToken()))
	if err != nil {
		t.Fatal(err)
	}
	// It says itself how weak it is.
	if claims.Submods["provisioning-token"].Status != "warning" || claims.Submods["tpm2"].Status != "affirming" {
		t.Errorf("%+v", claims.Submods)
	}
	var kinds []string
	for _, e := range v.machine("m1").Record.Evidence {
		kinds = append(kinds, e.Kind+" "+e.Summary["token"])
	}
	if !slices.Equal(kinds, []string{"tpm2 ", "provisioning-token current"}) {
		t.Errorf("recorded %q", kinds)
	}
	// What is kept can be appraised again.
	kept, err := filepath.Glob(filepath.Join(v.dir, "state", "evidence", "*.json"))
	if err != nil || len(kept) != 1 {
		t.Fatalf("%v %v", kept, err)
	}
	again := command("appraise", kept[0], "--config", filepath.Join(v.dir, "mcs-attest.yaml"))
	again.SetOut(io.Discard)
	if err := again.ExecuteContext(t.Context()); err != nil {
		t.Errorf("appraised again: %v", err)
	}
	// The previous one in its grace, and after it.
	v.share("token: " + sharedB)
	v.advance(59 * time.Minute)
	n.connect()
	if _, err := n.attest(); err != nil {
		t.Errorf("the previous token: %v", err)
	}
	if e := v.machine("m1").Record.Evidence[1]; e.Summary["token"] != "previous" {
		t.Errorf("recorded %+v", e)
	}
	v.advance(2 * time.Minute)
	n.connect()
	if _, err := n.attest(); err == nil {
		t.Error("the previous token after its grace")
	}
	v.wantReason("ProvisioningTokenInvalid")
}

// Rule 14: what is sent is bound to the conversation, and is never the token.
func TestAttack_T24_ProvisioningTokenOfAnotherConversation(t *testing.T) {
	v := newShared(t, sharedWith, sharedA)
	n := sharedNode(t, v, sharedA)
	v.enroll("m1", "worker", n.id.EKSPKI)
	var first []byte
	honest := n.changeAttest
	n.changeAttest = func(r *mcsattestv1.AttestRequest) { honest(r); first = r.GetProvisioningToken() }
	if _, err := n.attest(); err != nil {
		t.Fatal(err)
	}
	for name, proof := range map[string][]byte{
		"that of the last conversation": first, "the token itself": []byte(sharedA),
		"an empty key's": transcript.ProvisioningToken(nil, transcript.Hash{}), "a short one": first[:16],
	} {
		n.changeAttest = func(r *mcsattestv1.AttestRequest) { r.ProvisioningToken = proof }
		v.advance(later)
		if _, err := n.again(); err == nil {
			t.Errorf("%s was taken", name)
		}
		v.wantReason("ProvisioningTokenInvalid")
	}
	n.changeAttest = nil
	v.advance(later)
	if _, err := n.again(); err == nil {
		t.Error("none was taken")
	}
	v.wantReason("EvidenceMissing")
	if v.machine("m1").Record.Phase != "Attested" {
		t.Error("a denial without proof left a trace")
	}
}

// attestWithToken answers a challenge that requires only the token.
func (n *node) attestWithToken(token string) (*mcsattestv1.AttestResponse, error) {
	n.t.Helper()
	n.changeChallenge = func(r *mcsattestv1.ChallengeRequest) {
		r.Offered, r.Tpm = []mcsattestv1.EvidenceKind{kindShared}, nil
	}
	if err := n.ask(); err != nil {
		return nil, err
	}
	c, ch := n.challenge, n.channel
	f := transcript.Fields{
		Sealed: c.GetSealed(), Nonce: c.GetNonce(), Binding: "exporter", Exporter: ch.exporter, ServerSPKI: ch.spki,
		Origin: c.GetOrigin(), Pool: c.GetPool(), Required: transcript.Required([]evidence.Kind{evidence.ProvisioningToken}, 0, nil), Claims: []byte(`{}`),
	}
	return n.send(&mcsattestv1.AttestRequest{
		Sealed: c.GetSealed(), ServerSpkiSha256: ch.spki, Claims: f.Claims,
		ProvisioningToken: transcript.ProvisioningToken([]byte(token), f.Hash()),
	})
}

// It names no machine: nothing is recorded, and there is nothing to redeem.
func TestProvisioningTokenWithoutEvidenceNamesNoMachine(t *testing.T) {
	v := newShared(t, sharedAlone, sharedA)
	n := newNode(t, v, swtpmtest.Start(t, "sha256"))
	v.enroll("m1", "worker", n.id.EKSPKI)
	res, err := n.attestWithToken(sharedA)
	if err != nil {
		t.Fatal(err)
	}
	if res.GetToken() != "" || len(res.GetReportTicket()) != 0 || res.GetMachine() != "" || res.GetCorrelationId() == "" {
		t.Errorf("the answer has more than a correlation id: %v", res)
	}
	if v.machine("m1").Record != nil {
		t.Error("a record")
	}
	if log := v.log.everything(); !strings.Contains(log, `"provisioning_token":"current"`) || !strings.Contains(log, `"evidence.provisioning-token":"`) {
		t.Error("no audit line names it")
	}
	// What is kept for "appraise" is for machines.
	if kept, err := os.ReadDir(filepath.Join(v.dir, "state", "evidence")); err != nil || len(kept) != 0 {
		t.Errorf("%v %v", kept, err)
	}
	n.connect()
	if _, err := n.attestWithToken(sharedB); err == nil || denialOf(t, err).GetTemporary() {
		t.Errorf("a wrong one: %v", err)
	}
	v.wantReason("ProvisioningTokenInvalid")
}

func TestAttestWithoutAProvisioningTokenToCompareWith(t *testing.T) {
	// There is none, and the policy opens without one: the gate serves everyone, and
	// the agent is told so.
	v := newShared(t, sharedAlone+"  provisioningToken: {whenAbsent: Open}\n", "")
	n := newNode(t, v, swtpmtest.Start(t, "sha256"))
	if err := n.ask(); err != nil || n.challenge.GetMode() != mcsattestv1.Mode_MODE_AUDIT ||
		len(n.challenge.GetRequired()) != 0 {
		t.Errorf("%v %v", n.challenge, err)
	}
	// There is none, and it was to be shown beside a TPM: not the machine's fault.
	v.policy(sharedWith)
	v.enroll("m1", "worker", n.id.EKSPKI)
	n.connect()
	n.share(sharedA)
	if _, err := n.attest(); err == nil || !denialOf(t, err).GetTemporary() {
		t.Errorf("%v", err)
	}
	v.wantReason("StoreUnavailable")
	// Never readable: the same, also where it is enough.
	v.share("token: short")
	v.policy(sharedAlone)
	n.connect()
	if _, err := n.attestWithToken(sharedA); err == nil || !denialOf(t, err).GetTemporary() {
		t.Errorf("%v", err)
	}
	v.wantReason("StoreUnavailable")
}

// A21, T46: looked for everywhere, wrong ones too.
func TestAttack_T46_ProvisioningTokenInNoLogMetricOrStatus(t *testing.T) {
	v := newShared(t, sharedAlone+"  provisioningToken: {urlParameter: true}\n", sharedA)
	n := newNode(t, v, swtpmtest.Start(t, "sha256"))
	if _, err := n.attestWithToken(sharedA); err != nil {
		t.Fatal(err)
	}
	for _, token := range []string{sharedA, sharedB} {
		v.fetch(http.MethodGet, "/config/worker", token)
		v.fetch(http.MethodGet, "/config/worker?token="+url.QueryEscape(token), "")
		v.fetch(http.MethodGet, "/config/worker?token="+url.QueryEscape(token), sharedC)
		v.fetch(http.MethodGet, "/config/"+strings.ToLower(strings.Map(func(r rune) rune {
			if strings.ContainsRune("+/=_", r) {
				return '-'
			}
			return r
		}, token)), "")
	}
	v.share("token: " + sharedC)
	v.share("token: " + sharedC[:20])
	v.fetch(http.MethodGet, "/config/worker", sharedC)
	rec := newResponse()
	v.server.Metrics.Handler().ServeHTTP(rec, mustRequest(t, "/metrics"))
	text := v.log.everything() + rec.body.String() + fmt.Sprintf("%+v", v.state())
	for _, token := range []string{sharedA, sharedB, sharedC} {
		if strings.Contains(text, token[:16]) || strings.Contains(text, url.QueryEscape(token)[:16]) {
			t.Errorf("%s... is in a log, a metric or the status", token[:4])
		}
	}
	for _, want := range []string{
		`mcs_attest_configs_served_total{credential="provisioning-token",pool="*"} `, `"credential":"provisioning-token"`, `"reason":"ProvisioningTokenInvalid"`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%s is missing: nothing was searched", want)
		}
	}
}

// outdatedBackend is a backend whose cached token is older than the stored one.
type outdatedBackend struct {
	backend.Backend
	read func() (provisioning.View, error)
}

func (b outdatedBackend) Live() backend.Live {
	return backend.Live{Provisioning: func(context.Context) (provisioning.View, error) { return b.read() }}
}

// Rule 12: a replica that has not seen the newest token yet reads it before it
// denies permanently, and no client makes it read without limit.
func TestProvisioningTokenIsReadAgainBeforeAPermanentDenial(t *testing.T) {
	v := newShared(t, sharedAlone, sharedA)
	v.change("policies/master.yaml", "apiVersion: mcs-attest.dev/v1alpha1\nkind: AttestationPolicy\n"+
		"metadata: {name: master}\nspec: {pools: [master]}\n")
	fresh, _ := provisioning.View{}.Read(v.now(), map[string][]byte{provisioning.KeyToken: []byte(sharedB)}, time.Hour)
	reads, away := 0, false
	v.server.Backend = outdatedBackend{v.server.Backend, func() (provisioning.View, error) {
		if reads++; away {
			return provisioning.View{}, errors.New("no API server")
		}
		return fresh, nil
	}}
	h, err := v.server.Handler(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := listen.NewServer(h, v.server.Certificates, v.server.Log)
	go func() { _ = srv.ServeTLS(l, "", "") }()
	t.Cleanup(func() { _ = srv.Close() })
	v.addr = l.Addr().String()
	v.freeze() // no other read is due
	v.wantFetch("the newest", "/config/worker", sharedB, http.StatusOK)
	for range 5 {
		v.wantFetch("a wrong one", "/config/worker", sharedC, http.StatusUnauthorized)
	}
	n := newNode(t, v, swtpmtest.Start(t, "sha256"))
	if _, err := n.attestWithToken(sharedB); err != nil {
		t.Errorf("attested with the newest: %v", err)
	}
	for range 5 {
		n.connect()
		if _, err := n.attestWithToken(sharedC); err == nil || denialOf(t, err).GetTemporary() {
			t.Errorf("attested with a wrong one: %v", err)
		}
	}
	if reads != 2 {
		t.Errorf("the gate and the service read %d times", reads)
	}
	v.advance(time.Second)
	v.wantFetch("none", "/config/worker", "", http.StatusUnauthorized)
	n.pool, n.changeChallenge = "master", nil
	if _, err := n.again(); err == nil {
		t.Error("an unknown TPM is accepted")
	}
	v.wantReason("EKNotEnrolled")
	if n.pool = "worker"; reads != 2 {
		t.Errorf("read %d times for callers that present no token", reads-2)
	}
	away = true
	v.advance(time.Minute)
	v.wantFetch("a wrong one while the API is unavailable", "/config/worker", sharedC, http.StatusServiceUnavailable)
	v.wantReason("StoreUnavailable")
	n.connect()
	if _, err := n.attestWithToken(sharedC); err == nil || !denialOf(t, err).GetTemporary() {
		t.Errorf("attested while the API is unavailable: %v", err)
	}
	v.wantFetch("the one that is known", "/config/worker", sharedA, http.StatusOK)
}

// T60: a provisioning token that is absent, by a mistyped file name perhaps,
// opens no pool, and neither does a wrong one meanwhile. Only a policy that says so
// in words is open without it.
func TestAttack_T60_AnAbsentProvisioningTokenOpensNothing(t *testing.T) {
	const (
		preApproved = `{"ignition":{"version":"3.4.0"},"systemd":{}}`
		opens       = "  provisioningToken: {whenAbsent: Open}\n"
	)
	v := newShared(t, "  unattested: PreApproved\n"+sharedAlone, sharedA)
	v.change("configs/worker.pre-approved.ign", preApproved)
	gets := func(what, token string, status int, full bool) {
		t.Helper()
		code, _, body := v.fetch(http.MethodGet, "/config/worker", token)
		if code != status || (body == fullConfig) != full {
			t.Errorf("%s: %d %.60s, want %d, the full config %t", what, code, body, status, full)
		}
	}
	problems := func() string {
		t.Helper()
		state, err := v.standalone().State(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(state.Problems, "\n")
	}
	gets("PreApproved, the right token", sharedA, 200, true)
	gets("PreApproved, anonymous", "", 200, false)
	// The name is mistyped.
	file := filepath.Join(v.dir, sharedFile)
	if err := os.Rename(file, file+"n"); err != nil {
		t.Fatal(err)
	}
	v.stop()
	v.start()
	gets("PreApproved, absent: anonymous", "", 200, false)
	gets("PreApproved, absent: a wrong token", sharedB, 503, false)
	v.wantReason("StoreUnavailable")
	gets("PreApproved, absent: the right token", sharedA, 503, false)
	v.policy(sharedAlone)
	gets("absent: anonymous", "", 503, false)
	v.wantReason("StoreUnavailable")
	gets("absent: a wrong token", sharedB, 503, false)
	if text := problems(); !strings.Contains(text, "there is no provisioning token") {
		t.Errorf("status shows %q", text)
	}
	if !strings.Contains(v.log.everything(), "there is no provisioning token") {
		t.Error("the log does not report the absence")
	}
	n := newNode(t, v, swtpmtest.Start(t, "sha256"))
	if _, err := n.attestWithToken(sharedA); err == nil || !denialOf(t, err).GetTemporary() {
		t.Errorf("a machine that attests while the token is absent: %v", err)
	}
	v.wantReason("StoreUnavailable")

	// In words: open to a caller that presents nothing.
	v.policy(sharedAlone + opens)
	gets("open in words: anonymous", "", 200, true)
	v.wantReason("TokenMissing")
	gets("open in words: a wrong token", sharedB, 503, false)
	if text := problems(); !strings.Contains(text, "every caller receives the full config") {
		t.Errorf("status shows %q", text)
	}
	if !strings.Contains(v.log.everything(), "has whenAbsent: Open") {
		t.Error("the log does not report the open pool")
	}
	if err := os.Rename(file+"n", file); err != nil {
		t.Fatal(err)
	}
	v.refreshShared()
	gets("present again: anonymous", "", 401, false)
	gets("present again: a wrong token", sharedB, 401, false)
	gets("present again: the right token", sharedA, 200, true)
	if text := problems(); strings.Contains(text, "there is no provisioning token;") {
		t.Errorf("status still shows %q", text)
	}
}
