// SPDX-License-Identifier: Apache-2.0

package appraisal_test

import (
	"bytes"
	"crypto/sha256"
	"reflect"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/appraisal"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/policy"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/seal"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	"github.com/mcs-attest/mcs-attest/pkg/transcript"
)

const origin = "https://mcs.test:22623"

var (
	start    = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	served   = sha256.Sum256([]byte("serving key"))
	frontEnd = sha256.Sum256([]byte("front end's key"))
)

// call is an Attest call that Bind accepts.
type call struct {
	challenge seal.Challenge
	policy    policy.Policy
	conn      appraisal.Connection
	evidence  appraisal.Evidence
	now       time.Time
}

func honest(binding v1alpha1.Binding) *call {
	exporter := bytes.Repeat([]byte{1}, transcript.ExporterSize)
	p := policy.Policy{Name: "default", Pool: "worker", Binding: binding, FrontEndKeys: [][sha256.Size]byte{frontEnd},
		ChallengeLifetime: 5 * time.Minute,
		Alternatives:      [][]evidence.Kind{{evidence.TPM2}}}
	hash := p.Hash()
	c := &call{
		challenge: seal.Challenge{Issued: start, Origin: origin, Pool: "worker", PolicyHash: hash[:],
			Binding: appraisal.BindingName(binding), Exporter: exporter,
			Required: []evidence.Kind{evidence.TPM2}},
		policy: p,
		conn: appraisal.Connection{
			Exporter: bytes.Clone(exporter),
			Served:   func(spki []byte) bool { return bytes.Equal(spki, served[:]) },
			Origin:   func(o string) bool { return o == origin },
		},
		evidence: appraisal.Evidence{ServerSPKI: bytes.Clone(served[:])},
		now:      start.Add(time.Minute),
	}
	if binding == v1alpha1.BindingTerminated {
		c.evidence.ServerSPKI = bytes.Clone(frontEnd[:])
		c.challenge.Exporter, c.conn.Exporter = nil, nil
	}
	return c
}

func TestAttack_T24_T44_ChallengesAreBound(t *testing.T) {
	const terminated = v1alpha1.BindingTerminated
	for _, c := range []struct {
		name    string
		binding v1alpha1.Binding
		change  func(*call)
		want    reason.Code // 0: accepted
	}{
		{name: "honest"},
		{name: "honest, behind a front end", binding: terminated},
		{name: "too old", change: func(c *call) { c.now = start.Add(6 * time.Minute) }, want: reason.ChallengeExpired},
		{name: "from another replica whose clock is ahead", change: func(c *call) { c.now = start.Add(-4 * time.Minute) }},
		{name: "from the future", change: func(c *call) { c.now = start.Add(-6 * time.Minute) },
			want: reason.ChallengeExpired},
		{name: "for another origin", change: func(c *call) { c.challenge.Origin = "https://other.test:22623" },
			want: reason.OriginUnknown},
		{name: "under another policy", change: func(c *call) { c.policy.TokenUses++ }, want: reason.PolicyChanged},
		{name: "under the other binding", change: func(c *call) { c.challenge.Binding = appraisal.BindingTerminated },
			want: reason.PolicyChanged},
		{name: "on another connection", change: func(c *call) { c.conn.Exporter[0]++ }, want: reason.BindingMismatch},
		{name: "without an exporter now", change: func(c *call) { c.conn.Exporter = nil }, want: reason.BindingMissing},
		{name: "without an exporter then", change: func(c *call) { c.challenge.Exporter = nil }, want: reason.BindingMissing},
		{name: "without an exporter at all", change: func(c *call) { c.challenge.Exporter, c.conn.Exporter = nil, nil },
			want: reason.BindingMissing},
		{name: "the node saw another server's key", change: func(c *call) { c.evidence.ServerSPKI[0]++ },
			want: reason.BindingMismatch},
		{name: "the node saw the front end's key, which this policy has none of",
			change: func(c *call) { c.evidence.ServerSPKI = frontEnd[:] }, want: reason.BindingMismatch},
		{name: "no server key", change: func(c *call) { c.evidence.ServerSPKI = nil }, want: reason.Malformed},
		{name: "behind a front end with another key", binding: terminated,
			change: func(c *call) { c.evidence.ServerSPKI = served[:] }, want: reason.BindingMismatch},
	} {
		t.Run(c.name, func(t *testing.T) {
			call := honest(c.binding)
			if c.change != nil {
				c.change(call)
			}
			err := appraisal.Bind(call.challenge, call.policy, call.conn, call.evidence, call.now)
			if c.want == 0 {
				if err != nil {
					t.Error(err)
				}
				return
			}
			wantCode(t, err, c.want)
		})
	}
}

