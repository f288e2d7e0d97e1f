// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester/swtpmtest"
	"github.com/mcs-attest/mcs-attest/pkg/transcript"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
	"github.com/mcs-attest/mcs-attest/proto/mcsattest/v1/mcsattestv1connect"
	"github.com/mcs-attest/mcs-attest/verifier/internal/admin"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/serve"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/setup"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/listen"
	"github.com/mcs-attest/mcs-attest/verifier/internal/server"
	"github.com/mcs-attest/mcs-attest/verifier/internal/standalone"
)

// handshakeTime is how long the verifier of a test waits for a handshake and for a request's headers. A slow or stalled
// machine exceeds the product's 10 seconds, which the tests of package listen cover.
const handshakeTime = time.Minute

const testOrigin = "https://mcs.test:22623"

// version is what the servers of the tests report as theirs.
const version = "v0.0.0-test"

// fullConfig is what the gate gives for a token.
const fullConfig = `{"ignition":{"version":"3.2.0"},"storage":{"files":[{"path":"/etc/pull-secret","contents":{"source":"data:,full-config-secret"}}]}}`

// verifier is a whole verifier in this process: its folder, its TLS listener.
type verifier struct {
	t      testing.TB
	dir    string
	config *config.Config
	server *server.Server
	addr   string
	log    *lockedBuffer
	roots  *x509.CertPool
	stop   func()

	mu     sync.Mutex
	ahead  time.Duration
	frozen time.Time // zero while the clock runs
}

// now is the verifier's clock, which a test may advance.
func (v *verifier) now() time.Time {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.frozen.IsZero() {
		return v.frozen.Add(v.ahead)
	}
	return time.Now().Add(v.ahead)
}

// freeze stops the verifier's clock, so that no rate limit recovers between two requests of a slow machine.
func (v *verifier) freeze() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.frozen = time.Now()
}

func (v *verifier) advance(d time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.ahead += d
}

// command is a command line of the verifier, to be executed.
func command(args ...string) *cobra.Command {
	root := cli.Root(&env.Env{Name: env.Verifier})
	root.SetArgs(args)
	return root
}

// newVerifier makes a folder as "init" does and serves it.
func newVerifier(t *testing.T, change ...func(dir string)) *verifier {
	t.Helper()
	return newVerifierFor(t, change...)
}

// newVerifierFor is newVerifier for a benchmark, too.
func newVerifierFor(t testing.TB, change ...func(dir string)) *verifier {
	t.Helper()
	v := &verifier{t: t, dir: t.TempDir(), log: &lockedBuffer{}}
	o := setup.InitOptions{Origins: []string{testOrigin}, Pools: []string{"worker", "master"}}
	if err := setup.Init(io.Discard, v.dir, o, time.Now()); err != nil {
		t.Fatal(err)
	}
	v.write("configs/worker.ign", fullConfig)
	v.write("configs/master.ign", strings.Replace(fullConfig, "full-config", "master-config", 1))
	v.write("mcs-attest.yaml", "origins: [\""+testOrigin+"\"]\nrequestsPerSecond: 10000\nkeepEvidence: 5\n")
	for _, c := range change {
		c(v.dir)
	}
	v.start()
	t.Cleanup(func() { v.stop() })
	return v
}

// start serves the folder; after stop it may be called again, as after a crash.
func (v *verifier) start() {
	v.t.Helper()
	c, err := config.Load(filepath.Join(v.dir, "mcs-attest.yaml"))
	if err != nil {
		v.t.Fatal(err)
	}
	v.config = c
	s, err := serve.New(c, slog.New(slog.NewJSONHandler(v.log, &slog.HandlerOptions{Level: slog.LevelDebug})), v.now,
		version)
	if err != nil {
		v.t.Fatal(err)
	}
	v.server = s
	h, err := s.Handler(context.Background())
	if err != nil {
		v.t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		v.t.Fatal(err)
	}
	v.addr = l.Addr().String()
	srv := listen.NewServer(h, s.Certificates, s.Log)
	srv.ReadHeaderTimeout = handshakeTime
	go func() { _ = srv.Serve(listen.Encrypt(listen.Limit(l, c.MaxConnections, s.Trusted), srv.TLSConfig)) }()
	v.stop = sync.OnceFunc(func() {
		_ = srv.Close()
		_ = s.Close()
	})
	v.roots = x509.NewCertPool()
	if ca, err := os.ReadFile(filepath.Join(v.dir, "tls", "ca.crt")); err != nil || !v.roots.AppendCertsFromPEM(ca) {
		v.t.Fatal("no CA", err)
	}
}

