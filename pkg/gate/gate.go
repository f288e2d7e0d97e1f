// Package gate stands in front of the Machine Config Server and gives the full
// Ignition config for a token and for nothing else (RFC 9334: a relying party).
//
// It is a plain http.Handler around an upstream http.Handler: the real Machine
// Config Server behind a reverse proxy, or a config source of our own. It
// answers GET and HEAD on /config/<pool>, /healthz where balancers ask the Machine
// Config Server, /readyz likewise, and 404 to everything else.
//
// Ignition's rules decide the answers (docs/gate.md has the whole table):
//
//   - every 4xx is final and drops the node to the emergency shell, so 401 and
//     403 are only for a final no;
//   - every 5xx is tried again for ever, so 503 is for "not yet" and for
//     anything that is broken on our side;
//   - an empty 200 or a 204 provisions nothing, silently, and a redirect loses
//     the client's headers: the gate sends neither. The upstream's answer is read
//     whole and must be an Ignition config before the first byte goes out.
//
// What a request is for is decided as the Machine Config Server does it: the
// pool is the last element of the path. The upstream is asked for exactly that
// pool, under its canonical path, and never sees the token.
//
// A use of the token is taken by compare-and-swap once the upstream's answer is
// complete, so an answer that failed costs none; HEAD costs none either, and
// needs the same token (DESIGN, section 19, rule 9).
//
// Where a pool's policy has the provisioning token alone as an alternative, that
// token opens the pool, too. It names no machine, so nothing is redeemed.
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

// Mode says what the gate does for a pool.
type Mode int

// The modes. The zero value is the strict one.
const (
	Enforce Mode = iota // the full config for a token alone
	Audit               // serve everyone, and tell who would be refused
	Off                 // serve everyone
)

// PoolPolicy is what the gate needs to know of a pool's policy.
type PoolPolicy struct {
	Mode Mode
	// PreApproved: under Enforce a caller without a token receives the pre-approved config.
	PreApproved bool
	// ProvisioningToken: the provisioning token by itself opens the pool.
	ProvisioningToken bool
	// OnlyProvisioningToken: and nothing else that a machine could prove does.
	OnlyProvisioningToken bool
	// OpenWithoutToken: while there is no such token, a caller that presents nothing
	// receives the full config. Without it callers wait until there is one.
	OpenWithoutToken bool
	// URLParameter: it may also stand in the URL.
	URLParameter bool
	// Label is the pool's name for metrics: a name that an administrator wrote.
	Label string
}

// Decision is one answer, for the audit log and the metrics.
type Decision struct {
	Pool          string // as asked for; "" when the path names none
	Label         string // for metrics; "" when no policy covers the pool
	Method        string
	Outcome       string         // "allowed", "denied", "would-deny", "pre-approved"
	Denial        *reason.Denial // nil when allowed or pre-approved
	CorrelationID string
	Claims        *token.Claims // of a token that verified
	// Provisioning says which provisioning token was shown; None if it was none.
	Provisioning provisioning.Match
	// Unenforced: there is no provisioning token, and the pool is open without one.
	Unenforced bool
	Took       time.Duration
}

// Config is a gate's surroundings. Upstream, Policy, Tokens, Redeem and Now are
// required; the rest has a working zero value.
type Config struct {
	Upstream http.Handler
	Policy   func(pool string) (PoolPolicy, error)
	Tokens   verifier
	Redeem   redeemer
	// PreApproved serves the pre-approved config of a pool; nil: there is none.
	PreApproved http.Handler
	// Credentials gives the machine of a token a bootstrap credential of its own, in
	// the place of the one that its config shares with all others; nil: it keeps that.
	Credentials credentials
	// Provisioning is the provisioning token. The zero value has read none, and
	// pools that it opens wait.
	Provisioning Provisioning
	// Healthy says whether /healthz and /readyz are 200 or 503; nil: they are 200. It
	// is called at most once a second, however often clients ask the gate.
	Healthy func() bool
	// Admit refuses a source that asks too often; nil admits everyone.
	Admit func(*http.Request) error
	// AdmitToken is asked for a request that Admit refused and that presents a token
	// which verifies: others behind the same address must not lock its machine out.
	// Nil admits it.
	AdmitToken func(*http.Request, token.Claims) error
	// Observe learns of every answer.
	Observe func(*http.Request, Decision)
	// Requested is told of every config that was served, in the Machine Config
	// Server's own words: the assisted installer reads that line from its log.
	Requested func(line string)
	// Source is the client's address for that line; nil: the connection's.
	Source func(*http.Request) string
	// CorrelationID names a request; nil numbers none.
	CorrelationID func() string
	Now           func() time.Time
	// UpstreamTimeout must leave Ignition's 10 s for response headers some room. Default 8 s.
	UpstreamTimeout time.Duration
	// AnswerTimeout is the time for everything that precedes an answer. It must be less
	// than the 10 s that Ignition waits, so that no use is taken for a client that has
	// left. Default 9 s.
	AnswerTimeout time.Duration
	// Concurrent bounds how many of the upstream's answers are read, and held in
	// memory, at once. Default 32.
	Concurrent int
	// MaxConfig bounds the upstream's answer in bytes. Default 16 MiB.
	MaxConfig int
}

