// SPDX-License-Identifier: Apache-2.0

// Package door checks that the ports of the Machine Config Server (MCS) on a
// control-plane node lead to the gate, and not to the MCS itself. The verifier of
// a cluster uses it; its rules are deploy/base/nftables/mcs-attest.nft.
//
// # The proof
//
// MCS and gate serve with the same certificate, and in some modes with the same
// answers. So the check asks for a proof that only the gate can give. It sends a
// fresh nonce over TLS. The gate answers with an HMAC over the nonce and the
// exporter of the TLS connection (RFC 8446, section 7.5), under a key derived from
// the sealing keys that all replicas share. Thus the other end of this TLS
// connection holds the sealing keys. A proof of an earlier check, or of another
// connection, does not pass.
//
// # What an observation means
//
//   - Closed: the port gave the proof. Or port 22624 refused or dropped the
//     connection on a path on which 22623 gave the proof.
//   - Open: an HTTP server answered without the proof, or a server without TLS
//     answered on 22624.
//   - Unknown: everything else. A refused connection on 22623 is not Closed: the
//     packet filter of the observing host may have refused it.
//
// # The two paths
//
// OVN-Kubernetes rejects, in the output of every node, new connections to 22623 and
// 22624. For a node's verifier the rules therefore keep a second path: connections to
// [standInGate] and [standInClear] from [firstLocalPort] to [lastLocalPort] leave the
// host with the real ports. The check uses both paths, and the worse result counts.
package door

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/seal"
)

// The ports of the MCS: with TLS, and without.
const (
	GatePort  = 22623
	ClearPort = 22624
)

// The ports of the second path; see deploy/base/nftables/mcs-attest.nft.
const (
	standInGate    = 22645
	standInClear   = 22646
	firstLocalPort = 22650
	lastLocalPort  = 22699
)

const (
	pathPrefix    = "/mcs-attest/door/"
	nonceSize     = 32
	exporterLabel = "EXPORTER-mcs-attest-door"
	exporterSize  = 32
	// maxAnswer is the maximum size of an answer, in bytes.
	maxAnswer = 4096
	// defaultPatience is the timeout of one connection with its request.
	defaultPatience = 5 * time.Second
)

// State is the observed state of a port.
type State string

// The states.
const (
	Closed  State = "closed"
	Open    State = "open"
	Unknown State = "unknown"
)

// States lists all states.
var States = []State{Closed, Open, Unknown}

// Observation is what was observed of one port of a host.
type Observation struct {
	State State
	// Text describes the observation for an administrator.
	Text string
}

// Answer returns the gate's answer to a check. The second result is false for any other request. The
// request needs no authentication: it costs one HMAC, and neither writes nor logs.
func Answer(keys func() seal.Ring, now func() time.Time, r *http.Request) (http.HandlerFunc, bool) {
	encoded, ok := strings.CutPrefix(r.URL.Path, pathPrefix)
	if !ok || r.Method != http.MethodGet || r.URL.RawQuery != "" {
		return nil, false
	}
	nonce, err := hex.DecodeString(encoded)
	if err != nil || len(nonce) != nonceSize {
		return nil, false
	}
	return func(w http.ResponseWriter, r *http.Request) {
		message, err := message(nonce, r.TLS)
		if err == nil {
			var proof []byte
			if proof, err = keys().Prove(now(), message); err == nil {
				w.Header().Set("Content-Type", "text/plain; charset=utf-8")
				w.Header().Set("Cache-Control", "no-store")
				// If this fails, the client has disconnected.
				_, _ = io.WriteString(w, hex.EncodeToString(proof))
				return
			}
		}
		http.Error(w, "no proof is available", http.StatusServiceUnavailable)
	}, true
}

// message returns the data that a proof authenticates.
func message(nonce []byte, connection *tls.ConnectionState) ([]byte, error) {
	if connection == nil {
		return nil, errors.New("not TLS")
	}
	exporter, err := connection.ExportKeyingMaterial(exporterLabel, nil, exporterSize)
	if err != nil {
		return nil, err
	}
	return append(append([]byte(nil), nonce...), exporter...), nil
}

// Prober checks hosts. It is safe for concurrent use.
type Prober struct {
	Keys func() seal.Ring

	patience time.Duration // zero means defaultPatience
	next     atomic.Uint32 // the next local port
}

// Probe observes both ports of a host.
func (p *Prober) Probe(ctx context.Context, host netip.Addr) (gate, clear Observation) {
	type path struct{ gate, clear Observation }
	var paths [2]path
	done := make(chan struct{})
	for i, ports := range [2][2]uint16{{GatePort, ClearPort}, {standInGate, standInClear}} {
		go func() {
			defer func() { done <- struct{}{} }()
			second := i == 1
			paths[i].gate = p.prove(ctx, netip.AddrPortFrom(host, ports[0]), second)
			paths[i].clear = p.proveOrRefuse(ctx, netip.AddrPortFrom(host, ports[1]), second)
		}()
	}
	<-done
	<-done
	direct, second := paths[0], paths[1]
	for _, one := range []*path{&direct, &second} {
		// If 22623 gave no proof, packets may not have reached the host.
		if one.gate.State != Closed && one.clear.State == Closed {
			one.clear.State = Unknown
		}
	}
	return worse(direct.gate, second.gate), worse(direct.clear, second.clear)
}

