// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/mcs-attest/mcs-attest/pkg/approver"
	"github.com/mcs-attest/mcs-attest/verifier/internal/audit"
	"github.com/mcs-attest/mcs-attest/verifier/internal/view"
)

// scanUntil periodically checks conditions that no request triggers, until ctx ends. A replica that
// does not run the controllers has no findings.
func (r *reconciler) scanUntil(ctx context.Context) error {
	defer r.reset()
	off := false
	wait.UntilWithContext(ctx, func(ctx context.Context) { off = r.scan(ctx, off) }, r.o.Scan)
	return nil
}

func (c *Controllers) reset() {
	c.metrics.pending.Set(0)
	c.metrics.limit.Set(0)
	c.metrics.stock.Set(0)
	c.findings.clear()
}

// cacheTimeout bounds how long a scan waits for requests that cannot be listed.
const cacheTimeout = time.Second

// scan checks the number of pending requests, the switch for client certificates and the stock
// approver. wasOff is the result of the scan before: whether the switch disables client
// certificates. If that has ended, scan triggers a decision of every waiting request. It also triggers one of
// each request whose machine was unknown and now is known.
func (r *reconciler) scan(ctx context.Context, wasOff bool) (off bool) {
	var crowd, unread, stock, unknown string
	machines, nodes := r.o.Machines.Counts()
	limit := approver.Load{Machines: machines, Nodes: nodes}.Limit()
	call, cancel := context.WithTimeout(ctx, cacheTimeout)
	pending, _ := r.reader.Pending(call) // requests that cannot be read have a separate finding
	cancel()
	if pending > limit {
		crowd = fmt.Sprintf("%d certificate signing requests are pending, more than %d; "+
			"requests without a machine's own credential are left for a human", pending, limit)
	}
	call, cancel = context.WithTimeout(ctx, r.o.Timeout)
	defer cancel()
	off, err := r.reader.Switch(call)
	if err != nil {
		off, unread = true, "the switch for client certificates cannot be read: "+err.Error()
		if r.rules.Attestation {
			unread += "; none is approved in the meantime"
		}
	}
	if wasOff && !off {
		r.wakeAll(call)
	}
	r.wakeKnown(call)
	if r.rules.Attestation {
		name, err := r.reader.StockApprover(call)
		if err != nil {
			unknown = "it is unknown whether the stock approver also approves client certificates: " + err.Error()
		} else if name != "" {
			stock = fmt.Sprintf("%s approves client certificates without attestation; set nodeClientCert.disabled: true in %s",
				name, r.o.Config.StockConfigMap)
		}
	}
	if ctx.Err() != nil {
		return off
	}
	r.metrics.pending.Set(float64(pending))
	r.metrics.limit.Set(float64(limit))
	active := r.findings.set(crowd, unread, stock, unknown, r.o.Now())
	r.metrics.stock.Set(map[bool]float64{true: 1}[active])
	return off
}

// wakeAll requests an immediate decision of every waiting request for a client certificate, which may
// be in a long pause.
func (r *reconciler) wakeAll(ctx context.Context) {
	all, err := r.index.list(ctx, approver.KeyClient)
	if err != nil {
		r.o.Log.Debug("waiting certificate signing requests cannot be listed", "error", err)
	}
	for i := range all {
		if !r.wakeOne(ctx, all[i]) {
			return
		}
	}
}

// wakeKnown requests a decision of each request whose machine became known since it was evaluated.
func (r *reconciler) wakeKnown(ctx context.Context) {
	r.unknown.Range(func(key, value any) bool {
		name, _ := key.(string)
		credential, _ := value.(string)
		if _, ok := r.o.Machines.ByCredential(credential); !ok {
			return true
		}
		r.unknown.Delete(name)
		return r.wakeOne(ctx, &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: name}})
	})
}

// wakeOne requests a decision of a request. It returns false if ctx ended.
func (r *reconciler) wakeOne(ctx context.Context, csr *certificatesv1.CertificateSigningRequest) bool {
	select {
	case r.wake <- event.GenericEvent{Object: csr}:
		return true
	case <-ctx.Done():
		return false
	}
}

// failedRecently is how long a failed watch stays a finding. A watch that keeps failing reports
// each failure.
const failedRecently = 2 * time.Minute

// byHand is the reason of the condition Approved that kubectl writes.
const byHand = "KubectlApprove"

// remembered is how long an approval by another approver stays a finding.
const remembered = time.Hour

// findings has the problems for an administrator. It is safe for concurrent use.
type findings struct {
	log *slog.Logger

	mu                                      sync.Mutex
	stock, unknown, watching, unread, crowd string
	failedAt                                time.Time // when a watch last failed
	// The last approval by another approver.
	request, by string
	at          time.Time
}

// Findings returns the problems for an administrator, while the controllers run.
func (c *Controllers) Findings() (all []view.Finding) {
	f := &c.findings
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, finding := range []view.Finding{
		{Reason: "StockApproverActive", Text: f.stock},
		{Reason: "StockApproverUnknown", Text: f.unknown},
		{Reason: "RequestsUnreadable", Text: f.watching},
		{Reason: "ApproverSwitchUnreadable", Text: f.unread},
		{Reason: "TooManyRequests", Text: f.crowd},
	} {
		if finding.Text != "" {
			all = append(all, finding)
		}
	}
	return all
}

// WatchFailed receives the errors of the manager's watches.
func (c *Controllers) WatchFailed(ctx context.Context, r *cache.Reflector, err error) {
	ours := strings.HasSuffix(r.TypeDescription(), "CertificateSigningRequest")
	if !ours || ctx.Err() != nil || kerrors.IsResourceExpired(err) || kerrors.IsGone(err) {
		return
	}
	f := &c.findings
	f.mu.Lock()
	defer f.mu.Unlock()
	f.note(&f.watching, fmt.Sprintf("certificate signing requests cannot be watched: %v", err))
	f.failedAt = time.Now()
}

// approvedElsewhere records an approval by another approver as a finding, because that approver
// requires no attestation. An approval by an administrator with kubectl is not a finding.
func (f *findings) approvedElsewhere(request string, c *certificatesv1.CertificateSigningRequestCondition) {
	if c.Reason == byHand {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if at := c.LastTransitionTime.Time; at.After(f.at) {
		f.request, f.by, f.at = request, audit.Clean(c.Reason), at
	}
}

// set stores the result of a scan. It reports whether another approver also approves requests.
func (f *findings) set(crowd, unread, stock, unknown string, now time.Time) (active bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if stock == "" && !f.at.IsZero() && now.Sub(f.at) < remembered {
		stock = fmt.Sprintf("request %s for a client certificate was approved by another approver (reason %q) at %s, "+
			"without attestation; identify that approver and disable it", f.request, f.by, f.at.UTC().Format(time.RFC3339))
	}
	if time.Since(f.failedAt) > failedRecently {
		f.note(&f.watching, "")
	}
	f.note(&f.crowd, crowd)
	f.note(&f.unread, unread)
	f.note(&f.stock, stock)
	f.note(&f.unknown, unknown)
	return stock != ""
}

// note logs a finding that has changed. The caller holds the lock.
func (f *findings) note(was *string, is string) {
	if *was != is && is != "" {
		f.log.Warn("certificate signing requests", "finding", is)
	}
	*was = is
}

func (f *findings) clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stock, f.unknown, f.watching, f.unread, f.crowd = "", "", "", "", ""
	f.request, f.by, f.at = "", "", time.Time{}
}
