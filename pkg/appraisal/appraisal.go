// Package appraisal is the verifier's judgement: sealed challenge, evidence,
// policy and Machines in, one Machine or one reason out (RFC 9334, 8: appraisal
// of evidence). It is pure; the order of its checks is that of DESIGN, section 5,
// cheap first, and nothing is fetched for a caller that has not proven something.
//
// In order:
//
//   - the challenge is of this policy, this connection, this origin, and fresh
//     ([Bind]);
//   - every required kind of evidence is there: EvidenceMissing;
//   - each verifies over the one transcript, without asking anyone;
//   - where a provider is to be asked: there is one Machine to ask about, which
//     may attest now (see candidate);
//   - the providers confirm what their documents say;
//   - an endorsement that the policy allows vouches for the EK;
//   - all that was proven names one Machine, which may have the pool;
//   - the boot is one that the profile allows.
//
// Where the challenge requires the provisioning token and nothing else, the last
// five are left out: a secret that machines share names none, so the [Verdict]
// has no Machine, and nothing may be recorded or issued on it (DESIGN, section
// 19, rule 14). Beside any other kind it is one more thing to prove.
//
// A [Verdict] exists only when all of that held. A refusal of a caller that had
// proven which Machine it is says so ([Refusal]), since only such a denial may
// leave a trace in that Machine's record (DESIGN, section 19, rule 3).
package appraisal

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot"
	"github.com/mcs-attest/mcs-attest/pkg/policy"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/seal"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	"github.com/mcs-attest/mcs-attest/pkg/transcript"
)

// The contract's limits (proto/README.md, 2).
const (
	MaxEventLog    = 256 << 10
	MaxClaims      = 4 << 10
	MaxDocument    = 64 << 10
	MaxToken       = 16 << 10 // of a document
	MaxChain       = 8        // certificates
	MaxCertificate = 16 << 10
)

// The binding modes as they enter the transcript and the seal.
const (
	BindingExporter   = "exporter"
	BindingTerminated = "terminated"
)

// Evidence is what the node answered. All of it is untrusted.
type Evidence struct {
	Sealed            []byte
	ServerSPKI        []byte // SHA-256
	Claims            []byte
	CSRSPKI           []byte // SHA-256, or empty
	TPM2              *tpm2.Evidence
	EventLog          []byte
	ProvisioningToken []byte // HMAC, or empty
	Cloud             []evidence.Document
}

// Connection is what the verifier itself knows of the connection.
type Connection struct {
	Exporter []byte // nil when TLS was terminated in front, or is not 1.3
	// Served reports whether a server key (SHA-256 of the SPKI) is this verifier's own.
	Served func(spki []byte) bool
	// Origin reports whether an origin is this verifier's own.
	Origin func(origin string) bool
}

// Context is everything the judgement rests on, besides the evidence.
type Context struct {
	Challenge  seal.Challenge // opened: the verifier's own word
	Policy     policy.Policy
	Machines   Machines
	Endorsers  map[v1alpha1.Endorsement]tpm2.Endorser
	References []measuredboot.ReferenceValues
	// Clouds verify the clouds' documents, by kind. Directory names the EKs of their
	// instances. Both say no for the time being where there is none.
	Clouds    map[evidence.Kind]evidence.Verifier
	Directory tpm2.Directory
	// Recorded is the UID of the Machine whose record has a component of this
	// identity, "" if none: a Machine that attested before may again, however old it
	// is by now.
	Recorded func(v1alpha1.RecordedIdentity) (string, error)
	// ProvisioningTokens are the tokens that are valid now, the current one first.
	ProvisioningTokens []secret.Bytes
}

// Verdict is an accepted appraisal.
type Verdict struct {
	// Machine is nil where nothing but the provisioning token was required.
	Machine     *machine.Machine
	Identity    v1alpha1.RecordedIdentity
	Endorsement v1alpha1.Endorsement
	Evidence    []v1alpha1.EvidenceSummary
	Warnings    []string // what the policy let pass with a warning
	// Replayable: nothing that was proven is of this conversation. It is good for a
	// machine's first attestation alone.
	Replayable bool
	// CSRKeySHA256 is the key that the machine attested for its kubelet, hexadecimal;
	// empty if it named none, or if nothing it showed is of this conversation.
	CSRKeySHA256 string
}

// Refusal is a denial of a caller that had proven something.
type Refusal struct {
	denial error
	// Machine is the one whose identity was proven, or nil.
	Machine *machine.Machine
	// Unproven: what names the Machine could be a copy. The denial may be told once
	// it is confirmed, and leaves no trace at the Machine.
	Unproven bool
	// Unenrolled is a genuine TPM that no Machine has, or nil.
	Unenrolled *tpm2.Endorsement
	// EKSHA256 is the EK of a TPM that answered the challenge and that no Machine has; zero otherwise.
	EKSHA256 [sha256.Size]byte
}

