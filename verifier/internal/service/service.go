// SPDX-License-Identifier: Apache-2.0

// Package service is the attestation API over HTTP. It receives the calls of proto/mcsattest/v1:
// Challenge, Attest, Certify and Report. Package rehearsal answers the two calls of a rehearsal. The service
// passes the evidence of an Attest call to package appraisal, records the verdict and issues the token.
//
// Besides the appraisal, it guarantees:
//
//   - Challenge keeps no state and writes nothing.
//   - The only writes are for callers that proved a Machine's identity, for genuine TPMs that wait for an
//     administrator's approval, and for the result of an administrator's ticket.
//   - A caller learns the class of a reason and a correlation id. The audit log and the metrics have
//     the details, with limited text and labels.
//   - An internal error is a temporary denial, and never a pass.
package service

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/appraisal"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/policy"
	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/record"
	"github.com/mcs-attest/mcs-attest/pkg/seal"
	"github.com/mcs-attest/mcs-attest/pkg/token"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
	"github.com/mcs-attest/mcs-attest/verifier/internal/audit"
	"github.com/mcs-attest/mcs-attest/verifier/internal/exchange"
	"github.com/mcs-attest/mcs-attest/verifier/internal/listen"
	"github.com/mcs-attest/mcs-attest/verifier/internal/outbound"
	"github.com/mcs-attest/mcs-attest/verifier/internal/rehearsal"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
	"github.com/mcs-attest/mcs-attest/verifier/internal/view"
)

// ticketLifetime is how long after its attestation a machine can report a failed boot (rule 15
// of docs/security-rules.md).
const ticketLifetime = 2 * time.Hour

// Service answers the calls. The caller sets all exported fields.
type Service struct {
	View          func() *view.View
	SealKeys      func() seal.Ring
	TokenKeys     func() token.KeySet
	Records       Records
	Origins       func(origin string) bool
	Served        func(spki []byte) bool
	Issuer        string
	Version       string
	Audit         *audit.Log
	Limiter       *listen.Limiter
	Source        func(*http.Request) netip.Addr
	Now           func() time.Time
	Observe       func(event, pool, outcome, reason string, took time.Duration)
	ObserveTicket func(valid bool)
	// ObserveRehearsal, if set, is called with each result of a rehearsal.
	ObserveRehearsal func(pool, result, reason string)
	// Stopping reports that the server is shutting down. It completes attestations, but starts none: Attest
	// needs the connection of its Challenge. If nil, the server never stops.
	Stopping func() bool
	// Provisioning returns the cached state of the provisioning token. If nil, the state is unknown.
	Provisioning func() provisioning.View
	// ConfirmProvisioning reads the provisioning token again before a permanent denial of a wrong one,
	// as in [gate.Provisioning].
	ConfirmProvisioning func(context.Context) (provisioning.View, error)
	// Confirm reads a Machine again before a permanent denial, because the view may be outdated (rule
	// 12 of docs/security-rules.md). Its error is a temporary denial. Confirm is nil if the view is
	// never outdated.
	Confirm func(ctx context.Context, m *machine.Machine) error
	// Clouds verify the clouds' documents. Directory returns the EKs of instances.
	Clouds    map[evidence.Kind]evidence.Verifier
	Directory tpm2.Directory
	// AzureTokenResource is the resource of the managed-identity token that Azure machines must
	// present. If empty, no such token is required.
	AzureTokenResource string
	// NodeCertificate is what challenges state. Unless it is unspecified, NodeNames is set. It reads
	// the names that the Node of a Machine may have. If it is nil, Certify is denied.
	NodeCertificate mcsattestv1.NodeCertificate
	NodeNames       func(ctx context.Context, machineUID string) ([]string, error)
	// Redeemable checks that a Machine may have a config of the pool now, as the gate does. It is set if NodeNames is.
	Redeemable func(ctx context.Context, machineUID, pool string) error
	// Keep, if set, is called with each Attest call that proved which Machine the
	// caller is.
	Keep func(*appraisal.Saved)

	bodies *listen.Bodies
	turns  *listen.Turns
	// provenTurns is for callers with a valid sealed challenge or ticket.
	provenTurns *listen.Turns
	proofs      *listen.KeyedLimiter[[sha256.Size]byte] // by seal or ticket
	attempts    *listen.KeyedLimiter[attempt]
	lookups     *listen.KeyedLimiter[lookup]
	rehearsals  *rehearsal.Rehearsals
}

