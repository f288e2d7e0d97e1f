// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

func TestAttack_T49_FailedConnectionsDoNotFillTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // time advances only while all goroutines wait
		var buf bytes.Buffer
		l := New(slog.New(slog.NewJSONHandler(&buf, nil)))
		for range 10 * burst {
			l.Write(t.Context(), Decision{Event: "challenge", Outcome: "denied"})
		}
		lines := strings.Count(buf.String(), "\n")
		if lines < burst || lines > 2*burst {
			t.Errorf("%d lines for %d knocks", lines, 10*burst)
		}
		buf.Reset()
		for range 5 {
			l.Write(t.Context(), Decision{Event: "attest", Outcome: "allowed", Proven: true, Machine: "ns/m"})
		}
		if n := strings.Count(buf.String(), "\n"); n != 5 {
			t.Errorf("a proven machine's lines were left out: %d of 5", n)
		}
	})
}

func TestAttack_T50_TextFromTheNetworkIsOnePrintableLine(t *testing.T) {
	var buf bytes.Buffer
	l := New(slog.New(slog.NewTextHandler(&buf, nil)))
	evil := "worker\n{\"outcome\":\"allowed\"}\x1b[31m\u2028" + strings.Repeat("x", 10000)
	l.Write(t.Context(), Decision{Event: "challenge", Outcome: "denied", Pool: evil, Source: evil,
		Denial: reason.From(reason.Deny(reason.Malformed, "%s", evil))})
	if strings.Count(buf.String(), "\n") != 1 || strings.ContainsAny(buf.String(), "\x1b\u2028") || buf.Len() > 4*maxText {
		t.Errorf("%d bytes: %q", buf.Len(), buf.String()[:200])
	}
}
