// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"

	"github.com/mcs-attest/mcs-attest/verifier/internal/audit"
)

const (
	// denialsSince and maxLines bound what is read of each log.
	denialsSince = time.Hour
	maxLines     = 5000
	// front selects the pods that serve machines.
	front = "app.kubernetes.io/name=mcs-attest-verifier"
)

// Denials returns the latest denials in the audit logs of the verifiers, the newest first. An administrator needs
// no permission of the verifiers to read them, and logs outlast a restart. With an error, which may concern only one
// of the logs, it returns the denials in the others.
func (c *Cluster) Denials(ctx context.Context) ([]audit.Denial, error) {
	var recent audit.Recent
	var unread error
	err := c.each(ctx, pods, c.o.Own, metav1.ListOptions{LabelSelector: front}, func(o *unstructured.Unstructured) error {
		raw, err := c.core.Pods(c.o.Own).GetLogs(o.GetName(), &corev1.PodLogOptions{LimitBytes: ptr.To[int64](maxLog),
			SinceSeconds: ptr.To(int64(denialsSince.Seconds())), TailLines: ptr.To[int64](maxLines)}).DoRaw(ctx)
		if err != nil {
			// A pod may have just started, or its Node may be gone.
			unread = cmp.Or(unread, fmt.Errorf("the log of pod %s: %w", o.GetName(), c.failed("get", podLogs, c.o.Own, err)))
			return nil
		}
		for line := range bytes.Lines(raw) {
			if d, ok := auditLine(line); ok {
				recent.Merge(d)
			}
		}
		return nil
	})
	return recent.List(), cmp.Or(err, unread)
}

// auditLine reads a denial of the audit log. Other lines, and lines in another form, are none.
func auditLine(line []byte) (audit.Denial, bool) {
	var in struct {
		Time          time.Time `json:"time"`
		Log           string    `json:"log"`
		CorrelationID string    `json:"correlation_id"`
		Event         string    `json:"event"`
		Outcome       string    `json:"outcome"`
		Reason        string    `json:"reason"`
		Temporary     bool      `json:"temporary"`
		Detail        string    `json:"detail"`
		Source        string    `json:"source"`
		Pool          string    `json:"pool"`
		Machine       string    `json:"machine"`
		EK            string    `json:"ek"`
	}
	if json.Unmarshal(line, &in) != nil || in.Log != "audit" || in.Reason == "" {
		return audit.Denial{}, false
	}
	return audit.Denial{
		Event: in.Event, Outcome: in.Outcome, Reason: in.Reason, Temporary: in.Temporary, Detail: audit.Clean(in.Detail),
		Source: audit.Clean(in.Source), Pool: audit.Clean(in.Pool), Machine: audit.Clean(in.Machine),
		EKSHA256: audit.Clean(in.EK), First: in.Time, Last: in.Time, Count: 1, CorrelationIDs: []string{in.CorrelationID},
	}, true
}