// Records is the store of the service. Every error is a denial.
type Records interface {
	Attest(ctx context.Context, uid string, components []string, alive func(uid string) bool, change store.Change) error
	Update(ctx context.Context, uid string, change store.Change) error
	Holder(ctx context.Context, component string) (uid string, err error)
	AddPending(ctx context.Context, now time.Time, p store.Pending) error
	DeletePending(ctx context.Context, ekSHA256 string) error
}

// writeTimeout bounds a write that does not end with its client's request.
const writeTimeout = 20 * time.Second

// Developer is the token's ear_verifier_id.developer.
const Developer = "https://github.com/mcs-attest/mcs-attest"

// call is the state of one request besides its message.
type call struct {
	tls    *tls.ConnectionState
	conn   *listen.Connection
	source netip.Addr
	id     string
	start  time.Time
	yield  func() // releases the turn

	pool    string // if known; the policy's pool after policy is set
	policy  *policy.Policy
	machine string
	ek      string // the EK that the caller's TPM proved to have, in hex
	proven  bool
	// answered reports that the call is an Attest with a fresh challenge that was
	// issued on its own connection.
	answered bool
	extra    []slog.Attr
}

func (s *Service) challenge(c *call, req *mcsattestv1.ChallengeRequest) (*mcsattestv1.ChallengeResponse, error) {
	c.pool = req.GetPool()
	if !s.Origins(req.GetOrigin()) {
		return nil, reason.Deny(reason.OriginUnknown, "%q", truncate(req.GetOrigin()))
	}
	p, err := s.View().Policies.For(req.GetPool())
	if err != nil {
		return nil, err
	}
	c.policy = &p
	res := &mcsattestv1.ChallengeResponse{
		Mode: modes[s.mode(c)], Unattested: unattested[p.Unattested], Pool: p.Pool, Origin: req.GetOrigin(),
	}
	if p.Mode == v1alpha1.ModeOff || s.unenforced(c) {
		return res, nil
	}
	required := p.Choose(exchange.Kinds(req.GetOffered()))
	if _, err := s.provisioningTokens(c, required); err != nil {
		return nil, err
	}
	offer, err := exchange.NewChallenge(exchange.Terms{
		Issued: c.start, Origin: req.GetOrigin(), Policy: p, Required: required, TPM: req.GetTpm(),
		Exporter: listen.Exporter(c.tls), AzureTokenResource: s.AzureTokenResource,
	})
	if err != nil {
		return nil, err
	}
	if res.Sealed, err = s.SealKeys().Seal(rand.Reader, c.start, offer.Sealed); err != nil {
		return nil, err
	}
	res.Required, res.Tpm, res.Cloud, res.Binding = offer.Required, offer.TPM, offer.Cloud, offer.Binding
	res.Nonce, res.NodeCertificate = offer.Sealed.Nonce, s.nodeCertificate(p, required)
	res.LifetimeSeconds = uint32(p.ChallengeLifetime / time.Second)
	return res, nil
}

