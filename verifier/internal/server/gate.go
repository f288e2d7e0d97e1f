// SPDX-License-Identifier: Apache-2.0

package server

import (
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/netip"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/gate"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/token"
	"github.com/mcs-attest/mcs-attest/verifier/internal/audit"
	"github.com/mcs-attest/mcs-attest/verifier/internal/listen"
	"github.com/mcs-attest/mcs-attest/verifier/internal/redeem"
)

// gate wraps upstream with the gate.
func (s *Server) gate(upstream http.Handler, redeemer *redeem.Redeemer) http.Handler {
	limiter, byToken := listen.NewLimiter(s.Config.RequestsPerSecond), listen.NewKeyedLimiter[string](1, 10)
	shared := s.provisioningGate()
	c := gate.Config{
		Upstream:     upstream,
		PreApproved:  s.preApproved(),
		Provisioning: shared,
		Policy:       s.poolPolicy,
		Tokens:       token.Checker{Keys: s.TokenKeys},
		Redeem:       redeemer,
		Healthy:      func() bool { return len(s.Problems()) == 0 },
		Admit: func(r *http.Request) error {
			if source := s.source(r); !limiter.Allow(s.Now(), source) {
				return reason.Deny(reason.RateLimited, "source %s", source)
			}
			return nil
		},
		AdmitToken: func(_ *http.Request, claims token.Claims) error {
			if !byToken.Allow(s.Now(), claims.ID) {
				return reason.Deny(reason.RateLimited, "token %s", claims.ID)
			}
			return nil
		},
		Observe:       s.observeGate,
		Requested:     s.accessLog(s.AccessLog),
		Source:        s.clientAddress,
		CorrelationID: audit.NewCorrelationID,
		Now:           s.Now,
	}
	if own := s.Credentials(); own != nil {
		c.Credentials = own
	}
	return gate.New(c)
}

// accessLog writes the lines of the Machine Config Server. Those about callers that proved nothing have the same
// budget as in the audit log, so that no client fills a disk.
func (s *Server) accessLog(out io.Writer) func(r *http.Request, proven bool, line string) {
	lines, budget := log.New(out, "", log.LstdFlags), audit.NewBudget()
	return func(r *http.Request, proven bool, line string) {
		if proven || budget.Allow(s.Now(), s.source(r).String()) {
			lines.Print(line)
		}
	}
}

// clientAddress returns the client's address as the Machine Config Server logs it. Behind a trusted
// proxy, that is the address that the proxy names.
func (s *Server) clientAddress(r *http.Request) string {
	if a, ok := s.forwarded(r); ok {
		return netip.AddrPortFrom(a, 0).String()
	}
	return r.RemoteAddr
}

func (s *Server) poolPolicy(pool string) (gate.PoolPolicy, error) {
	p, err := s.View().Policies.For(pool)
	if err != nil {
		return gate.PoolPolicy{}, err
	}
	out := gate.PoolPolicy{
		PreApproved: p.Unattested == v1alpha1.UnattestedPreApproved, Label: p.Pool,
		ProvisioningToken: p.ProvisioningTokenAlone, OnlyProvisioningToken: p.OnlyProvisioningToken(),
		OpenWithoutToken: p.OpenWithoutToken, URLParameter: p.URLParameter,
	}
	if p.Wildcard {
		out.Label = "*"
	}
	switch p.Mode {
	case v1alpha1.ModeOff:
		out.Mode = gate.Off
	case v1alpha1.ModeAudit:
		out.Mode = gate.Audit
	default:
		out.Mode = gate.Enforce
	}
	return out, nil
}

// observeGate writes the audit line and the metric of a fetch.
func (s *Server) observeGate(r *http.Request, d gate.Decision) {
	code := ""
	if d.Denial != nil {
		code = d.Denial.Code.String()
	}
	s.Metrics.Decision("fetch", d.Label, d.Outcome, code, d.Took)
	s.observeProvisioning(d)
	line := audit.Decision{
		Event: "fetch", Outcome: d.Outcome, Denial: d.Denial, CorrelationID: d.CorrelationID, Source: s.source(r).String(),
		Pool:  d.Pool,
		Extra: []slog.Attr{slog.String("method", audit.Clean(d.Method))},
	}
	if d.Claims != nil {
		line.Proven, line.Machine = true, d.Claims.Subject
		line.Extra = append(line.Extra, slog.String("token", d.Claims.ID))
	}
	if d.Provisioning.Valid() && d.Outcome == "allowed" {
		line.Proven = true
		line.Extra = append(line.Extra, slog.String("credential", evidence.ProvisioningToken.String()),
			slog.String("provisioning_token", d.Provisioning.String()))
	}
	s.Audit.Write(r.Context(), line)
}
