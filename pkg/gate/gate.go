// SPDX-License-Identifier: Apache-2.0

// Package gate protects the Machine Config Server: it serves a pool's full Ignition
// config only to clients with a valid token (RFC 9334: a relying party). The verifier's
// node listener uses it.
//
// The gate is an http.Handler in front of another one, the upstream: a reverse proxy to
// the Machine Config Server, or the verifier's own config source. It answers GET and
// HEAD on /config/<pool>, on /healthz (the Machine Config Server's probe path) and on
// /readyz, and 404 on every other path.
//
// Ignition's behavior determines the responses (docs/gate.md has the whole table):
//
//   - Every 4xx is final and leads to the emergency shell. So the gate sends 400, 401
//     and 403 only for final denials.
//   - Ignition repeats a request after every 5xx, indefinitely. So the gate sends 503
//     for temporary denials and for failures of the verifier.
//   - With an empty 200 or a 204, Ignition silently provisions nothing, and after a
//     redirect the client's headers are lost. The gate sends neither. It reads the
//     upstream's response in full and checks that it is an Ignition config before it
//     sends the first byte.
//
// Like the Machine Config Server, the gate uses the last element of the path as the
// pool. It requests exactly that pool from the upstream, with a canonical path and
// without the token.
//
// The gate counts a use of the token by compare-and-swap after it has the upstream's
// complete response. So neither a failed response nor HEAD costs a use. HEAD requires the
// same token (rule 9 of docs/security-rules.md).
//
// In no mode does the gate serve a config to a request without TLS, not even for a valid token.
//
// If a pool's policy accepts the provisioning token without other evidence, that token
// also opens the gate. It names no machine, so no use is counted.
package gate

import (
	"cmp"
	"context"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/credential"
	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/token"
)

// Mode defines what the gate does for a pool.
type Mode int

// The modes. The zero value is the strictest.
const (
	Enforce Mode = iota // serve the full config only for a valid token
	Audit               // serve every caller, and report what Enforce would deny
	Off                 // serve every caller
)

// PoolPolicy has the parts of a pool's policy that the gate needs.
type PoolPolicy struct {
	Mode Mode
	// PreApproved serves the pre-approved config to callers without a token in mode Enforce.
	PreApproved bool
	// ProvisioningToken means that the policy accepts the provisioning token without
	// other evidence.
	ProvisioningToken bool
	// OnlyProvisioningToken means that the policy accepts only the provisioning token.
	OnlyProvisioningToken bool
	// OpenWithoutToken serves the full config to callers without a token while no
	// provisioning token exists. Otherwise callers wait until it exists.
	OpenWithoutToken bool
	// URLParameter also accepts the provisioning token in the URL.
	URLParameter bool
	// Label is the pool's name in metrics. It comes from a policy, not from a request.
	Label string
}

// Decision describes one response, for the audit log and the metrics.
type Decision struct {
	Pool   string // as requested; "" if the path names none
	Label  string // for metrics; "" if no policy covers the pool
	Method string
	// Outcome is "allowed", "denied", "would-deny", "pre-approved", or "disconnected": the client did not wait, and
	// Denial may have no other cause.
	Outcome       string
	Denial        *reason.Denial // nil if allowed or pre-approved
	CorrelationID string
	Claims        *token.Claims // of a verified token
	// Provisioning is the result of the check of the provisioning token, if it was checked.
	Provisioning provisioning.Match
	// Unenforced reports that the pool is open because no provisioning token exists.
	Unenforced bool
	Took       time.Duration
}

