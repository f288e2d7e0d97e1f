// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"cmp"
	"context"
	"log/slog"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/mcs-attest/mcs-attest/pkg/approver"
	"github.com/mcs-attest/mcs-attest/verifier/internal/audit"
	"github.com/mcs-attest/mcs-attest/verifier/internal/listen"
)

// report counts a decision, and writes an audit line if the outcome is new.
func (r *reconciler) report(ctx context.Context, csr *certificatesv1.CertificateSigningRequest, d *approver.Decision) {
	code := ""
	if d.Denial != nil {
		code = d.Denial.Code.String()
	}
	outcome := strings.ToLower(string(d.Outcome))
	r.metrics.decisions.WithLabelValues(label(d.Kind), outcome, code).Inc()
	if d.Outcome == approver.Ignore {
		return
	}
	if last, _ := r.reported.Swap(csr.Name, outcome+code); last == outcome+code {
		return
	}
	name := ""
	if d.Machine != nil {
		name = d.Machine.String()
	}
	extra := []slog.Attr{
		slog.String("kind", label(d.Kind)), slog.String("request", csr.Name), slog.String("node", audit.Clean(d.Node)),
		slog.String("requester", audit.Clean(csr.Spec.Username)), slog.String("credential_id", audit.Clean(d.CredentialID)),
		slog.String("public_key_sha256", d.PublicKeySHA256),
	}
	if len(d.Superseded) > 0 {
		extra = append(extra, slog.String("supersedes", audit.Clean(strings.Join(d.Superseded, " "))))
	}
	r.audit.Write(ctx, audit.Decision{
		Event: "csr", Outcome: outcome, Denial: d.Denial, CorrelationID: string(csr.UID), Machine: name,
		Proven: d.Outcome == approver.Approve || d.Proven && r.writes.Allow(time.Now(), "log:"+d.RecordUID),
		Extra:  extra,
	})
}

func label(k approver.Kind) string { return cmp.Or(strings.ToLower(string(k)), "none") }

// newBudget limits the audit lines and the writes to the record for each machine, because a client with
// the machine's credential can create any number of requests.
func newBudget() *listen.KeyedLimiter[string] {
	return listen.NewKeyedLimiter[string](1/refusalsEvery.Seconds(), refusalsBurst)
}

const (
	refusalsEvery = time.Minute
	refusalsBurst = 10
)
