// Package flow leads one attestation from the pointer config's source to a token
// that the gate has taken.
//
// # One round
//
// A round is one connection: Challenge, evidence over the transcript, Attest.
// When the verifier grants, the flow asks the gate with HEAD whether it takes
// the token, until it does: Ignition cannot refresh a token, and every 4xx is
// final to it. While the gate says 5xx for longer than half of the token's life
// a new round begins.
//
// # What ends it
//
//   - a grant that the gate takes;
//   - a server that has no such API, a pool with mode Off, an audit without a
//     token, or a final denial where the gate serves machines that are not
//     attested: the pointer config is then left alone ([LeftAlone]);
//   - a pool for which the provisioning token is enough: it names no machine, so
//     there is no other token, and it opens the gate itself. A pointer config
//     that shows it is left alone;
//   - a final denial, or evidence that this machine cannot produce: an error.
//
// Everything else is tried again indefinitely, with pauses from one to fifteen
// seconds: the verifier may not have started yet, and the Machine object may
// still be on its way. Under Enforce this holds with a pre-approved config, too.
// Otherwise a flood could downgrade a machine to that config. Only under Audit,
// where the gate serves every machine, the flow gives up after some failures.
//
// A verifier that answered under Enforce stays one. An answer of another server
// after that is a failure on the way, not a reason to leave the pointer alone.
package flow

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/mcs-attest/mcs-attest/agent/internal/client"
	"github.com/mcs-attest/mcs-attest/agent/internal/console"
	"github.com/mcs-attest/mcs-attest/agent/internal/metadata"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
)

// Target is what the pointer config asks for.
type Target struct {
	Origin string // "https://host:port"
	Pool   string
	URL    string // the source itself, for the pre-flight
	Proxy  *url.URL
	// Provisioning is the provisioning token, if this machine has one.
	Provisioning secret.Bytes
	// Shown: the pointer config shows it in its header already.
	Shown bool
}

// Grant is a token that the gate has taken.
type Grant struct {
	Token   secret.Bytes
	Ticket  secret.Bytes // for the failure report; may be empty
	Machine string
}

// LeftAlone is the outcome in which the pointer config stays as it is.
type LeftAlone struct {
	Why    string
	Ticket secret.Bytes
	// NoVerifier: there is nothing that attests, which "mcs-attest=require" refuses.
	NoVerifier bool
}

func (l *LeftAlone) Error() string { return "the pointer config is left alone: " + l.Why }

// MissingEvidence reports that the pool's policy requires what this machine cannot produce.
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

// Flow attests. Its fields are set once, before [Flow.Run].
type Flow struct {
	Console *console.Console
	// TPM is nil where there is none; NoTPM then says why.
	TPM   TPM
	NoTPM error
	// EventLog reads the firmware's measurements.
	EventLog func() ([]byte, error)
	// Cloud is nil on a platform that has no evidence of its own.
	Cloud Cloud
	// Claims makes the claims; asked once in each round, since what is not known
	// at first may be later.
	Claims  func(context.Context) []byte
	Version string
	Dialer  *client.Dialer
	// Sleep pauses; nil means to wait in truth.
	Sleep func(context.Context, time.Duration) error
	// Since is the monotonic time since an arbitrary moment; nil: the system's.
	Since func() time.Duration

	// What is waited for, and when that was last printed.
	waitKey  string
	waitLast time.Duration
}

const (
	firstPause = time.Second
	maxPause   = 15 * time.Second
	// auditDenials is how many temporary denials end the flow under Audit. There
	// the gate serves every machine, so no boot has to wait for an attestation.
	auditDenials = 3
	// refusals is how often a token may be made that the gate then refuses.
	refusals = 3
	// deviceTries is how often a TPM may fail.
	deviceTries = 3
	// cloudTries is how often a metadata service may fail in a way that passes:
	// with the pauses, two minutes or so.
	cloudTries = 8
	// callTime bounds one round; a slow TPM takes most of it.
	callTime = 5 * time.Minute
)

