// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"context"
	"log/slog"
	"slices"
	"testing"

	dto "github.com/prometheus/client_model/go"
	appsv1 "k8s.io/api/apps/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/approval"
)

// noDeployments is an API that does not answer for Deployments.
type noDeployments struct{ client.Reader }

func (a noDeployments) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if _, ok := o.(*appsv1.Deployment); ok {
		return kerrors.NewServiceUnavailable("test")
	}
	return a.Reader.Get(ctx, key, o, opts...)
}

// McsAttestDegraded leaves out StockApproverActive, because the metric of an active stock approver has an alert of its
// own. So the reason for an unknown one is another.
func TestScan_AnUnknownStockApproverIsNotAnActiveOne(t *testing.T) {
	known := new(late)
	r := overAPI(t, known, slog.New(slog.DiscardHandler))
	over := func(api client.Reader) {
		r.reader = approval.NewReader(approval.Options{
			Client: api, Config: r.o.Config, Rules: r.rules, Machines: known, Records: known, Namespaces: []string{"ns"},
			Waiting: func(context.Context, string) ([]*certificatesv1.CertificateSigningRequest, error) { return nil, nil },
		})
	}
	finds := func(when string, metric float64, reasons ...string) {
		t.Helper()
		r.scan(t.Context(), false)
		var got []string
		for _, f := range r.Findings() {
			got = append(got, f.Reason)
		}
		var stock dto.Metric
		if err := r.metrics.stock.Write(&stock); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, reasons) || stock.GetGauge().GetValue() != metric {
			t.Errorf("%s: %q, and the metric is %v", when, got, stock.GetGauge().GetValue())
		}
	}
	over(noDeployments{r.client})
	finds("the Deployment cannot be read", 0, "StockApproverUnknown")
	r.findings.approvedElsewhere("csr-1", &certificatesv1.CertificateSigningRequestCondition{
		Reason: "NodeCSRApprove", LastTransitionTime: metav1.Now(),
	})
	finds("another approver approved a request", 1, "StockApproverActive", "StockApproverUnknown")
	over(r.client)
	finds("it is known that none is active", 1, "StockApproverActive")
}
