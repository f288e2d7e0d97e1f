// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"log/slog"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/record"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
	"github.com/mcs-attest/mcs-attest/verifier/internal/audit"
)

// The maximum lengths of a report's texts (ReportRequest of the contract).
const (
	maxUnit    = 128
	maxResult  = 32
	maxMessage = 4 << 10
)

func (s *Service) report(ctx context.Context, c *call, req *mcsattestv1.ReportRequest) error {
	if len(req.GetUnit()) > maxUnit || len(req.GetResult()) > maxResult || len(req.GetMessage()) > maxMessage ||
		len(req.GetBootId()) > 64 {
		return reason.Deny(reason.TooLarge, "report of %d bytes", len(req.GetMessage()))
	}
	ticket, err := s.SealKeys().OpenTicket(c.start, req.GetTicket())
	s.ObserveTicket(err == nil)
	if err != nil {
		return err
	}
	r := v1alpha1.FailureReport{
		Unit: audit.Clean(req.GetUnit()), Result: audit.Clean(req.GetResult()), ExitStatus: req.GetExitStatus(),
		Message: lines(req.GetMessage()),
	}
	c.yield()
	// A machine that fails reboots, so the report is written even if the client has disconnected.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	return s.Records.Update(ctx, ticket.MachineUID,
		func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
			next, err := record.Report(rec, ticket.ID, r, c.id, c.start)
			if err == nil {
				c.proven, c.machine, c.pool = true, machineOf(next), next.Status.Pool
				c.extra = []slog.Attr{slog.String("unit", r.Unit), slog.String("result", r.Result)}
			}
			return next, err
		})
}

// machineOf returns the name of the Machine of a record. In a cluster, a record is named by its
// Machine's UID.
func machineOf(rec *v1alpha1.MachineAttestation) string {
	if ref := rec.Spec.MachineRef; ref != nil && ref.Namespace != "" {
		return ref.Namespace + "/" + ref.Name
	}
	return rec.Namespace + "/" + rec.Name
}