// worse combines the observations of two paths. An unknown one counts only if the other is unknown as
// well.
func worse(direct, second Observation) Observation {
	switch {
	case direct.State == Open:
		return direct
	case second.State == Open:
		return second
	case second.State == Closed && direct.State != Closed:
		return second
	}
	return direct
}

// prove requests the proof from the port with TLS.
func (p *Prober) prove(ctx context.Context, at netip.AddrPort, second bool) Observation {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(p.patience, defaultPatience))
	defer cancel()
	conn, err := p.dial(ctx, at, second)
	if err == nil {
		var o Observation
		if o, err = p.request(ctx, at.Addr(), conn); err == nil {
			return o
		}
	}
	return Observation{Unknown, "no answer: " + brief(err)}
}

// proveOrRefuse requests the proof from the port without TLS. The rules redirect it to the gate. Other
// rules may refuse its connections. The Machine Config Server accepts them, and does not use TLS.
func (p *Prober) proveOrRefuse(ctx context.Context, at netip.AddrPort, second bool) Observation {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(p.patience, defaultPatience))
	defer cancel()
	conn, err := p.dial(ctx, at, second)
	var timeout net.Error
	switch {
	case err == nil:
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET), errors.As(err, &timeout) &&
		timeout.Timeout():
		return Observation{Closed, "no connection: " + brief(err)}
	default:
		// For example, no local port is free, which proves nothing about the host.
		return Observation{Unknown, "no connection was attempted: " + brief(err)}
	}
	o, err := p.request(ctx, at.Addr(), conn)
	var noTLS tls.RecordHeaderError
	switch {
	case err == nil:
		return o
	case errors.As(err, &noTLS):
		return Observation{Open, "a server without TLS answers"}
	}
	return Observation{Unknown, "no answer: " + brief(err)}
}

// request requests the proof over conn, which it closes.
func (p *Prober) request(ctx context.Context, host netip.Addr, conn net.Conn) (Observation, error) {
	defer conn.Close()
	nonce := make([]byte, nonceSize)
	rand.Read(nonce)
	transport := &http.Transport{
		DialContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil },
		// The proof authenticates the other end, and nothing secret is sent.
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}, // as above
		TLSNextProto:      map[string]func(string, *tls.Conn) http.RoundTripper{},
		DisableKeepAlives: true, MaxResponseHeaderBytes: maxAnswer,
	}
	defer transport.CloseIdleConnections()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+
		net.JoinHostPort(host.String(), strconv.Itoa(GatePort))+pathPrefix+hex.EncodeToString(nonce), nil)
	if err != nil {
		return Observation{}, err
	}
	resp, err := transport.RoundTrip(r)
	if err != nil {
		return Observation{}, err
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 500 || resp.StatusCode == http.StatusTooManyRequests {
		return Observation{Unknown, fmt.Sprintf("a server answers with status %d, which proves nothing",
			resp.StatusCode)}, nil
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return Observation{Unknown, "incomplete answer: " + brief(err)}, nil
	}
	message, err := message(nonce, resp.TLS)
	if err == nil {
		var proof []byte
		if proof, err = hex.DecodeString(string(body)); err == nil {
			err = p.Keys().CheckProof(proof, message)
		}
	}
	var denial *reason.Denial
	switch {
	case err == nil && resp.StatusCode == http.StatusOK:
		return Observation{Closed, "the gate answers"}, nil
	case errors.As(err, &denial) && denial.Code == reason.ChallengeKeyUnknown:
		return Observation{Unknown, "the proof uses a key that this replica does not have"}, nil
	}
	return Observation{Open, fmt.Sprintf("a server that is not the gate answers (status %d)", resp.StatusCode)}, nil
}

func (p *Prober) dial(ctx context.Context, at netip.AddrPort, second bool) (net.Conn, error) {
	for try := 1; ; try++ {
		var d net.Dialer
		if second {
			const ports = lastLocalPort - firstLocalPort + 1
			d.LocalAddr = &net.TCPAddr{Port: firstLocalPort + int(p.next.Add(1)%ports)}
		}
		conn, err := d.DialContext(ctx, "tcp", at.String())
		if second && try < 5 && (errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, syscall.EADDRNOTAVAIL)) {
			continue
		}
		if tcp, ok := conn.(*net.TCPConn); ok {
			// A reset frees the local port immediately.
			_ = tcp.SetLinger(0)
		}
		return conn, err
	}
}

// brief returns an error without the addresses, which the caller adds.
func brief(err error) string {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno.Error()
	}
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		return "timeout"
	}
	text := err.Error()
	return cmp.Or(text[:min(len(text), 200)], "failed")
}
