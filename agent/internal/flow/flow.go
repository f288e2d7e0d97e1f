// SPDX-License-Identifier: Apache-2.0

// Package flow runs one attestation, from the source in the pointer config to a token that the gate
// accepts.
//
// # One round
//
// A round is one connection: Challenge, evidence over the transcript, Attest. If the verifier issues
// the node's certificate, the transcript has the hash of the kubelet's key, and Certify follows. After
// a grant, the flow asks the gate with HEAD until the gate accepts the token. Ignition cannot refresh a
// token, and every 4xx response is final for it. If the gate answers 5xx for longer than half of the
// token's lifetime, a new round begins.
//
// # Results
//
//   - A grant with a token that the gate accepts.
//   - [Unchanged]: the pointer config stays as it is. The server has no attestation API, the pool's
//     mode is Off, an audit issued no token, or the denial is final and the gate serves machines
//     without a token.
//   - [Unchanged], or a grant of the provisioning token, if the policy requires only that token. It
//     identifies no machine, so the verifier issues no other token, and the gate accepts the
//     provisioning token itself. The pointer config stays unchanged if it already presents that
//     token.
//   - An error: a final denial, or evidence that this machine cannot produce.
//
// Every other failure is retried indefinitely, with pauses from one to fifteen seconds. While the
// network is not up, an attempt sends nothing, and the pauses are from a tenth of a second to one
// second. The verifier may not have started yet, or the Machine object may not exist yet. Under Enforce this is
// also true with a pre-approved config; otherwise a flood could downgrade a machine to that config.
// Only under Audit, where the gate serves every machine, the flow gives up after a few failures.
//
// Once a verifier has answered under Enforce, an answer from another kind of server counts as a
// transport failure. It is no reason to leave the pointer config unchanged.
package flow

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"time"

	"github.com/google/go-tpm/tpm2"

	"github.com/mcs-attest/mcs-attest/agent/internal/client"
	"github.com/mcs-attest/mcs-attest/agent/internal/console"
	"github.com/mcs-attest/mcs-attest/agent/internal/metadata"
	"github.com/mcs-attest/mcs-attest/agent/internal/nodecert"
	"github.com/mcs-attest/mcs-attest/agent/internal/tpmdev"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
)

// Target is a server and pool that the pointer config names.
type Target struct {
	Origin string // "https://host:port"
	Pool   string
	URL    string // the source itself, for the pre-flight
	Proxy  *url.URL
	// Provisioning is the provisioning token, if this machine has one.
	Provisioning secret.Bytes
	// Presented is true if the header in the pointer config already presents that token.
	Presented bool
	// Certificate is true if the pointer config can carry the node's certificate.
	Certificate bool
}

// Grant is a token that the gate accepts.
type Grant struct {
	Token   secret.Bytes
	Ticket  secret.Bytes // for the failure report; may be empty
	Machine string
	// NodePair is the kubelet's certificate and key in PEM, or empty.
	NodePair secret.Bytes

	lifetime time.Duration // of the token; 0 means without a limit
	since    time.Duration // monotonic: when the token was requested
}

// Stale reports whether half of the token's lifetime has passed. Ignition may then need a new one.
func (f *Flow) Stale(g *Grant) bool { return g.lifetime > 0 && f.now()-g.since > g.lifetime/2 }

// Unchanged is the result in which the pointer config stays as it is.
type Unchanged struct {
	Why    string
	Ticket secret.Bytes
	// NoVerifier is true if the server does not attest; "mcs-attest=require" turns that into an
	// error.
	NoVerifier bool
	// Open is true if the gate serves every machine its full config.
	Open bool
	// Err is the final denial, or nil.
	Err error
}

func (l *Unchanged) Error() string { return "the pointer config is unchanged: " + l.Why }
func (l *Unchanged) Unwrap() error { return l.Err }

// MissingEvidence reports that the pool's policy requires evidence that this machine cannot
// produce.
type MissingEvidence struct {
	Kinds []evidence.Kind
	Err   error // why there is no TPM, or what the metadata service said
}

func (m *MissingEvidence) Error() string {
	text := fmt.Sprintf("the pool's policy requires evidence that this machine cannot produce: %v", m.Kinds)
	if m.Err != nil {
		text += ": " + m.Err.Error()
	}
	return text
}

func (m *MissingEvidence) Unwrap() error { return m.Err }

