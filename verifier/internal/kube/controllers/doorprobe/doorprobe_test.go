// SPDX-License-Identifier: Apache-2.0

package doorprobe

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/seal"
	"github.com/mcs-attest/mcs-attest/verifier/internal/door"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/events"
)

// recorder is the metrics, the Events and the cluster of a test.
type recorder struct {
	mu     sync.Mutex
	states map[string]string
	events []events.Event
	nodes  map[string][]netip.Addr
	known  bool
	seen   map[string]door.State // by "address port"
}

func (r *recorder) Door(node, port, state string, _ []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.states[node+" "+port] = state
}

func (r *recorder) NoDoor(node string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for at := range r.states {
		if strings.HasPrefix(at, node+" ") {
			delete(r.states, at)
		}
	}
}

func (r *recorder) Emit(e events.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

func newTest(t *testing.T) (*recorder, *Prober) {
	t.Helper()
	r := &recorder{states: map[string]string{}, known: true, seen: map[string]door.State{}, nodes: map[string][]netip.Addr{
		"one": {netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")},
		"two": {netip.MustParseAddr("192.0.2.3")},
	}}
	p := New(Options{
		Log: slog.New(slog.DiscardHandler), Metrics: r, Events: r, Keys: func() seal.Ring { return seal.Ring{} },
		ControlPlane: func() (map[string][]netip.Addr, bool) { return r.nodes, r.known },
	})
	p.probe = func(_ context.Context, a netip.Addr) (gate, clear door.Observation) {
		r.mu.Lock()
		defer r.mu.Unlock()
		of := func(port int) door.Observation {
			if state, ok := r.seen[fmt.Sprintf("%s %d", a, port)]; ok {
				return door.Observation{State: state, Text: "seen " + string(state)}
			}
			return door.Observation{State: door.Closed, Text: "closed"}
		}
		return of(door.GatePort), of(door.ClearPort)
	}
	return r, p
}

func TestProber_ReportsEachDoorThatOpensOnce(t *testing.T) {
	r, p := newTest(t)
	want := func(what string, status metav1.ConditionStatus, reason string, findings, events int) {
		t.Helper()
		p.round(t.Context())
		if c := p.Condition(); c.Status != status || c.Reason != reason {
			t.Errorf("%s: %+v", what, c)
		}
		if len(p.Findings()) != findings || len(r.events) != events {
			t.Errorf("%s: %d findings, %d Events", what, len(p.Findings()), len(r.events))
		}
	}
	if c := p.Condition(); c.Type != "" {
		t.Errorf("before anything was checked: %+v", c)
	}
	r.known = false
	want("the pools were not read", metav1.ConditionUnknown, "NotObserved", 0, 0)
	r.known = true
	want("closed", metav1.ConditionFalse, "OnlyTheGateAnswers", 0, 0)

	// One address of two is sufficient.
	r.seen["192.0.2.2 22624"] = door.Open
	want("open", metav1.ConditionTrue, "AnswersWithoutGate", 1, 1)
	want("still open", metav1.ConditionTrue, "AnswersWithoutGate", 1, 1)
	if m := r.events[0]; !m.Warning || m.Reason != "DoorOpen" || m.About.Name != "one" || r.states["one 22624"] != "open" {
		t.Errorf("%+v, %v", m, r.states)
	}

	// Only the proof closes an open port. A server that accepts connections and sends nothing does not. An update
	// makes a closed port unknown for a moment, which is not reported.
	r.seen["192.0.2.2 22624"] = door.Unknown
	for range unknownRounds {
		want("unknown after open", metav1.ConditionTrue, "AnswersWithoutGate", 1, 1)
	}
	if c := p.Condition(); !strings.Contains(c.Message, "seen open") {
		t.Errorf("the condition does not name what answered: %s", c.Message)
	}
	delete(r.seen, "192.0.2.2 22624")
	want("closed again", metav1.ConditionFalse, "OnlyTheGateAnswers", 0, 1)
	r.seen["192.0.2.2 22624"] = door.Unknown
	for range unknownRounds - 1 {
		want("unknown for a moment", metav1.ConditionFalse, "OnlyTheGateAnswers", 0, 1)
	}
	want("unknown", metav1.ConditionUnknown, "NotObserved", 0, 1)
	r.seen["192.0.2.2 22624"] = door.Open
	want("open again", metav1.ConditionTrue, "AnswersWithoutGate", 1, 2)

	delete(r.nodes, "one")
	want("the Node is gone", metav1.ConditionFalse, "OnlyTheGateAnswers", 0, 2)
	if _, ok := r.states["one 22624"]; ok {
		t.Error("the metric of a Node that is gone stays")
	}
	r.nodes = nil
	p.round(t.Context())
	if c := p.Condition(); c.Type != v1alpha1.ConditionDoorOpen || c.Status != "" {
		t.Errorf("without a control plane: %+v, want one that is removed", c)
	}
}

func TestProber_ANodeWithoutAddressIsUnknown(t *testing.T) {
	r, p := newTest(t)
	r.nodes = map[string][]netip.Addr{"bare": nil}
	for range unknownRounds {
		p.round(t.Context())
	}
	if c := p.Condition(); c.Status != metav1.ConditionUnknown || !strings.Contains(c.Message, "no internal address") {
		t.Errorf("%+v", c)
	}
	if p.NeedLeaderElection() || len(p.in(door.Unknown)) != 2 {
		t.Errorf("%v", p.in(door.Unknown))
	}
}