// New returns the gate.
func New(c Config) http.Handler {
	if c.UpstreamTimeout == 0 {
		c.UpstreamTimeout = 8 * time.Second
	}
	if c.AnswerTimeout == 0 {
		c.AnswerTimeout = 9 * time.Second
	}
	if c.MaxConfig == 0 {
		c.MaxConfig = 16 << 20
	}
	if c.Concurrent == 0 {
		c.Concurrent = 32
	}
	if c.CorrelationID == nil {
		c.CorrelationID = func() string { return "" }
	}
	return &gate{Config: c, slots: make(chan struct{}, c.Concurrent)}
}

type gate struct {
	Config
	known  digests
	kept   kept
	slots  chan struct{}
	health health
}

// health is what Healthy said last.
type health struct {
	mu      sync.Mutex
	asked   time.Time
	healthy bool
}

// healthyFor is how long an answer of Healthy holds.
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

// prefix is where the Machine Config Server has its configs.
const prefix = "/config/"

// ServeHTTP implements http.Handler. It must see paths as the client sent them:
// http.ServeMux would answer an unclean one with a redirect.
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
	// redemption takes a use of the token; set once the token was checked.
	redemption Redemption
	shown      showing
	decision   Decision
	began      time.Time
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
	}
	d.Took = g.Now().Sub(start)
	if g.Observe != nil {
		g.Observe(r, *d)
	}
	if err != nil {
		deny(w, r, d.Denial, d.CorrelationID)
		return
	}
	if g.Requested != nil {
		g.Requested(accessLine(req.pool, g.source(r), r))
	}
	res.send(w, r)
}

