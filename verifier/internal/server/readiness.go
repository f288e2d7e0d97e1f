// SPDX-License-Identifier: Apache-2.0

package server

import (
	"crypto/rand"
	"fmt"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mcs-attest/mcs-attest/pkg/seal"
)

// checks returns the names of the parts of readiness. A problem has the form "part: text".
func (s *Server) checks() []string {
	all := append([]string{"records", "serving certificate"}, s.Checks()...)
	all = append(all, "policies", "token keys", "sealing keys", "shutdown")
	if s.Config.Upstream != "" {
		all = append(all, "upstream")
	}
	return all
}

// Problems returns why the verifier cannot serve a machine now. It makes no call, so any client may
// cause it.
func (s *Server) Problems() []string {
	now := s.Now()
	problems := s.Unready(now)
	if len(s.View().Policies.Pools()) == 0 {
		problems = append(problems, "policies: no policy covers any pool")
	}
	if _, ok := s.TokenKeys().Current(now); !ok {
		problems = append(problems, "token keys: no key is valid for signing now")
	}
	if _, err := s.SealKeys().SealTicket(rand.Reader, now, seal.Ticket{}); err != nil {
		problems = append(problems, "sealing keys: "+err.Error())
	}
	if s.stopping != nil && s.stopping() {
		problems = append(problems, "shutdown: the verifier stops")
	}
	if problem := s.upstreamProbe.problem(); problem != "" {
		problems = append(problems, "upstream: "+problem)
	}
	return problems
}

// readyz answers as the API server does: "?verbose" lists every check.
func (o *operators) readyz(w http.ResponseWriter, r *http.Request) {
	problems := o.problems()
	if len(problems) > 0 {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	if !r.URL.Query().Has("verbose") {
		for _, p := range problems {
			fmt.Fprintln(w, p)
		}
		if len(problems) == 0 {
			fmt.Fprintln(w, "ready")
		}
		return
	}
	failed := map[string]bool{}
	for _, p := range problems {
		name, _, _ := strings.Cut(p, ": ")
		failed[name] = true
	}
	for _, name := range o.checks() {
		if !failed[name] {
			fmt.Fprintf(w, "[+]%s ok\n", name)
		}
	}
	for _, p := range problems {
		name, what, _ := strings.Cut(p, ": ")
		fmt.Fprintf(w, "[-]%s failed: %s\n", name, what)
	}
	result := "passed"
	if len(problems) > 0 {
		result = "failed"
	}
	fmt.Fprintf(w, "readyz check %s\n", result)
}

// readyGauge is the metric of /readyz.
func (s *Server) readyGauge() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "mcs_attest_ready",
		Help: "Whether this replica could serve a machine now: 1 or 0. /readyz?verbose says what is wrong.",
	}, func() float64 {
		if len(s.Problems()) > 0 {
			return 0
		}
		return 1
	})
}