func (v *verifier) write(name, content string) {
	v.t.Helper()
	if err := os.WriteFile(filepath.Join(v.dir, name), []byte(content), 0o600); err != nil {
		v.t.Fatal(err)
	}
}

// change writes a file and waits until the verifier has taken it up.
func (v *verifier) change(name, content string) {
	v.t.Helper()
	v.write(name, content)
	v.refresh()
}

// standalone is the backend.
func (v *verifier) standalone() *standalone.Backend { return v.server.Backend.(*standalone.Backend) }

func (v *verifier) refresh() {
	s, _ := v.standalone().Files.Refresh()
	v.standalone().Keeper.Apply(v.t.Context(), s)
}

func (v *verifier) policy(spec string) {
	v.t.Helper()
	v.change("policies/default.yaml",
		"apiVersion: mcs-attest.dev/v1alpha1\nkind: AttestationPolicy\nmetadata: {name: default}\nspec:\n"+spec)
}

func (v *verifier) remove(name string) error {
	err := os.Remove(filepath.Join(v.dir, name))
	v.refresh()
	return err
}

// enroll creates a stand-in Machine for an EK.
func (v *verifier) enroll(name, pool string, eks ...[32]byte) {
	v.t.Helper()
	v.change("attestations/"+name+".yaml", enrolment(name, "  pool: "+pool+"\n", eks...))
}

func enrolment(name, spec string, eks ...[32]byte) string {
	text := "apiVersion: mcs-attest.dev/v1alpha1\nkind: MachineAttestation\nmetadata: {name: " + name +
		", namespace: default}\nspec:\n" + spec
	if len(eks) > 0 {
		text += "  ekSHA256:\n"
		for _, ek := range eks {
			text += fmt.Sprintf("    - %x\n", ek)
		}
	}
	return text
}

func (v *verifier) state() *admin.State {
	v.t.Helper()
	s, err := v.standalone().Keeper.State(v.t.Context())
	if err != nil {
		v.t.Fatal(err)
	}
	return s
}

func (v *verifier) machine(name string) admin.Machine {
	v.t.Helper()
	for _, m := range v.state().Machines {
		if m.Name == "default/"+name || m.Name == name {
			return m
		}
	}
	v.t.Fatalf("no machine %s", name)
	return admin.Machine{}
}

// reasons are the reasons in the audit log since the last call, in order.
func (v *verifier) reasons() []string {
	v.t.Helper()
	var all []string
	for _, line := range strings.Split(v.log.drain(), "\n") {
		if _, rest, ok := strings.Cut(line, `"reason":"`); ok && strings.Contains(line, `"log":"audit"`) {
			code, _, _ := strings.Cut(rest, `"`)
			all = append(all, code)
		}
	}
	return all
}

// wantReason checks that the last denial has this reason.
func (v *verifier) wantReason(want string) {
	v.t.Helper()
	got := v.reasons()
	if len(got) == 0 || got[len(got)-1] != want {
		v.t.Errorf("reasons %v, want %s", got, want)
	}
}

// fetch asks the gate as Ignition does.
func (v *verifier) fetch(method, path, bearer string) (int, http.Header, string) {
	v.t.Helper()
	tr := v.transport()
	defer tr.CloseIdleConnections()
	req, err := http.NewRequest(method, testOrigin+path, nil)
	if err != nil {
		v.t.Fatal(err)
	}
	req.Header.Set("Accept", "application/vnd.coreos.ignition+json;version=3.4.0, */*;q=0.1")
	if bearer != "" {
		req.Header.Set("Authorization", "Bearer "+bearer)
	}
	res, err := (&http.Client{Transport: tr,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}).Do(req)
	if err != nil {
		v.t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		v.t.Fatal(err)
	}
	return res.StatusCode, res.Header, string(body)
}

