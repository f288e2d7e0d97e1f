// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/mcs-attest/mcs-attest/testvm/children"
	"github.com/mcs-attest/mcs-attest/testvm/freeport"
)

// VerifierConfig defines how a verifier is set up. The zero value serves its own config for the
// pool "worker" under the policy that init writes: Enforce, an enrolled TPM, identity-only.
type VerifierConfig struct {
	// Pools are the pools, "worker" if empty, each with a config that writes "for POOL" into
	// /etc/provisioned.
	Pools []string
	// Policy replaces the sample policy.
	Policy string
	// Upstream makes it a gate in front of this server instead.
	Upstream *MCS
	// Host is the address or name for its machines: by default [Host], or [CloudHost] if they have a
	// metadata service, or [Host6].
	Host string
	// Origins are additional ones, of front ends.
	Origins []string
	// Extra is appended to mcs-attest.yaml.
	Extra string
	// Files are additional files of the folder: trust anchors, Machines.
	Files map[string]string
	// Env is added to the environment of the process, "NAME=value": a cloud's credentials.
	Env []string
	// OnAudit is called with each line of the audit log.
	OnAudit func(Audit)
	// Stopped leaves the start to the test.
	Stopped bool
}

// Verifier is a real mcs-attest-verifier process with its own folder.
type Verifier struct {
	r          *Rig
	Dir        string
	Port       int
	host       string
	healthPort int
	binary     string
	env        []string
	log        string
	onAudit    func(Audit)

	// controller is the configuration of its controller, a second process; "" without a cluster.
	controller string

	cmds  []*exec.Cmd
	ended chan struct{}

	mu      sync.Mutex
	lines   []Audit
	changed chan struct{}
}

// Verifier creates a folder with `init` and starts a verifier on it.
func (r *Rig) Verifier(c VerifierConfig) *Verifier {
	r.t.Helper()
	if len(c.Pools) == 0 {
		c.Pools = []string{"worker"}
	}
	r.verifiers++
	v := &Verifier{
		r: r, Dir: filepath.Join(r.dir, fmt.Sprintf("verifier%d", r.verifiers)), Port: r.freePort(),
		host:   cmp.Or(c.Host, Host),
		binary: r.VerifierBinary(), onAudit: c.OnAudit, env: c.Env, changed: make(chan struct{}),
	}
	v.log = filepath.Join(r.dir, fmt.Sprintf("verifier%d.log", r.verifiers))
	r.keep(v.log)
	args := []string{
		"init", v.Dir, "--origin", strings.Join(append([]string{v.Origin()}, c.Origins...), ","), "--pool",
		strings.Join(c.Pools, ","),
		"--listen", v.Addr(), "--health-listen", fmt.Sprintf("127.0.0.1:%d", r.freePort()),
		"--metrics-listen", fmt.Sprintf("127.0.0.1:%d", r.freePort()),
	}
	if c.Upstream != nil {
		args = append(args, "--upstream", c.Upstream.URL())
		c.Extra += "\nupstreamCA: upstream.crt\n"
	}
	r.run(r.dir, nil, v.binary, args...)
	if c.Upstream != nil {
		v.Write("upstream.crt", string(c.Upstream.CA()))
	} else {
		for _, pool := range c.Pools {
			v.Write("configs/"+pool+".ign", Config("for "+pool))
		}
	}
	for name, content := range c.Files {
		v.Write(name, content)
	}
	if c.Policy != "" {
		v.Write("policies/default.yaml", c.Policy)
	}
	if c.Extra != "" {
		f, err := os.OpenFile(v.configFile(), os.O_APPEND|os.O_WRONLY, 0)
		r.fatal(err, "verifier's configuration")
		_, err = f.WriteString(c.Extra)
		r.fatal(err, "verifier's configuration")
		r.fatal(f.Close(), "verifier's configuration")
	}
	if !c.Stopped {
		v.Start()
	}
	return v
}

func (r *Rig) freePort() int {
	r.t.Helper()
	port, err := freeport.Pick()
	r.fatal(err, "port")
	return port
}

func (v *Verifier) configFile() string { return filepath.Join(v.Dir, "mcs-attest.yaml") }

// Host returns the address in its origin.
func (v *Verifier) Host() string { return cmp.Or(v.host, Host) }

// Origin returns the origin for a guest: the host in slirp's network.
func (v *Verifier) Origin() string {
	return "https://" + net.JoinHostPort(v.Host(), strconv.Itoa(v.Port))
}

// Write writes a file of the folder, like an administrator, and creates the folder of the file.
func (v *Verifier) Write(name, content string) {
	v.r.t.Helper()
	path := filepath.Join(v.Dir, name)
	v.r.fatal(os.MkdirAll(filepath.Dir(path), 0o700), "verifier's folder")
	v.r.fatal(os.WriteFile(path+".new", []byte(content), 0o600), "verifier's folder")
	v.r.fatal(os.Rename(path+".new", path), "verifier's folder")
}

// Read reads a file of the folder.
func (v *Verifier) Read(name string) []byte {
	v.r.t.Helper()
	b, err := os.ReadFile(filepath.Join(v.Dir, name))
	v.r.fatal(err, "verifier's folder")
	return b
}

