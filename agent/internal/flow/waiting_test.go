// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/agent/internal/console"
)

// What differs between two attempts is not another reason. The console prints the first one unchanged.
func TestWaiting_PrintsTheSameReasonOnce(t *testing.T) {
	read := func(port int) error {
		return &net.OpError{Op: "read", Net: "tcp6",
			Source: &net.TCPAddr{IP: net.ParseIP("fe80::5"), Port: port, Zone: "eth0"},
			Addr:   &net.TCPAddr{IP: net.ParseIP("fe80::1"), Port: 22623}, Err: os.ErrDeadlineExceeded}
	}
	lookup := func(name string, port int) error {
		return &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{
			Err:  fmt.Sprintf("read udp 10.0.0.5:%d->10.0.0.1:53: i/o timeout", port),
			Name: name, Server: "10.0.0.1:53", IsTimeout: true}}
	}
	for name, c := range map[string]struct {
		a, b error
		want int
	}{
		"source ports":        {fmt.Errorf("TLS with host: %w", read(1)), fmt.Errorf("TLS with host: %w", read(2)), 1},
		"source ports of DNS": {lookup("host", 43121), lookup("host", 5), 1},
		"times": {errors.New("x509: certificate is not yet valid: current time 2026-01-01T00:00:00Z is before 2"),
			errors.New("x509: certificate is not yet valid: current time 2026-01-01T00:00:05Z is before 2"), 1},
		"mount points": {errors.New("open /run/mcs-attest/volume-12: no space"),
			errors.New("open /run/mcs-attest/volume-3456: no space"), 1},
		"names":   {lookup("host", 1), lookup("other", 1), 2},
		"servers": {errors.New("dial tcp 10.0.0.1:22623: no route"), errors.New("dial tcp 10.0.0.2:22623: no route"), 2},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			f := &Flow{Console: &console.Console{Out: &out, Err: &out}, Since: func() time.Duration { return 0 }}
			f.waiting(c.a, time.Second)
			f.waiting(c.b, time.Second)
			if n := strings.Count(out.String(), "\n"); n != c.want || !strings.Contains(out.String(), c.a.Error()) {
				t.Errorf("%d lines, want %d:\n%s", n, c.want, out.String())
			}
		})
	}
}