// Run attests until one of the ends in the package comment. A [LeftAlone] is
// returned as an error.
func (f *Flow) Run(ctx context.Context, t Target) (*Grant, error) {
	pause, denials, refused, broken, silent := firstPause, 0, 0, 0, 0
	enforced := false // a verifier answered, and its gate enforces
	var known mode    // the last one that a verifier stated
	f.Dialer.Proxy = t.Proxy
	f.Console.Step("asking %s to attest this machine for pool %s", t.Origin, t.Pool)
	for {
		var wait time.Duration
		g, mode, err := f.round(ctx, t)
		enforced = enforced || mode.enforced()
		if mode.name != "" {
			known = mode
		}
		if err == nil {
			err = f.preflight(ctx, t, g)
			if err == nil {
				return &g.Grant, nil
			}
			var no *gateRefusal
			if errors.As(err, &no) {
				if refused++; refused >= refusals {
					return nil, fmt.Errorf("the gate refused %d new tokens: %w", refused, err)
				}
			}
		}
		var device *tpmError
		if errors.As(err, &device) {
			if broken++; broken >= deviceTries {
				err = final{err}
			}
		}
		var cloud *cloudError
		if errors.As(err, &cloud) {
			if silent++; mode.audit && silent >= auditDenials || silent >= cloudTries {
				err = cloud.missing()
			}
		}
		var left *LeftAlone
		var answer *gateAnswer
		var denied *client.Denied
		var missing *MissingEvidence
		switch {
		case ctx.Err() != nil:
			return nil, fmt.Errorf("interrupted: %w", ctx.Err())
		case errors.As(err, &left), errors.As(err, &answer):
			return nil, err
		case errors.Is(err, client.ErrNotVerifier):
			if !enforced {
				return nil, &LeftAlone{Why: err.Error(), NoVerifier: true}
			}
		case errors.As(err, &denied) && denied.Temporary:
			// A verifier under load denies a Challenge before it reads the policy.
			if denials++; known.audit && denials >= auditDenials {
				return nil, known.left(err)
			}
			wait = min(denied.RetryAfter, maxPause)
		case errors.As(err, &denied), errors.As(err, &missing), isFinal(err):
			if mode.audit || mode.open && !isTrouble(err) {
				return nil, mode.left(err)
			}
			return nil, err
		}
		wait = max(wait, pause)
		f.waiting(err)
		if err := f.sleep(ctx, wait); err != nil {
			return nil, fmt.Errorf("interrupted: %w", err)
		}
		pause = min(2*pause, maxPause)
	}
}

// final marks an error that no second try mends.
type final struct{ error }

func (f final) Unwrap() error { return f.error }

func isFinal(err error) bool {
	var mark final
	var unexpected *client.Unexpected
	return errors.As(err, &mark) || errors.As(err, &unexpected) || errors.Is(err, attester.ErrEndorsementOwned)
}

// isTrouble reports whether err, although it ends the flow, says nothing about
// this machine: another server answered, or the metadata service failed.
func isTrouble(err error) bool {
	var unexpected *client.Unexpected
	var fault *metadata.Fault
	return errors.As(err, &unexpected) || errors.As(err, &fault) && fault.Temporary && !fault.Late
}

// tpmError is a failure of this machine's TPM.
type tpmError struct{ err error }

func (e *tpmError) Error() string { return "TPM: " + e.err.Error() }
func (e *tpmError) Unwrap() error { return e.err }

// mode is what the challenge said of the gate. The zero value: no verifier answered, or it did not state the mode.
type mode struct {
	name  string
	audit bool // the gate serves every machine its full config
	open  bool // the gate serves a machine without a token its pre-approved config
}

func (m mode) enforced() bool { return m.name != "" && !m.audit }

func (m mode) left(err error) error {
	return &LeftAlone{Why: fmt.Sprintf("%v, and the pool's mode is %s", err, m.name)}
}

// grant is a Grant whose token may still be refused.
type grant struct {
	Grant
	lifetime time.Duration
	since    time.Duration // monotonic
}