// Pointer returns the pointer config that init created for the pool.
func (v *Verifier) Pointer(pool string) []byte { return v.Read("pointers/" + pool + ".ign") }

// Start starts the process and waits until it serves.
func (v *Verifier) Start() {
	v.r.t.Helper()
	log, err := os.OpenFile(v.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	v.r.fatal(err, "verifier")
	out, in, err := os.Pipe()
	v.r.fatal(err, "verifier")
	v.cmds = []*exec.Cmd{exec.Command(v.binary, "serve", "--config", v.configFile())}
	if v.controller != "" {
		v.cmds = append(v.cmds, exec.Command(v.binary, "controller", "--config", v.controller,
			"--health-listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"))
	}
	for _, cmd := range v.cmds {
		cmd.Env = append(os.Environ(), v.env...)
		cmd.Stdout, cmd.Stderr = in, in
		v.r.fatal(children.Start(cmd), "verifier")
	}
	v.r.fatal(in.Close(), "verifier")
	ended := make(chan struct{})
	v.ended = ended
	go func() {
		defer close(ended)
		defer log.Close()
		v.follow(io.TeeReader(out, log))
		out.Close()
		for _, cmd := range v.cmds {
			if err := cmd.Wait(); err != nil {
				fmt.Fprintf(log, "rig: verifier %s ended: %v\n", cmd.Args[1], err)
			}
		}
	}()
	v.r.t.Cleanup(v.Stop)
	client := v.Client()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if resp, err := client.Get(v.local("/healthz")); err == nil {
			resp.Body.Close()
			return
		}
		select {
		case <-ended:
			v.r.t.Fatalf("the verifier did not start:\n%s", v.Log())
		default:
		}
		if time.Now().After(deadline) {
			v.r.t.Fatalf("the verifier does not answer:\n%s", v.Log())
		}
	}
}

// Stop ends the process normally and waits for it.
func (v *Verifier) Stop() { v.signal(syscall.SIGTERM) }

// Kill kills the process, like a power cut.
func (v *Verifier) Kill() { v.signal(syscall.SIGKILL) }

func (v *Verifier) signal(s syscall.Signal) {
	if v.ended == nil {
		return
	}
	select {
	case <-v.ended:
		return
	default:
	}
	for _, cmd := range v.cmds {
		if err := cmd.Process.Signal(s); err != nil {
			v.r.t.Logf("rig: ending the verifier: %v", err)
		}
	}
	select {
	case <-v.ended:
	case <-time.After(30 * time.Second):
		v.r.t.Logf("rig: the verifier did not end within 30 s of %v", s)
		for _, cmd := range v.cmds {
			if err := cmd.Process.Kill(); err != nil {
				v.r.t.Logf("rig: %v", err)
			}
		}
		<-v.ended
	}
}

// Log returns its whole output.
func (v *Verifier) Log() string {
	v.r.t.Helper()
	b, err := os.ReadFile(v.log)
	v.r.fatal(err, "verifier's log")
	return string(b)
}

// Run runs a subcommand on the folder and returns its output.
func (v *Verifier) Run(args ...string) string {
	v.r.t.Helper()
	return v.r.run(v.Dir, nil, v.binary, append(args, "--config", v.configFile())...)
}

// Tool runs a subcommand that needs no folder.
func (v *Verifier) Tool(args ...string) string {
	v.r.t.Helper()
	return v.r.run(v.Dir, nil, v.binary, args...)
}

// Enrolled returns a rig with a verifier, on which a new TPM is enrolled as worker-0 of the pool worker.
func Enrolled(t TB, c VerifierConfig) (*Rig, *Verifier, *TPM) {
	t.Helper()
	r := New(t)
	v := r.Verifier(c)
	tpm := r.NewTPM()
	v.Enroll("worker-0", "worker", tpm)
	return r, v, tpm
}

// Enroll enrolls the TPM's keys under a name, for a pool.
func (v *Verifier) Enroll(name, pool string, tpm *TPM) {
	v.r.t.Helper()
	args := []string{"enroll", "--name", name, "--pool", pool, "--wait", "10m"}
	for _, h := range tpm.EKSHA256() {
		args = append(args, "--ek-sha256", h)
	}
	v.Run(args...)
}

// Client returns a client on the host that trusts only the folder's CA.
func (v *Verifier) Client() *http.Client {
	return &http.Client{Timeout: 30 * time.Second, Transport: v.transport()}
}

func (v *Verifier) transport() *http.Transport {
	v.r.t.Helper()
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(v.Read("tls/ca.crt")) {
		v.r.t.Fatalf("no certificate in tls/ca.crt")
	}
	return &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: v.Host(), MinVersion: tls.VersionTLS13},
	}
}

func (v *Verifier) local(path string) string {
	return "https://" + v.Addr() + path
}

// Get sends a request to the gate from the host; token may be empty.
func (v *Verifier) Get(path, token string) (status int, body string) {
	v.r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, v.local(path), nil)
	v.r.fatal(err, "gate")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	client := v.Client()
	defer client.CloseIdleConnections()
	resp, err := client.Do(req)
	v.r.fatal(err, "gate")
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	v.r.fatal(err, "gate")
	return resp.StatusCode, string(b)
}
