package server

import (
	"crypto/tls"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/mcs-attest/mcs-attest/verifier/internal/backend"
	"github.com/mcs-attest/mcs-attest/verifier/internal/listen"
	"github.com/mcs-attest/mcs-attest/verifier/internal/pki"
)

// operators has the listeners for administrators: health and metrics.
type operators struct {
	*backend.Parts
	checks   func() []string // the names of the parts that problems reports
	problems func() []string // the reasons why this process is not ready
	metrics  http.Handler
}

func (s *Server) operators() *operators {
	return &operators{s.Parts, s.checks, s.Problems, s.ProtectMetrics(s.Metrics.Handler())}
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

// metricsServer serves /metrics over TLS. In a cluster, the API server authorizes each reader.
func (o *operators) metricsServer() *http.Server {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", o.metrics)
	srv := operatorServer(mux, o.Log)
	own := &metricsCertificate{dir: o.Config.MetricsCertificate, now: o.Now, log: o.Log}
	srv.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){} // HTTP/1.1 only, like all listeners
	srv.TLSConfig = &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"http/1.1"},
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			listen.Greeted(hello)
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