// Config configures a gate. Upstream, Policy, Tokens, Redeem and Now are required. The
// zero value of every other field works.
type Config struct {
	Upstream http.Handler
	Policy   func(pool string) (PoolPolicy, error)
	Tokens   verifier
	Redeem   redeemer
	// PreApproved serves the pre-approved config of a pool. If it is nil, no pool has one.
	PreApproved http.Handler
	// Credentials returns the bootstrap credential of the token's machine, which replaces
	// the shared one in the config. If it is nil, the config keeps the shared one.
	Credentials credentials
	// Provisioning gives access to the provisioning token. With the zero value the token is
	// unknown, and callers that need it wait.
	Provisioning Provisioning
	// Healthy decides whether /healthz and /readyz answer 200 or 503. If it is nil, they
	// answer 200. The gate calls it at most once a second.
	Healthy func() bool
	// Admit limits the request rate of a source. If it is nil, the gate admits every request.
	Admit func(*http.Request) error
	// AdmitToken limits the request rate of a valid token. It also decides about a request
	// that Admit rejected, so that other clients with the same address do not lock out a
	// machine. If it is nil, the gate admits such requests.
	AdmitToken func(*http.Request, token.Claims) error
	// Observe is called for each response.
	Observe func(*http.Request, Decision)
	// Requested is called for each config served, with the Machine Config Server's log line.
	// The assisted installer reads that line from the log. proven reports whether a valid
	// token, or the provisioning token, opened the pool.
	Requested func(r *http.Request, proven bool, line string)
	// Source returns the client's address for that line. If it is nil, the connection's is used.
	Source func(*http.Request) string
	// CorrelationID returns an ID for a request. If it is nil, requests have none.
	CorrelationID func() string
	Now           func() time.Time
	// UpstreamTimeout must be less than the 10 s that Ignition waits for headers. Default 8 s.
	UpstreamTimeout time.Duration
	// AnswerTimeout limits the time until the response starts. It must be less than the 10 s
	// that Ignition waits, so that no use is counted for a client that disconnected. Default
	// 9 s.
	AnswerTimeout time.Duration
	// Concurrent limits how many upstream responses are read at the same time. A response that
	// is being sent does not count. Requests that proved nothing have at most half of them,
	// and three quarters together with those that only have the provisioning token. Default 32.
	Concurrent int
	// MaxConfig limits the upstream's response in bytes. Default 16 MiB.
	MaxConfig int
}

// New returns the gate.
func New(c Config) http.Handler {
	c.UpstreamTimeout = cmp.Or(c.UpstreamTimeout, 8*time.Second)
	c.AnswerTimeout = cmp.Or(c.AnswerTimeout, 9*time.Second)
	c.MaxConfig = cmp.Or(c.MaxConfig, 16<<20)
	c.Concurrent = cmp.Or(c.Concurrent, 32)
	if c.CorrelationID == nil {
		c.CorrelationID = func() string { return "" }
	}
	return &gate{Config: c, known: newDigests(), slots: make(chan struct{}, c.Concurrent),
		unattested: make(chan struct{}, max(3*c.Concurrent/4, 1)), strangers: make(chan struct{}, max(c.Concurrent/2, 1))}
}

type gate struct {
	Config
	known digests
	cache cache
	slots chan struct{}
	// unattested has the slots of the requests without a valid token, and strangers those of
	// them that have no provisioning token either.
	unattested, strangers chan struct{}
	health                health
}

// health caches the result of Healthy.
type health struct {
	mu      sync.Mutex
	asked   time.Time
	healthy bool
}

// healthyFor is how long a result of Healthy is cached.
const healthyFor = time.Second

func (g *gate) healthy() bool {
	if g.Healthy == nil {
		return true
	}
	g.health.mu.Lock()
	defer g.health.mu.Unlock()
	now := g.Now()
	if age := now.Sub(g.health.asked); age < 0 || age >= healthyFor {
		g.health.asked, g.health.healthy = now, g.Healthy()
	}
	return g.health.healthy
}

// prefix is the path of the configs, as in the Machine Config Server.
const prefix = "/config/"

// ServeHTTP implements http.Handler. It must receive paths as the client sent them:
// http.ServeMux would redirect a path that is not clean.
func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	known := r.Method == http.MethodGet || r.Method == http.MethodHead
	switch {
	case looped(r):
		empty(w, http.StatusLoopDetected)
	case !known:
		w.Header().Set("Allow", "GET, HEAD")
		empty(w, http.StatusMethodNotAllowed)
	case strings.HasPrefix(r.URL.Path, prefix):
		g.config(w, r)
	case r.URL.Path == "/healthz", r.URL.Path == "/readyz":
		status := http.StatusOK
		if !g.healthy() {
			status = http.StatusServiceUnavailable
		}
		empty(w, status)
	default:
		empty(w, http.StatusNotFound)
	}
}

func (g *gate) source(r *http.Request) string {
	if g.Source == nil {
		return r.RemoteAddr
	}
	return g.Source(r)
}

// request is one request for a config.
type request struct {
	*http.Request
	pool   string
	policy PoolPolicy
	claims *token.Claims
	// redemption counts a use of the token; set after the token was checked.
	redemption Redemption
	presented  presentedTokens
	admitted   bool // by the rate limit of its token
	decision   Decision
	began      time.Time
}

