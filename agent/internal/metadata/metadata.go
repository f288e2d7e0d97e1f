// SPDX-License-Identifier: Apache-2.0

// Package metadata contains clients of the clouds' instance metadata services.
//
// Such a service answers any sender on this machine, over plain HTTP at a link-local address. Its
// answers are untrusted here. Signed documents go to the verifier unmodified. The rest, such as
// names of the instance, only helps the verifier to find the Machine that it checks.
//
// All clients use one transport, which follows these rules:
//
//   - Every request goes to the configured address, whatever address a library chooses, and never
//     through a proxy.
//   - Redirects are not followed.
//   - An attempt is limited to [Patience.Try], and a response to [maxAnswer] bytes.
//   - Everything except a complete response with status 200 is a [Fault]: a sentence for the
//     console, a hint, and whether a retry can help.
//
// This package also performs the retries; those of the libraries are disabled.
package metadata

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Patience is how long a client waits for a service.
type Patience struct {
	Try   time.Duration // for one answer
	Pause time.Duration // before the second try; it doubles up to maxPause
	Total time.Duration // no new try begins after this
	// Waiting receives each fault that leads to another attempt; may be nil.
	Waiting func(error)
}

// unlimited is a Total without a limit.
const unlimited time.Duration = math.MaxInt64

// The patience of the agent's tasks. A service normally answers within milliseconds, so one that
// misses [Quick] has a problem.
var (
	// Quick is for values that the boot does not need.
	Quick = Patience{Try: time.Second, Pause: 100 * time.Millisecond, Total: 500 * time.Millisecond}
	// Steady is for evidence. The caller begins a new round afterwards.
	Steady = Patience{Try: 2 * time.Second, Pause: 250 * time.Millisecond, Total: 6 * time.Second}
	// Endless is for user data. Ignition waits for it for two minutes after the agent, and could then request the
	// machine's config without a token. So the agent does not give up. It waits longer than Ignition, so that a slow
	// service does not stop the boot.
	Endless = Patience{Try: 5 * time.Second, Pause: 250 * time.Millisecond, Total: unlimited}
)

const (
	// maxPause limits the pause between two attempts.
	maxPause = 5 * time.Second
	// maxAnswer limits a response in bytes. User data has at most 256 KiB (Google's limit for one
	// value, with or without base64); documents are smaller.
	maxAnswer = 512 << 10
	maxHeader = 64 << 10
)

// Fault is the reason for which a metadata service did not return what was requested.
type Fault struct {
	Cloud   string // for example "AWS"
	What    string // the requested item, for example "the instance identity document"
	Problem string // for example "it answered HTTP status 500"
	Hint    string // for the administrator; may be empty
	// Temporary is true if the same request may succeed later.
	Temporary bool
	// Late is true if the missing item may have been given to the machine a moment ago and become
	// visible in some seconds. Such a fault is Temporary, too, but this package does not retry it:
	// the caller's rounds do, and limit the retries.
	Late bool
	// Absent is true if the service answered that the item does not exist.
	Absent bool
}

// Error returns one sentence. Fault has no Unwrap and no Temporary method, so that the libraries
// above the transport cannot inspect a fault and retry.
func (f *Fault) Error() string {
	return fmt.Sprintf("%s metadata service, asked for %s: %s", f.Cloud, f.What, f.Problem)
}

// service is one cloud's metadata service.
type service struct {
	cloud    string
	base     *url.URL
	patience Patience
	next     http.RoundTripper
	// explain interprets a status for this cloud; nil means that no status has a special meaning.
	explain func(path string, status int) *Fault
	// timeout explains a missing response in this cloud. It may leave fields empty.
	timeout func(path string) *Fault
	// If headerName is set, a response must have this header.
	headerName, headerValue string

	mu   sync.Mutex
	date time.Time // of the last response
}

func newService(cloud, base string, p Patience) (*service, error) {
	u, err := url.Parse(base)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("the metadata service's address %q is not a URL", base)
	}
	return &service{cloud: cloud, base: u, patience: p, next: &http.Transport{
		Proxy:                  nil, // even if the environment sets one
		DialContext:            (&net.Dialer{Timeout: p.Try}).DialContext,
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxHeader,
		MaxIdleConnsPerHost:    1,
		IdleConnTimeout:        10 * time.Second,
	}}, nil
}

