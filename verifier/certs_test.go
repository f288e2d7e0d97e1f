// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	tpm "github.com/google/go-tpm/tpm2"
	"google.golang.org/protobuf/proto"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/mcs-attest/mcs-attest/pkg/pointer"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
	"github.com/mcs-attest/mcs-attest/testvm/cluster"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
)

// A verifier in a cluster whose operator renews nothing: it says what an
// administrator has to do once, keeps the certificates from then on, serves what was
// renewed without dropping a connection, and the pointer config follows.
func TestCertificatesInACluster(t *testing.T) {
	t.Parallel()
	rs := newReplicas(t, cluster.Start(t), 0)
	rs.cluster.Kubectl(t, "apply", "-f", filepath.Join("..", "deploy", "components", "certificates", "rbac.yaml"))
	pointerText, err := pointer.New(testOrigin, "worker", rs.ca)
	if err != nil {
		t.Fatal(err)
	}
	rs.cluster.KubectlApply(t, object("v1", "Secret", machineNamespace, "worker-user-data",
		map[string]any{"stringData": map[string]any{"userData": string(pointerText)}}))
	p := rs.serve(0, "certificates: {}\n")
	eventually(t, func() bool { return strings.Contains(p.log.everything(), "'certs init' once with an administrator's") },
		func() string { return "it does not say what to do" })

	// As an administrator.
	path := filepath.Join(t.TempDir(), "admin.yaml")
	text := fmt.Sprintf("origins: [%q]\nkubernetes:\n  machineNamespaces: [openshift-machine-api]\n  kubeconfig: %s\n"+
		"certificates: {}\n", testOrigin, rs.cluster.Kubeconfig("admin"))
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	certs := func(want int, args ...string) {
		t.Helper()
		if got := cli.Run(context.Background(), &env.Env{Name: env.Verifier},
			append(append([]string{"certs"}, args...), "--config", path)); got != want {
			t.Fatalf("certs %v: status %d", args, got)
		}
	}
	serves := func(signer string) bool {
		c := p.server.Certificates.Current()
		return c != nil && c.Leaf != nil && strings.HasPrefix(c.Leaf.Issuer.CommonName, signer)
	}
	before := rs.pointerRoots()
	stays := rs.use(rs.open(p.addr, before))
	certs(0, "init")
	certs(0, "status")
	if !serves("root-ca") {
		t.Error("init replaced what is served")
	}
	certs(1, "rotate") // too early
	certs(0, "rotate", "--now")
	eventually(t, func() bool { return serves("openshift-machine-config-operator_machine-config-server-ca@") },
		func() string { return "it serves the old one" })
	if _, ok := p.server.Certificates.Current().Leaf.PublicKey.(*ecdsa.PublicKey); !ok {
		t.Error("not on P-256")
	}

	// A connection stays open, and a machine that trusts the bundle connects.
	if err := ask(rs.open(p.addr, rs.pointerRoots())); err != nil {
		t.Error(err)
	}
	certs(0, "rotate")
	certs(0, "rotate", "--now")
	if err := stays(); err != nil {
		t.Errorf("the connection from before the rotation: %v", err)
	}

	eventually(t, func() bool {
		w := httptest.NewRecorder()
		p.controller.Metrics.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		return strings.Contains(w.Body.String(), `set="mcs-ca"`) && strings.Contains(w.Body.String(), `set="mcs-serving"`)
	}, func() string { return "no metric of expiry" })
	if log := p.log.everything(); strings.Contains(log, "PRIVATE KEY") {
		t.Error("a key is in the log")
	}
}

// pointerRoots are what a machine with the worker's user data trusts now.
func (rs *replicas) pointerRoots() *x509.CertPool {
	rs.t.Helper()
	s, err := kubernetes.NewForConfigOrDie(rs.cluster.Admin()).CoreV1().Secrets(machineNamespace).Get(context.Background(), "worker-user-data", metav1.GetOptions{})
	if err != nil {
		rs.t.Fatal(err)
	}
	c, err := pointer.Parse(s.Data["userData"])
	if err != nil {
		rs.t.Fatal(err)
	}
	all, err := c.CertificateAuthorities()
	if err != nil {
		rs.t.Fatal(err)
	}
	roots := x509.NewCertPool()
	for _, a := range all {
		roots.AddCert(a)
	}
	return roots
}

// open is a connection of a machine's.
func (rs *replicas) open(addr string, roots *x509.CertPool) *tls.Conn {
	rs.t.Helper()
	c, err := tls.Dial("tcp", addr, &tls.Config{RootCAs: roots, ServerName: "mcs.test", NextProtos: []string{"http/1.1"}})
	if err != nil {
		rs.t.Fatal(err)
	}
	rs.t.Cleanup(func() { _ = c.Close() })
	return c
}

// use asks on a connection each second, as one that is idle is closed: after 10 seconds without a challenge, in which a
// slow machine may stall, and so it has one. The function that use returns asks once more, and returns the first error.
func (rs *replicas) use(c *tls.Conn) func() error {
	rs.t.Helper()
	rs.challenge(c)
	stop, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			err := ask(c)
			select {
			case <-stop:
				ended <- cmp.Or(err, ask(c))
				return
			case <-time.After(time.Second):
			}
			if err != nil {
				ended <- err
				return
			}
		}
	}()
	return func() error {
		close(stop)
		return <-ended
	}
}

// challenge requests a challenge on a connection, and does not answer it.
func (rs *replicas) challenge(c *tls.Conn) {
	rs.t.Helper()
	keys, err := newSoftKeys()
	if err != nil {
		rs.t.Fatal(err)
	}
	body, err := proto.Marshal(&mcsattestv1.ChallengeRequest{
		Pool: "worker", Origin: testOrigin,
		Offered: []mcsattestv1.EvidenceKind{mcsattestv1.EvidenceKind_EVIDENCE_KIND_TPM2},
		Tpm: &mcsattestv1.TpmIdentity{EkPublic: keys.EKPublic, AkPublic: keys.AKPublic,
			Banks: []uint32{uint32(tpm.TPMAlgSHA256)}},
	})
	if err != nil {
		rs.t.Fatal(err)
	}
	if err := exchange(c, fmt.Sprintf("POST %sChallenge HTTP/1.1\r\nHost: mcs.test\r\nContent-Type: application/proto\r\n"+
		"Content-Length: %d\r\n\r\n%s", apiPath, len(body), body)); err != nil {
		rs.t.Fatal(err)
	}
}

// ask asks for the health on a connection that is open.
func ask(c *tls.Conn) error { return exchange(c, "GET /healthz HTTP/1.1\r\nHost: mcs.test\r\n\r\n") }

// exchange sends a request, and returns an error unless the answer is 200.
func exchange(c *tls.Conn, request string) error {
	if _, err := io.WriteString(c, request); err != nil {
		return err
	}
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return err
	}
	defer func() { _ = r.Body.Close() }()
	if r.StatusCode != http.StatusOK {
		return fmt.Errorf("status %s", r.Status)
	}
	_, err = io.Copy(io.Discard, r.Body)
	return err
}
