// SPDX-License-Identifier: Apache-2.0

// Package metrics has the verifier's metrics for Prometheus. No value of a label comes from a machine
// that attests: pools are those of the policies, reasons and kinds are closed sets, and the number of
// nodes is limited.
package metrics

import (
	"cmp"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"

	"github.com/mcs-attest/mcs-attest/verifier/internal/trust"
)

// Metrics has the verifier's metrics and their own registry.
type Metrics struct {
	registry    *prometheus.Registry
	decisions   *prometheus.CounterVec
	configs     *prometheus.CounterVec
	duration    *prometheus.HistogramVec
	expiry      *prometheus.GaugeVec
	problems    prometheus.Gauge
	objects     *prometheus.GaugeVec
	reports     *prometheus.CounterVec
	lastRefresh prometheus.Gauge
	apiCalls    *prometheus.CounterVec
	dropped     prometheus.Counter
	providers   *prometheus.CounterVec
	leftOut     prometheus.Counter
	doors       *prometheus.GaugeVec
	mismatches  prometheus.Gauge
	degraded    *prometheus.GaugeVec
	rehearsals  *prometheus.CounterVec
}

// New registers the metrics.
func New() *Metrics {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	create := promauto.With(registry)
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return create.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return create.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	}
	return &Metrics{
		registry: registry,
		decisions: counter("mcs_attest_decisions_total",
			"Decisions by event (challenge, attest, certify, fetch, report, rehearse-challenge, rehearse), pool, "+
				"outcome and reason.", "event", "pool", "outcome", "reason"),
		configs: counter("mcs_attest_configs_served_total",
			"Answers with a config by pool and by what opened the gate (none, attestation, provisioning-token, "+
				"provisioning-token-previous).", "pool", "credential"),
		duration: create.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "mcs_attest_duration_seconds",
			Help:    "Time to a decision by event.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10},
		}, []string{"event"}),
		expiry: gauge("mcs_attest_expiry_timestamp_seconds",
			"When a certificate or trust anchor expires, soonest of its set (Unix time).", "set"),
		problems: gauge("mcs_attest_folder_problems",
			"Files that do not parse; their last good state is in use.").WithLabelValues(),
		objects: gauge("mcs_attest_objects", "Objects known by kind.", "kind"),
		reports: counter("mcs_attest_failure_reports_total",
			"Failure reports by whether they carried a valid ticket.", "ticket"),
		lastRefresh: gauge("mcs_attest_folder_read_timestamp_seconds",
			"When the folder was last read (Unix time).").WithLabelValues(),
		apiCalls: counter("mcs_attest_api_calls_total",
			"Calls of the Kubernetes API for records, by verb and resource.", "verb", "resource"),
		dropped: counter("mcs_attest_events_dropped_total",
			"Kubernetes Events that were not sent: too many, or the API is unavailable.").WithLabelValues(),
		providers: counter("mcs_attest_provider_calls_total",
			"Calls of a cloud's API, by provider, operation and outcome (ok, denied, error).",
			"provider", "operation", "outcome"),
		doors: gauge("mcs_attest_door",
			"Whether a port of the Machine Config Server on a control-plane node is in a state, as this replica observes "+
				"it: closed (only the gate answers), open, or unknown.", "node", "port", "state"),
		mismatches: gauge("mcs_attest_node_role_mismatches",
			"Nodes with a control-plane role that their pool does not have. 0 on replicas that do not lead.").
			WithLabelValues(),
		degraded: gauge("mcs_attest_degraded",
			"1 for each reason of the condition Degraded. None on replicas that do not lead.", "reason"),
		leftOut: counter("mcs_attest_audit_left_out_total",
			"Lines of the audit log that were omitted because their source had used up its share.").WithLabelValues(),
		rehearsals: counter("mcs_attest_rehearsals_total",
			"Results of rehearsals by pool, result (would-pass, would-fail) and reason.", "pool", "result", "reason"),
	}
}

// Registerer returns a registerer for a part that has its own metrics.
func (m *Metrics) Registerer() prometheus.Registerer { return m.registry }

// Decision counts a decision. pool must be a pool that a policy names, or "".
func (m *Metrics) Decision(event, pool, outcome, reason string, took time.Duration) {
	m.decisions.WithLabelValues(event, pool, outcome, reason).Inc()
	m.duration.WithLabelValues(event).Observe(took.Seconds())
}

// Served counts an answer with a config. credential must be from a closed set.
func (m *Metrics) Served(pool, credential string) {
	m.configs.WithLabelValues(pool, credential).Inc()
}

// Rehearsal counts the result of a rehearsal. pool must be a pool that a policy names, or "".
func (m *Metrics) Rehearsal(pool, result, reason string) {
	m.rehearsals.WithLabelValues(pool, result, reason).Inc()
}

// Report counts a failure report.
func (m *Metrics) Report(validTicket bool) {
	label := "invalid"
	if validTicket {
		label = "valid"
	}
	m.reports.WithLabelValues(label).Inc()
}

