// SPDX-License-Identifier: Apache-2.0

// Package cluster runs a real Kubernetes API for tests: etcd and kube-apiserver with the CRDs of
// OpenShift, and the programs that belong to it (kubectl, haproxy, the controllers that clean up
// and sign). Nothing is simulated, and no container engine is needed.
//
//	c := cluster.Start(t)
//	c.InstallOpenShift(t)
//	c.KubectlApply(t, machine)
//	client := kubernetes.NewForConfigOrDie(c.ServiceAccount(t, "mcs-attest", "mcs-attest-verifier"))
//
// kube-apiserver and kubectl are built from a Go module and stored in the build cache; etcd and
// haproxy are Debian packages. A cluster uses a temporary folder and free ports of the loopback
// interface, and needs no root. It is ready after two to four seconds. Its processes end with the
// test process, even if that is killed.
//
// A failed test prints the ends of the logs and keeps the logs under artifacts/<test>.
package cluster

import (
	"context"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"

	"github.com/mcs-attest/mcs-attest/testvm/binaries"
)

// TB is the part of *testing.T that a cluster uses. A demo implements it, too.
type TB interface {
	Helper()
	Name() string
	Logf(format string, a ...any)
	Fatalf(format string, a ...any)
	Cleanup(func())
	Failed() bool
}

// startLimit is how long a component may take until it answers. An idle host needs two seconds.
const startLimit = 10 * time.Minute

// Cluster is a running Kubernetes API.
type Cluster struct {
	dir  string
	bin  string
	repo string
	logf func(format string, a ...any)
	o    options
	ca   *authority
	port *port // of the API server; stays reserved while the server is stopped

	mu          sync.Mutex
	etcdPort    int
	etcd        *process
	api         *process
	controllers *process
	audit       int // how many lines of the audit log were read
	accounts    map[string]string
	reaper      io.Closer
	closers     []io.Closer
	kubelets    *kubelets // nil without [Kubelets]
}

type options struct {
	controllers []string
	audit       bool
	kubelets    bool
	flags       []string
}

// Option changes how a cluster is started.
type Option func(*options)

// Controllers also runs kube-controller-manager with the named controllers:
// "garbage-collector-controller" deletes the dependents of a deleted object,
// "certificatesigningrequest-signing-controller" signs approved requests.
func Controllers(names ...string) Option {
	return func(o *options) { o.controllers = append(o.controllers, names...) }
}

// Audit makes the API server log every request, for [Cluster.Requests].
func Audit() Option { return func(o *options) { o.audit = true } }

// Start starts a cluster for one test.
func Start(t TB, o ...Option) *Cluster {
	t.Helper()
	skipInUnit(t)
	dir, err := os.MkdirTemp("", "cluster-")
	if err != nil {
		t.Fatalf("temporary folder: %v", err)
	}
	c, err := StartMain(dir, t.Logf, o...)
	if err != nil {
		os.RemoveAll(dir)
		t.Fatalf("cluster: %v", err)
	}
	t.Cleanup(c.Stop)
	c.explain(t)
	return c
}

var shared struct {
	once sync.Once
	c    *Cluster
	err  error
}

// StartShared returns the cluster that all tests of this process share. The options of the first
// caller are used. It ends with the process.
func StartShared(t TB, o ...Option) *Cluster {
	t.Helper()
	skipInUnit(t)
	shared.once.Do(func() {
		var dir string
		if dir, shared.err = os.MkdirTemp("", "cluster-"); shared.err == nil {
			// The log of a test that has ended must not be written.
			shared.c, shared.err = StartMain(dir, func(format string, a ...any) { fmt.Fprintf(os.Stderr, format+"\n", a...) },
				o...)
		}
	})
	if shared.err != nil {
		t.Fatalf("cluster: %v", shared.err)
	}
	shared.c.explain(t)
	return shared.c
}

// skipInUnit skips the test in `make unit`, which runs only tests without an API server.
func skipInUnit(t TB) {
	t.Helper()
	if test, ok := t.(interface{ Skip(...any) }); ok && os.Getenv("MCS_ATTEST_UNIT") == "1" {
		test.Skip("it needs an API server, and MCS_ATTEST_UNIT is set")
	}
}

