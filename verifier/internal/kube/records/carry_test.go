// SPDX-License-Identifier: Apache-2.0

package records

import (
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kjson "k8s.io/apimachinery/pkg/util/json"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/record"
)

func parsed(t *testing.T, s string) any {
	t.Helper()
	var v any
	if err := kjson.Unmarshal([]byte(s), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestCarry(t *testing.T) {
	for _, c := range []struct{ name, raw, before, after, want string }{
		{"nothing was there", `null`, `{}`, `{"phase":"Attested"}`, `{"phase":"Attested"}`},
		{"nothing changes", `{"phase":"Attested","new":1}`, `{"phase":"Attested"}`, `{"phase":"Attested"}`, `{"phase":"Attested","new":1}`},
		{"a field changes", `{"phase":"Attested","new":1}`, `{"phase":"Attested"}`, `{"phase":"Joined"}`, `{"phase":"Joined","new":1}`},
		{"a field goes", `{"pool":"worker","new":1}`, `{"pool":"worker"}`, `{}`, `{"new":1}`},
		{"a field comes", `{"new":1}`, `{}`, `{"pool":"worker"}`, `{"new":1,"pool":"worker"}`},
		{"deeper down", `{"identity":{"ekSHA256":"a","cert":"c"}}`, `{"identity":{"ekSHA256":"a"}}`, `{"identity":{"ekSHA256":"a","providerID":"p"}}`,
			`{"identity":{"ekSHA256":"a","cert":"c","providerID":"p"}}`},
		{"another token", `{"token":{"id":"t1","uses":2,"bound":"s"}}`, `{"token":{"id":"t1","uses":2}}`, `{"token":{"id":"t2","uses":0}}`, `{"token":{"id":"t2","uses":0}}`},
		{"the same token", `{"token":{"id":"t1","uses":2,"bound":"s"}}`, `{"token":{"id":"t1","uses":2}}`, `{"token":{"id":"t1","uses":3}}`, `{"token":{"id":"t1","uses":3,"bound":"s"}}`},
		{"the token was removed", `{"token":{"id":"t1","bound":"s"}}`, `{"token":{"id":"t1"}}`, `{}`, `{}`},
		{"a list grows and its oldest goes", `{"history":[{"event":"a","n":1},{"event":"b","n":2}]}`, `{"history":[{"event":"a"},{"event":"b"}]}`,
			`{"history":[{"event":"b"},{"event":"c"}]}`, `{"history":[{"event":"b","n":2},{"event":"c"}]}`},
		{"two alike", `{"history":[{"event":"a","n":1},{"event":"a","n":2}]}`, `{"history":[{"event":"a"},{"event":"a"}]}`,
			`{"history":[{"event":"a"},{"event":"a"},{"event":"a"}]}`, `{"history":[{"event":"a","n":1},{"event":"a","n":2},{"event":"a"}]}`},
		{"a condition turns", `{"conditions":[{"type":"A","status":"True","n":1},{"type":"B","status":"True","n":2}]}`,
			`{"conditions":[{"type":"A","status":"True"},{"type":"B","status":"True"}]}`, `{"conditions":[{"type":"A","status":"True"},{"type":"B","status":"False"}]}`,
			`{"conditions":[{"type":"A","status":"True","n":1},{"type":"B","status":"False","n":2}]}`},
		{"a time that was written more precisely", `{"lastAttested":"2026-03-01T12:00:00.5Z"}`, `{"lastAttested":"2026-03-01T12:00:00Z"}`, `{"lastAttested":"2026-03-01T12:00:00Z"}`,
			`{"lastAttested":"2026-03-01T12:00:00.5Z"}`},
		{"a map that became a list", `{"report":[1]}`, `{"report":{"unit":"u"}}`, `{"report":{"unit":"v"}}`, `{"report":{"unit":"v"}}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			raw := parsed(t, c.raw)
			got := carry(raw, parsed(t, c.before), parsed(t, c.after))
			if want := parsed(t, c.want); !reflect.DeepEqual(got, want) {
				t.Errorf("got  %v\nwant %v", got, want)
			}
			if !reflect.DeepEqual(raw, parsed(t, c.raw)) {
				t.Error("what was read was changed")
			}
		})
	}
}

func TestUnreadableRecord_AffectsOnlyItsMachine(t *testing.T) {
	var logged strings.Builder
	r := New(Options{Log: slog.New(slog.NewTextHandler(&logged, nil))})
	at := place{uid: "uid1", namespace: "ns", name: "sno",
		machine: &machine.Machine{Namespace: "ns", Name: "sno", UID: "uid1", StandIn: true}}
	object := func(status string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: parsed(t, `{"apiVersion":"mcs-attest.dev/v1alpha1","kind":"MachineAttestation","metadata":{"namespace":"ns","name":"sno","uid":"uid1"},"status":`+status+`}`).(map[string]any)}
	}
	if k, err := r.decodeRecord(at, object(`{"phase":"Attested","credential":{"jti":"j"}}`)); err != nil || k.record.Status.Phase != v1alpha1.PhaseAttested || k.record.Status.MachineUID != "uid1" {
		t.Errorf("one of a newer version: %v", err)
	}
	for _, status := range []string{`{"history":3}`, `{"token":{"uses":"many"}}`, `{"lastAttested":"yesterday"}`} {
		logged.Reset()
		_, err := r.decodeRecord(at, object(status))
		if d := reason.From(err); d == nil || d.Code != reason.StoreUnavailable {
			t.Errorf("%s: %v", status, err)
		}
		if !strings.Contains(logged.String(), "ns/sno") {
			t.Errorf("%s: logged %q", status, logged.String())
		}
	}
}

// A denial replaces a former one in the middle of a full history.
func TestNewEntriesOfAFullHistory(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	m := &machine.Machine{Namespace: "ns", Name: "w-0", UID: "uid1"}
	rec := record.New(m)
	rec.Status.History = []v1alpha1.HistoryEntry{{Time: metav1.NewTime(now), Event: "Attested"}}
	for range v1alpha1.MaxHistory + 5 {
		now = now.Add(time.Hour)
		next := record.Denied(rec, m, reason.From(reason.Deny(reason.BindingMismatch, "another boot")), "", now)
		if got := added(rec.Status.History, next.Status.History); len(got) != 1 || got[0].Event != "Denied" {
			t.Fatalf("new after %d entries: %+v", len(rec.Status.History), got)
		}
		rec = next
	}
}

func TestNewEntriesOfAHistory(t *testing.T) {
	entries := func(s string) (all []v1alpha1.HistoryEntry) {
		for _, e := range s {
			all = append(all, v1alpha1.HistoryEntry{Event: string(e)})
		}
		return all
	}
	for _, c := range []struct{ before, after, want string }{
		{"", "", ""}, {"", "a", "a"}, {"a", "a", ""}, {"a", "aa", "a"}, {"ab", "abc", "c"}, {"abc", "bcd", "d"},
		{"abc", "cde", "de"}, {"abc", "xyz", "xyz"}, {"abc", "c", ""}, {"aDbc", "abcE", "E"}, {"aDDb", "aDbE", "E"},
	} {
		var got strings.Builder
		for _, h := range added(entries(c.before), entries(c.after)) {
			got.WriteString(h.Event)
		}
		if got.String() != c.want {
			t.Errorf("%q to %q: %q, want %q", c.before, c.after, got.String(), c.want)
		}
	}
}