// round is one connection.
func (f *Flow) round(ctx context.Context, t Target) (*grant, mode, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	s, err := client.Connect(ctx, f.Dialer, t.Origin)
	if err != nil {
		return nil, mode{}, err
	}
	defer s.Close()
	ch, err := s.Challenge(ctx, f.challengeRequest(t))
	if err != nil {
		return nil, deniedMode(err), err
	}
	m, err := readMode(ch)
	if err != nil {
		return nil, m, err
	}
	if ch.GetPool() != t.Pool || ch.GetOrigin() != t.Origin {
		// A verifier that answers for another origin may be passing on another's challenge.
		return nil, m, final{fmt.Errorf("the verifier answered for pool %q at %q", ch.GetPool(), ch.GetOrigin())}
	}
	if len(ch.GetRequired()) == 0 {
		return nil, m, &LeftAlone{Why: "the verifier asks for no evidence"}
	}
	if kind, ok := repeated(ch.GetRequired()); ok {
		return nil, m, final{fmt.Errorf("the verifier requires %v more than once, which breaks the contract",
			evidence.Kind(kind))}
	}
	req, err := f.evidence(ctx, s, t, ch)
	if err != nil {
		return nil, m, err
	}
	start := f.now()
	resp, err := s.Attest(ctx, req)
	if err != nil {
		return nil, m, err
	}
	g := &grant{
		Grant: Grant{
			Token:   secret.New([]byte(resp.GetToken())),
			Ticket:  secret.New([]byte(resp.GetReportTicket())),
			Machine: resp.GetMachine(),
		},
		lifetime: time.Duration(resp.GetTokenLifetimeSeconds()) * time.Second,
		since:    start,
	}
	if alone(ch) && g.Token.Empty() {
		f.Console.Step("the verifier takes the provisioning token (correlation id %s)", resp.GetCorrelationId())
		if ch.GetMode() == mcsattestv1.Mode_MODE_AUDIT {
			return nil, m, &LeftAlone{Why: "the pool's mode is " + m.name}
		}
		if t.Shown {
			return nil, m, &LeftAlone{Why: "it shows the provisioning token, which is all that the pool's policy asks for"}
		}
		g.Token = t.Provisioning
		return g, m, nil
	}
	f.Console.Step("attested as machine %s (correlation id %s)", g.Machine, resp.GetCorrelationId())
	if g.Token.Empty() {
		return nil, m, &LeftAlone{Why: "the pool's mode is " + m.name, Ticket: g.Ticket}
	}
	return g, m, nil
}

// repeated finds a kind that occurs twice. Each costs a document, and a challenge
// has room for thousands of kinds.
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
		return mode{audit: true, name: "Off"}, &LeftAlone{Why: "the pool's mode is Off"}
	}
	return modeOf(ch.GetMode(), ch.GetUnattested()), nil
}

// deniedMode returns the mode that a denial of Challenge states, if it states one.
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

// repeatLine is how often a machine that waits says so.
const repeatLine = time.Minute

// waitHints say who can end a wait. A class without one ends by itself.
var waitHints = map[mcsattestv1.DenialClass]string{
	mcsattestv1.DenialClass_DENIAL_CLASS_NOT_YET: "on the cluster, 'mcs-attest-verifier explain' shows what is " +
		"missing",
	mcsattestv1.DenialClass_DENIAL_CLASS_UNAVAILABLE: "there is nothing to do on this machine; on the cluster, see the " +
		"verifier's alerts and log",
}

// waiting prints why the flow tries again: when the reason changes, and now and
// then while it does not. Correlation ids change every time and do not count.
func (f *Flow) waiting(err error) {
	key := err.Error()
	var denied *client.Denied
	if errors.As(err, &denied) {
		key = denied.ClassName()
	}
	if key == f.waitKey && f.now()-f.waitLast < repeatLine {
		return
	}
	f.waitKey, f.waitLast = key, f.now()
	f.Console.Again("%v; trying again", err)
	var fault *metadata.Fault
	switch {
	case errors.As(err, &fault):
		f.Console.Hint(fault.Hint)
	case denied != nil:
		f.Console.Hint(waitHints[denied.Class])
	}
}

func (f *Flow) sleep(ctx context.Context, d time.Duration) error {
	if f.Sleep != nil {
		return f.Sleep(ctx, d)
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// started anchors the monotonic time; the wall clock is not read.
var started = time.Now()

func (f *Flow) now() time.Duration {
	if f.Since != nil {
		return f.Since()
	}
	return time.Since(started)
}
