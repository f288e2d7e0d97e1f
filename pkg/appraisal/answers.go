package appraisal

import (
	"context"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// Answers are what providers said in one appraisal: what cannot be asked again
// when it is repeated on another day.
type Answers struct {
	Statements map[string]evidence.Statement `json:"statements,omitempty"` // by kind
	Keys       *tpm2.ProviderKeys            `json:"keys,omitempty"`
}

// Recording lets in ask the providers and keeps what they answer in a.
func (a *Answers) Recording(in Context) Context {
	clouds := map[evidence.Kind]evidence.Verifier{}
	for k, v := range in.Clouds {
		clouds[k] = listener{v, func(ctx context.Context, c evidence.Claim, m evidence.Candidate) (evidence.Statement, error) {
			s, err := c.Confirm(ctx, m)
			if err == nil {
				if a.Statements == nil {
					a.Statements = map[string]evidence.Statement{}
				}
				a.Statements[k.String()] = s
			}
			return s, err
		}}
	}
	in.Clouds = clouds
	if d := in.Directory; d != nil {
		in.Directory = directoryFunc(func(ctx context.Context, providerID string, ek *tpm2.EK) (tpm2.ProviderKeys, error) {
			keys, err := d.EndorsementKeys(ctx, providerID, ek)
			if err == nil {
				a.Keys = &keys
			}
			return keys, err
		})
	}
	return in
}

// Replaying gives in the answers of a instead of the providers'. The documents are
// verified anew.
func (a *Answers) Replaying(in Context) Context {
	clouds := map[evidence.Kind]evidence.Verifier{}
	for k, v := range in.Clouds {
		clouds[k] = listener{v, func(context.Context, evidence.Claim, evidence.Candidate) (evidence.Statement, error) {
			s, ok := a.Statements[k.String()]
			if !ok {
				return s, reason.Deny(reason.ProviderUnavailable, "%s: no answer of the provider is among what was saved", k)
			}
			return s, nil
		}}
	}
	in.Clouds = clouds
	in.Directory = directoryFunc(func(context.Context, string, *tpm2.EK) (tpm2.ProviderKeys, error) {
		if a.Keys == nil {
			return tpm2.ProviderKeys{}, tpm2.ErrNotMine
		}
		return *a.Keys, nil
	})
	return in
}

// listener is a verifier whose claims are confirmed by a func.
type listener struct {
	evidence.Verifier
	confirm func(context.Context, evidence.Claim, evidence.Candidate) (evidence.Statement, error)
}

// Verify implements evidence.Verifier.
func (l listener) Verify(ctx context.Context, d evidence.Document, b evidence.Binding, now time.Time) (evidence.Claim, error) {
	c, err := l.Verifier.Verify(ctx, d, b, now)
	if err != nil {
		return nil, err
	}
	return listenedClaim{c, l.confirm}, nil
}

type listenedClaim struct {
	evidence.Claim
	confirm func(context.Context, evidence.Claim, evidence.Candidate) (evidence.Statement, error)
}

// Confirm implements evidence.Claim.
func (l listenedClaim) Confirm(ctx context.Context, c evidence.Candidate) (evidence.Statement, error) {
	return l.confirm(ctx, l.Claim, c)
}

type directoryFunc func(context.Context, string, *tpm2.EK) (tpm2.ProviderKeys, error)

// EndorsementKeys implements tpm2.Directory.
func (f directoryFunc) EndorsementKeys(ctx context.Context, providerID string, ek *tpm2.EK) (tpm2.ProviderKeys, error) {
	return f(ctx, providerID, ek)
}
