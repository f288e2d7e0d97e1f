// SPDX-License-Identifier: Apache-2.0

package backend

import (
	"log/slog"
	"net/http"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/policy"
	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
	"github.com/mcs-attest/mcs-attest/verifier/internal/audit"
	"github.com/mcs-attest/mcs-attest/verifier/internal/clouds"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/listen"
	"github.com/mcs-attest/mcs-attest/verifier/internal/metrics"
)

// Parts has what the server and its backend share.
type Parts struct {
	Config       *config.Config
	Version      string
	Log          *slog.Logger
	Now          func() time.Time
	Metrics      *metrics.Metrics
	Certificates *listen.Certificates
	Audit        *audit.Log
	Clouds       *clouds.Clouds // nil in a process that does not serve machines

	// Transport, if set, sends the requests to the API server and the Machine Config Server instead of the network.
	// Only tests set it.
	Transport http.RoundTripper
	// FreeMemory is called once, when the first lists were read. They leave more garbage than any later operation.
	FreeMemory func()

	// Page is the web page; nil unless the configuration asks for it. A backend whose operators' listener cannot
	// authenticate its readers serves it itself.
	Page http.Handler

	absence atomic.Pointer[string] // the last report about an absent provisioning token
}

// NewParts creates the parts, without Clouds.
func NewParts(c *config.Config, log *slog.Logger, now func() time.Time, version string) *Parts {
	p := &Parts{
		Config: c, Version: version, Log: log, Now: now, Metrics: metrics.New(), Certificates: &listen.Certificates{},
		Audit: audit.New(log), FreeMemory: debug.FreeOSMemory,
	}
	p.Audit.LeftOut = p.Metrics.AuditLeftOut
	return p
}

// TokenAbsence describes the absence of a provisioning token that a policy lists. It returns "" if no
// token is missing.
func TokenAbsence(now time.Time, policies *policy.Set, view provisioning.View) string {
	if _, presence := view.At(now); presence != provisioning.Absent {
		return ""
	}
	return policies.WithoutProvisioningToken()
}

// ReportAbsence logs the result of TokenAbsence after each change.
func (p *Parts) ReportAbsence(policies *policy.Set, view provisioning.View) {
	text := TokenAbsence(p.Now(), policies, view)
	if last := p.absence.Swap(&text); last != nil && *last == text || last == nil && text == "" {
		return
	}
	if text != "" {
		p.Log.Error("provisioning token", "problem", text)
	}
}
