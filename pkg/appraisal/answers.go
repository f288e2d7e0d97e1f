// SPDX-License-Identifier: Apache-2.0

package appraisal

import (
	"context"
	"errors"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// Answers records what providers and the records answered during one appraisal. A later replay
// needs them, because none of them can be asked again for a past moment.
type Answers struct {
	Statements map[string]evidence.Statement `json:"statements,omitempty"` // by kind
	Keys       *tpm2.ProviderKeys            `json:"keys,omitempty"`
	// Refused has the providers' denials, by kind. The one about the TPM's keys has the
	// kind "tpm2".
	Refused map[string]Refused `json:"refused,omitempty"`
	// Recorded has the identities that were on a record.
	Recorded []Recorded `json:"recorded,omitempty"`
}

// Recorded is an identity and the UID of the Machine whose record had it.
type Recorded struct {
	Identity   v1alpha1.RecordedIdentity `json:"identity"`
	MachineUID string                    `json:"machineUID"`
}

// Refused is a provider's denial.
type Refused struct {
	Code   reason.Code `json:"code"`
	Detail string      `json:"detail"`
}

func (a *Answers) refused(k evidence.Kind, err error) {
	if errors.Is(err, tpm2.ErrNotMine) {
		return
	}
	d := reason.From(err)
	if a.Refused == nil {
		a.Refused = map[string]Refused{}
	}
	a.Refused[k.String()] = Refused{Code: d.Code, Detail: d.Error()}
}

// denial returns the recorded denial, or a temporary one if no answer was recorded.
func (a *Answers) denial(k evidence.Kind) error {
	if r, ok := a.Refused[k.String()]; ok {
		return reason.Deny(r.Code, "recorded answer: %s", r.Detail)
	}
	return reason.Deny(reason.ProviderUnavailable, "%s: the saved evidence has no answer of the provider", k)
}

// Recording returns in with providers and a lookup of records that record their answers in a.
func (a *Answers) Recording(in Context) Context {
	clouds := map[evidence.Kind]evidence.Verifier{}
	for k, v := range in.Clouds {
		clouds[k] = interceptor{v, func(ctx context.Context, c evidence.Claim,
			m evidence.Candidate) (evidence.Statement, error) {
			s, err := c.Confirm(ctx, m)
			if err != nil {
				a.refused(k, err)
				return s, err
			}
			if a.Statements == nil {
				a.Statements = map[string]evidence.Statement{}
			}
			a.Statements[k.String()] = s
			return s, nil
		}}
	}
	in.Clouds = clouds
	if d := in.Directory; d != nil {
		in.Directory = directoryFunc(func(ctx context.Context, providerID string, ek *tpm2.EK) (tpm2.ProviderKeys, error) {
			keys, err := d.EndorsementKeys(ctx, providerID, ek)
			if err != nil {
				a.refused(evidence.TPM2, err)
				return keys, err
			}
			a.Keys = &keys
			return keys, nil
		})
	}
	if recorded := in.Recorded; recorded != nil {
		in.Recorded = func(id v1alpha1.RecordedIdentity) (string, error) {
			uid, err := recorded(id)
			if uid != "" {
				a.Recorded = append(a.Recorded, Recorded{id, uid})
			}
			return uid, err
		}
	}
	return in
}

// Replaying returns in with providers and records that return the answers in a. The documents are
// still verified.
func (a *Answers) Replaying(in Context) Context {
	clouds := map[evidence.Kind]evidence.Verifier{}
	for k, v := range in.Clouds {
		clouds[k] = interceptor{v, func(context.Context, evidence.Claim, evidence.Candidate) (evidence.Statement, error) {
			s, ok := a.Statements[k.String()]
			if !ok {
				return s, a.denial(k)
			}
			return s, nil
		}}
	}
	in.Clouds = clouds
	in.Directory = directoryFunc(func(context.Context, string, *tpm2.EK) (tpm2.ProviderKeys, error) {
		if a.Keys != nil {
			return *a.Keys, nil
		}
		if _, ok := a.Refused[evidence.TPM2.String()]; ok {
			return tpm2.ProviderKeys{}, a.denial(evidence.TPM2)
		}
		return tpm2.ProviderKeys{}, tpm2.ErrNotMine
	})
	in.Recorded = func(id v1alpha1.RecordedIdentity) (string, error) {
		for _, r := range a.Recorded {
			if r.Identity == id {
				return r.MachineUID, nil
			}
		}
		return "", nil
	}
	return in
}

// interceptor is a verifier whose claims are confirmed by the function confirm.
type interceptor struct {
	evidence.Verifier
	confirm func(context.Context, evidence.Claim, evidence.Candidate) (evidence.Statement, error)
}

// Verify implements evidence.Verifier.
func (l interceptor) Verify(ctx context.Context, d evidence.Document, b evidence.Binding,
	now time.Time) (evidence.Claim, error) {
	c, err := l.Verifier.Verify(ctx, d, b, now)
	if err != nil {
		return nil, err
	}
	return interceptedClaim{c, l.confirm}, nil
}

type interceptedClaim struct {
	evidence.Claim
	confirm func(context.Context, evidence.Claim, evidence.Candidate) (evidence.Statement, error)
}

// Confirm implements evidence.Claim.
func (l interceptedClaim) Confirm(ctx context.Context, c evidence.Candidate) (evidence.Statement, error) {
	return l.confirm(ctx, l.Claim, c)
}

type directoryFunc func(context.Context, string, *tpm2.EK) (tpm2.ProviderKeys, error)

// EndorsementKeys implements tpm2.Directory.
func (f directoryFunc) EndorsementKeys(ctx context.Context, providerID string, ek *tpm2.EK) (tpm2.ProviderKeys, error) {
	return f(ctx, providerID, ek)
}
