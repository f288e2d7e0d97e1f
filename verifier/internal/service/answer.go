// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"net/netip"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/appraisal"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/policy"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
	"github.com/mcs-attest/mcs-attest/verifier/internal/audit"
)

// tls13 denies a connection without TLS 1.3, which attestation requires, also behind a front end.
func tls13(c *call) error {
	if c.tls == nil || c.tls.Version != tls.VersionTLS13 {
		return reason.Deny(reason.TLSRequired, "not TLS 1.3")
	}
	return nil
}

// finish writes the audit line and the metric of a call, and turns a denial into the error for the
// caller.
func (s *Service) finish(ctx context.Context, event string, c *call, err error) error {
	d := reason.From(err)
	outcome, code := "allowed", ""
	if d != nil {
		outcome, code = "denied", d.Code.String()
		switch {
		case d.Code.Temporary() && errors.Is(ctx.Err(), context.Canceled):
			outcome = "disconnected" // the denial may have no other cause
		case s.mode(c) == v1alpha1.ModeAudit:
			outcome = "would-deny"
		}
	}
	if s.Observe != nil {
		s.Observe(event, poolLabel(c.policy), outcome, code, s.Now().Sub(c.start))
	}
	// An accepted challenge has no line, because it proves nothing. The Attest call has
	// one.
	if event != "challenge" || d != nil {
		s.Audit.Write(ctx, audit.Decision{
			Event: event, Outcome: outcome, Denial: d, CorrelationID: c.id, Source: c.source.String(),
			Pool: c.pool, Machine: c.machine, EKSHA256: c.ek, Proven: c.proven, Answered: c.answered, Extra: c.extra,
		})
	}
	if d == nil {
		return nil
	}
	return s.denial(d, c)
}

// poolLabel returns the policies' name of the pool, so the number of labels is limited.
func poolLabel(p *policy.Policy) string {
	switch {
	case p == nil:
		return ""
	case p.Wildcard:
		return "*"
	}
	return p.Pool
}

// codes maps each class to its Connect code, which determines the HTTP status.
var codes = map[mcsattestv1.DenialClass]connect.Code{
	mcsattestv1.DenialClass_DENIAL_CLASS_MALFORMED:   connect.CodeInvalidArgument,
	mcsattestv1.DenialClass_DENIAL_CLASS_CHALLENGE:   connect.CodeFailedPrecondition,
	mcsattestv1.DenialClass_DENIAL_CLASS_EVIDENCE:    connect.CodePermissionDenied,
	mcsattestv1.DenialClass_DENIAL_CLASS_MACHINE:     connect.CodePermissionDenied,
	mcsattestv1.DenialClass_DENIAL_CLASS_TOKEN:       connect.CodeUnauthenticated,
	mcsattestv1.DenialClass_DENIAL_CLASS_NOT_YET:     connect.CodeUnavailable,
	mcsattestv1.DenialClass_DENIAL_CLASS_UNAVAILABLE: connect.CodeUnavailable,
}

// retryAfter is the pause that a temporary denial suggests.
const retryAfter = 5 * time.Second

// denial returns the RPC error for a denial. It names only the class of the reason. A machine that attested also
// receives why the approver refused its certificate.
func (s *Service) denial(d *reason.Denial, c *call) error {
	info := d.Code.Info()
	code, ok := codes[info.Class]
	if !ok {
		code = connect.CodeInternal
	}
	if info.Temporary {
		code = connect.CodeUnavailable
	}
	class := strings.ToLower(strings.TrimPrefix(info.Class.String(), "DENIAL_CLASS_"))
	err := connect.NewError(code, errorText("denied: "+strings.ReplaceAll(class, "_", " ")+"; correlation id "+c.id))
	detail := &mcsattestv1.Denial{Class: info.Class, CorrelationId: c.id, Temporary: info.Temporary}
	if c.policy != nil {
		detail.Mode, detail.Unattested = modes[s.mode(c)], unattested[c.policy.Unattested]
	}
	if d.Code == reason.CertificateRefused && d.Err != nil {
		detail.CertificateRefused = mcsattestv1.Reason(reason.From(d.Err).Code)
	}
	if info.Temporary {
		detail.RetryAfterSeconds = uint32(retryAfter / time.Second)
		err.Meta().Set("Retry-After", "5")
	}
	if wire, wireErr := connect.NewErrorDetail(detail); wireErr == nil {
		err.AddDetail(wire)
	}
	return err
}

type errorText string

func (e errorText) Error() string { return string(e) }

// truncate truncates text from the network for an error.
func truncate(s string) string {
	if len(s) > 256 {
		return s[:256]
	}
	return s
}