// StartMain starts a cluster without a test. It uses dir, which [Cluster.Stop] or the end of the
// process removes. logf receives progress lines.
func StartMain(dir string, logf func(format string, a ...any), o ...Option) (*Cluster, error) {
	if err := needTools(); err != nil {
		return nil, err
	}
	repo, err := binaries.Root()
	if err != nil {
		return nil, err
	}
	progress := func(format string, a ...any) { logf("cluster: "+format, a...) }
	bin, err := binaries.Kubernetes(progress)
	if err != nil {
		return nil, err
	}
	c := &Cluster{dir: dir, bin: bin, repo: repo, logf: progress, accounts: map[string]string{}}
	for _, option := range o {
		option(&c.o)
	}
	if c.reaper, err = reap(dir); err != nil {
		return nil, err
	}
	if err := c.prepare(); err != nil {
		c.Stop()
		return nil, err
	}
	if c.o.kubelets {
		flags, err := c.connectKubelets()
		if err != nil {
			c.Stop()
			return nil, err
		}
		c.o.flags = append(c.o.flags, flags...)
	}
	began := time.Now()
	for _, step := range []func() error{c.startEtcd, c.StartAPIServer, c.startControllers} {
		if err := step(); err != nil {
			c.Stop()
			return nil, err
		}
	}
	progress("Kubernetes API on %s after %.1f s", c.host(), time.Since(began).Seconds())
	return c, nil
}

// reap removes the folder after this process has ended for any reason.
func reap(dir string) (io.Closer, error) {
	cmd := exec.Command("/bin/sh", "-c", `cat >/dev/null
i=0
until rm -rf -- "$1" 2>/dev/null || [ $i -gt 100 ]; do i=$((i+1)); sleep 0.1; done`, "reap", dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return reaper{stdin, cmd}, nil
}

type reaper struct {
	stdin io.Closer
	cmd   *exec.Cmd
}

func (r reaper) Close() error { return errors.Join(r.stdin.Close(), r.cmd.Wait()) }

// Stop ends every process and removes the folder.
func (c *Cluster) Stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.controllers.kill()
	c.api.kill()
	c.etcd.kill()
	for _, one := range c.closers {
		if err := one.Close(); err != nil {
			c.logf("%v", err)
		}
	}
	if c.port != nil {
		c.port.release()
	}
	if err := c.reaper.Close(); err != nil {
		c.logf("removing %s: %v", c.dir, err)
	}
}

// prepare creates the keys, the certificates and the kubeconfig of the administrator.
func (c *Cluster) prepare() (err error) {
	if c.ca, err = newAuthority(filepath.Join(c.dir, "pki")); err != nil {
		return err
	}
	if c.port, err = holdPort(); err != nil {
		return err
	}
	return errors.Join(
		c.ca.issue("apiserver", pkix.Name{CommonName: "kube-apiserver"},
			[]string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"},
			[]net.IP{net.IPv4(127, 0, 0, 1), net.IPv4(10, 0, 0, 1), net.IPv4(10, 0, 2, 2), net.ParseIP(PodAPI)}),
		c.ca.issue("admin", pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}}, nil, nil),
		// All controllers share the permissions that a control plane grants to each of them
		// separately.
		c.ca.issue("controllers", pkix.Name{CommonName: "controllers", Organization: []string{"system:masters"}}, nil, nil),
		c.ca.signingKey("service-account"),
		c.writeKubeconfig("admin", c.Admin()),
		c.writeKubeconfig("controllers", c.certified("controllers")),
		os.WriteFile(c.path("audit-policy.yaml"), []byte(auditPolicy), 0o600),
	)
}

func (c *Cluster) path(name string) string { return filepath.Join(c.dir, name) }

func (c *Cluster) host() string { return fmt.Sprintf("https://127.0.0.1:%d", c.port.number) }

