package main

import (
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/gate"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/specversion"
	"github.com/mcs-attest/mcs-attest/pkg/token"
	"github.com/mcs-attest/mcs-attest/verifier/internal/audit"
	"github.com/mcs-attest/mcs-attest/verifier/internal/listen"
	"github.com/mcs-attest/mcs-attest/verifier/internal/poolconfig"
	"github.com/mcs-attest/mcs-attest/verifier/internal/redeem"
	"github.com/mcs-attest/mcs-attest/verifier/internal/service"
)

// gate puts the gate in front of upstream.
func (s *server) gate(upstream http.Handler) http.Handler {
	var preApproved http.Handler
	switch {
	case s.standalone != nil:
		preApproved = s.standalone.ownConfigs(true)
	case s.cluster.configs != nil:
		preApproved = rendered(s.cluster.stored, true)
	}
	limiter, byToken := listen.NewLimiter(s.config.RequestsPerSecond), listen.NewKeyedLimiter[string](1, 10)
	requests := log.New(os.Stdout, "", log.LstdFlags)
	shared := s.provisioningGate()
	redeemer := &redeem.Redeemer{
		Records: s.Records(), Log: s.log, Machines: func() redeem.Machines { return s.World().Machines }, Now: s.now,
	}
	if s.cluster != nil {
		redeemer.Confirm = s.cluster.confirm.ConfirmUID
		redeemer.Stale = func(machineUID string) error { return s.cluster.cluster.Outdated(machineUID) }
		redeemer.InTrouble = s.cluster.cluster.Records().InTrouble
	}
	c := gate.Config{
		Upstream:     upstream,
		PreApproved:  preApproved,
		Provisioning: shared,
		Policy:       s.poolPolicy,
		Tokens:       token.Checker{Keys: s.TokenKeys, Audience: service.Audience},
		Redeem:       redeemer,
		Healthy:      func() bool { return len(s.unready()) == 0 },
		Admit: func(r *http.Request) error {
			if source := s.source(r); !limiter.Allow(s.now(), source) {
				return reason.Deny(reason.RateLimited, "source %s", source)
			}
			return nil
		},
		AdmitToken: func(_ *http.Request, claims token.Claims) error {
			if !byToken.Allow(s.now(), claims.ID) {
				return reason.Deny(reason.RateLimited, "token %s", claims.ID)
			}
			return nil
		},
		Observe:       s.observeGate,
		Requested:     func(line string) { requests.Print(line) },
		Source:        s.clientAddress,
		CorrelationID: audit.NewCorrelationID,
		Now:           s.now,
		AnswerTimeout: s.answerTimeout,
	}
	if s.cluster != nil && s.cluster.credentials != nil {
		c.Credentials = s.cluster.credentials
	}
	return gate.New(c)
}

// rendered serves what was rendered from MachineConfigs: whole, or the part for those
// that are not approved.
func rendered(configs *poolconfig.Store, preApproved bool) http.Handler {
	return gate.Source{Config: func(pool string, accept specversion.Accept) (*gate.Rendered, error) {
		return configs.Config(pool, preApproved, accept)
	}}
}

// clientAddress is the client's address as the Machine Config Server logs it;
// behind a trusted proxy the one that the proxy names.
func (s *server) clientAddress(r *http.Request) string {
	if source := s.source(r); source != listen.Source(r.RemoteAddr) {
		return net.JoinHostPort(source.String(), "0")
	}
	return r.RemoteAddr
}

func (s *server) poolPolicy(pool string) (gate.PoolPolicy, error) {
	p, err := s.World().Policies.For(pool)
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
func (s *server) observeGate(r *http.Request, d gate.Decision) {
	code := ""
	if d.Denial != nil {
		code = d.Denial.Code.String()
	}
	s.metrics.Decision("fetch", d.Label, d.Outcome, code, d.Took)
	s.observeProvisioning(d)
	line := audit.Decision{
		Event: "fetch", Outcome: d.Outcome, Denial: d.Denial, CorrelationID: d.CorrelationID, Source: s.source(r).String(), Pool: d.Pool,
		Extra: []slog.Attr{slog.String("method", audit.Clean(d.Method))},
	}
	if d.Claims != nil {
		line.Proven, line.Machine = true, d.Claims.Subject
		line.Extra = append(line.Extra, slog.String("token", d.Claims.ID))
	}
	if d.Provisioning.Valid() && d.Outcome == "allowed" {
		line.Proven = true
		line.Extra = append(line.Extra, slog.String("credential", evidence.ProvisioningToken.String()), slog.String("provisioning_token", d.Provisioning.String()))
	}
	s.audit.Write(r.Context(), line)
}
