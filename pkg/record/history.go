// SPDX-License-Identifier: Apache-2.0

package record

import (
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
)

// attestedBy describes the accepted evidence for administrators.
func attestedBy(a Attestation) string {
	var words []string
	if a.Endorsement != "" {
		words = append(words, string(a.Endorsement))
	}
	for _, e := range a.Evidence {
		if e.Kind != evidence.TPM2.String() {
			words = append(words, e.Kind)
		}
	}
	return "by " + strings.Join(words, " and ")
}

// note adds an entry to the history, and deletes the oldest beyond the limit. A denial replaces a denial: a machine
// can cause many, and the other entries may be the traces of a theft.
func note(s *v1alpha1.MachineAttestationStatus, now time.Time, event, code, correlationID, message string) {
	s.History = append(s.History, v1alpha1.HistoryEntry{
		Time: metav1.NewTime(now), Event: event, Reason: code, CorrelationID: correlationID, Message: message,
	})
	for len(s.History) > v1alpha1.MaxHistory {
		oldest := 0
		if event == denied {
			before := s.History[:len(s.History)-1]
			oldest = max(slices.IndexFunc(before, func(h v1alpha1.HistoryEntry) bool { return h.Event == denied }), 0)
		}
		s.History = slices.Delete(s.History, oldest, oldest+1)
	}
}

const denied = "Denied"

func condition(s *v1alpha1.MachineAttestationStatus, now time.Time, kind string, status metav1.ConditionStatus, code,
	message string) {
	meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: kind, Status: status, Reason: code, Message: message,
		LastTransitionTime: metav1.NewTime(now)})
}

const maxMessage = 1024

// truncate cuts no character in two. The API would store such a text differently, and later comparisons would fail.
func truncate(s string) string { return strings.ToValidUTF8(s[:min(len(s), maxMessage)], "") }