// Error is the denial's.
func (r *Refusal) Error() string { return r.denial.Error() }

// Unwrap returns the denial.
func (r *Refusal) Unwrap() error { return r.denial }

// Bind checks that a challenge belongs to this connection and policy:
//
//   - its age: ChallengeExpired
//   - its origin is one of ours: OriginUnknown
//   - the policy is the one it was made under: PolicyChanged
//   - the binding's own conditions: BindingMissing, BindingMismatch
//
// Under "exporter" the connection is the one that carried Challenge and the
// server key is ours. Under "terminated" the server key is a front end's.
func Bind(c seal.Challenge, p policy.Policy, conn Connection, ev Evidence, now time.Time) error {
	if err := c.Fresh(now, p.ChallengeLifetime); err != nil {
		return err
	}
	if !conn.Origin(c.Origin) {
		return reason.Deny(reason.OriginUnknown, "%q", c.Origin)
	}
	if hash := p.Hash(); subtle.ConstantTimeCompare(hash[:], c.PolicyHash) != 1 {
		return reason.Deny(reason.PolicyChanged, "policy %s", p.Name)
	}
	if c.Binding != BindingName(p.Binding) {
		return reason.Deny(reason.PolicyChanged, "binding %s", c.Binding)
	}
	if len(ev.ServerSPKI) != sha256.Size {
		return reason.Deny(reason.Malformed, "server key hash of %d bytes", len(ev.ServerSPKI))
	}
	if c.Binding == BindingTerminated {
		if !slices.Contains(p.FrontEndKeys, [sha256.Size]byte(ev.ServerSPKI)) {
			return reason.Deny(reason.BindingMismatch, "server key %x is no front end's", ev.ServerSPKI)
		}
		return nil
	}
	if len(conn.Exporter) != transcript.ExporterSize || len(c.Exporter) != transcript.ExporterSize {
		return reason.Deny(reason.BindingMissing, "no TLS 1.3 exporter")
	}
	if subtle.ConstantTimeCompare(conn.Exporter, c.Exporter) != 1 {
		return reason.Deny(reason.BindingMismatch, "challenged on another connection")
	}
	if !conn.Served(ev.ServerSPKI) {
		return reason.Deny(reason.BindingMismatch, "server key %x is not ours", ev.ServerSPKI)
	}
	return nil
}

// BindingName is the text form of a policy's binding.
func BindingName(b v1alpha1.Binding) string {
	if b == v1alpha1.BindingTerminated {
		return BindingTerminated
	}
	return BindingExporter
}

// Appraise judges evidence whose challenge [Bind] has accepted.
func Appraise(ctx context.Context, in Context, ev Evidence, now time.Time) (*Verdict, error) {
	a := &appraisal{Context: in, ev: ev, now: now}
	if err := a.complete(); err != nil {
		return nil, err
	}
	if err := a.verify(ctx); err != nil {
		return nil, err
	}
	if err := in.Policy.Satisfied(in.Challenge.Required, a.verified); err != nil {
		return nil, err
	}
	if slices.Equal(in.Challenge.Required, []evidence.Kind{evidence.ProvisioningToken}) {
		return &Verdict{Evidence: a.summaries}, nil
	}
	if err := a.candidate(); err != nil {
		return nil, err
	}
	if err := a.confirm(ctx); err != nil {
		return nil, err
	}
	if err := a.endorse(ctx); err != nil {
		return nil, err
	}
	matchErr := a.match()
	if matchErr != nil && a.machine == nil && !a.unenrolled(matchErr) {
		return nil, a.unknown(matchErr)
	}
	if err := a.boot(); err != nil {
		return nil, a.refuse(err)
	}
	if matchErr != nil {
		if a.machine == nil {
			matchErr = reason.Wrap(reason.PendingApproval, matchErr, "genuine TPM with EK %x", a.quote.EK.SPKIHash())
		}
		return nil, a.refuse(matchErr)
	}
	v := &Verdict{
		Machine: a.machine, Identity: a.recorded(), Endorsement: a.endorsement,
		Evidence: a.summaries, Warnings: a.warnings, Replayable: a.quote == nil && !a.bound(),
	}
	if len(a.ev.CSRSPKI) > 0 && !v.Replayable {
		v.CSRKeySHA256 = hex.EncodeToString(a.ev.CSRSPKI) // it is in the transcript
	}
	return v, nil
}

// appraisal is one judgement under way.
type appraisal struct {
	Context
	ev  Evidence
	now time.Time

	transcript  transcript.Hash
	verified    []evidence.Kind
	quote       *tpm2.Quote
	claims      []evidence.Claim
	statements  []evidence.Statement // confirmed
	asked       *machine.Machine     // the one that providers are asked about, nil if none are
	stated      bool                 // a document names it, not only the machine's own word
	identity    tpm2.Identity
	endorsed    *tpm2.Endorsement
	endorsement v1alpha1.Endorsement
	machine     *machine.Machine
	summaries   []v1alpha1.EvidenceSummary
	warnings    []string
}

