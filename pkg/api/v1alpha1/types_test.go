// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"encoding/json"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What the tools write is what a person would: no empty fields.
func TestJSONHasNoEmptyFields(t *testing.T) {
	meta := metav1.ObjectMeta{Name: "a"}
	for want, v := range map[string]any{
		`{"kind":"AttestationPolicy","apiVersion":"mcs-attest.dev/v1alpha1","metadata":{"name":"a"}}`: AttestationPolicy{
			TypeMeta: metav1.TypeMeta{APIVersion: APIVersion, Kind: KindAttestationPolicy}, ObjectMeta: meta},
		`{"metadata":{"name":"a"},"spec":{"token":{"lifetime":"5m0s"}}}`: AttestationPolicy{
			ObjectMeta: meta,
			Spec:       AttestationPolicySpec{Token: TokenPolicy{Lifetime: metav1.Duration{Duration: 5 * time.Minute}}}},
		`{"metadata":{"name":"a"},"spec":{"pool":"worker","ekSHA256":["x"]}}`: MachineAttestation{
			ObjectMeta: meta, Spec: MachineAttestationSpec{Pool: "worker", EKSHA256: []string{"x"}}},
	} {
		got, err := json.Marshal(v)
		if err != nil || string(got) != want {
			t.Errorf("got  %s\nwant %s (%v)", got, want, err)
		}
	}
}
