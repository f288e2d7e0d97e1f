// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/mcs-attest/mcs-attest/testvm/binaries"
)

// VerifierBinary builds the verifier in its shipped form.
func (r *Rig) VerifierBinary() string {
	r.t.Helper()
	path, err := binaries.Verifier()
	r.fatal(err, "verifier")
	return path
}

// ReplicaConfig defines one of several verifiers that store nothing themselves.
type ReplicaConfig struct {
	// Name is the replica's own name; in a cluster, the pod's.
	Name string
	// Config is mcs-attest.yaml, without the addresses to listen on.
	Config string
	// Controller is the configuration of its controller, which has another account.
	Controller string
	// CA is the certificate authority that will issue the replica's certificate.
	CA []byte
	// OnAudit is called with each line of the audit log.
	OnAudit func(Audit)
}

// Replica creates a verifier, a front and a controller, whose folder contains only the
// configurations. It is not started.
func (r *Rig) Replica(c ReplicaConfig) *Verifier {
	r.t.Helper()
	r.verifiers++
	v := &Verifier{
		r: r, Dir: filepath.Join(r.dir, c.Name), Port: r.freePort(), healthPort: r.freePort(),
		binary: r.VerifierBinary(), onAudit: c.OnAudit, changed: make(chan struct{}), env: []string{"POD_NAME=" + c.Name},
	}
	v.log = filepath.Join(r.dir, c.Name+".log")
	r.keep(v.log)
	r.fatal(os.MkdirAll(filepath.Join(v.Dir, "tls"), 0o755), "replica")
	v.Write("mcs-attest.yaml",
		fmt.Sprintf("listen: 127.0.0.1:%d\nhealthListen: 127.0.0.1:%d\nmetricsListen: 127.0.0.1:%d\n%s", v.Port, v.healthPort,
			r.freePort(), c.Config))
	v.Write("controller.yaml", c.Controller)
	v.controller = filepath.Join(v.Dir, "controller.yaml")
	v.Write("tls/ca.crt", string(c.CA))
	return v
}

// Addr returns its address on the host.
func (v *Verifier) Addr() string {
	if v.host == Host6 {
		return fmt.Sprintf("[::1]:%d", v.Port)
	}
	return fmt.Sprintf("127.0.0.1:%d", v.Port)
}

// WaitReady waits until a replica reports that it can serve a machine.
func (v *Verifier) WaitReady() {
	v.r.t.Helper()
	client := &http.Client{Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	why := "it does not answer"
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		resp, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d/readyz", v.healthPort))
		if err == nil {
			problems, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err == nil && resp.StatusCode == http.StatusOK {
				return
			}
			why = string(problems)
		}
		if time.Now().After(deadline) {
			v.r.t.Fatalf("%s is not ready: %s\nits log ends with\n%s", filepath.Base(v.Dir), why, v.logTail())
		}
	}
}

func (v *Verifier) logTail() string {
	lines := strings.Split(strings.TrimSpace(v.Log()), "\n")
	return "\t" + strings.Join(lines[max(0, len(lines)-20):], "\n\t")
}

// Serving returns the certificate and the key that it serves with, in PEM.
func (m *MCS) Serving() (cert, key []byte) { return m.pair.Certificate, m.pair.Key.Expose() }