func (s *Service) attest(ctx context.Context, c *call,
	req *mcsattestv1.AttestRequest) (*mcsattestv1.AttestResponse, error) {
	ctx = outbound.For(ctx, c.source, c.yield)
	challenge, err := s.SealKeys().Open(req.GetSealed())
	if err != nil {
		return nil, err
	}
	c.pool = challenge.Pool
	current := s.View()
	if current.Stale != nil {
		return nil, reason.Wrap(reason.StoreUnavailable, current.Stale, "the cached state is out of date")
	}
	p, err := current.Policies.For(challenge.Pool)
	if err != nil {
		return nil, err
	}
	c.policy = &p
	ev := exchange.Received(req)
	ev.CSRSPKI = req.GetCsrSpkiSha256()
	conn := appraisal.Connection{Exporter: listen.Exporter(c.tls), Served: s.Served, Origin: s.Origins}
	if err := appraisal.Bind(challenge, p, conn, ev, c.start); err != nil {
		return nil, err
	}
	if p.Binding == v1alpha1.BindingExporter && (c.conn == nil || !c.conn.FirstAttest()) {
		return nil, reason.Deny(reason.ChallengeUsed, "a second Attest on one connection")
	}
	tokens, err := s.provisioningTokens(c, challenge.Required)
	if err != nil {
		return nil, err
	}
	in := appraisal.Context{
		ProvisioningTokens: tokens,
		Challenge:          challenge, Policy: p, Machines: current.Machines, References: current.References,
		Endorsers: appraisal.Endorsers(current.Trust.AK, current.Machines, current.EKRoots),
		Clouds:    s.Clouds, Directory: s.Directory,
		Recorded: func(id v1alpha1.RecordedIdentity) (string, error) {
			c.yield()
			return s.recorded(ctx, c, id)
		},
		Claimed: func(m *machine.Machine) error { return s.lookup(c, m.UID) },
	}
	var answers appraisal.Answers
	if s.Keep != nil {
		in = answers.Recording(in)
	}
	verdict, err := s.appraise(ctx, c, &in, ev)
	if m, bound := proven(verdict, err); m != nil {
		// Each costs a read of the Machine's record or a write of it, a line of the audit log, and a file with Keep.
		key := attempt{machine: m.UID}
		if bound {
			key.from = c.source
		}
		allowed := s.attempts.Allow(c.start, key)
		if bound && !allowed {
			c.machine = m.String()
			if err != nil {
				c.extra = append(c.extra, slog.String("denied", err.Error()))
			}
			return nil, reason.Deny(reason.RateLimited, "Machine %s attested too often", m)
		}
		if s.Keep != nil && allowed {
			saved := appraisal.Save(in, conn, ev, c.start, c.id)
			saved.Answers = answers
			s.Keep(saved)
		}
	}
	if err != nil {
		return nil, s.denied(ctx, c, err, ev)
	}
	if verdict.Machine == nil {
		return s.confirmToken(c, verdict), nil
	}
	c.proven, c.machine = true, verdict.Machine.String()
	if err := current.Outdated(verdict.Machine); err != nil {
		return nil, s.afterVerdict(ctx, c, verdict, reason.Wrap(reason.StoreUnavailable, err,
			"the cached state of Machine %s is out of date", verdict.Machine))
	}
	if err := s.lacksKey(p, challenge, verdict); err != nil {
		return nil, s.afterVerdict(ctx, c, verdict, err)
	}
	return s.grant(ctx, c, current, p, challenge, req.GetSealed(), verdict)
}

// appraise appraises evidence. Before it denies a wrong provisioning token, it reads the tokens again, into in.
func (s *Service) appraise(ctx context.Context, c *call, in *appraisal.Context, ev appraisal.Evidence) (
	*appraisal.Verdict, error) {
	verdict, err := appraisal.Appraise(ctx, *in, ev, c.start)
	c.yield()
	if d := reason.From(err); d != nil && d.Code == reason.ProvisioningTokenInvalid && s.ConfirmProvisioning != nil {
		if in.ProvisioningTokens, err = s.rereadTokens(ctx, c, in.ProvisioningTokens, err); err == nil {
			verdict, err = appraisal.Appraise(ctx, *in, ev, c.start)
		}
	}
	return verdict, err
}

// afterVerdict returns the denial of a caller whose evidence was accepted. It writes the denial to the Machine's
// record, unless the caller may only have a copy of the document.
func (s *Service) afterVerdict(ctx context.Context, c *call, v *appraisal.Verdict, denial error) error {
	if v.Replayable {
		c.proven = false
		return denial
	}
	return s.noteDenial(ctx, c, v.Machine, denial)
}

// challenged returns a copy of all with the time of the challenge in the first summary. The web page
// uses it to show how long the machine took.
func challenged(all []v1alpha1.EvidenceSummary, at time.Time) []v1alpha1.EvidenceSummary {
	all = slices.Clone(all)
	if len(all) > 0 {
		summary := map[string]string{v1alpha1.SummaryChallenged: at.UTC().Format(time.RFC3339)}
		maps.Copy(summary, all[0].Summary)
		all[0].Summary = summary
	}
	return all
}

