// SPDX-License-Identifier: Apache-2.0

package records_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"
	"unicode"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/record"
	"github.com/mcs-attest/mcs-attest/pkg/token"
	kubeevents "github.com/mcs-attest/mcs-attest/verifier/internal/kube/events"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/records"
)

var events = schema.GroupVersionResource{Version: "v1", Resource: "events"}

// sink keeps what is emitted.
type sink []kubeevents.Event

func (s *sink) Emit(e kubeevents.Event) { *s = append(*s, e) }

// recording is a replica whose Events are written until the test ends.
func (s *site) recording() replica {
	s.Helper()
	client, err := kubernetes.NewForConfig(s.cluster.Admin())
	if err != nil {
		s.Fatal(err)
	}
	ev := kubeevents.NewRecorder(kubeevents.Options{
		Client: client.CoreV1(), Host: "cp-0", Log: slog.New(slog.DiscardHandler), Timeout: time.Minute,
		Dropped: func() { s.Error("an event was lost") },
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); ev.Run(ctx) }()
	s.Cleanup(func() { cancel(); <-done })
	return s.replica(func(o *records.Options) { o.Events = ev })
}

// about waits for n events of an object.
func (s *site) about(uid string, n int) map[string]unstructured.Unstructured {
	s.Helper()
	for {
		all := map[string]unstructured.Unstructured{}
		for _, e := range s.list(events, s.namespace) {
			if about, _, _ := unstructured.NestedString(e.Object, "involvedObject", "uid"); about == uid {
				why, _, _ := unstructured.NestedString(e.Object, "reason")
				all[why] = e
			}
		}
		if len(all) >= n {
			return all
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func field(e unstructured.Unstructured, name string) string {
	s, _, _ := unstructured.NestedString(e.Object, name)
	return s
}

func TestUpdate_EmitsTheEventsOfAMachine(t *testing.T) {
	s := newSite(t)
	now := s.now()
	r, m, id := s.recording(), s.machine("worker-0"), unique()
	update := func(change func(*v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error)) {
		t.Helper()
		if err := r.Update(t.Context(), m.UID, change); err != nil {
			t.Fatal(err)
		}
	}
	update(func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
		return record.Denied(rec, m, reason.From(reason.Deny(reason.PCRCapped, "PCR 11 is not as it was")), "c0", now), nil
	})
	s.attested(r, m, id, "token1", now)
	update(func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
		return record.Denied(rec, m,
			reason.From(reason.Deny(reason.IdentityConflict, "shown was %q", "\x1b[31mevil\u202e\n")), "c1", now), nil
	})
	update(func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
		return record.Redeem(rec, token.Claims{ID: "token1", Subject: m.String(), MachineUID: m.UID, Pool: "worker"},
			nil, now)
	})
	update(func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
		return record.Report(rec, "ticket-token1",
			v1alpha1.FailureReport{Unit: "ignition-fetch.service", Result: "timeout\x00\x1b[2J", Message: "untrusted"},
			"c2", now)
	})
	update(func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
		return record.Joined(rec, "node-0", now), nil
	})
	want := map[string]string{"Denied": "Warning", "Attested": "Normal", "Conflict": "Warning", "Fetched": "Normal",
		"FirstBootFailed": "Warning", "Joined": "Normal"}
	got := s.about(m.UID, len(want))
	for why, kind := range want {
		e, ok := got[why]
		if !ok {
			t.Errorf("no event %s", why)
			continue
		}
		if field(e, "type") != kind || e.GetNamespace() != s.namespace {
			t.Errorf("%s: %v", why, e.Object)
		}
		if message := field(e, "message"); message == "" ||
			strings.ContainsFunc(message, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("%s: message %q", why, message)
		}
	}
	if message := field(got["Denied"], "message"); !strings.HasPrefix(message, "PCRCapped: PCR 11") {
		t.Errorf("Denied: %q", message)
	}
	if message := field(got["Attested"], "message"); message != "evidence accepted, endorsed by enrolled" {
		t.Errorf("Attested: %q", message)
	}
	if e := got["Attested"]; e.GetAnnotations()["mcs-attest.dev/correlation-id"] != "c-token1" {
		t.Errorf("Attested: %v", e.GetAnnotations())
	}
	// A person sees them where a person looks.
	if out := s.cluster.Kubectl(t, "-n", s.namespace, "describe", "machines.machine.openshift.io",
		"worker-0"); !strings.Contains(out, "FirstBootFailed") || !strings.Contains(out, "mcs-attest-verifier") {
		t.Errorf("kubectl describe:\n%s", out)
	}
}