// Flow runs attestations. Its fields are set before [Flow.Run].
type Flow struct {
	Console *console.Console
	// TPM is nil if the machine has none; NoTPM is then the reason.
	TPM   TPM
	NoTPM error
	// OpenTPM opens the TPM. Each round without one calls it; nil means that the TPM does not appear later.
	OpenTPM func() (TPM, error)
	// Again is called after each failure that is no denial, until a verifier has stated the pool's mode. If it returns
	// true, the flow continues with that target, and does not call it again. Nil means that the target does not change.
	Again func(context.Context) (Target, bool)
	// EventLog reads the firmware's event log.
	EventLog func() ([]byte, error)
	// Cloud is nil on a platform without cloud evidence.
	Cloud Cloud
	// Claims returns the claims. It is called once per round, because some values become available
	// later.
	Claims  func(context.Context) []byte
	Version string
	Dialer  *client.Dialer
	// Accept is the Accept header of the request that will follow for the config; empty means that it is
	// unknown.
	Accept string
	// Clock receives the time and the certificates of each verifier that admits this machine; nil means
	// that the clock stays as it is.
	Clock func(time.Time, [][]*x509.Certificate)
	// Hostname returns the name of this host; nil means that it is unknown.
	Hostname func() string
	// Sleep pauses; nil means [Pause].
	Sleep func(context.Context, time.Duration) error
	// Offline reports whether an error arose before the network was up; nil means [client.Offline].
	Offline func(error) bool
	// Since returns the monotonic time since a fixed moment; nil means the system's.
	Since func() time.Duration

	// The reason that was last printed, and when.
	waitKey  string
	waitLast time.Duration

	key                *nodecert.Key // the kubelet's, once it was needed
	certifyUntil       time.Duration // monotonic: when the wait for an optional certificate ends
	withoutCertificate bool          // a round ended without the node's certificate
}

const (
	firstPause = time.Second
	maxPause   = 15 * time.Second
	// The pauses while the network is not up.
	firstOfflinePause = 200 * time.Millisecond
	maxOfflinePause   = time.Second
	// auditDenials is how many temporary denials end the flow under Audit. The gate then serves
	// every machine, so the boot need not wait for an attestation.
	auditDenials = 3
	// refusals is how many new tokens in a row the gate may reject.
	refusals = 3
	// deviceTries is how often in a row the TPM may fail.
	deviceTries = 3
	// cloudTries is how often in a row the metadata service may fail temporarily; with the pauses, about
	// two minutes.
	cloudTries = 8
	// callTime is the limit for one round. A slow TPM needs most of it.
	callTime = 5 * time.Minute
)

// Run attests until one of the results in the package comment. It returns [Unchanged] as an error.
func (f *Flow) Run(ctx context.Context, t Target) (*Grant, error) {
	pause, offline, denials, refused, broken, silent := firstPause, firstOfflinePause, 0, 0, 0, 0
	// A machine may wait for days, so refused, broken and silent count only failures in a row.
	enforced := false // a verifier answered, and the pool's mode is Enforce
	var known mode    // the last mode that a verifier stated
	var held *Grant   // the last grant, while the gate has not rejected its token
	granted := false  // a verifier attested this machine
	f.Dialer.Proxy = t.Proxy
	f.Console.Step("asking %s to attest this machine for pool %s", t.Origin, t.Pool)
	for {
		var wait time.Duration
		g, mode, err := f.round(ctx, t)
		if mode.answered {
			broken, silent = 0, 0
		}
		enforced = enforced || mode.enforced()
		if mode.name != "" {
			known = mode
		}
		if err == nil {
			granted, held = true, g
			err = f.preflight(ctx, t, g, f.Stale)
			if err == nil {
				return g, nil
			}
		}
		if _, ok := errors.AsType[*gateRefusal](err); !ok {
			refused = 0
		} else if held, refused = nil, refused+1; refused >= refusals {
			return nil, fmt.Errorf("the gate rejected %d new tokens: %w", refused, err)
		}
		if _, ok := errors.AsType[*tpmError](err); ok {
			if broken++; broken >= deviceTries {
				err = final{err}
			}
		}
		if cloud, ok := errors.AsType[*cloudError](err); ok {
			if silent++; mode.audit && silent >= auditDenials || silent >= cloudTries {
				err = cloud.missing()
			}
		}
		var unchanged *Unchanged
		var answer *gateAnswer
		var denied *client.Denied
		var missing *MissingEvidence
		switch {
		case ctx.Err() != nil:
			return nil, fmt.Errorf("interrupted: %w", ctx.Err())
		case errors.As(err, &unchanged):
			unchanged.Open = mode.audit
			return nil, err
		case errors.As(err, &answer):
			return nil, err
		case errors.Is(err, client.ErrNotVerifier):
			if !enforced {
				return nil, &Unchanged{Why: err.Error(), NoVerifier: true}
			}
		case errors.As(err, &denied) && denied.Temporary:
			// A verifier under load denies a Challenge before it reads the policy.
			if denials++; known.audit && denials >= auditDenials {
				return nil, known.unchanged(err)
			}
			wait = min(denied.RetryAfter, maxPause)
		case errors.As(err, &denied), errors.As(err, &missing), isFinal(err):
			if held != nil && !mode.audit {
				return f.resume(ctx, t, held, err)
			}
			if mode.audit || mode.open && !granted && !isFault(err) {
				return nil, mode.unchanged(err)
			}
			return nil, err
		case f.offline(err):
			// Random, because many machines may get their network at the same moment.
			wait = offline/2 + rand.N(offline/2)
			offline = min(2*offline, maxOfflinePause)
		}
		if wait == 0 || denied != nil {
			wait = max(wait, pause)
			pause = min(2*pause, maxPause)
		}
		if f.Again != nil && denied == nil && known.name == "" {
			if again, ok := f.Again(ctx); ok {
				t, f.Again, pause, offline = again, nil, firstPause, firstOfflinePause
				f.Dialer.Proxy = t.Proxy
				continue
			}
		}
		f.waiting(err, wait)
		if err := f.sleep(ctx, wait); err != nil {
			return nil, err
		}
	}
}

