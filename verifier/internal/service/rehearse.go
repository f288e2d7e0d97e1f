// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"io"
	"log/slog"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/appraisal"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/policy"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/record"
	"github.com/mcs-attest/mcs-attest/pkg/seal"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
	"github.com/mcs-attest/mcs-attest/verifier/internal/audit"
	"github.com/mcs-attest/mcs-attest/verifier/internal/listen"
	"github.com/mcs-attest/mcs-attest/verifier/internal/outbound"
	"github.com/mcs-attest/mcs-attest/verifier/internal/rehearsal"
)

// newRehearsals returns the rehearsals of this service. They have no access to the keys of tokens.
func (s *Service) newRehearsals() *rehearsal.Rehearsals {
	return &rehearsal.Rehearsals{
		View: s.View, Keys: func() rehearsal.Keys { return keys{s.SealKeys()} }, Records: recorder{s},
		Origins: s.Origins, Served: s.Served, Clouds: s.Clouds, Directory: s.Directory,
		AzureTokenResource: s.AzureTokenResource,
		Tokens: func(now time.Time, required []evidence.Kind) ([]secret.Bytes, error) {
			return s.provisioningTokens(&call{start: now}, required)
		},
		Confirm: func(ctx context.Context, now time.Time, m *machine.Machine, denial error) error {
			return s.confirmed(ctx, &call{start: now}, m, denial)
		},
		Open: func(now time.Time, p policy.Policy) bool {
			return p.Mode == v1alpha1.ModeOff || s.unenforced(&call{start: now, policy: &p})
		},
	}
}

// keys is a ring without what rehearsals do not need.
type keys struct{ ring seal.Ring }

func (k keys) SealRehearsal(rand io.Reader, now time.Time, c seal.Rehearsal) ([]byte, error) {
	return k.ring.SealRehearsal(rand, now, c)
}

func (k keys) OpenRehearsal(sealed []byte) (seal.Rehearsal, error) {
	return k.ring.OpenRehearsal(sealed)
}

func (s *Service) rehearseChallenge(ctx context.Context, c *call,
	req *mcsattestv1.RehearseChallengeRequest) (*mcsattestv1.RehearseChallengeResponse, error) {
	c.pool = req.GetPool()
	r := c.rehearsal()
	res, err := s.rehearsals.Challenge(ctx, r, req)
	s.rehearsed(c, r)
	return res, err
}

func (s *Service) rehearse(ctx context.Context, c *call,
	req *mcsattestv1.RehearseRequest) (*mcsattestv1.RehearseResponse, error) {
	r := c.rehearsal()
	res, err := s.rehearsals.Rehearse(outbound.For(ctx, c.source, c.yield), r, req)
	s.rehearsed(c, r)
	return res, err
}

// rehearsal returns the call for package rehearsal.
func (c *call) rehearsal() *rehearsal.Call {
	return &rehearsal.Call{
		Now: c.start, ID: c.id, Exporter: listen.Exporter(c.tls), Yield: c.yield,
		First: func() bool { return c.conn != nil && c.conn.FirstAttest() },
	}
}

// rehearsed adds to the audit line and to the metrics what the rehearsal found.
func (s *Service) rehearsed(c *call, r *rehearsal.Call) {
	c.policy = r.Policy
	if r.Machine != nil {
		c.machine = r.Machine.String()
	}
	if r.Policy != nil {
		c.pool = r.Policy.Pool
	}
	if r.Result == nil {
		return
	}
	c.proven = true // each ticket has one result
	result := "would-fail"
	if r.Result.Passed {
		result = "would-pass"
	}
	c.extra = append(c.extra, slog.String("result", result))
	if !r.Result.Passed {
		c.extra = append(c.extra, slog.String("would_deny", r.Result.Reason),
			slog.String("explanation", audit.Clean(r.Result.Explanation)))
	}
	if s.ObserveRehearsal != nil {
		s.ObserveRehearsal(poolLabel(r.Policy), result, r.Result.Reason)
	}
}

// recorder writes the results of rehearsals.
type recorder struct{ service *Service }

func (w recorder) Recorded(ctx context.Context, id v1alpha1.RecordedIdentity) (string, error) {
	return w.service.holder(ctx, id)
}

func (w recorder) Rehearse(ctx context.Context, r rehearsal.Result) (end rehearsal.Recorded, err error) {
	in := record.Rehearsal{
		Machine: r.Machine, TicketSHA256: r.TicketSHA256, Pool: audit.Clean(r.Pool),
		AgentVersion: audit.Clean(r.AgentVersion), Denial: r.Denial, Proven: r.Proven, Unnamed: true,
	}
	for _, text := range r.Warnings {
		in.Warnings = append(in.Warnings, audit.Clean(text))
	}
	// If the client disconnects, its result must still be recorded.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	if v := r.Verdict; v != nil && v.Machine != nil {
		if err := w.service.afterwards(ctx, v, r.Pool); err != nil {
			in.Denial = reason.From(err)
			switch in.Denial.Code {
			case reason.IdentityConflict, reason.NodeNameUnknown, reason.EvidenceMissing:
			default:
				return end, err // it says nothing about the machine
			}
		}
		in.Identity, in.Endorsement, in.TPM, in.Replayable = v.Identity, v.Endorsement, v.TPM, v.Replayable
		in.Unnamed = false
	}
	now := w.service.Now()
	err = w.service.Records.Update(ctx, r.Machine.UID,
		func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
			next, err := record.Rehearse(rec, in, now)
			if err != nil {
				return nil, err
			}
			end = rehearsal.Recorded{RehearsalStatus: *next.Status.Rehearsal}
			if c := meta.FindStatusCondition(next.Status.Conditions, v1alpha1.ConditionRehearsed); !end.Passed {
				end.Explanation = c.Message
			}
			return next, nil
		})
	return end, err
}

// afterwards returns what would stop a machine whose evidence was accepted, or nil: another Machine has a component of
// its identity, or it would wait for its node's certificate or never get it. It does not name the other Machine.
func (s *Service) afterwards(ctx context.Context, v *appraisal.Verdict, pool string) error {
	m, current := v.Machine, s.View()
	for _, component := range components(v.Identity) {
		switch uid, err := s.Records.Holder(ctx, component); {
		case err != nil:
			return err
		case uid == "" || uid == m.UID || m.Mirror != nil && uid == m.Mirror.UID || !current.Alive(uid):
		case !current.Machines.Known(uid):
			return reason.Deny(reason.StoreUnavailable, "an object or a file cannot be read, and a Machine with the identity "+
				"component %s may be in it or not", component)
		default:
			return reason.Deny(reason.IdentityConflict, "another Machine has the identity component %s", component)
		}
	}
	if s.NodeNames == nil || s.NodeCertificate != mcsattestv1.NodeCertificate_NODE_CERTIFICATE_REQUIRED {
		return nil
	}
	p, err := s.View().Policies.For(pool)
	if err != nil || p.Mode != v1alpha1.ModeEnforce {
		return err
	}
	if v.Replayable {
		return unprovenKey()
	}
	names, err := s.NodeNames(ctx, m.UID)
	if err == nil && len(names) == 0 {
		err = reason.Deny(reason.NodeNameUnknown, "the Machine has no InternalDNS address")
	}
	return err
}