// Expiry sets when the first certificate of a set expires. The zero time means that this replica no
// longer reports the set.
func (m *Metrics) Expiry(set string, at time.Time) {
	if at.IsZero() {
		m.expiry.DeleteLabelValues(set)
		return
	}
	m.expiry.WithLabelValues(set).Set(float64(at.Unix()))
}

// Expiries returns when the soonest of each set of certificates expires.
func (m *Metrics) Expiries() map[string]time.Time {
	all := map[string]time.Time{}
	for _, one := range read(m.expiry) {
		all[one.labels["set"]] = time.Unix(int64(one.value), 0)
	}
	return all
}

// Door is the state of a port of a control-plane node, as [Metrics.Door] reported it.
type Door struct{ Node, Port, State string }

// Doors returns the state of each port, sorted.
func (m *Metrics) Doors() []Door {
	var all []Door
	for _, one := range read(m.doors) {
		if one.value == 1 {
			all = append(all, Door{one.labels["node"], one.labels["port"], one.labels["state"]})
		}
	}
	slices.SortFunc(all, func(a, b Door) int { return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Port, b.Port)) })
	return all
}

// sample is one value of a gauge.
type sample struct {
	labels map[string]string
	value  float64
}

// read returns the values of gauges.
func read(g *prometheus.GaugeVec) []sample {
	found := make(chan prometheus.Metric)
	go func() {
		defer close(found)
		g.Collect(found)
	}()
	var all []sample
	for one := range found {
		var m dto.Metric
		if one.Write(&m) != nil {
			continue
		}
		s := sample{map[string]string{}, m.GetGauge().GetValue()}
		for _, l := range m.GetLabel() {
			s.labels[l.GetName()] = l.GetValue()
		}
		all = append(all, s)
	}
	return all
}

// Folder sets the result of the last read of the folder.
func (m *Metrics) Folder(now time.Time, problems int, objects map[string]int) {
	m.lastRefresh.Set(float64(now.Unix()))
	m.problems.Set(float64(problems))
	for kind, n := range objects {
		m.objects.WithLabelValues(kind).Set(float64(n))
	}
}

// APICall counts a call of the Kubernetes API for a record.
func (m *Metrics) APICall(verb, resource string) { m.apiCalls.WithLabelValues(verb, resource).Inc() }

// ProviderCall counts a call of a cloud's API.
func (m *Metrics) ProviderCall(provider, operation, outcome string) {
	m.providers.WithLabelValues(provider, operation, outcome).Inc()
}

// Trust sets the number of anchors of each set, and when the next one expires.
func (m *Metrics) Trust(t *trust.Trust, now time.Time) {
	for section, n := range t.Count() {
		m.objects.WithLabelValues(string(section)).Set(float64(n))
	}
	ends := t.NotAfter(now)
	for section := range trust.Sections {
		if at, ok := ends[section]; ok {
			m.Expiry(string(section), at)
		} else {
			m.expiry.DeleteLabelValues(string(section))
		}
	}
}

// EventsDropped counts an Event that was not sent.
func (m *Metrics) EventsDropped() { m.dropped.Inc() }

// RoleMismatches sets the number of Nodes with a role that their pool does not have.
func (m *Metrics) RoleMismatches(n int) { m.mismatches.Set(float64(n)) }

// Degraded sets whether a reason of the condition Degraded exists.
func (m *Metrics) Degraded(reason string, exists bool) {
	if exists {
		m.degraded.WithLabelValues(reason).Set(1)
	} else {
		m.degraded.DeleteLabelValues(reason)
	}
}

// Rehearsals registers the metrics of the machines' last rehearsals. Read returns how many of these failed, and the
// time of the oldest, which is zero if no machine has rehearsed. Each scrape calls it.
func (m *Metrics) Rehearsals(read func() (failed int, oldest time.Time)) {
	m.registry.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "mcs_attest_rehearsals_failed",
			Help: "Machines whose last rehearsal failed.",
		}, func() float64 {
			failed, _ := read()
			return float64(failed)
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "mcs_attest_rehearsal_oldest_timestamp_seconds",
			Help: "Time of the oldest of the machines' last rehearsals (Unix time). 0 if no machine has rehearsed.",
		}, func() float64 {
			_, oldest := read()
			if oldest.IsZero() {
				return 0
			}
			return float64(oldest.Unix())
		}))
}

// Door sets the state of a port, one of states.
func (m *Metrics) Door(node, port, state string, states []string) {
	for _, one := range states {
		value := 0.0
		if one == state {
			value = 1
		}
		m.doors.WithLabelValues(node, port, one).Set(value)
	}
}

// NoDoor deletes the metrics of a Node.
func (m *Metrics) NoDoor(node string) { m.doors.DeletePartialMatch(prometheus.Labels{"node": node}) }

// AuditLeftOut counts an omitted line of the audit log.
func (m *Metrics) AuditLeftOut() { m.leftOut.Inc() }

// Handler serves /metrics, with the metrics of other registries.
func (m *Metrics) Handler(more ...prometheus.Gatherer) http.Handler {
	all := append(prometheus.Gatherers{m.registry}, more...)
	return promhttp.HandlerFor(all, promhttp.HandlerOpts{MaxRequestsInFlight: 4})
}
