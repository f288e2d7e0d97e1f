// Package metadata asks the metadata services of clouds.
//
// Such a service answers whoever sends packets from this machine, over plain
// HTTP at a link-local address. What it says is untrusted here: signed documents
// go to the verifier as they came, and the rest (names of the instance) only
// helps the verifier to find the Machine that it checks.
//
// One transport is below the clients and keeps the rules:
//
//   - every request goes to the one address that was configured, whatever a
//     library takes for the service's, and never through a proxy;
//   - a redirect is not followed;
//   - a try takes at most [Patience.Try], an answer has at most [maxAnswer] bytes;
//   - all that is not a whole answer with status 200 is a [Fault]: a sentence for
//     the console, a hint, and whether it is worth another try.
//
// Tries and pauses are this package's too; the libraries' own are off.
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

// Patience is how long a service is waited for.
type Patience struct {
	Try   time.Duration // for one answer
	Pause time.Duration // before the second try; it doubles up to maxPause
	Total time.Duration // no new try begins after this
	// Waiting is told of each fault after which there is another try; may be nil.
	Waiting func(error)
}

// forever is a Total that does not end.
const forever time.Duration = math.MaxInt64

// The patience of the agent's tasks. A service answers within milliseconds; one
// that is there at all and misses [Quick] is in trouble.
var (
	// Quick is for what the boot can do without.
	Quick = Patience{Try: time.Second, Pause: 100 * time.Millisecond, Total: 500 * time.Millisecond}
	// Steady is for evidence: the caller begins a new round afterwards.
	Steady = Patience{Try: 2 * time.Second, Pause: 250 * time.Millisecond, Total: 6 * time.Second}
	// Endless is for user data. Ignition waits for it for ever, and would then ask
	// for the machine's config without a token: so it must not outlast the agent.
	Endless = Patience{Try: 5 * time.Second, Pause: 250 * time.Millisecond, Total: forever}
)

const (
	// maxPause bounds the pause between two tries.
	maxPause = 5 * time.Second
	// maxAnswer bounds an answer: user data has at most 256 KiB (Google's limit
	// for one value, in base64 or not), every document less.
	maxAnswer = 512 << 10
	maxHeader = 64 << 10
)

// Fault is why a metadata service did not give what it was asked for.
type Fault struct {
	Cloud   string // "AWS"
	What    string // what was asked for: "the instance identity document"
	Problem string // "it answered HTTP status 500"
	Hint    string // for a person; may be empty
	// Temporary: the same request may succeed later.
	Temporary bool
	// Late: what is missing may have been given to the machine a moment ago, and
	// takes some seconds to be seen. It is Temporary as well, but no second try is
	// made here: the caller's rounds are, and end it.
	Late bool
	// Absent: the service answered that there is no such thing.
	Absent bool
}

// Error is one sentence. Fault has no Unwrap and no Temporary method: the
// libraries above the transport must not take a fault apart and try again.
func (f *Fault) Error() string {
	return fmt.Sprintf("%s metadata service, asked for %s: %s", f.Cloud, f.What, f.Problem)
}

// service is one cloud's metadata service.
type service struct {
	cloud    string
	base     *url.URL
	patience Patience
	next     http.RoundTripper
	// explain gives the cloud's own meaning to a status; nil: it has none.
	explain func(path string, status int) *Fault
	// timeout is what a missing answer means in this cloud; may leave fields empty.
	timeout func(path string) *Fault
	// An answer of the service must have this header, if there is a name.
	headerName, headerValue string

	mu   sync.Mutex
	date time.Time // the last answer's
}

func newService(cloud, base string, p Patience) (*service, error) {
	u, err := url.Parse(base)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("the metadata service's address %q is not a URL", base)
	}
	return &service{cloud: cloud, base: u, patience: p, next: &http.Transport{
		Proxy:                  nil, // never, whatever the environment says
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

// noted is the key of a *Fault in a request's context: the libraries above do not
// pass every error on as it is.
type noted struct{}

// RoundTrip makes one try. It returns a whole answer with status 200, or a *Fault.
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

// lastDate is the service's clock, as of its last answer. The node's is not to
// be trusted on a first boot.
func (s *service) lastDate() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.date
}

// silence is a fault for an answer that did not come, or not whole.
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
		f.Problem = "no way to " + s.base.Host
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
		f.Problem = "the connection broke off"
	}
	return f
}

func (s *service) off() string {
	return "is the metadata service turned on for this instance, and does a route lead to " + s.base.Host + "?"
}

// refusal is a fault for an answer that is not 200.
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
	case status >= 500:
		f.Temporary = true
	case status == http.StatusNotFound:
		f.Problem, f.Absent = "there is none (HTTP status 404)", true
	}
	return f
}

// plain is an error of the network without addresses and URLs.
func plain(err error) string {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Err != nil {
		err = op.Err
	}
	return err.Error()
}

// ask tries until it has an answer, a fault that no second try mends, or no
// patience left. What names the thing asked for, for the console.
func (s *service) ask(ctx context.Context, what string, once func(context.Context) ([]byte, error)) ([]byte, error) {
	end, cancel := context.WithTimeout(ctx, s.patience.Total)
	defer cancel()
	for pause := s.patience.Pause; ; pause = min(2*pause, maxPause) {
		// Not under end: a try that has begun has its own time.
		fault := &Fault{}
		body, err := once(context.WithValue(ctx, noted{}, fault))
		if err == nil {
			return body, nil
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("interrupted: %w", ctx.Err())
		}
		if fault.Problem == "" {
			// A library that cannot use a whole answer with status 200.
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

// wrong is a fault for an answer that came and is not what it should be.
func (s *service) wrong(what, format string, a ...any) *Fault {
	return &Fault{Cloud: s.cloud, What: what, Problem: fmt.Sprintf(format, a...)}
}

// IsAbsent reports whether the service answered that it has no such item.
func IsAbsent(err error) bool {
	var f *Fault
	return errors.As(err, &f) && f.Absent && !f.Temporary
}
