// SPDX-License-Identifier: Apache-2.0

package csr

import "github.com/prometheus/client_golang/prometheus"

// metrics are the metrics of the approver. No value of a label comes from a request.
type metrics struct {
	decisions *prometheus.CounterVec
	pending   prometheus.Gauge
	limit     prometheus.Gauge
	stock     prometheus.Gauge
	duration  *prometheus.HistogramVec
}

func newMetrics() metrics {
	return metrics{
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "mcs_attest_csr_decisions_total",
			Help: "Decisions about kubelets' certificate signing requests by kind (client, serving), " +
				"outcome (approve, retry, refuse, deny, ignore) and reason.",
		}, []string{"kind", "outcome", "reason"}),
		pending: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "mcs_attest_csr_pending",
			Help: "Kubelets' certificate signing requests of the last hour that are still pending. " +
				"On the replica that decides; 0 on others.",
		}),
		limit: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "mcs_attest_csr_pending_limit",
			Help: "The number of pending requests above which those without a machine's own credential wait for a human. " +
				"On the replica that decides; 0 on others.",
		}),
		stock: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "mcs_attest_csr_stock_approver",
			Help: "1 while the cluster's own machine approver also approves client certificates, " +
				"or another approver did within the last hour, so that attestation has no effect.",
		}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "mcs_attest_csr_decision_seconds",
			Help:    "Time to a decision about a certificate signing request, by kind.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}, []string{"kind"}),
	}
}

// Register registers the metrics of the controllers.
func (c *Controllers) Register(r prometheus.Registerer) error {
	m := c.metrics
	for _, collector := range []prometheus.Collector{m.decisions, m.pending, m.limit, m.stock, m.duration} {
		if err := r.Register(collector); err != nil {
			return err
		}
	}
	return nil
}
