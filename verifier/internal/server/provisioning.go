// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"net/http"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/gate"
	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/verifier/internal/listen"
)

// The rates at which wrong provisioning tokens receive a permanent denial: per second and source, and
// in total. Above the rate the denial is temporary, which delays only the client that guesses.
const (
	wrongPerSource      = 1
	WrongPerSourceBurst = 20
	wrongInAll          = 50
	wrongInAllBurst     = 500
)

// provisioningGate returns the gate's access to the provisioning token.
func (s *Server) provisioningGate() gate.Provisioning {
	right := listen.NewLimiter(s.Config.RequestsPerSecond)
	wrong := listen.NewLimiterWithBurst(wrongPerSource, WrongPerSourceBurst)
	all := rate.NewLimiter(wrongInAll, wrongInAllBurst)
	return gate.Provisioning{
		View:    s.Provisioning,
		Confirm: s.confirmProvisioning(),
		Admit: func(r *http.Request) error {
			if source := s.source(r); !right.Allow(s.Now(), source) {
				return reason.Deny(reason.RateLimited, "source %s", source)
			}
			return nil
		},
		Wrong: func(r *http.Request) error {
			now, source := s.Now(), s.source(r)
			if !wrong.Allow(now, source) {
				return reason.Deny(reason.RateLimited, "wrong provisioning tokens from source %s", source)
			}
			if !all.AllowN(now, 1) {
				return reason.Deny(reason.RateLimited, "wrong provisioning tokens from all sources")
			}
			return nil
		},
	}
}

const (
	// confirmEvery is the minimum time between two reads of the token, for all callers together.
	confirmEvery = time.Second
	// confirmTime is the timeout of such a read.
	confirmTime = 3 * time.Second
)

// confirmProvisioning returns a function that reads the token again, at most once a second for all
// callers together. It returns nil if the token is not cached.
func (s *Server) confirmProvisioning() func(context.Context) (provisioning.View, error) {
	read := s.Live().Provisioning
	if read == nil {
		return nil
	}
	var (
		mu   sync.Mutex
		last time.Time
		view provisioning.View
		err  error
	)
	return func(ctx context.Context) (provisioning.View, error) {
		mu.Lock()
		defer mu.Unlock()
		if now := s.Now(); last.IsZero() || now.Sub(last) >= confirmEvery {
			// Several callers wait for the answer, so it does not end with the context of the first.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), confirmTime)
			defer cancel()
			view, err = read(ctx)
			last = s.Now()
		}
		return view, err
	}
}

// observeProvisioning counts by which token a config was served, and reports an absent token.
func (s *Server) observeProvisioning(d gate.Decision) {
	if d.Outcome == "allowed" || d.Outcome == "would-deny" {
		credential := "none"
		switch {
		case d.Outcome == "allowed" && d.Claims != nil:
			credential = "attestation"
		case d.Outcome == "allowed" && d.Provisioning == provisioning.Current:
			credential = evidence.ProvisioningToken.String()
		case d.Outcome == "allowed" && d.Provisioning == provisioning.Previous:
			credential = evidence.ProvisioningToken.String() + "-previous"
		}
		s.Metrics.Served(d.Label, credential)
	}
	if d.Unenforced || d.Denial != nil && d.Denial.Code == reason.StoreUnavailable {
		s.ReportAbsence(s.View().Policies, s.Provisioning())
	}
}
