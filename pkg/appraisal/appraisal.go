// SPDX-License-Identifier: Apache-2.0

// Package appraisal appraises the evidence of one machine (RFC 9334, section 8).
// The service calls it for each Attest call, and the commands call it to replay a
// saved one. Input is an opened challenge, the evidence, the pool's policy and the
// known Machines. Output is one Machine, or the reason for the denial.
//
// A provider is a cloud or a vCenter that confirms evidence. Cheap checks come first, and no provider
// is asked about a caller that has not proven anything. The transcript is the hash of the whole
// exchange (package transcript). The package is pure. The checks, in order:
//
//   - the challenge is fresh and belongs to this policy, connection and origin
//     ([Bind]);
//   - every required kind of evidence is present: EvidenceMissing;
//   - each kind verifies over the same transcript, without a call to a provider;
//   - if providers must be asked, the evidence or the machine's claims select exactly one Machine, and
//     it may attest now;
//   - the providers confirm what their documents state;
//   - an endorsement that the policy allows vouches for the EK;
//   - everything that was proven names the same Machine, and it may have the pool;
//   - the policy accepts the stage of the boot, and the profile allows the measured boot.
//
// A challenge that requires only the provisioning token skips the last five checks. Machines share
// that token, so it names none of them. Its [Verdict] has no Machine, and the caller must not write a
// record or issue a token for it (rule 14 of docs/security-rules.md). Beside other kinds, the token is
// one more requirement.
//
// [Appraise] returns a [Verdict] only if all checks pass. If the caller proved which Machine it is,
// the denial is a [Refusal] with that Machine. Only such a denial may be written to the Machine's
// record (rule 3 of docs/security-rules.md).
package appraisal

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
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

// The binding modes in the text form of the transcript and the seal.
const (
	BindingExporter   = "exporter"
	BindingTerminated = "terminated"
)

// Evidence is what the node sent. All of it is untrusted.
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

// Connection describes the connection of the Attest call, as the verifier sees it.
type Connection struct {
	Exporter []byte // nil if a proxy terminated TLS, or if TLS is older than 1.3
	// Served reports whether spki, the SHA-256 of a server key's SPKI, is that of this verifier.
	Served func(spki []byte) bool
	// Origin reports whether this verifier serves the origin.
	Origin func(origin string) bool
}

// Context is everything besides the evidence that an appraisal depends on.
type Context struct {
	Challenge  seal.Challenge // opened, so a verifier of this cluster made it
	Policy     policy.Policy
	Machines   Machines
	Endorsers  map[v1alpha1.Endorsement]tpm2.Endorser
	References []measuredboot.ReferenceValues
	// Clouds verify the clouds' documents, by kind. If a required one is missing, the denial is
	// temporary. Directory returns the EKs of the clouds' instances. If it is nil, no provider
	// endorses a TPM.
	Clouds    map[evidence.Kind]evidence.Verifier
	Directory tpm2.Directory
	// Recorded returns the UID of the Machine whose record has a component of this
	// identity, or "". A Machine with a record may attest again regardless of its age.
	Recorded func(v1alpha1.RecordedIdentity) (string, error)
	// Claimed, if set, is called before Recorded is asked for a Machine that the caller only claims to be: without a
	// document, and with a TPM that is not enrolled for it. If it returns a denial, Recorded is not asked.
	Claimed func(*machine.Machine) error
	// ProvisioningTokens are the currently valid tokens, the current one first.
	ProvisioningTokens []secret.Bytes
	// Rehearsal appraises evidence of a rehearsal, which is no evidence for an attestation. It ignores that
	// the initramfs has ended, and that the provisioning token is absent. The caller must issue nothing for such a
	// verdict.
	Rehearsal bool
}

// Verdict is the result of a successful appraisal.
type Verdict struct {
	// Machine is nil if only the provisioning token was required.
	Machine     *machine.Machine
	Identity    v1alpha1.RecordedIdentity
	Endorsement v1alpha1.Endorsement
	Evidence    []v1alpha1.EvidenceSummary
	Warnings    []string // violations for which the policy only warns
	// TPM has the counters of the quote, or is nil without one.
	TPM *v1alpha1.TPMCounters
	// Replayable reports that no proof is bound to this exchange. Such a verdict
	// suffices only for a machine's first attestation.
	Replayable bool
	// CSRKeySHA256 is the hash of the key that the machine attested for its kubelet,
	// in hexadecimal. It is empty if the machine named none, or if Replayable.
	CSRKeySHA256 string
}

// Refusal is the denial of a caller that proved something.
type Refusal struct {
	denial error
	// Machine is the Machine whose identity the caller proved, or nil.
	Machine *machine.Machine
	// Unproven reports that the document that names the Machine could be a copy. The denial must then
	// not be written to the Machine's record.
	Unproven bool
	// Unenrolled is a genuine TPM that belongs to no known Machine, or nil.
	Unenrolled *tpm2.Endorsement
	// EKSHA256 is the hash of the EK, if the TPM answered the challenge and no Machine has it.
	// Otherwise it is zero.
	EKSHA256 [sha256.Size]byte
}