// decide returns the answer that may go out, or why none may. In order:
//
//   - the source does not ask too often, the pool's name is one, a policy covers it;
//   - Off and Audit: the upstream's answer, for anyone;
//   - no token: the pre-approved config where the policy has it;
//   - no token, and no provisioning token exists: the upstream's answer where the
//     policy says that absence opens; else the caller waits if nothing else opens the
//     pool;
//   - no token otherwise: TokenMissing;
//   - the provisioning token, where the policy takes it; else the token verifies,
//     and is for this pool: an invalid one is never treated as none;
//   - the record still allows it;
//   - the upstream's answer is a whole Ignition config, in which the shared bootstrap
//     credential can be exchanged, if there are any of the machine's own;
//   - GET: the bootstrap credential of the machine is read, if there are any;
//   - GET: a use of the token is taken, where it has uses. The record must have the
//     credential.
func (g *gate) decide(r *request) (*answer, error) {
	if err := g.lookUp(r); err != nil {
		return nil, err
	}
	switch r.policy.Mode {
	case Off:
		return g.fetch(r, g.Upstream)
	case Audit:
		if err := g.authorise(r); err != nil {
			r.decision.Outcome, r.decision.Denial = "would-deny", reason.From(err)
		}
		return g.fetch(r, g.Upstream)
	}
	if r.policy.PreApproved && r.shown.none() {
		r.decision.Outcome = "pre-approved"
		if g.PreApproved == nil {
			return nil, reason.Deny(reason.UpstreamUnavailable, "there is no pre-approved config")
		}
		return g.fetch(r, g.PreApproved)
	}
	if err := g.authorise(r); err != nil {
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
	if r.Method == http.MethodHead || r.claims == nil {
		return res, nil
	}
	// A client that has gone in the meantime takes no use.
	if err := r.Context().Err(); err != nil {
		return nil, reason.Wrap(reason.UpstreamUnavailable, err, "the client did not wait")
	}
	own, err := g.exchange(r, res)
	if err != nil {
		return nil, err
	}
	if err := r.redemption.Redeem(r.Context(), own); err != nil {
		return nil, err
	}
	return res, nil
}

// exchange puts the bootstrap credential of the machine into its config. A config without a kubeconfig needs none.
func (g *gate) exchange(r *request, res *answer) (*credential.Credential, error) {
	if g.Credentials == nil || res.slot == nil {
		return nil, nil
	}
	// Together with the upstream's answer within what Ignition waits for headers.
	ctx, cancel := context.WithTimeout(r.Context(), g.UpstreamTimeout+time.Second-g.Now().Sub(r.began))
	defer cancel()
	own, err := g.Credentials.Get(ctx, *r.claims)
	if err != nil {
		return nil, err
	}
	if res.parts, err = res.slot.With(res.parts[0], own.Token); err != nil {
		return nil, reason.Wrap(reason.UpstreamInvalid, err, "the kubeconfig in the config")
	}
	return own, nil
}

// lookUp finds the pool and its policy, and what the request shows. A source that
// asks too often is refused, unless it presents the provisioning token or a token
// that verifies: a limit that strangers behind the same address can exhaust must
// not lock out those that have one.
func (g *gate) lookUp(r *request) error {
	var tooOften error
	if g.Admit != nil {
		tooOften = g.Admit(r.Request)
	}
	pool, ok := Pool(r.URL.Path)
	if !ok {
		return cmp.Or(tooOften, reason.Deny(reason.PoolUnknown, "the path's last element is no name of a pool"))
	}
	r.pool, r.decision.Pool = pool, pool
	policy, err := g.Policy(r.pool)
	if err != nil {
		return cmp.Or(tooOften, err)
	}
	r.policy, r.shown = policy, show(r.Request, policy)
	if tooOften != nil && policy.ProvisioningToken && g.provisioned(r) && g.Provisioning.admit(r.Request) == nil {
		tooOften = nil
	}
	if tooOften != nil && g.attested(r) {
		tooOften = nil
	}
	return tooOften
}

// attested reports whether the request presents a token that verifies, and its
// bearer does not ask too often itself.
func (g *gate) attested(r *request) bool {
	if r.shown.err != nil || !attestation(r.shown.bearer) {
		return false
	}
	claims, err := g.Tokens.Verify(g.Now(), r.shown.bearer)
	return err == nil && (g.AdmitToken == nil || g.AdmitToken(r.Request, claims) == nil)
}

// authorise checks the token that the request carries.
func (g *gate) authorise(r *request) error {
	if r.policy.ProvisioningToken {
		if done, err := g.provisioning(r); done {
			return err
		}
	}
	raw, err := r.shown.bearer, r.shown.err
	if err != nil {
		return err
	}
	claims, err := g.Tokens.Verify(g.Now(), raw)
	if err != nil {
		return err
	}
	r.claims = &claims
	if claims.Pool != r.pool {
		return reason.Deny(reason.TokenPool, "the token is for pool %s, asked was %s", claims.Pool, r.pool)
	}
	r.redemption, err = g.Redeem.Check(r.Context(), claims)
	return err
}

// verifier checks a token's signature and claims; every error is a denial.
type verifier interface {
	Verify(now time.Time, raw []byte) (token.Claims, error)
}

// redeemer holds the records. Check says whether a use of a token could be taken.
// Every error is a denial.
type redeemer interface {
	Check(ctx context.Context, c token.Claims) (Redemption, error)
}

// Redemption is one request's use of a token that was checked.
type Redemption interface {
	// Redeem takes the use, atomically. It refuses a credential that the record does not have.
	Redeem(ctx context.Context, own *credential.Credential) error
}

// credentials reads the bootstrap credentials of machines. Every error is a denial.
type credentials interface {
	// For reports whether the bearer of the token receives one. The bearer of a break-glass token receives the
	// config as it is.
	For(c token.Claims) bool
	// Get returns the credential that was made for the machine of a token.
	Get(ctx context.Context, c token.Claims) (*credential.Credential, error)
}
