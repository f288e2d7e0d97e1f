// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestRehearsed_CountsOnlyMachinesThatRehearsed(t *testing.T) {
	r := newRoleRig(t)
	record := func(uid, at string, passed bool) *unstructured.Unstructured {
		o := roleRecord(uid, uid, "worker", "")
		if at != "" {
			o.Object["status"].(map[string]any)["rehearsal"] = map[string]any{"time": at, "passed": passed}
		}
		return o
	}
	want := func(what string, failed int, oldest string) {
		t.Helper()
		gotFailed, gotOldest := r.Rehearsed()
		text := ""
		if !gotOldest.IsZero() {
			text = gotOldest.UTC().Format(time.RFC3339)
		}
		if gotFailed != failed || text != oldest {
			t.Errorf("%s: %d failed, the oldest at %q", what, gotFailed, text)
		}
	}
	want("no record", 0, "")
	const first, second, third = "2026-03-01T12:00:00Z", "2026-03-02T12:00:00Z", "2026-03-03T12:00:00Z"
	records := r.watching(t, attestationKind, "m")
	records.list(t, 8, record("a", second, true), record("b", first, false), record("c", "", false))
	want("three records", 1, first)
	again := record("b", third, true)
	again.SetResourceVersion("9")
	records.receive(t, again)
	want("the failed one passes", 0, second)
	records.list(t, 10, record("c", "", false))
	want("the others are deleted", 0, "")
}
