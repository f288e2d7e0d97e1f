// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"crypto/subtle"
	"log/slog"
	"slices"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/appraisal"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
)

func (s *Service) view() provisioning.View {
	if s.Provisioning == nil {
		return provisioning.View{}
	}
	return s.Provisioning()
}

// unenforced reports whether the gate serves all clients of the pool because the provisioning token
// does not exist.
func (s *Service) unenforced(c *call) bool {
	if c.policy == nil || !c.policy.OpenWithoutToken {
		return false
	}
	_, presence := s.view().At(c.start)
	return presence == provisioning.Absent
}

// mode returns the current mode of the pool, or "" if the call ended before its policy was found.
func (s *Service) mode(c *call) v1alpha1.Mode {
	switch {
	case c.policy == nil:
		return ""
	case c.policy.Mode == v1alpha1.ModeEnforce && s.unenforced(c):
		return v1alpha1.ModeAudit
	}
	return c.policy.Mode
}

// provisioningTokens returns the valid tokens if one is required.
func (s *Service) provisioningTokens(c *call, required []evidence.Kind) ([]secret.Bytes, error) {
	if !slices.Contains(required, evidence.ProvisioningToken) {
		return nil, nil
	}
	return validTokens(c, s.view())
}

// validTokens returns the valid tokens of a view. If the token does not exist, or was not read yet, the denial is
// temporary, because the caller did not cause that.
func validTokens(c *call, view provisioning.View) ([]secret.Bytes, error) {
	tokens, presence := view.At(c.start)
	switch {
	case presence == provisioning.Present:
		return tokens.Valid(c.start), nil
	case presence == provisioning.Absent:
		return nil, reason.Deny(reason.StoreUnavailable, "the policy requires the provisioning token, and there is none")
	case view.Err() != nil:
		return nil, reason.Wrap(reason.StoreUnavailable, view.Err(), "the provisioning token cannot be read")
	}
	return nil, reason.Deny(reason.StoreUnavailable, "the provisioning token has not been read yet")
}

// rereadTokens reads the tokens again. If they differ from those used, which led to the denial, it returns the valid
// ones, and otherwise the denial.
func (s *Service) rereadTokens(ctx context.Context, c *call, used []secret.Bytes,
	denial error) ([]secret.Bytes, error) {
	view, err := s.ConfirmProvisioning(ctx)
	if err != nil {
		return nil, reason.Wrap(reason.StoreUnavailable, err, "the provisioning token cannot be read again")
	}
	now, err := validTokens(c, view)
	if err != nil {
		return nil, err
	}
	if slices.EqualFunc(used, now, func(a, b secret.Bytes) bool {
		return subtle.ConstantTimeCompare(a.Expose(), b.Expose()) == 1
	}) {
		return nil, denial
	}
	return now, nil
}

// confirmToken answers a caller that knows the provisioning token, if nothing else was required. The token
// names no Machine, so nothing is recorded and no attestation token or ticket is issued. The
// provisioning token itself opens the gate.
// Many callers share the token, so the audit lines of these calls have a budget.
func (s *Service) confirmToken(c *call, v *appraisal.Verdict) *mcsattestv1.AttestResponse {
	for _, e := range v.Evidence {
		c.extra = append(c.extra, slog.String("evidence."+e.Kind, e.SHA256),
			slog.String("provisioning_token", e.Summary["token"]))
	}
	return &mcsattestv1.AttestResponse{CorrelationId: c.id}
}
