// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/pki"
	"github.com/mcs-attest/mcs-attest/verifier/internal/backend"
	"github.com/mcs-attest/mcs-attest/verifier/internal/clouds"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/controllers"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/front"
	"github.com/mcs-attest/mcs-attest/verifier/internal/listen"
	"github.com/mcs-attest/mcs-attest/verifier/internal/outbound"
	"github.com/mcs-attest/mcs-attest/verifier/internal/server"
	"github.com/mcs-attest/mcs-attest/verifier/internal/trust"
)

const (
	origin  = "https://mcs.test:22623"
	mcsHost = "mcs.internal:22623"
)

// epoch is when the time of a bubble begins.
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// fixtures are what all runs share. They are made outside of any bubble.
type fixtures struct {
	ca, serving pki.Pair
	connections []connectionStates
	signer      *nodeKey // of the kubelets' certificates
}

// connectionStates are the two ends of one TLS connection.
type connectionStates struct{ client, server tls.ConnectionState }

func newFixtures() (*fixtures, error) {
	f := &fixtures{}
	var err error
	if f.ca, err = pki.NewCA("root-ca", epoch); err != nil {
		return nil, err
	}
	if f.serving, err = f.ca.Serve([]string{"mcs.test"}, epoch); err != nil {
		return nil, err
	}
	if f.signer, err = newNodeKey(""); err != nil {
		return nil, err
	}
	cert, err := pki.ParseServing([][]byte{f.serving.Certificate, f.serving.Key.Expose()})
	if err != nil {
		return nil, err
	}
	for range 32 {
		states, err := handshake(cert)
		if err != nil {
			return nil, err
		}
		f.connections = append(f.connections, states)
	}
	return f, nil
}

// handshake returns the states of a TLS connection. A run has no network, but the exporter that a machine quotes and
// the key that it saw are real.
func handshake(cert *tls.Certificate) (connectionStates, error) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	at := tls.Server(a, &tls.Config{Certificates: []tls.Certificate{*cert}, MinVersion: tls.VersionTLS13,
		SessionTicketsDisabled: true})
	from := tls.Client(b, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13}) //nolint:gosec // see above
	failed := make(chan error, 1)
	go func() { failed <- at.Handshake() }()
	if err := from.Handshake(); err != nil {
		return connectionStates{}, fmt.Errorf("handshake: %w", err)
	}
	if err := <-failed; err != nil {
		return connectionStates{}, fmt.Errorf("handshake: %w", err)
	}
	return connectionStates{from.ConnectionState(), at.ConnectionState()}, nil
}

// process is a process of the verifier: a front or the controller.
type process struct {
	name    string
	started time.Time
	client  *client
	log     *slog.Logger
	cancel  context.CancelFunc
	done    sync.WaitGroup
	noticed atomic.Int32 // restores of etcd, by its log

	server *server.Server // of a front
	http   *http.Server   // of a front
	drain  func()         // of a front: it starts no attestation from now on, and serves configs
}

// crash ends a process without any notice to others.
func (p *process) crash() {
	close(p.client.crashed)
	p.stop()
}

// stop ends a process. A request that still reaches it fails.
func (p *process) stop() {
	p.cancel()
	p.done.Wait()
	select {
	case <-p.client.crashed:
	default:
		close(p.client.crashed)
	}
}

// notices counts the restores of etcd in a log.
type notices struct {
	slog.Handler
	count *atomic.Int32
}

func (n notices) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelError || n.Handler.Enabled(ctx, level)
}

func (n notices) Handle(ctx context.Context, r slog.Record) error {
	if strings.HasPrefix(r.Message, "etcd went back") {
		n.count.Add(1)
	}
	if !n.Handler.Enabled(ctx, r.Level) {
		return nil
	}
	return n.Handler.Handle(ctx, r)
}

func (n notices) WithAttrs(all []slog.Attr) slog.Handler {
	return notices{n.Handler.WithAttrs(all), n.count}
}

func (n notices) WithGroup(name string) slog.Handler {
	return notices{n.Handler.WithGroup(name), n.count}
}

