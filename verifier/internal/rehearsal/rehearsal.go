// SPDX-License-Identifier: Apache-2.0

// Package rehearsal answers whether a machine could be provisioned again. An administrator gives the node a
// ticket. The node presents it, and answers a challenge with the evidence of a first boot. The package appraises
// the evidence by the current policy as if the Machine had not joined, and has the result recorded.
//
// A rehearsal grants nothing. Four independent facts ensure this:
//
//   - Its sealed challenge opens no attestation, and the reverse: [seal.Rehearsal].
//   - Its transcript has a label of its own, so no evidence of one serves the other.
//   - This package imports nothing that signs a token or issues a credential, and writes only by
//     [Recorder.Rehearse]. layering_test.go checks the imports.
//   - Its responses have no field for a token.
//
// Without a valid ticket every caller gets the same answer, and nothing is read from the API or written. The
// evidence of another Machine has the result of evidence that no Machine has.
package rehearsal

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/appraisal"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/policy"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	tickets "github.com/mcs-attest/mcs-attest/pkg/rehearsal"
	"github.com/mcs-attest/mcs-attest/pkg/seal"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
	"github.com/mcs-attest/mcs-attest/verifier/internal/exchange"
	"github.com/mcs-attest/mcs-attest/verifier/internal/view"
)

// Rehearsals answers the calls. The caller sets all exported fields.
type Rehearsals struct {
	View    func() *view.View
	Keys    func() Keys
	Records Recorder
	// Origins and Served are those of an attestation.
	Origins   func(origin string) bool
	Served    func(spki []byte) bool
	Clouds    map[evidence.Kind]evidence.Verifier
	Directory tpm2.Directory
	// AzureTokenResource is the resource of the token that Azure machines must present, or "".
	AzureTokenResource string
	// Tokens returns the valid provisioning tokens if one is required.
	Tokens func(now time.Time, required []evidence.Kind) ([]secret.Bytes, error)
	// Confirm returns a denial, or a temporary one if the cached state on which it is based may be outdated.
	Confirm func(ctx context.Context, now time.Time, m *machine.Machine, denial error) error
	// Open reports whether the pool needs no attestation now.
	Open func(now time.Time, p policy.Policy) bool

	mu   sync.Mutex
	used map[[sha256.Size]byte]time.Time // tickets with a result, and when they had it
}

// Keys seals and opens challenges of rehearsals.
type Keys interface {
	SealRehearsal(rand io.Reader, now time.Time, c seal.Rehearsal) ([]byte, error)
	OpenRehearsal(sealed []byte) (seal.Rehearsal, error)
}

// Recorder keeps the results.
type Recorder interface {
	// Recorded returns the UID of the Machine whose record has a component of this identity, or "".
	Recorded(ctx context.Context, id v1alpha1.RecordedIdentity) (uid string, err error)
	// Rehearse records a result, and returns it as recorded. A ticket that was used is denied with
	// ChallengeInvalid.
	Rehearse(ctx context.Context, r Result) (Recorded, error)
}

// Result is what an appraisal found.
type Result struct {
	Machine      *machine.Machine
	TicketSHA256 string // in hexadecimal
	Pool         string
	AgentVersion string
	Warnings     []string
	// Denial is nil if Verdict is not. Without both, the policy requires no attestation.
	Denial  *reason.Denial
	Verdict *appraisal.Verdict
	// Proven reports that the caller proved to be the Machine.
	Proven bool
}

// Recorded is a result with the decision that the record added.
type Recorded struct {
	v1alpha1.RehearsalStatus
	Explanation string // of a denial
}

// Call is one request. The package sets the second part.
type Call struct {
	Now      time.Time
	ID       string
	Exporter []byte // of the connection, or nil
	// First reports whether no evidence was presented on this connection before.
	First func() bool
	Yield func() // releases the turn, before a wait

	Machine *machine.Machine
	Policy  *policy.Policy
	Result  *Recorded
}

// maxVersion limits the recorded version of an agent, in bytes.
const maxVersion = 64

// usedFor is how long a ticket can be valid at most.
const usedFor = time.Hour

// errTicket is the only answer to a caller without a valid ticket.
var errTicket = reason.Deny(reason.ChallengeInvalid, "no valid ticket for a rehearsal")

// machineOf returns the Machine for which an administrator issued a ticket.
func (r *Rehearsals) machineOf(now time.Time, ticket [sha256.Size]byte) (*machine.Machine, error) {
	m := r.View().Machines.ByTicket(hex.EncodeToString(ticket[:]), now)
	r.mu.Lock()
	_, used := r.used[ticket]
	r.mu.Unlock()
	if m == nil || used {
		return nil, errTicket
	}
	return m, nil
}

// Valid reports whether a ticket is valid. It reads only cached state.
func (r *Rehearsals) Valid(now time.Time, ticket []byte) bool {
	if len(ticket) != tickets.TicketSize {
		return false
	}
	_, err := r.machineOf(now, sha256.Sum256(ticket))
	return err == nil
}

