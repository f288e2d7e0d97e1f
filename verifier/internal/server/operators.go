// SPDX-License-Identifier: Apache-2.0

package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/pki"
	"github.com/mcs-attest/mcs-attest/verifier/internal/backend"
	"github.com/mcs-attest/mcs-attest/verifier/internal/listen"
	"github.com/mcs-attest/mcs-attest/verifier/internal/page"
)

// operators has the listeners for administrators: health and metrics.
type operators struct {
	*backend.Parts
	checks   func() []string // the names of the parts that problems reports
	problems func() []string // the reasons why this process is not ready
	metrics  http.Handler
	page     http.Handler // nil: there is none on this listener
}

func (s *Server) operators() *operators {
	o := &operators{s.Parts, s.checks, s.Problems, s.ProtectMetrics(s.Metrics.Handler()), nil}
	if s.Page != nil {
		o.page = s.ProtectPage(page.Path, s.Page)
	}
	return o
}

// newPage returns the web page; nil unless the configuration asks for it.
func newPage(p *backend.Parts, from page.Source, problems func() []string) http.Handler {
	if !p.Config.WebPage {
		return nil
	}
	host, _ := os.Hostname()
	return page.New(page.Options{
		Source: from, Metrics: p.Metrics, Certificate: p.Certificates.Current, Problems: problems,
		Name: cmp.Or(os.Getenv("POD_NAME"), host), Version: p.Version, Now: p.Now,
	})
}

// HealthServer answers the probes of the kubelet without TLS, on the loopback address. So no other host
// can reach it or make a probe fail.
func (s *Server) HealthServer() *http.Server { return s.operators().healthServer() }

func (o *operators) healthServer() *http.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	mux.HandleFunc("GET /readyz", o.readyz)
	return operatorServer(mux, o.Log)
}

// metricsServer serves /metrics and, in a cluster, the web page over TLS. In a cluster, the API server authorizes each
// reader. Requests end with ctx, or when the server shuts down.
func (o *operators) metricsServer(ctx context.Context) *http.Server {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", o.metrics)
	if o.page != nil {
		mux.Handle("GET "+page.Path, o.page)
		mux.Handle("GET "+page.Path+"/", o.page)
	}
	srv := operatorServer(mux, o.Log)
	ctx, cancel := context.WithCancel(ctx)
	srv.BaseContext = func(net.Listener) context.Context { return ctx }
	srv.RegisterOnShutdown(cancel) // a stream of events would delay it
	own := &metricsCertificate{dir: o.Config.MetricsCertificate, now: o.Now, log: o.Log}
	srv.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){} // HTTP/1.1 only, like all listeners
	srv.TLSConfig = &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"http/1.1"},
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			listen.HelloReceived(hello)
			if c := own.current(); c != nil {
				return c, nil
			}
			return o.Certificates.Current(), nil
		},
	}
	return srv
}

func operatorServer(h http.Handler, log *slog.Logger) *http.Server {
	srv := &http.Server{
		Handler: h, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second,
		IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug), // unauthenticated callers cause these
	}
	listen.Track(srv)
	return srv
}

// metricsCertificate is a key pair in a folder that another program, such as OpenShift's service CA,
// writes and renews.
type metricsCertificate struct {
	dir string
	now func() time.Time
	log *slog.Logger

	mu     sync.Mutex
	loaded *tls.Certificate
	read   time.Time
	failed string
}

// metricsCertificateEvery is the minimum time between two reads of the files.
const metricsCertificateEvery = 10 * time.Second

// current returns the pair in the folder. If the files are invalid, it returns the last good pair, or
// nil if there was none.
func (c *metricsCertificate) current() *tls.Certificate {
	if c.dir == "" {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	if age := now.Sub(c.read); !c.read.IsZero() && age >= 0 && age < metricsCertificateEvery {
		return c.loaded
	}
	c.read = now
	var contents [][]byte
	for _, name := range []string{"tls.crt", "tls.key"} {
		raw, err := os.ReadFile(filepath.Join(c.dir, name))
		if err != nil {
			c.report(err)
			return c.loaded
		}
		contents = append(contents, raw)
	}
	cert, err := pki.ParseServing(contents)
	if err != nil {
		c.report(err)
		return c.loaded
	}
	c.loaded, c.failed = cert, ""
	return cert
}

// report logs a failure once.
func (c *metricsCertificate) report(err error) {
	if c.failed == err.Error() {
		return
	}
	c.failed = err.Error()
	c.log.Warn("read the certificate for metrics", "folder", c.dir, "error", err)
}
