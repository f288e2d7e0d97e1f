// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester/swtpmtest"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/serve"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
)

// walks are the verifiers and the TPMs of the scripts, by the folder of the script.
var walks sync.Map

// walk is the verifier of a script, and its machines.
type walk struct {
	v    *verifier
	tpms map[string]*swtpmtest.TPM
}

// serving returns the script command "serving DIR", which runs serve on a folder until the script ends.
// "! serving DIR" stops it.
func serving(t *testing.T) func(*testscript.TestScript, bool, []string) {
	return func(ts *testscript.TestScript, neg bool, args []string) {
		key := ts.MkAbs(args[0])
		if neg {
			w, _ := walks.Load(key)
			w.(*walk).v.stop()
			return
		}
		c, err := config.Load(filepath.Join(key, "mcs-attest.yaml"))
		ts.Check(err)
		for _, address := range []*string{&c.Listen, &c.HealthListen, &c.MetricsListen} {
			*address = freeAddress(t)
		}
		v := &verifier{t: t, dir: key, config: c, addr: c.Listen, log: &lockedBuffer{}, roots: x509.NewCertPool()}
		ca, err := os.ReadFile(filepath.Join(key, "tls", "ca.crt"))
		ts.Check(err)
		v.roots.AppendCertsFromPEM(ca)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- serve.Run(ctx, c, slog.New(slog.NewJSONHandler(v.log, nil)), version) }()
		v.stop = sync.OnceFunc(func() {
			cancel()
			if err := <-done; err != nil {
				t.Error("serve:", err)
			}
		})
		ts.Defer(v.stop)
		w := &walk{v: v, tpms: map[string]*swtpmtest.TPM{}}
		if old, ok := walks.Swap(key, w); ok {
			w.tpms = old.(*walk).tpms
		}
		s := &served{health: c.HealthListen}
		for s.probe("/readyz") != nil {
			select {
			case err := <-done:
				done <- nil
				ts.Fatalf("serve: %v", err)
			case <-time.After(20 * time.Millisecond):
			}
		}
		// The socket for administrators is the last thing that serves.
		eventually(t, func() bool {
			conn, err := net.Dial("unix", filepath.Join(key, "state", "admin.sock"))
			if err == nil {
				_ = conn.Close()
			}
			return err == nil
		}, func() string { return "nothing answers on the socket for administrators" })
	}
}

// logged returns the script command "logged DIR REGEXP": a line of the log of the verifier that serves DIR matches.
func logged(ts *testscript.TestScript, neg bool, args []string) {
	found, ok := walks.Load(ts.MkAbs(args[0]))
	if !ok {
		ts.Fatalf("nothing serves %s", args[0])
	}
	text := found.(*walk).v.log.everything()
	if regexp.MustCompile(args[1]).MatchString(text) == neg {
		ts.Fatalf("log:\n%s", text)
	}
}

// fetches is the script command "fetches DIR FILE STATUS": the gate of the verifier that serves DIR answers with this
// status to a client that has the token in FILE.
func fetches(ts *testscript.TestScript, _ bool, args []string) {
	found, ok := walks.Load(ts.MkAbs(args[0]))
	if !ok {
		ts.Fatalf("nothing serves %s", args[0])
	}
	token := strings.TrimSpace(ts.ReadFile(args[1]))
	if got, _, body := found.(*walk).v.fetch(http.MethodGet, "/config/worker", token); strconv.Itoa(got) != args[2] {
		ts.Fatalf("status %d, want %s: %s", got, args[2], body)
	}
}

// boots returns the script command "boots DIR TPM OUTCOME", in which a machine attests to the verifier that
// serves DIR. The outcome is allowed, or the class of the denial. $EK is the TPM's EK, $ID the correlation id.
func boots(t *testing.T) func(*testscript.TestScript, bool, []string) {
	return func(ts *testscript.TestScript, _ bool, args []string) {
		found, ok := walks.Load(ts.MkAbs(args[0]))
		if !ok {
			ts.Fatalf("nothing serves %s", args[0])
		}
		w := found.(*walk)
		tpm := w.tpms[args[1]]
		if tpm == nil {
			tpm = swtpmtest.Start(t, "sha256")
			w.tpms[args[1]] = tpm
		}
		n := newNode(t, w.v, tpm)
		defer n.tpm.Close() //nolint:errcheck // the next boot opens it again
		ts.Setenv("EK", fmt.Sprintf("%x", n.id.EKSPKI))
		granted, err := n.attest()
		outcome, id := "allowed", granted.GetCorrelationId()
		if err != nil {
			d := denialOf(t, err)
			outcome = strings.ToLower(strings.TrimPrefix(d.GetClass().String(), "DENIAL_CLASS_"))
			id = d.GetCorrelationId()
		}
		ts.Setenv("ID", id)
		if outcome != args[2] {
			ts.Fatalf("%s, want %s: %v\n%s", outcome, args[2], err, w.v.log.everything())
		}
	}
}