// parts returns what a process is made of, with a network of its own and a clock that is off by skew.
func (w *world) parts(name string, skew time.Duration) (*process, *backend.Parts, error) {
	text := fmt.Sprintf("origins: [%q]\nupstream: https://%s\nkubernetes:\n  kubeconfig: %s\n"+
		"  machineNamespaces: [%s]\n  userDataSecrets: []\n"+
		"credential: {mode: CertificateOrToken, kind: BootstrapToken}\napprover: {}\n",
		origin, mcsHost, "testdata/kubeconfig", machines)
	c, err := config.Parse(name, []byte(text), ".")
	if err != nil {
		return nil, nil, err
	}
	p := &process{name: name, started: time.Now(), client: &client{name: name, server: w.server, dice: w.dice,
		trace: w.trace, mcs: http.HandlerFunc(serveConfigs), crashed: make(chan struct{})}}
	p.log = slog.New(notices{w.log.Handler(), &p.noticed}).With("process", name)
	parts := backend.NewParts(c, p.log, func() time.Time { return time.Now().Add(skew) }, "v0.0.0-simulation")
	parts.Transport, parts.FreeMemory = p.client, func() {}
	return p, parts, nil
}

// front starts a front, as the command serve does.
func (w *world) front(ctx context.Context, name string, skew time.Duration) (*process, error) {
	p, parts, err := w.parts(name, skew)
	if err != nil {
		return nil, err
	}
	var b backend.Backend
	parts.Clouds, err = clouds.New(parts.Config, func() *trust.Trust { return b.View().Trust },
		outbound.Options{Now: parts.Now, Log: p.log, Called: parts.Metrics.ProviderCall})
	if err != nil {
		return nil, err
	}
	if b, err = front.New(parts); err != nil {
		return nil, err
	}
	p.server = server.New(parts, b)
	ctx, p.cancel = context.WithCancel(ctx)
	serving, drain := context.WithCancel(ctx)
	p.drain = drain
	p.server.AccessLog = io.Discard
	handler, err := p.server.Handler(serving)
	if err != nil {
		return nil, err
	}
	p.http = listen.NewServer(handler, parts.Certificates, p.log)
	p.done.Go(func() { _ = p.server.Run(ctx) })
	return p, nil
}

// controller starts a controller, as the command controller does.
func (w *world) controller(ctx context.Context, name string, skew time.Duration) (*process, error) {
	p, parts, err := w.parts(name, skew)
	if err != nil {
		return nil, err
	}
	if err := os.Setenv("POD_NAME", name); err != nil { // which the controller reads in New
		return nil, err
	}
	k, err := controllers.New(parts)
	if err != nil {
		return nil, err
	}
	ctx, p.cancel = context.WithCancel(ctx)
	p.done.Go(func() { _ = k.Run(ctx) })
	return p, nil
}

// served returns the answer of a handler in this process.
func served(h http.Handler, r *http.Request) *http.Response {
	if r.Body == nil {
		r.Body = http.NoBody
	}
	w := recorder{httptest.NewRecorder()}
	h.ServeHTTP(w, r)
	res := w.Result()
	res.Request = r
	return res
}

// recorder records an answer. Its deadlines have no effect, because a body is complete when its request begins.
type recorder struct{ *httptest.ResponseRecorder }

func (recorder) SetReadDeadline(time.Time) error  { return nil }
func (recorder) SetWriteDeadline(time.Time) error { return nil }

// fullConfig is what the Machine Config Server serves.
var fullConfig = `{"ignition":{"version":"3.2.0"},"storage":{"files":[{"path":"/etc/kubernetes/kubeconfig","mode":384,` +
	`"contents":{"source":"data:,` + url.PathEscape(kubeconfig) + `"}}]}}`

// kubeconfig is what it has for the kubelet.
const kubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://api-int.example.test:6443"}}]
users: [{name: kubelet, user: {token: "shared"}}]
contexts: [{name: kubelet, context: {cluster: c, user: kubelet}}]
current-context: kubelet
`

func serveConfigs(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write([]byte(fullConfig))
}