// final marks an error that a retry cannot fix.
type final struct{ error }

func (f final) Unwrap() error { return f.error }

func isFinal(err error) bool {
	var mark final
	var unexpected *client.Unexpected
	return errors.As(err, &mark) || errors.As(err, &unexpected) || errors.Is(err, attester.ErrEndorsementOwned)
}

// isFault reports whether a final err says nothing about this machine: another kind of server answered, the metadata
// service failed, or the TPM did. It may be over in the next boot.
func isFault(err error) bool {
	var unexpected *client.Unexpected
	var fault *metadata.Fault
	return errors.As(err, &unexpected) || errors.As(err, &fault) && fault.Temporary && !fault.Late || TPMFault(err)
}

// TPMFault reports whether the TPM did not answer, or answered with a response code that is not permanent.
func TPMFault(err error) bool {
	var rc tpm2.TPMRC
	return errors.Is(err, tpmdev.ErrTimeout) || errors.Is(err, tpmdev.ErrFailed) ||
		errors.As(err, &rc) && !attester.Permanent(err) && !errors.Is(err, attester.ErrEndorsementOwned)
}

// tpmError is a failure of this machine's TPM.
type tpmError struct{ err error }

func (e *tpmError) Error() string { return "TPM: " + e.err.Error() }
func (e *tpmError) Unwrap() error { return e.err }

// mode is the pool's mode, as the challenge stated it. The zero value means that no verifier stated
// a mode.
type mode struct {
	name  string
	audit bool // the gate serves every machine its full config
	open  bool // the gate serves a machine without a token its pre-approved config
	// answered is true if the round had all evidence, and the verifier answered it.
	answered bool
}

func (m mode) enforced() bool { return m.name != "" && !m.audit }

func (m mode) unchanged(err error) error {
	return &Unchanged{Why: fmt.Sprintf("%v, and the pool's mode is %s", err, m.name), Open: m.audit, Err: err}
}

// round runs one connection. It returns a grant that the gate has not accepted yet.
func (f *Flow) round(ctx context.Context, t Target) (*Grant, mode, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	f.findTPM()
	s, err := client.Connect(ctx, f.Dialer, t.Origin)
	if err != nil {
		return nil, mode{}, err
	}
	defer s.Close()
	ch, err := s.Challenge(ctx, f.challengeRequest(t))
	if err != nil {
		return nil, deniedMode(err), f.withoutTPM(err)
	}
	m, err := readMode(ch)
	if err != nil {
		return nil, m, err
	}
	if err := check(t, ch); err != nil {
		return nil, m, err
	}
	if len(ch.GetRequired()) == 0 {
		return nil, m, &Unchanged{Why: "the verifier requires no evidence"}
	}
	if missing := f.missing(t, ch); len(missing) > 0 {
		return nil, m, &MissingEvidence{Kinds: missing, Err: f.whyMissing(missing)}
	}
	key, err := f.attestedKey(t, ch)
	if err != nil {
		return nil, m, err
	}
	req, err := f.evidence(ctx, s, t, ch, key)
	if err != nil {
		return nil, m, err
	}
	start := f.now()
	resp, err := s.Attest(ctx, req)
	if _, denied := errors.AsType[*client.Denied](err); err == nil || denied {
		m.answered = true
	}
	if err != nil {
		return nil, m, err
	}
	if f.Clock != nil {
		f.Clock(s.Time(), s.Chains())
	}
	g := &Grant{
		Token:    secret.New([]byte(resp.GetToken())),
		Ticket:   secret.New([]byte(resp.GetReportTicket())),
		Machine:  resp.GetMachine(),
		lifetime: time.Duration(resp.GetTokenLifetimeSeconds()) * time.Second,
		since:    start,
	}
	if onlyProvisioningToken(ch) && g.Token.Empty() {
		f.Console.Step("the verifier accepts the provisioning token (correlation id %s)", resp.GetCorrelationId())
		if ch.GetMode() == mcsattestv1.Mode_MODE_AUDIT {
			return nil, m, &Unchanged{Why: "the pool's mode is " + m.name}
		}
		if t.Presented {
			return nil, m, &Unchanged{Why: "it has the provisioning token, which is all that the pool's policy requires"}
		}
		g.Token = t.Provisioning
		return g, m, nil
	}
	f.Console.Step("attested as machine %s (correlation id %s)", g.Machine, resp.GetCorrelationId())
	if g.Token.Empty() {
		return nil, m, &Unchanged{Why: "the pool's mode is " + m.name, Ticket: g.Ticket}
	}
	if key != nil && resp.GetCertifyTicket() != "" {
		required := ch.GetNodeCertificate() == mcsattestv1.NodeCertificate_NODE_CERTIFICATE_REQUIRED
		if g.NodePair, err = f.certify(ctx, s, resp.GetCertifyTicket(), key, required); err != nil {
			return nil, m, err
		}
	}
	return g, m, nil
}