func wantCode(t *testing.T, err error, want reason.Code) {
	t.Helper()
	if err == nil {
		t.Fatalf("accepted, want %s", want)
	}
	if got := reason.From(err).Code; got != want {
		t.Errorf("%s (%v), want %s", got, err, want)
	}
}

func TestAttack_T13_T16_EvidenceThatCannotBeWhole(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*call)
		want   reason.Code
	}{
		{"no TPM evidence", func(c *call) { c.evidence.TPM2 = nil }, reason.EvidenceMissing},
		{"no provisioning token", func(c *call) { c.challenge.Required = []evidence.Kind{evidence.ProvisioningToken} },
			reason.EvidenceMissing},
		{"a kind that is not built", func(c *call) { c.challenge.Required = []evidence.Kind{evidence.AWSIID} },
			reason.EvidenceMissing},
		{"a huge event log", func(c *call) { c.evidence.EventLog = make([]byte, appraisal.MaxEventLog+1) }, reason.TooLarge},
		{"huge claims", func(c *call) { c.evidence.Claims = make([]byte, appraisal.MaxClaims+1) }, reason.TooLarge},
		{"half a CSR hash", func(c *call) { c.evidence.CSRSPKI = make([]byte, 16) }, reason.Malformed},
	} {
		t.Run(c.name, func(t *testing.T) {
			call := honest("")
			call.evidence.TPM2 = &tpm2.Evidence{}
			c.change(call)
			_, err := appraisal.Appraise(t.Context(), appraisal.Context{Challenge: call.challenge, Policy: call.policy},
				call.evidence, call.now)
			wantCode(t, err, c.want)
		})
	}
}

func TestProvisioningToken_IsBoundToTheTranscript(t *testing.T) {
	call := honest("")
	call.challenge.Required = []evidence.Kind{evidence.ProvisioningToken}
	call.evidence.ProvisioningToken = make([]byte, sha256.Size)
	in := appraisal.Context{Challenge: call.challenge, Policy: call.policy,
		ProvisioningTokens: []secret.Bytes{secret.New([]byte("token"))}}
	_, err := appraisal.Appraise(t.Context(), in, call.evidence, call.now)
	wantCode(t, err, reason.ProvisioningTokenInvalid)
}

func TestSaved_RoundTrips(t *testing.T) {
	call := honest("")
	call.challenge.Secret, call.challenge.Nonce, call.challenge.PCRs = secret.New([]byte("k")), []byte("nonce"), []int{11}
	call.evidence.TPM2 = &tpm2.Evidence{Quote: []byte("quote"), Signature: []byte("signature"),
		Activation: []byte("activation"), PCRValues: [][]byte{{1}}}
	call.evidence.EventLog = []byte("log")
	raw, err := appraisal.Save(appraisal.Context{Challenge: call.challenge}, call.conn, call.evidence, start,
		"c1").Encode()
	if err != nil {
		t.Fatal(err)
	}
	saved, err := appraisal.ParseSaved(raw)
	if err != nil {
		t.Fatal(err)
	}
	challenge, ev, err := saved.Replay()
	if err != nil {
		t.Fatal(err)
	}
	want := call.challenge
	want.PolicyHash = nil // a replay uses the current policy
	if !reflect.DeepEqual(challenge, want) || !reflect.DeepEqual(ev, call.evidence) {
		t.Errorf("got %+v and %+v", challenge, ev)
	}
	for _, bad := range []string{"", "{", `{"version":2}`, `{"version":1,"time":5}`} {
		if _, err := appraisal.ParseSaved([]byte(bad)); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}
