// SPDX-License-Identifier: Apache-2.0

package records

import (
	"reflect"

	"k8s.io/apimachinery/pkg/types"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/events"
)

// eventOf maps the types of history entries to Events: the reason, a prefix of the message, and whether
// the Event is a warning.
var eventOf = map[string]struct {
	reason, before string
	warning        bool
}{
	"Attested":    {"Attested", "evidence accepted, endorsed ", false},
	"Denied":      {"Denied", "", true},
	"Fetched":     {"Fetched", "fetched the ", false},
	"Joined":      {"Joined", "joined ", false},
	"Certified":   {"Certified", "certified ", false},
	"Failed":      {"FirstBootFailed", "the machine reports: ", true},
	"Warning":     {"AttestedWithWarning", "", true},
	"Quarantined": {"Quarantined", "quarantined ", true},
	"Released":    {"Released", "quarantine lifted ", false},

	"RoleMismatch": {"RoleMismatch", "", true},

	"CertificateRefused":  {"CertificateRefused", "", true},
	"CertificateReplaced": {"CertificateReplaced", "", true},
	"BreakGlass":          {"BreakGlass", "fetched the ", true},
}

// announce emits an Event for each new entry in the history of a record that was
// written.
func (r *Records) announce(at place, uid types.UID, before, after *v1alpha1.MachineAttestation) {
	about := events.Object{
		APIVersion: v1alpha1.APIVersion, Kind: v1alpha1.KindMachineAttestation,
		Namespace: at.namespace, Name: at.name, UID: string(uid),
	}
	if m := at.about; m != nil {
		about = events.Object{APIVersion: m.APIVersion, Kind: m.Kind, Namespace: m.Namespace, Name: m.Name, UID: m.UID}
	}
	var old []v1alpha1.HistoryEntry
	if before != nil {
		old = before.Status.History
	}
	for _, h := range added(old, after.Status.History) {
		t, ok := eventOf[h.Event]
		if !ok {
			continue
		}
		if h.Reason == reason.IdentityConflict.String() {
			t.reason = "Conflict"
		}
		r.o.Events.Emit(events.Event{
			About: about, Warning: t.warning, Reason: t.reason, Code: h.Reason,
			Message: t.before + h.Message, CorrelationID: h.CorrelationID,
		})
	}
}

// added returns the new entries at the end of a history. Any of the former entries may have been removed.
func added(before, after []v1alpha1.HistoryEntry) []v1alpha1.HistoryEntry {
	for _, h := range before {
		if len(after) > 0 && reflect.DeepEqual(h, after[0]) {
			after = after[1:]
		}
	}
	return after
}