// StartAPIServer starts the API server again at the same address with the same etcd, and waits
// until it is ready.
func (c *Cluster) StartAPIServer() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	args := []string{
		fmt.Sprintf("--etcd-servers=http://127.0.0.1:%d", c.etcdPort),
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", c.port.number), "--permit-port-sharing",
		"--tls-cert-file=" + c.ca.path("apiserver.crt"), "--tls-private-key-file=" + c.ca.path("apiserver.key"),
		"--client-ca-file=" + c.ca.path("ca.crt"),
		"--service-account-key-file=" + c.ca.path("service-account.pub"),
		"--service-account-signing-key-file=" + c.ca.path("service-account.key"),
		"--service-account-issuer=https://kubernetes.default.svc", "--service-cluster-ip-range=10.0.0.0/24",
		"--authorization-mode=Node,RBAC", "--enable-bootstrap-token-auth", "--allow-privileged",
		// The loopback address cannot be published as the endpoint of the Service "kubernetes",
		// which no test uses.
		"--endpoint-reconciler-type=none",
		// Debian's etcd is too old for this feature, and each attempt would be logged.
		"--feature-gates=SizeBasedListCostEstimate=false",
	}
	if c.o.audit {
		args = append(args, "--audit-log-path="+c.path("audit.log"), "--audit-policy-file="+c.path("audit-policy.yaml"),
			"--audit-log-mode=blocking")
	}
	args = append(args, c.o.flags...)
	var err error
	c.api, err = start("kube-apiserver", c.path("kube-apiserver.log"), c.dir,
		filepath.Join(c.bin, "kube-apiserver"), args...)
	if err != nil {
		return err
	}
	client, err := rest.HTTPClientFor(c.Admin())
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	return c.api.ready(func() error { return get(client, c.host()+"/readyz") })
}

// StopAPIServer kills the API server. Its port stays reserved and rejects connections.
func (c *Cluster) StopAPIServer() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.api.kill()
}

// PauseAPIServer freezes the API server until resume is called: the kernel accepts connections, but
// no request is answered.
func (c *Cluster) PauseAPIServer() (resume func() error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	pid := c.api.cmd.Process.Pid
	if err := syscall.Kill(-pid, syscall.SIGSTOP); err != nil {
		c.logf("pausing the API server: %v", err)
	}
	// The signal reaches the threads one by one. Until the last one has stopped, the process may
	// still answer.
	if err := unix.Waitid(unix.P_PID, pid, nil, unix.WSTOPPED, nil); err != nil {
		c.logf("pausing the API server: %v", err)
	}
	return func() error { return syscall.Kill(-pid, syscall.SIGCONT) }
}

func (c *Cluster) startControllers() error {
	if len(c.o.controllers) == 0 {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var err error
	c.controllers, err = start("kube-controller-manager", c.path("kube-controller-manager.log"), c.dir,
		filepath.Join(c.bin, "kube-controller-manager"),
		"--kubeconfig="+c.path("controllers.kubeconfig"), "--leader-elect=false", "--secure-port=0",
		"--controllers="+strings.Join(c.o.controllers, ","), "--use-service-account-credentials=false",
		"--cluster-signing-cert-file="+c.ca.path("ca.crt"), "--cluster-signing-key-file="+c.ca.path("ca.key"),
		"--root-ca-file="+c.ca.path("ca.crt"), "--service-account-private-key-file="+c.ca.path("service-account.key"))
	return err
}

// explain prints and keeps the logs if the test fails.
func (c *Cluster) explain(t TB) {
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		kept := filepath.Join(c.repo, "artifacts", strings.ReplaceAll(t.Name(), "/", "_"))
		if err := os.MkdirAll(kept, 0o755); err != nil {
			t.Logf("cluster: %v", err)
		}
		logs, err := filepath.Glob(c.path("*.log"))
		if err != nil {
			t.Logf("cluster: %v", err)
		}
		for _, log := range logs {
			t.Logf("cluster: %s ends with\n%s", filepath.Base(log), tail(log))
			b, err := os.ReadFile(log)
			if err == nil {
				err = os.WriteFile(filepath.Join(kept, filepath.Base(log)), b, 0o644)
			}
			if err != nil {
				t.Logf("cluster: keeping %s: %v", log, err)
			}
		}
	})
}

func get(client *http.Client, url string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 4096))
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %s", url, resp.Status, body)
	}
	return nil
}
