// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/verifier/internal/backend"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
)

func TestAttack_T70_RequestsWithoutProofDoNotFillTheAccessLog(t *testing.T) {
	now := time.Now()
	s := &Server{Parts: &backend.Parts{Config: &config.Config{}, Now: func() time.Time { return now }}}
	var log bytes.Buffer
	write := s.accessLog(&log)
	lines := func(source string, proven bool, n int) int {
		log.Reset()
		r := httptest.NewRequest(http.MethodGet, "/config/worker", nil)
		r.RemoteAddr = source
		for range n {
			write(r, proven, "Pool")
		}
		return strings.Count(log.String(), "Pool\n")
	}
	if got := lines("192.0.2.1:1", false, 1000); got == 0 || got > 200 {
		t.Errorf("%d lines of 1000 requests without proof", got)
	}
	if got := lines("192.0.2.2:1", false, 1); got != 1 {
		t.Error("another source has no share")
	}
	if got := lines("192.0.2.1:1", true, 1000); got != 1000 {
		t.Errorf("%d lines of 1000 requests with proof", got)
	}
}