// lines cleans the text of a report line by line.
func lines(s string) string {
	parts := strings.Split(s, "\n")
	parts = parts[:min(len(parts), 64)]
	for i := range parts {
		parts[i] = audit.Clean(parts[i])
	}
	return strings.Join(parts, "\n")
}

func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // crypto/rand.Read never fails
	return b
}

// clockSkew is the maximum difference between the clocks of two replicas.
const clockSkew = 5 * time.Minute

// challengeID returns the id of an answered challenge. The challenge cannot be derived from it.
func challengeID(sealed []byte) string {
	sum := sha256.Sum256(sealed)
	return hex.EncodeToString(sum[:16])
}

// components returns the parts of an identity that are claimed for one Machine, as
// text.
func components(id v1alpha1.RecordedIdentity) []string {
	var all []string
	if id.EKSHA256 != "" {
		all = append(all, ekComponent(id.EKSHA256))
	}
	if id.AKSHA256 != "" {
		all = append(all, akComponent(id.AKSHA256))
	}
	switch {
	case id.InstanceID != "":
		all = append(all, instanceComponent(id.InstanceID))
	case id.ProviderID != "":
		sum := sha256.Sum256([]byte(machine.NormalProviderID(id.ProviderID)))
		all = append(all, "provider:"+hex.EncodeToString(sum[:]))
	}
	return all
}

// holder returns the UID of the Machine whose record has this identity, or "". It reads only one
// component, the one that is hardest to obtain.
func (s *Service) holder(ctx context.Context, id v1alpha1.RecordedIdentity) (string, error) {
	if of := component(id); of != "" {
		return s.Records.Holder(ctx, of)
	}
	return "", nil
}

// component returns the first component of an identity, or "".
func component(id v1alpha1.RecordedIdentity) string {
	switch {
	case id.EKSHA256 != "":
		return ekComponent(id.EKSHA256)
	case id.AKSHA256 != "":
		return akComponent(id.AKSHA256)
	case id.InstanceID != "":
		return instanceComponent(id.InstanceID)
	}
	return ""
}

// recorded is holder for a caller that may call again and again, each time on a new connection. Reads about a TPM have
// a budget. Those about the identity in a document have none: a copy of it must not limit the machine.
func (s *Service) recorded(ctx context.Context, c *call, id v1alpha1.RecordedIdentity) (string, error) {
	if id.EKSHA256 != "" || id.AKSHA256 != "" {
		if err := s.lookup(c, component(id)); err != nil {
			return "", err
		}
	}
	return s.holder(ctx, id)
}

// lookup is a source that causes reads of claims, and of what: the component of a TPM, or the UID of the Machine that
// the caller only claims to be. Anyone can make new EKs, but not new Machines.
type lookup struct {
	from netip.Addr
	of   string
}

// lookup denies a source that causes too many reads.
func (s *Service) lookup(c *call, of string) error {
	if !s.lookups.Allow(c.start, lookup{c.source, of}) {
		return reason.Deny(reason.RateLimited, "source %s caused too many reads of claims about %s", c.source, of)
	}
	return nil
}

func ekComponent(hash string) string     { return "ek:" + hash }
func akComponent(hash string) string     { return "ak:" + hash }
func instanceComponent(id string) string { return "instance:" + id }

var (
	modes = map[v1alpha1.Mode]mcsattestv1.Mode{
		v1alpha1.ModeOff: mcsattestv1.Mode_MODE_OFF, v1alpha1.ModeAudit: mcsattestv1.Mode_MODE_AUDIT,
		v1alpha1.ModeEnforce: mcsattestv1.Mode_MODE_ENFORCE,
	}
	unattested = map[v1alpha1.Unattested]mcsattestv1.Unattested{
		v1alpha1.UnattestedDeny:        mcsattestv1.Unattested_UNATTESTED_DENY,
		v1alpha1.UnattestedPreApproved: mcsattestv1.Unattested_UNATTESTED_PRE_APPROVED,
	}
)

// proven returns the Machine of evidence that Appraise accepted or denied, and whether the evidence is bound to the
// exchange, so that no copy of it is enough. The provisioning token proves no Machine. A genuine TPM that is not
// enrolled does not count either, because an attacker can buy many of them.
func proven(v *appraisal.Verdict, err error) (m *machine.Machine, bound bool) {
	if err == nil {
		return v.Machine, !v.Replayable
	}
	if r, ok := errors.AsType[*appraisal.Refusal](err); ok && !r.Unproven {
		return r.Machine, true
	}
	return nil, false
}