func (v *verifier) transport() *http.Transport {
	return &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", v.addr)
		},
		TLSClientConfig: &tls.Config{RootCAs: v.roots},
	}
}

// node is a machine with its TPM: an honest one, whose messages a test may change
// before they are sent.
type node struct {
	from net.Addr // where it connects from; nil: wherever
	t    *testing.T
	v    *verifier
	tpm  *attester.Attester
	pool string
	log  []byte

	conn      *tls.Conn
	channel   channel
	transport *http.Transport
	client    mcsattestv1connect.AttestationClient
	challenge *mcsattestv1.ChallengeResponse
	id        attester.Identity

	// offers are kinds besides tpm2, gather makes the document of one, says is what
	// the machine says of itself.
	offers []evidence.Kind
	gather func(k evidence.Kind, h transcript.Hash, c *mcsattestv1.CloudChallenge) *mcsattestv1.CloudEvidence
	says   string

	changeChallenge func(*mcsattestv1.ChallengeRequest)
	changeAttest    func(*mcsattestv1.AttestRequest)
	changeFields    func(*transcript.Fields)
}

func newNode(t *testing.T, v *verifier, tpm *swtpmtest.TPM) *node {
	t.Helper()
	n := &node{t: t, v: v, pool: "worker"}
	if tpm != nil {
		a, err := attester.Open(tpm.Dial(), attester.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = a.Close() })
		n.tpm, n.id = a, a.Identity()
	}
	n.connect()
	return n
}

// connect begins a new connection.
func (n *node) connect() {
	n.t.Helper()
	conn, err := tls.DialWithDialer(&net.Dialer{LocalAddr: n.from}, "tcp", n.v.addr,
		&tls.Config{RootCAs: n.v.roots, ServerName: "mcs.test", MinVersion: tls.VersionTLS13})
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = conn.Close() })
	n.conn = conn
	n.transport = &http.Transport{DialTLSContext: func(context.Context, string, string) (net.Conn, error) {
		if n.conn == nil {
			return nil, errors.New("the connection is used up")
		}
		c := n.conn
		n.conn = nil
		return c, nil
	}}
	n.client = mcsattestv1connect.NewAttestationClient(&http.Client{Transport: n.transport}, testOrigin)
	n.exported(conn)
}

// channel is what the connection's TLS gives to the transcript.
type channel struct{ exporter, spki []byte }

func (n *node) exported(conn *tls.Conn) {
	state := conn.ConnectionState()
	exporter, err := state.ExportKeyingMaterial(transcript.ExporterLabel, nil, transcript.ExporterSize)
	if err != nil {
		n.t.Fatal(err)
	}
	spki := sha256.Sum256(state.PeerCertificates[0].RawSubjectPublicKeyInfo)
	n.channel = channel{exporter, spki[:]}
}

// ask calls Challenge.
func (n *node) ask() error {
	req := &mcsattestv1.ChallengeRequest{Pool: n.pool, Origin: testOrigin, AgentVersion: "test/1"}
	if n.tpm != nil {
		req.Offered = append(req.Offered, mcsattestv1.EvidenceKind_EVIDENCE_KIND_TPM2)
		req.Tpm = &mcsattestv1.TpmIdentity{EkPublic: n.id.EKPublic, EkCertificates: n.id.EKCertificates,
			AkPublic: n.id.AKPublic, AkCertificates: n.id.AKCertificates}
	}
	for _, k := range n.offers {
		req.Offered = append(req.Offered, mcsattestv1.EvidenceKind(k))
	}
	for _, b := range n.id.Banks {
		req.Tpm.Banks = append(req.Tpm.Banks, uint32(b))
	}
	if n.changeChallenge != nil {
		n.changeChallenge(req)
	}
	res, err := n.client.Challenge(n.t.Context(), connect.NewRequest(req))
	if err != nil {
		return err
	}
	n.challenge = res.Msg
	return nil
}