// proven reports whether a valid token, or the provisioning token, opened the pool.
func (r *request) proven() bool {
	return r.decision.Outcome == "allowed" && (r.claims != nil || r.decision.Provisioning.Valid())
}

func (g *gate) config(w http.ResponseWriter, r *http.Request) {
	start := g.Now()
	ctx, cancel := context.WithTimeout(r.Context(), g.AnswerTimeout)
	defer cancel()
	req := &request{Request: r.WithContext(ctx), began: start}
	req.decision = Decision{Method: r.Method, Outcome: "allowed", CorrelationID: g.CorrelationID()}
	res, err := g.decide(req) //nolint:contextcheck // req has the context
	d := &req.decision
	d.Label, d.Claims = req.policy.Label, req.claims
	if err != nil {
		d.Outcome, d.Denial = "denied", reason.From(err)
		if d.Denial.Code.Temporary() && r.Context().Err() != nil {
			d.Outcome = "disconnected"
		}
	}
	d.Took = g.Now().Sub(start)
	if g.Observe != nil {
		g.Observe(r, *d)
	}
	if err != nil {
		deny(w, d.Denial, d.CorrelationID)
		return
	}
	if g.Requested != nil {
		g.Requested(r, req.proven(), accessLine(req.pool, g.source(r), r))
	}
	res.send(w, r)
}

// decide returns the response, or the denial. In order:
//
//   - the source is within its rate limit, the request came over TLS, the pool's name is
//     valid, and a policy covers the pool. Only a valid token overrides the rate limit;
//   - Off and Audit: the upstream's response, for every caller;
//   - without a token: the pre-approved config, if the policy has it;
//   - without a token, and no provisioning token exists: the upstream's response if the
//     policy allows it, or else a temporary denial if only that token suffices;
//   - without a token otherwise: TokenMissing;
//   - the provisioning token is valid, if the policy accepts it; or else the token is
//     valid and for this pool. An invalid token never counts as no token;
//   - the record still allows it, and the token is still valid;
//   - the upstream's response is a whole Ignition config. If machines have their own
//     bootstrap credentials, the shared one in it can be replaced;
//   - the bootstrap credential of the machine is read, if machines have their own. It is in the answer to a
//     HEAD, too, so that the agent waits for it, and not Ignition, which cannot get another token;
//   - GET: a use of the token is counted, if it has uses. The record must have the
//     credential.
func (g *gate) decide(r *request) (*answer, error) {
	if err := g.lookUp(r); err != nil {
		return nil, err
	}
	switch r.policy.Mode {
	case Off:
		return g.fetch(r, g.Upstream)
	case Audit:
		if err := g.authorize(r); err != nil {
			r.decision.Outcome, r.decision.Denial = "would-deny", reason.From(err)
		}
		return g.fetch(r, g.Upstream)
	}
	if r.policy.PreApproved && r.presented.none() {
		r.decision.Outcome = "pre-approved"
		if g.PreApproved == nil {
			return nil, reason.Deny(reason.UpstreamUnavailable, "no pre-approved config exists")
		}
		return g.fetch(r, g.PreApproved)
	}
	if err := g.authorize(r); err != nil {
		if r.decision.Unenforced {
			r.decision.Outcome, r.decision.Denial = "would-deny", reason.From(err)
			return g.fetch(r, g.Upstream)
		}
		return nil, err
	}
	res, err := g.fetch(r, g.Upstream)
	if err != nil {
		return nil, err
	}
	if g.Credentials != nil && r.claims != nil && g.Credentials.For(*r.claims) {
		if err := res.find(); err != nil {
			return nil, err
		}
	}
	if r.claims == nil {
		return res, nil
	}
	// Count no use for a client that disconnected.
	if err := r.Context().Err(); err != nil {
		return nil, reason.Wrap(reason.UpstreamUnavailable, err, "the client disconnected")
	}
	own, err := g.exchange(r, res)
	if err != nil {
		return nil, err
	}
	if r.Method == http.MethodHead {
		return res, nil
	}
	if err := r.redemption.Redeem(r.Context(), own); err != nil {
		return nil, err
	}
	return res, nil
}

