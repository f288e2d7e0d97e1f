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

// How often wrong provisioning tokens are answered with a final no: per second
// and source, and by everyone together. Beyond that they are told to come later,
// which costs the guesser's own requests and nobody else's.
const (
	wrongPerSource      = 1
	WrongPerSourceBurst = 20
	wrongInAll          = 50
	wrongInAllBurst     = 500
)

// provisioningGate is the provisioning token as the gate sees it.
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
				return reason.Deny(reason.RateLimited, "wrong provisioning tokens from everywhere")
			}
			return nil
		},
	}
}

const (
	// confirmEvery bounds how often the token is read anew, whoever asks for it.
	confirmEvery = time.Second
	// confirmTime is how long that may take.
	confirmTime = 3 * time.Second
)

// confirmProvisioning reads the token anew, at most once a second for everyone
// together; nil where nothing is cached.
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
			// The answer is for everyone who waits, so it does not end with the one who asked.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), confirmTime)
			defer cancel()
			view, err = read(ctx)
			last = s.Now()
		}
		return view, err
	}
}

// observeProvisioning counts what opened a config, and reports an absent token.
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