// Own reports whether sealed is a fresh challenge of a rehearsal whose ticket is valid, and was issued on the
// connection with this exporter if the policy binds it. It returns the hash of the ticket.
func (r *Rehearsals) Own(now time.Time, exporter, sealed []byte) (ticket [sha256.Size]byte, own bool) {
	c, err := r.Keys().OpenRehearsal(sealed)
	if err != nil {
		return ticket, false
	}
	p, err := r.View().Policies.For(c.Pool)
	if err != nil || c.Fresh(now, p.ChallengeLifetime) != nil {
		return ticket, false
	}
	if p.Binding == v1alpha1.BindingExporter && !bytes.Equal(c.Exporter, exporter) {
		return ticket, false
	}
	_, err = r.machineOf(now, c.TicketSHA256)
	return c.TicketSHA256, err == nil
}

// Challenge answers a caller with a valid ticket. If the rehearsal ends here, the response has its result.
func (r *Rehearsals) Challenge(ctx context.Context, c *Call,
	req *mcsattestv1.RehearseChallengeRequest) (*mcsattestv1.RehearseChallengeResponse, error) {
	if len(req.GetTicket()) != tickets.TicketSize {
		return nil, errTicket
	}
	ticket := sha256.Sum256(req.GetTicket())
	m, err := r.machineOf(c.Now, ticket)
	if err != nil {
		return nil, err
	}
	c.Machine = m
	if err := r.current(m); err != nil {
		return nil, err
	}
	version := req.GetAgentVersion()
	version = version[:min(len(version), maxVersion)]
	result := Result{Machine: m, TicketSHA256: hex.EncodeToString(ticket[:]), Pool: req.GetPool(), AgentVersion: version}
	sealed := seal.Rehearsal{MachineUID: m.UID, TicketSHA256: ticket, AgentVersion: version}
	res, err := r.challenge(c, req, sealed)
	if err != nil {
		c.Yield()
		err = r.Confirm(ctx, c.Now, m, err)
	}
	switch {
	case err != nil && !conclusive(err):
		return nil, err
	case err != nil:
		result.Denial = reason.From(err)
	case res == nil:
		result.Warnings = []string{"the policy of pool " + c.Policy.Pool + " requires no attestation now"}
	default:
		return res, nil
	}
	end, err := r.conclude(ctx, c, result)
	if err != nil {
		return nil, err
	}
	return &mcsattestv1.RehearseChallengeResponse{Result: end}, nil
}

// challenge returns the challenge, or nil if the pool needs no attestation.
func (r *Rehearsals) challenge(c *Call, req *mcsattestv1.RehearseChallengeRequest,
	sealed seal.Rehearsal) (*mcsattestv1.RehearseChallengeResponse, error) {
	if !r.Origins(req.GetOrigin()) {
		return nil, reason.Deny(reason.OriginUnknown, "%.256q", req.GetOrigin())
	}
	if err := hasPool(c.Machine, req.GetPool()); err != nil {
		return nil, err
	}
	p, err := r.View().Policies.For(req.GetPool())
	if err != nil {
		return nil, err
	}
	c.Policy = &p
	if r.Open(c.Now, p) {
		return nil, nil
	}
	required := p.Choose(exchange.Kinds(req.GetOffered()))
	if _, err := r.Tokens(c.Now, required); err != nil {
		return nil, err
	}
	offer, err := exchange.NewChallenge(exchange.Terms{
		Issued: c.Now, Origin: req.GetOrigin(), Policy: p, Required: required, TPM: req.GetTpm(), Exporter: c.Exporter,
		AzureTokenResource: r.AzureTokenResource,
	})
	if err != nil {
		return nil, err
	}
	sealed.Challenge = offer.Sealed
	box, err := r.Keys().SealRehearsal(rand.Reader, c.Now, sealed)
	if err != nil {
		return nil, err
	}
	return &mcsattestv1.RehearseChallengeResponse{
		Sealed: box, Nonce: offer.Sealed.Nonce, Binding: offer.Binding, Required: offer.Required, Tpm: offer.TPM,
		LifetimeSeconds: uint32(p.ChallengeLifetime / time.Second), Pool: p.Pool, Origin: req.GetOrigin(),
		Cloud: offer.Cloud,
	}, nil
}

