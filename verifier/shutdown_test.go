// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester/swtpmtest"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/serve"
)

// A verifier that stops completes an attestation that has started, and starts no other.
func TestShutdown_CompletesAttestationsAndStartsNone(t *testing.T) {
	v := newVerifier(t)
	first := newNode(t, v, swtpmtest.Start(t, "sha256"))
	v.enroll("m1", "worker", first.id.EKSPKI)
	v.stop()
	c := *v.config
	c.Listen, c.HealthListen, c.MetricsListen = freeAddress(t), freeAddress(t), freeAddress(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 1)
	go func() { done <- serve.Run(ctx, &c, v.server.Log, version) }()
	s := &served{health: c.HealthListen}
	eventually(t, func() bool { return s.probe("/readyz") == nil }, v.log.everything)

	v.addr = c.Listen
	first.connect()
	if err := first.ask(); err != nil {
		t.Fatal(err)
	}
	answer := first.evidence()
	stop()
	if err := s.probe("/readyz"); err == nil || !strings.Contains(err.Error(), "shutdown: ") {
		t.Errorf("load balancers do not see that it stops: %v", err)
	}
	second := newNode(t, v, nil)
	if err := second.ask(); connect.CodeOf(err) != connect.CodeUnavailable {
		t.Errorf("a new attestation: %v", err)
	}
	if _, err := first.send(answer); err != nil {
		t.Errorf("the attestation that had started: %v", err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if got := v.reasons(); !slices.Equal(got, []string{"ShuttingDown"}) {
		t.Errorf("reasons %v", got)
	}
}