func TestRepeatedEventsAreCounted(t *testing.T) {
	s := newSite(t)
	now := s.now()
	r, m, id := s.recording(), s.machine("worker-0"), unique()
	for i := range 3 {
		s.attested(r, m, id, "token1", now.Add(time.Duration(i)*time.Minute))
	}
	count := func() (n, total int64) {
		for _, e := range s.list(events, s.namespace) {
			c, _, _ := unstructured.NestedInt64(e.Object, "count")
			n, total = n+1, total+c
		}
		return n, total
	}
	for {
		if n, total := count(); total == 3 {
			if n != 1 {
				t.Errorf("%d events", n)
			}
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func TestAttack_T46_NoSecretInAnEvent(t *testing.T) {
	s := newSite(t)
	var received sink
	r := s.replica(func(o *records.Options) { o.Events = &received })
	m, id, now := s.machine("worker-0"), unique(), s.now()
	s.attested(r, m, id, "the-token-id", now)
	denied(t, attest(r, m, id, "another", now), reason.RateLimited)
	// Only what was written is told.
	if len(received) != 1 || received[0].Reason != "Attested" || received[0].About.UID != m.UID ||
		received[0].About.Kind != "Machine" {
		t.Fatalf("received %+v", received)
	}
	for _, secret := range []string{"the-token-id", "ticket"} {
		if strings.Contains(received[0].Message, secret) {
			t.Errorf("the event has %q: %q", secret, received[0].Message)
		}
	}
}

func TestUpdate_EmitsTheEventsOfStandInsAndBreakGlassTokens(t *testing.T) {
	s := newSite(t)
	var received sink
	r, now, id := s.replica(func(o *records.Options) { o.Events = &received }), s.now(), unique()
	m := s.watched(s.create(attestations, s.namespace, map[string]any{
		"apiVersion": v1alpha1.APIVersion, "kind": v1alpha1.KindMachineAttestation, "metadata": map[string]any{"name": "sno"},
		"spec": map[string]any{"pool": "master", "ekSHA256": []any{id.EKSHA256}},
	}))
	s.attested(r, m, id, "token1", now)
	c := token.Claims{ID: "b1", Subject: "break-glass/ticket-7", MachineUID: record.BreakGlassUID("b1"), Pool: "worker",
		IssuedAt: now, Expiry: now.Add(time.Hour)}
	if err := r.Update(t.Context(), c.MachineUID,
		func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
			return record.BreakGlass(rec, c, true, now)
		}); err != nil {
		t.Fatal(err)
	}
	token := s.get(attestations, s.own, "break-glass-b1")
	want := []kubeevents.Event{
		{About: kubeevents.Object{APIVersion: v1alpha1.APIVersion, Kind: v1alpha1.KindMachineAttestation,
			Namespace: s.namespace, Name: "sno", UID: m.UID}, Reason: "Attested"},
		{About: kubeevents.Object{APIVersion: v1alpha1.APIVersion, Kind: v1alpha1.KindMachineAttestation, Namespace: s.own,
			Name: "break-glass-b1", UID: string(token.GetUID())}, Reason: "BreakGlass"},
	}
	if len(received) != len(want) {
		t.Fatalf("received %+v", received)
	}
	for i, w := range want {
		if received[i].About != w.About || received[i].Reason != w.Reason {
			t.Errorf("received %+v, want %+v", received[i], w)
		}
	}
}

// BenchmarkAttest is an attestation as far as the records go, on a real API server.
func BenchmarkAttest(b *testing.B) {
	for _, c := range []struct {
		name  string
		again bool
	}{{"first", false}, {"again", true}} {
		b.Run(c.name, func(b *testing.B) {
			s := newSite(b)
			r, now := s.replica(), s.now()
			machines := make([]*machine.Machine, 1)
			if !c.again {
				machines = make([]*machine.Machine, b.N)
			}
			ids := make([]v1alpha1.RecordedIdentity, len(machines))
			for i := range machines {
				machines[i], ids[i] = s.machine("worker-"+ek(i)[56:]), unique()
				if err := r.EnsureRecord(b.Context(), machines[i]); err != nil {
					b.Fatal(err)
				}
				if c.again {
					s.attested(r, machines[i], ids[i], "token", now.Add(-time.Hour))
				}
			}
			r.count()
			b.ResetTimer()
			for i := range b.N {
				n := i % len(machines)
				if err := attest(r, machines[n], ids[n], "token", now.Add(time.Duration(i)*time.Minute)); err != nil {
					b.Fatal(err)
				}
			}
			b.StopTimer()
			writes, reads := r.count()
			b.ReportMetric(float64(writes)/float64(b.N), "writes/op")
			b.ReportMetric(float64(reads)/float64(b.N), "reads/op")
		})
	}
}
