// SPDX-License-Identifier: Apache-2.0

package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/mcs-attest/mcs-attest/pkg/gate"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
)

const (
	// probeEvery and probeTime are the interval and the timeout of the probe.
	probeEvery = 2 * time.Second
	probeTime  = 4 * time.Second
	// probeFailures is the number of consecutive failures after which the upstream counts as dead. A
	// single one may be a restart or a short overload.
	probeFailures = 2
)

// upstreamProbe periodically checks whether the upstream answers. It renders nothing: the Machine
// Config Server has /healthz. Any answer of another server counts, unless it has a server error. A nil
// probe has no upstream.
type upstreamProbe struct {
	url    string
	client *http.Client
	log    *slog.Logger

	mu       sync.Mutex
	asked    bool
	failures int
	why      string
}

func newUpstreamProbe(base *url.URL, transport http.RoundTripper, log *slog.Logger) *upstreamProbe {
	return &upstreamProbe{
		url: base.JoinPath("/healthz").String(), log: log,
		client: &http.Client{
			Transport: transport, Timeout: probeTime,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// run probes until ctx ends.
func (p *upstreamProbe) run(ctx context.Context) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		if err := p.ask(ctx); ctx.Err() == nil {
			p.note(err)
		}
	}, probeEvery)
}

func (p *upstreamProbe) ask(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Via", gate.Via)
	res, err := p.client.Do(req)
	if err != nil {
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err // without the URL, which is in the configuration
		}
		return err
	}
	defer res.Body.Close() //nolint:errcheck // it was only read
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, 4<<10))
	switch {
	case res.StatusCode == http.StatusLoopDetected:
		return errors.New("the upstream is the gate of a verifier; set upstream to the Machine Config Server itself")
	case res.StatusCode >= 500:
		return fmt.Errorf("/healthz has the status %d", res.StatusCode)
	}
	return nil
}

// note records an answer, and logs each change.
func (p *upstreamProbe) note(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	was := p.state()
	if err == nil {
		p.failures, p.why = 0, ""
	} else {
		p.failures++
		p.why = err.Error()
	}
	p.asked = p.asked || err == nil || p.failures >= probeFailures
	switch is := p.state(); {
	case is == "" && was != "":
		p.log.Info("the upstream answers")
	case is != "" && was == "", is != "" && p.failures == probeFailures:
		p.log.Error("the upstream does not answer", "error", p.why)
	}
}

// problem returns why the upstream cannot serve a machine, or "".
func (p *upstreamProbe) problem() string {
	if p == nil {
		return ""
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state()
}

func (p *upstreamProbe) state() string {
	switch {
	case !p.asked:
		return cmp.Or(p.why, "not probed yet")
	case p.failures >= probeFailures:
		return p.why
	}
	return ""
}

// refuseOwnAddress returns an error if upstream is the address on which the verifier listens. The probe
// detects a loop through another server.
func refuseOwnAddress(ctx context.Context, upstream string, listener net.Addr) error {
	own, err := netip.ParseAddrPort(listener.String())
	if err != nil || upstream == "" {
		return nil
	}
	u, err := url.Parse(upstream)
	if err != nil || cmp.Or(u.Port(), "443") != fmt.Sprint(own.Port()) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	addresses, err := net.DefaultResolver.LookupNetIP(ctx, "ip", u.Hostname())
	if err != nil {
		return nil // the probe reports it
	}
	for _, a := range addresses {
		a = a.Unmap().WithZone("")
		if a != own.Addr().Unmap() && !(own.Addr().IsUnspecified() && isOurs(a)) {
			continue
		}
		return hint.New(fmt.Errorf("upstream: %s is this verifier itself, which listens on %s", upstream, listener),
			"set upstream to the Machine Config Server, or remove it to serve configs of your own")
	}
	return nil
}

// isOurs reports whether a is an address of this host.
func isOurs(a netip.Addr) bool {
	if a.IsLoopback() || a.IsUnspecified() {
		return true
	}
	all, err := net.InterfaceAddrs()
	return err == nil && slices.ContainsFunc(all, func(i net.Addr) bool {
		p, err := netip.ParsePrefix(i.String())
		return err == nil && p.Addr().Unmap() == a
	})
}
