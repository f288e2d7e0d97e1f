// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"context"
	"errors"

	"github.com/mcs-attest/mcs-attest/agent/internal/client"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
)

// rehearseTries is how often a rehearsal starts at most. An administrator waits for its result.
const rehearseTries = 4

// Rehearse presents the evidence of a first boot with an administrator's ticket, and returns what the
// verifier would decide. It also sends incomplete evidence, so that the verifier can record what is missing.
// An error means that there is no result, also if the TPM does not answer. It never uses a provisioning token, which
// proves nothing about a machine.
func (f *Flow) Rehearse(ctx context.Context, t Target, ticket secret.Bytes) (*mcsattestv1.RehearseResponse, error) {
	f.Dialer.Proxy = t.Proxy
	t.Provisioning = secret.Bytes{}
	if f.TPM == nil && TPMFault(f.NoTPM) {
		return nil, f.NoTPM // the verifier would record that evidence is missing
	}
	f.Console.Step("asking %s whether it would attest this machine for pool %s", t.Origin, t.Pool)
	for try, pause := 1, firstPause; ; try, pause = try+1, min(2*pause, maxPause) {
		res, err := f.rehearse(ctx, t, ticket)
		if err == nil || try == rehearseTries || !mayPass(err) {
			return res, err
		}
		f.waiting(err, pause)
		if err := f.sleep(ctx, pause); err != nil {
			return nil, err
		}
	}
}

// mayPass reports whether another attempt may have a result.
func mayPass(err error) bool {
	if denied, ok := errors.AsType[*client.Denied](err); ok {
		return denied.Temporary
	}
	var missing *MissingEvidence
	return !errors.Is(err, client.ErrNotVerifier) && !errors.As(err, &missing) && !isFinal(err)
}

// rehearse runs one connection.
func (f *Flow) rehearse(ctx context.Context, t Target, ticket secret.Bytes) (*mcsattestv1.RehearseResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	s, err := client.Connect(ctx, f.Dialer, t.Origin)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	offer := f.challengeRequest(t)
	ch, err := s.RehearseChallenge(ctx, &mcsattestv1.RehearseChallengeRequest{
		Ticket: ticket.Expose(), Pool: offer.GetPool(), Origin: offer.GetOrigin(), Offered: offer.GetOffered(),
		Tpm: offer.GetTpm(), AgentVersion: offer.GetAgentVersion(),
	})
	if err != nil {
		return nil, err
	}
	if ch.GetResult() != nil {
		return ch.GetResult(), nil
	}
	if err := check(t, ch); err != nil {
		return nil, err
	}
	if missing := f.missing(t, ch); len(missing) > 0 {
		f.Console.Step("%v", &MissingEvidence{Kinds: missing, Err: f.whyMissing(missing)})
	}
	ev, err := f.evidence(ctx, s, t, ch, nil)
	if err != nil {
		return nil, err
	}
	return s.Rehearse(ctx, &mcsattestv1.RehearseRequest{
		Sealed: ev.GetSealed(), ServerSpkiSha256: ev.GetServerSpkiSha256(), Claims: ev.GetClaims(),
		Tpm2: ev.GetTpm2(), Cloud: ev.GetCloud(),
	})
}