// findTPM opens the TPM if no round had it: its driver may load late, and a TPM that was busy may answer now. One that
// hangs is not opened again, because each command to it takes minutes.
func (f *Flow) findTPM() {
	if f.TPM != nil || f.OpenTPM == nil || errors.Is(f.NoTPM, tpmdev.ErrTimeout) {
		return
	}
	tpm, err := f.OpenTPM()
	if f.NoTPM = err; err == nil {
		f.TPM = tpm
	}
}

// withoutTPM adds to a denial of Challenge why there is no TPM: the verifier denies a machine that offers too little
// evidence.
func (f *Flow) withoutTPM(err error) error {
	denied, ok := errors.AsType[*client.Denied](err)
	if !ok || denied.Class != mcsattestv1.DenialClass_DENIAL_CLASS_EVIDENCE || f.TPM != nil || f.NoTPM == nil {
		return err
	}
	return fmt.Errorf("%w, without TPM evidence: %w", err, f.NoTPM)
}

// whyMissing returns why there is no TPM, if that is missing.
func (f *Flow) whyMissing(kinds []evidence.Kind) error {
	if slices.Contains(kinds, evidence.TPM2) {
		return f.NoTPM
	}
	return nil
}

// check returns a final error if a challenge is not one for t.
func check(t Target, ch challenge) error {
	if ch.GetPool() != t.Pool || ch.GetOrigin() != t.Origin {
		// A verifier that answers for another origin may relay another server's challenge.
		return final{fmt.Errorf("the verifier answered for pool %q at %q", ch.GetPool(), ch.GetOrigin())}
	}
	if kind, ok := repeated(ch.GetRequired()); ok {
		return final{fmt.Errorf("the verifier requires %v more than once, which breaks the contract", evidence.Kind(kind))}
	}
	return nil
}

// repeated returns a kind that occurs twice. Each kind costs a document, and a challenge has room
// for thousands of them.
func repeated(kinds []mcsattestv1.EvidenceKind) (kind mcsattestv1.EvidenceKind, ok bool) {
	seen := map[mcsattestv1.EvidenceKind]bool{}
	for _, k := range kinds {
		if seen[k] {
			return k, true
		}
		seen[k] = true
	}
	return 0, false
}

func readMode(ch *mcsattestv1.ChallengeResponse) (mode, error) {
	if ch.GetMode() == mcsattestv1.Mode_MODE_OFF {
		return mode{audit: true, name: "Off"}, &Unchanged{Why: "the pool's mode is Off"}
	}
	return modeOf(ch.GetMode(), ch.GetUnattested()), nil
}

// deniedMode returns the mode that a denial of Challenge states, or the zero value.
func deniedMode(err error) mode {
	var denied *client.Denied
	if !errors.As(err, &denied) || denied.Mode == mcsattestv1.Mode_MODE_UNSPECIFIED {
		return mode{}
	}
	return modeOf(denied.Mode, denied.Unattested)
}

func modeOf(m mcsattestv1.Mode, u mcsattestv1.Unattested) mode {
	switch {
	case m == mcsattestv1.Mode_MODE_AUDIT:
		return mode{audit: true, name: "Audit"}
	case u == mcsattestv1.Unattested_UNATTESTED_PRE_APPROVED:
		return mode{open: true, name: "Enforce with a pre-approved config"}
	}
	return mode{name: "Enforce"}
}