func (s *service) client() *http.Client {
	return &http.Client{
		Transport:     s,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// noted is the context key for the *Fault of a request, because some libraries do not return errors
// unmodified.
type noted struct{}

// RoundTrip makes one attempt. It returns a complete response with status 200, or a *Fault.
func (s *service) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, fault := s.roundTrip(req)
	if fault == nil {
		return resp, nil
	}
	if note, ok := req.Context().Value(noted{}).(*Fault); ok {
		*note = *fault
	}
	return nil, fault
}

func (s *service) roundTrip(req *http.Request) (*http.Response, *Fault) {
	ctx, cancel := context.WithTimeout(req.Context(), s.patience.Try)
	defer cancel()
	out := req.Clone(ctx)
	out.Host = ""
	out.URL.Scheme, out.URL.Host, out.URL.User = s.base.Scheme, s.base.Host, nil
	path := req.URL.Path
	out.URL.Path, out.URL.RawPath = strings.TrimSuffix(s.base.Path, "/")+"/"+strings.TrimPrefix(path, "/"), ""
	resp, err := s.next.RoundTrip(out)
	if err != nil {
		return nil, s.silence(path, err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case resp.StatusCode != http.StatusOK:
		return nil, s.refusal(path, resp.StatusCode)
	case err != nil:
		return nil, s.silence(path, err)
	case len(body) > maxAnswer:
		return nil, &Fault{Problem: fmt.Sprintf("the answer has more than %d bytes", maxAnswer)}
	case s.headerName != "" && resp.Header.Get(s.headerName) != s.headerValue:
		return nil, &Fault{
			Problem: fmt.Sprintf("the answer has no header %s: %s", s.headerName, s.headerValue),
			Hint:    "something else answers at the metadata service's address: " + s.base.Host,
		}
	}
	if date, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		s.mu.Lock()
		s.date = date
		s.mu.Unlock()
	}
	resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return resp, nil
}

// lastDate returns the service's time in its last response. On a first boot the node's clock is not
// trusted.
func (s *service) lastDate() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.date
}

// silence returns the fault for a missing or incomplete response.
func (s *service) silence(path string, err error) *Fault {
	f := &Fault{Problem: "no answer: " + plain(err), Hint: s.off(), Temporary: true}
	var network net.Error
	switch {
	case errors.As(err, &network) && network.Timeout(), errors.Is(err, context.DeadlineExceeded):
		f.Problem = "no answer in time"
		if s.timeout != nil {
			if own := s.timeout(path); own != nil {
				own.Temporary = true
				return own
			}
		}
	case errors.Is(err, context.Canceled):
		f.Problem, f.Hint = "interrupted", ""
	case errors.Is(err, syscall.ECONNREFUSED):
		f.Problem = "the connection was refused"
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH):
		f.Problem = "no route to " + s.base.Host
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
		f.Problem = "the connection was closed"
	}
	return f
}

func (s *service) off() string {
	return "is the metadata service turned on for this instance, and does a route lead to " + s.base.Host + "?"
}

// refusal returns the fault for a status other than 200.
func (s *service) refusal(path string, status int) *Fault {
	if s.explain != nil {
		if f := s.explain(path, status); f != nil {
			return f
		}
	}
	f := &Fault{Problem: fmt.Sprintf("it answered HTTP status %d", status)}
	switch {
	case status == http.StatusTooManyRequests:
		f.Problem, f.Temporary = "too many requests (HTTP status 429)", true
	case status >= 500, status == http.StatusRequestTimeout, status == http.StatusTooEarly:
		f.Temporary = true
	case status == http.StatusNotFound:
		f.Problem, f.Absent = "there is none (HTTP status 404)", true
	}
	return f
}

// plain describes a network error without addresses and URLs.
func plain(err error) string {
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Err != nil {
		err = op.Err
	}
	return err.Error()
}

// ask retries until it has a response, a fault that a retry cannot fix, or no patience left. What
// names the requested item, for the console.
func (s *service) ask(ctx context.Context, what string, once func(context.Context) ([]byte, error)) ([]byte, error) {
	end, cancel := context.WithTimeout(ctx, s.patience.Total)
	defer cancel()
	for pause := s.patience.Pause; ; pause = min(2*pause, maxPause) {
		// The context does not end at the total limit: an attempt that has begun keeps its own
		// time.
		fault := &Fault{}
		body, err := once(context.WithValue(ctx, noted{}, fault))
		if err == nil {
			return body, nil
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("interrupted: %w", ctx.Err())
		}
		if fault.Problem == "" {
			// The library cannot parse a complete response with status 200.
			fault.Problem = "the answer cannot be used: " + err.Error()
		}
		fault.Cloud, fault.What = s.cloud, what
		if !fault.Temporary || fault.Late {
			return nil, fault
		}
		if s.patience.Waiting != nil && end.Err() == nil {
			s.patience.Waiting(fault)
		}
		select {
		case <-end.Done():
		case <-time.After(pause):
		}
		switch {
		case ctx.Err() != nil:
			return nil, fmt.Errorf("interrupted: %w", ctx.Err())
		case end.Err() != nil:
			return nil, fault
		}
	}
}

// wrong returns the fault for a response with invalid content.
func (s *service) wrong(what, format string, a ...any) *Fault {
	return &Fault{Cloud: s.cloud, What: what, Problem: fmt.Sprintf(format, a...)}
}

// IsAbsent reports whether the service answered that the item does not exist.
func IsAbsent(err error) bool {
	var f *Fault
	return errors.As(err, &f) && f.Absent && !f.Temporary
}
