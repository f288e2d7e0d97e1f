// SPDX-License-Identifier: Apache-2.0

package verifiertest

import (
	"bytes"
	"context"

	"connectrpc.com/connect"

	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
)

// RehearseChallenge implements the service.
func (v *Verifier) RehearseChallenge(_ context.Context, req *connect.Request[mcsattestv1.RehearseChallengeRequest]) (
	*connect.Response[mcsattestv1.RehearseChallengeResponse], error) {
	if !bytes.Equal(req.Msg.GetTicket(), v.RehearsalTicket) {
		return nil, Denial(mcsattestv1.DenialClass_DENIAL_CLASS_CHALLENGE, false)
	}
	if v.Mode == mcsattestv1.Mode_MODE_OFF {
		return connect.NewResponse(&mcsattestv1.RehearseChallengeResponse{Result: &mcsattestv1.RehearseResponse{
			Passes: true, Warnings: []string{"the pool's mode is Off"}, CorrelationId: "decade",
		}}), nil
	}
	ch, err := v.challenge(&mcsattestv1.ChallengeRequest{
		Pool: req.Msg.GetPool(), Origin: req.Msg.GetOrigin(), Offered: req.Msg.GetOffered(), Tpm: req.Msg.GetTpm(),
		AgentVersion: req.Msg.GetAgentVersion(),
	}, &pending{remote: req.Peer().Addr, rehearsal: !v.Relay})
	return connect.NewResponse(&mcsattestv1.RehearseChallengeResponse{
		Sealed: ch.GetSealed(), Nonce: ch.GetNonce(), Binding: ch.GetBinding(), Required: ch.GetRequired(), Tpm: ch.GetTpm(),
		LifetimeSeconds: ch.GetLifetimeSeconds(), Pool: ch.GetPool(), Origin: ch.GetOrigin(), Cloud: ch.GetCloud(),
	}), err
}

// Rehearse implements the service.
func (v *Verifier) Rehearse(ctx context.Context,
	req *connect.Request[mcsattestv1.RehearseRequest]) (*connect.Response[mcsattestv1.RehearseResponse], error) {
	if v.RehearseFunc != nil {
		if resp, err := v.RehearseFunc(req.Msg); resp != nil || err != nil {
			return connect.NewResponse(resp), err
		}
	}
	p := v.answered(req.Msg.GetSealed(), req.Peer().Addr, !v.Relay)
	if p == nil {
		return nil, Denial(mcsattestv1.DenialClass_DENIAL_CLASS_CHALLENGE, false)
	}
	err := p.check(ctx, &mcsattestv1.AttestRequest{
		Sealed: req.Msg.GetSealed(), ServerSpkiSha256: req.Msg.GetServerSpkiSha256(), Claims: req.Msg.GetClaims(),
		Tpm2: req.Msg.GetTpm2(), Cloud: req.Msg.GetCloud(),
	})
	resp := &mcsattestv1.RehearseResponse{Passes: err == nil, CorrelationId: "decade",
		Warnings: []string{"this boot is not the first one"}}
	if err != nil {
		resp.Reason, resp.Explanation = mcsattestv1.Reason_REASON_EVIDENCE_UNACCEPTABLE, err.Error()
	}
	return connect.NewResponse(resp), nil
}