// grant records the verdict, then issues the token that the record names.
func (s *Service) grant(ctx context.Context, c *call, current *view.View, p policy.Policy, challenge seal.Challenge,
	sealed []byte, v *appraisal.Verdict) (*mcsattestv1.AttestResponse, error) {
	a := record.Attestation{
		Machine: v.Machine, Identity: v.Identity, Endorsement: v.Endorsement,
		Evidence: challenged(v.Evidence, challenge.Issued), Warnings: v.Warnings,
		Pool: p.Pool, TicketID: hex.EncodeToString(random(12)), CorrelationID: c.id, Replayable: v.Replayable,
		CSRKeySHA256: v.CSRKeySHA256, TPM: v.TPM,
	}
	if p.Mode != v1alpha1.ModeAudit {
		a.TokenID, a.TokenExpiry, a.TokenUses = hex.EncodeToString(random(12)), c.start.Add(p.TokenLifetime),
			int32(p.TokenUses)
	}
	if p.Binding == v1alpha1.BindingTerminated {
		a.ChallengeID, a.ChallengeEnds = challengeID(sealed), challenge.Issued.Add(p.ChallengeLifetime+clockSkew)
	}
	// The response is created before the write, because the write makes the machine's earlier token
	// invalid. An internal error must not come after it.
	res, err := s.response(c, p, challenge, v, a)
	if err != nil {
		return nil, err
	}
	unread := false // whether a holder of the identity exists
	alive := func(uid string) bool {
		unread = unread || !current.Complete && !current.Machines.Known(uid)
		return current.Alive(uid)
	}
	err = s.write(ctx, v, alive, func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
		return record.Attest(rec, a, s.Now()) // the call may have waited for another one
	})
	if unread && err != nil && reason.From(err).Code == reason.IdentityConflict {
		err = reason.Wrap(reason.StoreUnavailable, err, "an object or a file cannot be read, and the other machine may "+
			"be in it or not")
	}
	if err != nil {
		return nil, s.afterVerdict(ctx, c, v, err)
	}
	// A restore that was noticed since made the challenge void. The records may have forgotten that it was used.
	if _, err := s.SealKeys().Open(sealed); err != nil {
		return nil, err
	}
	if v.Identity.EKSHA256 != "" {
		if err := s.Records.DeletePending(ctx, v.Identity.EKSHA256); err != nil {
			// The pending entry expires after a day.
			c.extra = append(c.extra, slog.String("still_pending", err.Error()))
		}
	}
	c.ek = v.Identity.EKSHA256
	c.extra = append(c.extra, slog.String("endorsement", string(v.Endorsement)), slog.String("token", a.TokenID))
	if v.Identity.InstanceID != "" {
		c.extra = append(c.extra, slog.String("instance", v.Identity.InstanceID))
	}
	for _, e := range v.Evidence {
		c.extra = append(c.extra, slog.String("evidence."+e.Kind, e.SHA256))
	}
	if len(v.Warnings) > 0 {
		c.extra = append(c.extra, slog.Any("warnings", v.Warnings))
	}
	return res, nil
}