// Rehearse appraises evidence and returns the result. Only the answer to a fresh challenge of this connection, whose
// ticket is still valid, has a result.
func (r *Rehearsals) Rehearse(ctx context.Context, c *Call,
	req *mcsattestv1.RehearseRequest) (*mcsattestv1.RehearseResponse, error) {
	challenge, err := r.Keys().OpenRehearsal(req.GetSealed())
	if err != nil {
		return nil, err
	}
	m, err := r.machineOf(c.Now, challenge.TicketSHA256)
	if err != nil {
		return nil, err
	}
	if m.UID != challenge.MachineUID {
		return nil, errTicket
	}
	c.Machine = m
	if err := r.current(m); err != nil {
		return nil, err
	}
	p, err := r.View().Policies.For(challenge.Pool)
	if err != nil {
		return nil, err
	}
	c.Policy = &p
	ev := exchange.Received(req)
	conn := appraisal.Connection{Exporter: c.Exporter, Served: r.Served, Origin: r.Origins}
	if err := appraisal.Bind(challenge.Challenge, p, conn, ev, c.Now); err != nil {
		return nil, err
	}
	if p.Binding == v1alpha1.BindingExporter && !c.First() {
		return nil, reason.Deny(reason.ChallengeUsed, "a second answer on one connection")
	}
	result := Result{Machine: m, TicketSHA256: hex.EncodeToString(challenge.TicketSHA256[:]), Pool: p.Pool,
		AgentVersion: challenge.AgentVersion}
	result.Verdict, err = r.appraise(ctx, c, challenge.Challenge, ev)
	if err != nil {
		c.Yield()
		if err = r.Confirm(ctx, c.Now, m, err); !conclusive(err) {
			return nil, err
		}
		result.Denial = reason.From(err)
		var refusal *appraisal.Refusal
		result.Proven = errors.As(err, &refusal) && !refusal.Unproven && refusal.Machine != nil &&
			refusal.Machine.UID == m.UID
		return r.conclude(ctx, c, result)
	}
	if v := result.Verdict; v.Machine != nil && v.Machine.UID != m.UID {
		return nil, fmt.Errorf("the verdict of the rehearsal of Machine %s names Machine %s", m, v.Machine)
	}
	result.Proven = result.Verdict.Machine != nil
	result.Warnings = limits(p, result.Verdict)
	return r.conclude(ctx, c, result)
}

// appraise appraises evidence for the Machine of the call.
func (r *Rehearsals) appraise(ctx context.Context, c *Call, challenge seal.Challenge,
	ev appraisal.Evidence) (*appraisal.Verdict, error) {
	if err := hasPool(c.Machine, challenge.Pool); err != nil {
		return nil, err
	}
	now := r.View()
	machines := machine.Rehearsal{All: now.Machines, Machine: c.Machine}
	return appraisal.Appraise(ctx, appraisal.Context{
		Rehearsal: true, Challenge: challenge, Policy: *c.Policy, Machines: machines,
		References: now.References, Endorsers: appraisal.Endorsers(now.Trust.AK, machines, now.EKRoots),
		Clouds: r.Clouds, Directory: r.Directory,
		Recorded: func(id v1alpha1.RecordedIdentity) (string, error) {
			c.Yield()
			return r.Records.Recorded(ctx, id)
		},
	}, ev, c.Now)
}

// hasPool denies a pool that the Machine may not have. The caller chooses the pool, and not every policy requires
// evidence that names a Machine.
func hasPool(m *machine.Machine, pool string) error {
	if !m.HasPool(pool) {
		return reason.Deny(reason.MachinePool, "the request is for pool %.64q, but Machine %s may have %q", pool, m, m.Pools)
	}
	return nil
}

// limits returns the warnings of a verdict, and what the rehearsal could not show.
func limits(p policy.Policy, v *appraisal.Verdict) []string {
	all := append([]string{}, v.Warnings...)
	if v.Machine == nil {
		return append(all, "the policy requires only the provisioning token, which names no Machine")
	}
	if p.Profile.NeedsEventLog() && v.TPM != nil {
		all = append(all, "this is the firmware and the installed system; the boot image of a new machine may differ")
	}
	return all
}

// current returns why nothing can be said about a Machine now, or nil.
func (r *Rehearsals) current(m *machine.Machine) error {
	if err := r.View().Outdated(m); err != nil {
		return reason.Wrap(reason.StoreUnavailable, err, "the cached state is out of date")
	}
	return nil
}

// conclusive reports whether a denial is about the machine. Any other one leaves the ticket unused.
func conclusive(err error) bool {
	switch reason.From(err).Code {
	case reason.StoreUnavailable, reason.RateLimited, reason.Internal, reason.ChallengeKeyUnknown,
		reason.ProviderUnavailable, reason.InstanceNotFound:
		return false
	}
	return true
}

// conclude records the result. Then its ticket is used.
func (r *Rehearsals) conclude(ctx context.Context, c *Call, result Result) (*mcsattestv1.RehearseResponse, error) {
	c.Yield()
	ticket, err := hex.DecodeString(result.TicketSHA256)
	if err != nil {
		return nil, err
	}
	end, err := r.Records.Rehearse(ctx, result)
	if err == nil || reason.From(err).Code == reason.ChallengeInvalid {
		r.use([sha256.Size]byte(ticket), c.Now)
	}
	if err != nil {
		return nil, err
	}
	c.Result = &end
	res := &mcsattestv1.RehearseResponse{Passes: end.Passed, Explanation: end.Explanation, Warnings: end.Warnings,
		CorrelationId: c.ID}
	if code, ok := reason.Parse(end.Reason); ok {
		res.Reason = mcsattestv1.Reason(code)
	}
	return res, nil
}

// use remembers a ticket until it has expired.
func (r *Rehearsals) use(ticket [sha256.Size]byte, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for t, at := range r.used {
		if now.Sub(at) > usedFor {
			delete(r.used, t)
		}
	}
	if r.used == nil {
		r.used = map[[sha256.Size]byte]time.Time{}
	}
	r.used[ticket] = now
}
