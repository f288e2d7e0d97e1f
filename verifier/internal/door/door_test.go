// SPDX-License-Identifier: Apache-2.0

package door

import (
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/seal"
)

func ring(t *testing.T) func() seal.Ring {
	t.Helper()
	r, err := seal.Ring{}.Rotate(rand.Reader, time.Now(), 0, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return func() seal.Ring { return r }
}

// host is an address of the loopback that no other test uses.
func host(t *testing.T) netip.Addr {
	t.Helper()
	raw := make([]byte, 3)
	rand.Read(raw)
	return netip.AddrFrom4([4]byte{127, raw[0] | 1, raw[1], raw[2] | 1})
}

func serve(t *testing.T, at netip.Addr, handler http.HandlerFunc) {
	t.Helper()
	serveAt(t, netip.AddrPortFrom(at, GatePort), handler)
}

func listen(t *testing.T, at netip.AddrPort) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", at.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// serveAt serves with TLS.
func serveAt(t *testing.T, at netip.AddrPort, handler http.HandlerFunc) {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.Listener.Close()
	server.Listener = listen(t, at)
	server.StartTLS()
	t.Cleanup(server.Close)
}

// gate answers as the gate does, and everything but a check with 404.
func gate(keys func() seal.Ring) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if answer, ok := Answer(keys, time.Now, r); ok {
			answer(w, r)
			return
		}
		http.NotFound(w, r)
	}
}

// Only the holder of the sealing keys at the other end of the same TLS connection makes
// a port closed.
func TestAttack_T68_OnlyTheGateItselfPassesForTheGate(t *testing.T) {
	own := ring(t)
	real := host(t)
	serve(t, real, gate(own))
	for _, c := range []struct {
		name   string
		server http.HandlerFunc // nil: none
		want   State
	}{
		{"the gate", gate(own), Closed},
		{"a Machine Config Server", http.NotFound, Open},
		{"a server that answers everything", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "{}") }, Open},
		{"a server that redirects to the gate", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, fmt.Sprintf("https://%s:%d%s", real, GatePort, r.URL.Path), http.StatusFound)
		}, Open},
		{"a proxy that asks the gate for the proof", func(w http.ResponseWriter, r *http.Request) {
			client := &http.Client{Transport: &http.Transport{
				TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
			}} // as an attacker does
			resp, err := client.Get(fmt.Sprintf("https://%s:%d%s", real, GatePort, r.URL.Path))
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			if _, err := io.Copy(w, resp.Body); err != nil {
				t.Error(err)
			}
		}, Open},
		{"a server with a proof for another nonce", func(w http.ResponseWriter, r *http.Request) {
			r.URL.Path = pathPrefix + strings.Repeat("ab", nonceSize)
			gate(own)(w, r)
		}, Open},
		{"another cluster's gate", gate(ring(t)), Unknown},
		{"a gate without keys", gate(func() seal.Ring { return seal.Ring{} }), Unknown},
		{"an overloaded server", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTooManyRequests) },
			Unknown},
		{"no server", nil, Unknown},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			at := host(t)
			if c.server != nil {
				serve(t, at, c.server)
			}
			p := Prober{Keys: own, patience: time.Minute}
			gate, clear := p.Probe(t.Context(), at)
			if gate.State != c.want {
				t.Errorf("22623 is %s (%s) instead of %s", gate.State, gate.Text, c.want)
			}
			want := Unknown
			if c.want == Closed {
				want = Closed
			}
			if clear.State != want {
				t.Errorf("22624, refused, is %s (%s) instead of %s", clear.State, clear.Text, want)
			}
		})
	}
	for _, c := range []struct {
		name   string
		server func(t *testing.T, at netip.AddrPort)
		want   State
	}{
		{"the gate on both ports", func(t *testing.T, at netip.AddrPort) { serveAt(t, at, gate(own)) }, Closed},
		{"a Machine Config Server in clear", func(t *testing.T, at netip.AddrPort) {
			server := &http.Server{Handler: http.NotFoundHandler(), ReadHeaderTimeout: time.Minute}
			go server.Serve(listen(t, at)) // it ends when the test closes it
			t.Cleanup(func() { server.Close() })
		}, Open},
		{"another server with TLS", func(t *testing.T, at netip.AddrPort) { serveAt(t, at, http.NotFound) }, Open},
		{"a server that does not answer", func(t *testing.T, at netip.AddrPort) { listen(t, at) }, Unknown},
	} {
		t.Run("22624: "+c.name, func(t *testing.T) {
			t.Parallel()
			at := host(t)
			serve(t, at, gate(own))
			c.server(t, netip.AddrPortFrom(at, ClearPort))
			p := Prober{Keys: own, patience: time.Minute}
			if c.want == Unknown {
				p.patience = 15 * time.Second // the test waits for all of it
			}
			if gate, clear := p.Probe(t.Context(), at); gate.State != Closed || clear.State != c.want {
				t.Errorf("%+v, %+v", gate, clear)
			}
		})
	}
}