// write writes an attestation to the store, in several steps. It writes nothing if the
// client has disconnected. If the client disconnects later, write completes all steps.
func (s *Service) write(ctx context.Context, v *appraisal.Verdict, alive func(uid string) bool,
	change store.Change) error {
	if err := ctx.Err(); err != nil {
		return reason.Wrap(reason.StoreUnavailable, err, "the client did not wait")
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	return s.Records.Attest(ctx, v.Machine.UID, components(v.Identity), alive, change)
}

// response creates the ticket and, except under Audit, the token that a will record.
func (s *Service) response(c *call, p policy.Policy, challenge seal.Challenge, v *appraisal.Verdict,
	a record.Attestation) (*mcsattestv1.AttestResponse, error) {
	ticket, err := s.SealKeys().SealTicket(rand.Reader, c.start,
		seal.Ticket{ID: a.TicketID, MachineUID: v.Machine.UID, Expiry: c.start.Add(ticketLifetime)})
	if err != nil {
		return nil, err
	}
	res := &mcsattestv1.AttestResponse{ReportTicket: ticket, Machine: v.Machine.String(), CorrelationId: c.id}
	if a.TokenID == "" {
		return res, nil
	}
	signed, err := s.TokenKeys().Sign(c.start, s.claims(c, p, challenge, v, a))
	if err != nil {
		return nil, err
	}
	res.Token = string(signed.Expose())
	res.TokenLifetimeSeconds = uint32(p.TokenLifetime / time.Second)
	res.CertifyTicket, err = s.certifyTicket(c, p, challenge, a)
	return res, err
}

func (s *Service) claims(c *call, p policy.Policy, challenge seal.Challenge, v *appraisal.Verdict,
	a record.Attestation) token.Claims {
	status := token.Affirming
	if len(v.Warnings) > 0 {
		status = token.Warning
	}
	submods := map[string]token.Appraisal{}
	for _, e := range v.Evidence {
		sub := token.Appraisal{Status: status}
		switch e.Kind {
		case evidence.TPM2.String():
			sub.Vector = map[string]int8{"instance-identity": 2, "hardware": 2}
		case evidence.ProvisioningToken.String():
			sub.Status = token.Warning // any client may know a shared secret
		default:
			sub.Vector = map[string]int8{"instance-identity": 2}
		}
		submods[e.Kind] = sub
	}
	return token.Claims{
		Issuer: s.Issuer, Audience: token.Audience, Subject: v.Machine.String(), MachineUID: v.Machine.UID, Pool: p.Pool,
		ID: a.TokenID, IssuedAt: c.start, NotBefore: c.start, Expiry: a.TokenExpiry,
		Nonce:    appraisal.NonceText(challenge.Nonce),
		Verifier: token.VerifierID{Developer: Developer, Build: s.Version},
		Status:   status, Submods: submods,
	}
}

// denied records err, the denial of a caller that proved something, and returns the
// error for the caller.
func (s *Service) denied(ctx context.Context, c *call, err error, ev appraisal.Evidence) error {
	var r *appraisal.Refusal
	if !errors.As(err, &r) {
		return err
	}
	if r.Machine != nil {
		if !r.Unproven {
			return s.noteDenial(ctx, c, r.Machine, s.confirmed(ctx, c, r.Machine, err))
		}
		key := attempt{machine: r.Machine.UID, denial: reason.From(err).Code}
		if !passing(err) && !s.attempts.Allow(c.start, key) {
			c.extra = append(c.extra, slog.String("denied", err.Error()))
			return reason.Deny(reason.RateLimited, "Machine %s was denied too often", r.Machine)
		}
		return s.confirmed(ctx, c, r.Machine, err)
	}
	if r.EKSHA256 != ([sha256.Size]byte{}) {
		c.ek = hex.EncodeToString(r.EKSHA256[:])
	}
	if r.Unenrolled == nil || reason.From(err).Code != reason.PendingApproval {
		return err
	}
	ek := hex.EncodeToString(r.Unenrolled.EKSHA256[:])
	p := store.Pending{ID: ek[:16], EKSHA256: ek, Pool: c.pool, Source: c.source.String(),
		Claims: audit.Clean(string(ev.Claims))}
	if cert := r.Unenrolled.Certificate; cert != nil {
		p.Certificate = map[string]string{
			"manufacturer": audit.Clean(cert.Manufacturer), "model": audit.Clean(cert.Model),
			"version": audit.Clean(cert.Version), "issuer": audit.Clean(cert.Issuer),
			"notAfter": cert.NotAfter.UTC().Format(time.RFC3339),
		}
	}
	c.extra = append(c.extra, slog.String("pending", p.ID))
	if waitErr := s.Records.AddPending(ctx, c.start, p); waitErr != nil {
		return waitErr
	}
	return err
}

// attempt is what is limited of each Machine: attestations that prove it, of each source, and those with a document
// that may be a copy. The denials of the latter are limited for each reason. So neither a copy of a document nor a
// machine elsewhere with the same identity limits the machine itself.
type attempt struct {
	machine string     // its UID
	from    netip.Addr // not valid if the document may be a copy
	denial  reason.Code
}

// confirmed returns the denial for the caller. If a permanent denial depends on the state of the
// Machine, confirmed first reads the Machine again.
func (s *Service) confirmed(ctx context.Context, c *call, m *machine.Machine, denial error) error {
	switch reason.From(denial).Code {
	case reason.MachineDeleting, reason.MachineJoined, reason.MachineTooOld, reason.MachinePool, reason.EvidenceDisagrees:
	default:
		return denial
	}
	if s.Confirm == nil {
		return denial
	}
	// If the client disconnects, its denial must still be recorded.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	if err := s.Confirm(ctx, m); err != nil {
		c.extra = append(c.extra, slog.String("unconfirmed", denial.Error()))
		return err
	}
	return denial
}

// passing reports whether denial is a temporary state, and not a denial of the evidence.
func passing(denial error) bool {
	switch reason.From(denial).Code {
	case reason.StoreUnavailable, reason.RateLimited, reason.ProviderUnavailable, reason.InstanceNotFound:
		return true
	}
	return false
}

// noteDenial writes a denial into the Machine's record, if the Machine's identity was proven. It
// returns the denial, or an internal error.
func (s *Service) noteDenial(ctx context.Context, c *call, m *machine.Machine, denial error) error {
	c.proven, c.machine = true, m.String()
	d := reason.From(denial)
	if passing(denial) {
		return denial
	}
	// If the client disconnects, its denial must still be recorded.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	err := s.Records.Update(ctx, m.UID, func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
		return record.Denied(rec, m, d, c.id, c.start), nil
	})
	if err != nil {
		return err
	}
	return denial
}
