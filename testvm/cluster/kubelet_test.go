// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/testvm/freeport"
)

// pairFor returns a node's certificate and its key, as the agent delivers them.
func (c *Cluster) pairFor(t *testing.T, node string, notBefore, notAfter time.Time) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{Organization: []string{"system:nodes"}, CommonName: "system:node:" + node},
		NotBefore:    notBefore, NotAfter: notAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, c.ca.cert, key.Public(), c.ca.key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})...)
}

// kubelet is a real kubelet without pods, whose certificate folder was written before its start.
type kubelet struct {
	*process
	dir string
}

const current = "kubelet-client-current.pem"

// kubelet starts a kubelet with a bootstrap kubeconfig that has no credential.
func (c *Cluster) kubelet(t *testing.T, node string, files map[string]string, links map[string]string) *kubelet {
	t.Helper()
	dir := t.TempDir()
	k := &kubelet{dir: dir}
	write := func(name, text string) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range files {
		write("pki/"+name, text)
	}
	for name, target := range links {
		if err := os.Symlink(filepath.Join(dir, "pki", target), filepath.Join(dir, "pki", name)); err != nil {
			t.Fatal(err)
		}
	}
	write("bootstrap", fmt.Sprintf(`apiVersion: v1
kind: Config
clusters:
- name: local
  cluster: {server: %q, certificate-authority: %q}
users:
- name: kubelet
  user: {token: ""}
contexts:
- name: kubelet
  context: {cluster: local, user: kubelet}
current-context: kubelet
`, c.host(), c.ca.path("ca.crt")))
	// The host's own settings must not change: protectKernelDefaults.
	write("config", `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix://`+filepath.Join(dir, "cri.sock")+`
authentication: {anonymous: {enabled: false}, x509: {clientCAFile: `+c.ca.path("ca.crt")+`}}
rotateCertificates: true
protectKernelDefaults: true
cgroupDriver: cgroupfs
cgroupsPerQOS: false
enforceNodeAllocatable: []
failSwapOn: false
failCgroupV1: false
localStorageCapacityIsolation: false
makeIPTablesUtilChains: false
resolvConf: ""
address: 127.0.0.1
healthzPort: 0
`)
	cri, err := start("cri", filepath.Join(dir, "cri.log"), dir, filepath.Join(c.bin, "cri"),
		filepath.Join(dir, "cri.sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cri.kill)
	port, err := freeport.Pick()
	if err != nil {
		t.Fatal(err)
	}
	k.process, err = start("kubelet", filepath.Join(dir, "kubelet.log"), dir, filepath.Join(c.bin, "kubelet"),
		"--hostname-override="+node, "--bootstrap-kubeconfig="+filepath.Join(dir, "bootstrap"),
		"--kubeconfig="+filepath.Join(dir, "kubeconfig"), "--root-dir="+filepath.Join(dir, "root"),
		"--cert-dir="+filepath.Join(dir, "pki"), "--config="+filepath.Join(dir, "config"), fmt.Sprintf("--port=%d", port),
		"--v=2")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.kill)
	return k
}

// logged waits for a line in the kubelet's log.
func (k *kubelet) logged(t *testing.T, text string) {
	t.Helper()
	k.until(t, "a line with "+text, func() bool {
		raw, err := os.ReadFile(filepath.Join(k.dir, "kubelet.log"))
		return err == nil && strings.Contains(string(raw), text)
	})
}

func (k *kubelet) until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(3 * time.Minute); !done(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("expected: %s\n%s", what, tail(filepath.Join(k.dir, "kubelet.log")))
		}
	}
}

// What docs/credential.md says of a pair that is in the certificate folder before the first start.
// The agent depends on it: a link to a file, not a file.
func TestKubelet_UsesAndRenewsAPairThatIsAlreadyThere(t *testing.T) {
	c := Start(t, Controllers("certificatesigningrequest-signing-controller",
		"certificatesigningrequest-approving-controller"))
	c.Kubectl(t, "create", "clusterrolebinding", "renewals", "--group=system:nodes",
		"--clusterrole=system:certificates.k8s.io:certificatesigningrequests:selfnodeclient")
	now := time.Now()
	due := func(node string) string {
		return string(c.pairFor(t, node, now.Add(-10*time.Hour), now.Add(10*time.Minute)))
	}

	t.Run("a link", func(t *testing.T) {
		t.Parallel()
		pair := due("linked")
		k := c.kubelet(t, "linked", map[string]string{"kubelet-client-mcs-attest.pem": pair},
			map[string]string{current: "kubelet-client-mcs-attest.pem"})
		k.until(t, "the link leads to another certificate", func() bool {
			target, err := os.Readlink(filepath.Join(k.dir, "pki", current))
			return err == nil && filepath.Base(target) != "kubelet-client-mcs-attest.pem"
		})
		if raw, err := os.ReadFile(filepath.Join(k.dir, "pki", current)); err != nil || string(raw) == pair {
			t.Errorf("the certificate was not replaced: %v", err)
		}
	})
	t.Run("a file", func(t *testing.T) {
		t.Parallel()
		pair := due("plain")
		k := c.kubelet(t, "plain", map[string]string{current: pair}, nil)
		k.logged(t, "to be a symlink but it is a file")
		if raw, err := os.ReadFile(filepath.Join(k.dir, "pki", current)); err != nil || string(raw) != pair {
			t.Errorf("the certificate was replaced: %v", err)
		}
	})
	t.Run("another name than the kubelet's", func(t *testing.T) {
		t.Parallel()
		k := c.kubelet(t, "right", map[string]string{"kubelet-client-mcs-attest.pem": string(c.pairFor(t, "wrong",
			now.Add(-time.Minute), now.Add(time.Hour)))}, map[string]string{current: "kubelet-client-mcs-attest.pem"})
		k.logged(t, "Current certificate CN does not match requested CN")
	})
	t.Run("no pair", func(t *testing.T) {
		t.Parallel()
		c.kubelet(t, "naked", nil, nil).logged(t, "system:anonymous")
	})
}