// complete refuses what cannot be whole before anything is computed.
func (a *appraisal) complete() error {
	if len(a.ev.Claims) > MaxClaims || len(a.ev.EventLog) > MaxEventLog {
		return reason.Deny(reason.TooLarge, "claims of %d bytes, event log of %d bytes", len(a.ev.Claims), len(a.ev.EventLog))
	}
	if n := len(a.ev.CSRSPKI); n != 0 && n != sha256.Size {
		return reason.Deny(reason.Malformed, "CSR key hash of %d bytes", n)
	}
	if err := a.documents(); err != nil {
		return err
	}
	for _, k := range a.Challenge.Required {
		var there bool
		switch k {
		case evidence.TPM2:
			there = a.ev.TPM2 != nil
		case evidence.ProvisioningToken:
			there = len(a.ev.ProvisioningToken) > 0
		default:
			there = a.document(k) != nil
		}
		if !there {
			return reason.Deny(reason.EvidenceMissing, "%s is required", k)
		}
	}
	return nil
}

// verify checks each required piece over the transcript.
func (a *appraisal) verify(ctx context.Context) error {
	c := a.Challenge
	f := transcript.Fields{
		Sealed: a.ev.Sealed, Nonce: c.Nonce, Binding: c.Binding, Exporter: c.Exporter, ServerSPKI: a.ev.ServerSPKI,
		Origin: c.Origin, Pool: c.Pool, Required: transcript.Required(c.Required, c.Bank, c.PCRs),
		CSRSPKI: a.ev.CSRSPKI, Claims: a.ev.Claims,
	}
	withTPM := slices.Contains(c.Required, evidence.TPM2)
	if withTPM {
		ek, err := tpm2.ParseEK(c.EKPublic)
		if err != nil {
			return err
		}
		ak, err := tpm2.ParseAK(c.AKPublic)
		if err != nil {
			return err
		}
		hash := ek.SPKIHash()
		f.EKSPKI, f.AKName = hash[:], ak.Name()
		a.identity = tpm2.Identity{EK: ek, EKCertificates: c.EKCertificates, AK: ak, AKCertificates: c.AKCertificates}
	}
	a.transcript = f.Hash()
	if withTPM {
		quote, err := tpm2.VerifyQuote(tpm2.Challenge{
			EK: a.identity.EK, AK: a.identity.AK, Secret: c.Secret, Bank: c.Bank, PCRs: c.PCRs, Transcript: a.transcript,
		}, *a.ev.TPM2)
		if err != nil {
			return err
		}
		a.quote = quote
		a.accepted(evidence.TPM2, a.ev.TPM2.Quote, quoteSummary(quote))
	}
	if slices.Contains(c.Required, evidence.ProvisioningToken) {
		if err := a.provisioningToken(); err != nil {
			return err
		}
	}
	return a.verifyDocuments(ctx)
}

func (a *appraisal) provisioningToken() error {
	found := 0 // which one, from 1; every one is compared
	for i, t := range a.ProvisioningTokens {
		if t.Empty() { // an HMAC under no key is one that anybody can make
			continue
		}
		want := transcript.ProvisioningToken(t.Expose(), a.transcript)
		found = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(want, a.ev.ProvisioningToken), i+1, found)
	}
	if found == 0 {
		return reason.Deny(reason.ProvisioningTokenInvalid, "none of %d valid tokens", len(a.ProvisioningTokens))
	}
	which := "current"
	if found > 1 {
		which = "previous"
	}
	a.accepted(evidence.ProvisioningToken, a.ev.ProvisioningToken, map[string]string{
		"token": which, "strength": "a secret that machines share; it names none of them",
	})
	return nil
}

func (a *appraisal) accepted(k evidence.Kind, raw []byte, summary map[string]string) {
	a.verified = append(a.verified, k)
	a.summaries = append(a.summaries, v1alpha1.EvidenceSummary{Kind: k.String(), SHA256: digest(raw), Summary: summary})
}

func digest(raw []byte) string {
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:])
}

func quoteSummary(q *tpm2.Quote) map[string]string {
	return map[string]string{
		"ek": q.EK.Describe(), "ak": q.AK.Describe(), "bank": transcript.BankName(q.Bank),
		"resetCount": fmt.Sprint(q.ResetCount), "restartCount": fmt.Sprint(q.RestartCount),
		"firmwareVersion": fmt.Sprintf("%#x", q.FirmwareVersion),
	}
}

// Machines finds a Machine by verified identity; see package machine.
type Machines interface {
	Match(id machine.Identity, r machine.Rules) (*machine.Machine, error)
	Named(id machine.Identity, r machine.Rules) *machine.Machine
	Enrolled(ek machine.EKHash) bool
}