// answer calls Attest with honest evidence for the last challenge.
func (n *node) answer() (*mcsattestv1.AttestResponse, error) {
	n.t.Helper()
	return n.send(n.evidence())
}

func (n *node) send(req *mcsattestv1.AttestRequest) (*mcsattestv1.AttestResponse, error) {
	if n.changeAttest != nil {
		n.changeAttest(req)
	}
	res, err := n.client.Attest(n.t.Context(), connect.NewRequest(req))
	if err != nil {
		return nil, err
	}
	return res.Msg, nil
}

// evidence makes the honest answer to the last challenge.
func (n *node) evidence() *mcsattestv1.AttestRequest {
	n.t.Helper()
	c, ch := n.challenge, n.channel
	claims := []byte(cmp.Or(n.says, `{"hostname":"test"}`))
	var kinds []evidence.Kind
	for _, k := range c.GetRequired() {
		kinds = append(kinds, evidence.Kind(k))
	}
	var pcrs []int
	for _, p := range c.GetTpm().GetPcrs() {
		pcrs = append(pcrs, int(p))
	}
	bank := uint16(c.GetTpm().GetBank())
	f := transcript.Fields{
		Sealed: c.GetSealed(), Nonce: c.GetNonce(), Binding: "exporter", Exporter: ch.exporter, ServerSPKI: ch.spki,
		Origin: c.GetOrigin(), Pool: c.GetPool(), Required: transcript.Required(kinds, bank, pcrs), Claims: claims,
	}
	if slices.Contains(kinds, evidence.TPM2) {
		f.EKSPKI, f.AKName = n.id.EKSPKI[:], n.id.AKName
	}
	if n.changeFields != nil {
		n.changeFields(&f)
	}
	req := &mcsattestv1.AttestRequest{Sealed: c.GetSealed(), ServerSpkiSha256: ch.spki, Claims: claims}
	for _, k := range kinds {
		if k != evidence.TPM2 && n.gather != nil {
			req.Cloud = append(req.Cloud, n.gather(k, f.Hash(), c.GetCloud()))
		}
	}
	if !slices.Contains(kinds, evidence.TPM2) {
		return req
	}
	ev, err := n.tpm.Attest(attester.Challenge{
		CredentialBlob: c.GetTpm().GetCredentialBlob(), EncryptedSecret: c.GetTpm().GetEncryptedSecret(), Bank: bank,
		PCRs: pcrs,
	}, f.Hash())
	if err != nil {
		n.t.Fatal(err)
	}
	req.Tpm2 = &mcsattestv1.Tpm2Evidence{Quote: ev.Quote, Signature: ev.Signature, Activation: ev.Activation,
		PcrValues: ev.PCRValues, EventLog: n.log}
	return req
}

// attest is a whole honest attestation.
func (n *node) attest() (*mcsattestv1.AttestResponse, error) {
	n.t.Helper()
	if err := n.ask(); err != nil {
		return nil, err
	}
	return n.answer()
}

// again is attest on a new connection.
func (n *node) again() (*mcsattestv1.AttestResponse, error) {
	n.t.Helper()
	n.connect()
	return n.attest()
}

// denialOf is the detail of a denied call.
func denialOf(t *testing.T, err error) *mcsattestv1.Denial {
	t.Helper()
	var c *connect.Error
	if !errors.As(err, &c) {
		t.Fatalf("not a denial: %v", err)
	}
	for _, d := range c.Details() {
		if m, err := d.Value(); err == nil {
			if denial, ok := m.(*mcsattestv1.Denial); ok {
				return denial
			}
		}
	}
	t.Fatalf("a denial without its detail: %v", err)
	return nil
}

func hexOf(b [32]byte) string { return hex.EncodeToString(b[:]) }

// lockedBuffer is a log that a test may read while it is written.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
	all bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all.Write(p)
	return b.buf.Write(p)
}

func (b *lockedBuffer) drain() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.buf.String()
	b.buf.Reset()
	return s
}

func (b *lockedBuffer) everything() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.String()
}