// Error returns the denial's text.
func (r *Refusal) Error() string { return r.denial.Error() }

// Unwrap returns the denial.
func (r *Refusal) Unwrap() error { return r.denial }

// Bind checks that a challenge belongs to this connection and policy:
//
//   - it is not older than its lifetime: ChallengeExpired
//   - this verifier serves its origin: OriginUnknown
//   - the policy has not changed since: PolicyChanged
//   - the binding holds: BindingMissing, BindingMismatch
//
// With "exporter", Challenge and Attest use the same connection and the server key
// is this verifier's. With "terminated", the server key is that of a front end.
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

// BindingName returns the text form of a policy's binding.
func BindingName(b v1alpha1.Binding) string {
	if b == v1alpha1.BindingTerminated {
		return BindingTerminated
	}
	return BindingExporter
}

// Appraise appraises evidence whose challenge [Bind] has accepted.
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
		if err := a.inTime(); err != nil {
			return nil, err
		}
		return &Verdict{Evidence: a.staged(), Warnings: a.warnings}, nil
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
	if err := a.inTime(); err != nil {
		return nil, a.refuse(err)
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
		Evidence: a.staged(), Warnings: a.warnings, Replayable: a.replayable(),
	}
	v.TPM = counters(a.quote)
	if len(a.ev.CSRSPKI) > 0 && !v.Replayable {
		v.CSRKeySHA256 = hex.EncodeToString(a.ev.CSRSPKI) // it is in the transcript
	}
	return v, nil
}

// appraisal is the state of one call of Appraise.
type appraisal struct {
	Context
	ev  Evidence
	now time.Time

	stage       v1alpha1.Stage
	transcript  transcript.Hash
	verified    []evidence.Kind
	quote       *tpm2.Quote
	claims      []evidence.Claim
	statements  []evidence.Statement // confirmed
	asked       *machine.Machine     // whom providers are asked about; nil if none is asked
	stated      bool                 // a document names it, not only the machine's claims
	unasked     error                // why no provider is asked about the Machine that the machine's claims name
	identity    tpm2.Identity
	endorsed    *tpm2.Endorsement
	endorsement v1alpha1.Endorsement
	machine     *machine.Machine
	summaries   []v1alpha1.EvidenceSummary
	warnings    []string
}

// complete rejects evidence that is incomplete or too large, before any cryptography.
func (a *appraisal) complete() error {
	if len(a.ev.Claims) > MaxClaims || len(a.ev.EventLog) > MaxEventLog {
		return reason.Deny(reason.TooLarge, "claims of %d bytes, event log of %d bytes", len(a.ev.Claims), len(a.ev.EventLog))
	}
	var err error
	if a.stage, err = stage(a.ev.Claims); err != nil {
		return err
	}
	if n := len(a.ev.CSRSPKI); n != 0 && n != sha256.Size {
		return reason.Deny(reason.Malformed, "CSR key hash of %d bytes", n)
	}
	if err := a.documents(); err != nil {
		return err
	}
	for _, k := range a.Challenge.Required {
		var present bool
		switch k {
		case evidence.TPM2:
			present = a.ev.TPM2 != nil
		case evidence.ProvisioningToken:
			present = len(a.ev.ProvisioningToken) > 0 || a.Rehearsal
		default:
			present = a.document(k) != nil
		}
		if !present {
			return reason.Deny(reason.EvidenceMissing, "%s is required", k)
		}
	}
	return nil
}

// verify checks each required kind of evidence over the transcript.
func (a *appraisal) verify(ctx context.Context) error {
	if err := a.verifyTPM(); err != nil {
		return err
	}
	switch {
	case !slices.Contains(a.Challenge.Required, evidence.ProvisioningToken):
	case a.Rehearsal && len(a.ev.ProvisioningToken) == 0:
		// An administrator need not give the machines' shared secret to a running machine.
		a.verified = append(a.verified, evidence.ProvisioningToken)
		a.warnings = append(a.warnings, "the provisioning token was not presented, so it was not rehearsed")
	default:
		if err := a.provisioningToken(); err != nil {
			return err
		}
	}
	return a.verifyDocuments(ctx)
}

func (a *appraisal) provisioningToken() error {
	found := 0 // index from 1; all tokens are compared, for constant time
	for i, t := range a.ProvisioningTokens {
		if t.Empty() { // anyone can compute an HMAC with an empty key
			continue
		}
		want := transcript.ProvisioningToken(t.Expose(), a.transcript)
		found = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(want, a.ev.ProvisioningToken), i+1, found)
	}
	if found == 0 {
		return reason.Deny(reason.ProvisioningTokenInvalid, "matches none of %d valid tokens", len(a.ProvisioningTokens))
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

// Machines finds a Machine by its verified identity; see package machine.
type Machines interface {
	Match(id machine.Identity, r machine.Rules) (*machine.Machine, error)
	Named(id machine.Identity, r machine.Rules) *machine.Machine
	Enrolled(ek machine.EKHash) bool
}