// exchange puts the machine's bootstrap credential into its config. A config without a kubeconfig needs none.
func (g *gate) exchange(r *request, res *answer) (*credential.Credential, error) {
	if res.slot == nil {
		return nil, nil
	}
	// The remaining time, so that both steps together stay within Ignition's timeout for headers.
	ctx, cancel := context.WithTimeout(r.Context(), g.UpstreamTimeout+time.Second-g.Now().Sub(r.began))
	defer cancel()
	own, err := g.Credentials.Get(ctx, *r.claims)
	if err != nil {
		return nil, err
	}
	if own.Key != "" {
		res.parts, err = res.slot.Without(res.parts[0])
	} else {
		res.parts, err = res.slot.With(res.parts[0], own.Token)
	}
	if err != nil {
		return nil, reason.Wrap(reason.UpstreamInvalid, err, "replace the credential of the config's kubeconfig")
	}
	return own, nil
}

// lookUp finds the pool, its policy and the presented tokens. A request over the rate
// limit is denied, unless it has a valid token or provisioning token: other clients with
// the same address must not lock out those that have one.
func (g *gate) lookUp(r *request) error {
	var tooOften error
	if g.Admit != nil {
		tooOften = g.Admit(r.Request)
	}
	pool, ok := Pool(r.URL.Path)
	r.pool, r.decision.Pool = pool, pool
	if r.TLS == nil {
		return cmp.Or(tooOften, reason.Deny(reason.Plaintext, "the request did not come over TLS"))
	}
	if !ok {
		return cmp.Or(tooOften, reason.Deny(reason.PoolUnknown, "the last element of the path is not a pool name"))
	}
	policy, err := g.Policy(r.pool)
	if err != nil {
		return cmp.Or(tooOften, err)
	}
	r.policy, r.presented = policy, readTokens(r.Request, policy)
	if tooOften != nil && policy.ProvisioningToken && g.provisioned(r) && g.Provisioning.admit(r.Request) == nil {
		tooOften = nil
	}
	if tooOften != nil && g.attested(r) {
		tooOften = nil
	}
	return tooOften
}

// attested reports whether the request has a valid token that is within its own rate
// limit.
func (g *gate) attested(r *request) bool {
	if !attestation(r.presented.bearer) {
		return false
	}
	claims, err := g.Tokens.Verify(g.Now(), r.presented.bearer)
	return err == nil && g.admit(r, claims) == nil
}

// admit counts the request for the rate limit of its token, once. The Machine Config
// Server renders a few configs per second, and HEAD takes no use of a token.
func (g *gate) admit(r *request, claims token.Claims) error {
	if r.admitted || g.AdmitToken == nil {
		return nil
	}
	err := g.AdmitToken(r.Request, claims)
	r.admitted = err == nil
	return err
}

// authorize checks the token of the request.
func (g *gate) authorize(r *request) error {
	if r.policy.ProvisioningToken {
		if done, err := g.provisioning(r); done {
			return err
		}
	}
	raw, err := r.presented.bearer, r.presented.err
	if err != nil {
		return err
	}
	claims, err := g.Tokens.Verify(g.Now(), raw)
	if err != nil {
		return err
	}
	if err := g.admit(r, claims); err != nil {
		return err // without the claims, so that the line in the audit log counts for the budget of its source
	}
	r.claims = &claims
	if claims.Pool != r.pool {
		return reason.Deny(reason.TokenPool, "the token is for pool %s, the request for pool %s", claims.Pool, r.pool)
	}
	if r.redemption, err = g.Redeem.Check(r.Context(), claims); err != nil {
		return err
	}
	// A restore that was noticed after the first check makes the token void. The redemption itself notices only restores
	// since it began.
	_, err = g.Tokens.Verify(g.Now(), raw)
	return err
}

// verifier checks a token's signature and claims. Every error is a denial.
type verifier interface {
	Verify(now time.Time, raw []byte) (token.Claims, error)
}

// redeemer accesses the records. Check reports whether a use of the token could be
// counted. Every error is a denial.
type redeemer interface {
	Check(ctx context.Context, c token.Claims) (Redemption, error)
}

// Redemption counts the use of a checked token by one request.
type Redemption interface {
	// Redeem counts the use, atomically. It denies a credential that the record does not have.
	Redeem(ctx context.Context, own *credential.Credential) error
}

// credentials reads the bootstrap credentials of machines. Every error is a denial.
type credentials interface {
	// For reports whether the bearer of the token receives a credential. The bearer of a break-glass token receives
	// the config unchanged.
	For(c token.Claims) bool
	// Get returns the credential that was made for the machine of a token.
	Get(ctx context.Context, c token.Claims) (*credential.Credential, error)
}
