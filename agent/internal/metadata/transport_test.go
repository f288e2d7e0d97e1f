// SPDX-License-Identifier: Apache-2.0

package metadata_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/agent/internal/metadata"
)

// questions has one request for each cloud.
var questions = map[string]ask{"AWS": awsUserData, "Google Cloud": gcpUserData, "Azure": azureUserData}

// counter starts a server that is not a metadata service and counts its requests.
func counter(t *testing.T) (string, *atomic.Int32) {
	t.Helper()
	var n atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n.Add(1)
		w.WriteHeader(http.StatusTeapot)
	}))
	t.Cleanup(s.Close)
	return s.URL, &n
}

// A cloud's documents and credentials never pass through a proxy.
func TestNoProxyIsUsed(t *testing.T) {
	proxy, n := counter(t)
	for _, name := range []string{"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"} {
		t.Setenv(name, proxy)
	}
	t.Setenv("NO_PROXY", "")
	t.Setenv("no_proxy", "")
	for cloud, a := range questions {
		// Only a proxy could resolve this name.
		if err := a(t.Context(), "http://metadata.invalid", brief); err == nil {
			t.Errorf("%s: an answer without a server", cloud)
		}
	}
	if n.Load() != 0 {
		t.Errorf("the proxy was asked %d times", n.Load())
	}
}

// The libraries read environment variables of their own.
func TestEnvironmentIsIgnored(t *testing.T) {
	other, n := counter(t)
	t.Setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", other)
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	t.Setenv("AWS_EC2_METADATA_V1_DISABLED", "false")
	t.Setenv("GCE_METADATA_HOST", strings.TrimPrefix(other, "http://"))
	i, ac := onAWS(t, nil)
	_, err := newAWS(t, ac.Metadata(i.ID), calm).UserData(t.Context())
	ok(t, err)
	gc, id := onGCP(t, nil)
	_, err = newGCP(t, gc.Metadata(id), calm).UserData(t.Context())
	ok(t, err)
	if n.Load() != 0 {
		t.Errorf("another service was asked %d times", n.Load())
	}
}

func TestNoRedirectIsFollowed(t *testing.T) {
	other, n := counter(t)
	for cloud, a := range questions {
		for _, status := range []int{301, 302, 303, 307, 308} {
			base := serve(t, http.RedirectHandler(other+"/computeMetadata/v1/", status))
			f := fault(t, a(t.Context(), base, once))
			if f.Temporary || !strings.Contains(f.Problem, strconv.Itoa(status)) {
				t.Errorf("%s, status %d: %+v", cloud, status, f)
			}
		}
	}
	if n.Load() != 0 {
		t.Errorf("the other server was asked %d times", n.Load())
	}
}

// answering returns a service that issues valid tokens and answers other requests with body.
func answering(body func(http.ResponseWriter)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Metadata-Flavor", "Google")
		if r.Method == http.MethodPut {
			w.Header().Set("X-Aws-Ec2-Metadata-Token-Ttl-Seconds", "300")
			_, _ = io.WriteString(w, "token")
			return
		}
		body(w)
	})
}

func TestAnswersAreBounded(t *testing.T) {
	const limit = 512 << 10
	for cloud, a := range questions {
		base := serve(t, answering(func(w http.ResponseWriter) { _, _ = io.WriteString(w, strings.Repeat("AAAA", limit/4)) }))
		ok(t, a(t.Context(), base, calm))
		var more atomic.Int64
		base = serve(t, answering(func(w http.ResponseWriter) {
			for range 1 << 10 { // up to 64 MiB
				n, err := io.WriteString(w, strings.Repeat("AAAA", 1<<14))
				more.Add(int64(n))
				if err != nil {
					return
				}
			}
		}))
		if f := fault(t, a(t.Context(), base, once)); f.Temporary || f.Problem != "the answer has more than 524288 bytes" {
			t.Errorf("%s: %+v", cloud, f)
		}
		if n := more.Load(); n > 32<<20 {
			t.Errorf("%s: %d bytes were read", cloud, n)
		}
	}
}

// An incomplete response is an error.
func TestTruncatedAnswers(t *testing.T) {
	for cloud, a := range questions {
		base := serve(t, answering(func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, strings.Repeat("A", 40))
			panic(http.ErrAbortHandler)
		}))
		if f := fault(t, a(t.Context(), base, once)); !f.Temporary || f.Problem != "the connection was closed" {
			t.Errorf("%s: %+v", cloud, f)
		}
	}
}

// Each attempt has its own time limit, which does not reduce the next one's.
func TestSlowThenQuick(t *testing.T) {
	for cloud, a := range questions {
		var asked atomic.Int32
		base := serve(t, answering(func(w http.ResponseWriter) {
			if asked.Add(1) == 1 {
				panic(http.ErrAbortHandler)
			}
			_, _ = io.WriteString(w, "AAAA")
		}))
		if err := a(t.Context(), base, calm); err != nil || asked.Load() != 2 {
			t.Errorf("%s: error %v after %d requests", cloud, err, asked.Load())
		}
	}
}

func TestInterrupted(t *testing.T) {
	for cloud, a := range questions {
		ctx, cancel := context.WithCancel(t.Context())
		base := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			cancel()
			<-r.Context().Done()
		}))
		err := a(ctx, base, calm)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: error %v", cloud, err)
		}
	}
}

// Patience ends even if every response is immediate.
func TestPatienceEnds(t *testing.T) {
	for cloud, a := range questions {
		base := serve(t,
			http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }))
		p := metadata.Patience{Try: time.Minute, Pause: time.Millisecond, Total: 20 * time.Millisecond}
		if f := fault(t, a(t.Context(), base, p)); !f.Temporary {
			t.Errorf("%s: %+v", cloud, f)
		}
	}
}

// Waiting receives each fault that is retried. It receives no final fault.
func TestWaitingReceivesRetriedFaults(t *testing.T) {
	for cloud, a := range questions {
		var asked atomic.Int32
		base := serve(t, answering(func(w http.ResponseWriter) {
			if asked.Add(1) <= 3 {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			_, _ = io.WriteString(w, "AAAA")
		}))
		var faults []error
		p := calm
		p.Waiting = func(err error) { faults = append(faults, err) }
		ok(t, a(t.Context(), base, p))
		if len(faults) != 3 || fault(t, faults[0]).Problem != "it answered HTTP status 503" {
			t.Errorf("%s: Waiting received %v", cloud, faults)
		}
		p.Waiting = func(err error) { t.Errorf("%s: Waiting received %v", cloud, err) }
		refusing := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) })
		if err := a(t.Context(), serve(t, refusing), p); err == nil {
			t.Errorf("%s: no error", cloud)
		}
	}
	if metadata.Endless.Total < 10*365*24*time.Hour {
		t.Errorf("the limit is %s", metadata.Endless.Total)
	}
}

func TestInvalidAddresses(t *testing.T) {
	for cloud, a := range questions {
		for _, base := range []string{"", "169.254.169.254", "ftp://169.254.169.254", "http://", "http://a b/", "/tmp"} {
			if err := a(t.Context(), base, once); err == nil || !strings.Contains(err.Error(), "is not a URL") {
				t.Errorf("%s at %q: error %v", cloud, base, err)
			}
		}
	}
}
