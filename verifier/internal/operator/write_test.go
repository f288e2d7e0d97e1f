// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic/fake"
	ktesting "k8s.io/client-go/testing"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
)

// A conflict with another writer is not the deletion of the object: the quarantine must really end, or the command
// must fail.
func TestClearField_RepeatsAfterAConflict(t *testing.T) {
	for name, c := range map[string]struct {
		uid       types.UID // of the object that exists; "" is none
		conflicts int
		want      error
		cleared   bool
	}{
		"no conflict":                 {"one", 0, nil, true},
		"another writer":              {"one", 1, nil, true},
		"always another writer":       {"one", 1000, errContended, false},
		"deleted":                     {"", 0, nil, false},
		"deleted, and another object": {"two", 1000, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			o := &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "mcs-attest.dev/v1alpha1", "kind": "MachineAttestation",
				"metadata": map[string]any{"namespace": "m", "name": "worker-0", "uid": string(c.uid)},
				"spec":     map[string]any{"quarantined": true},
			}}
			var objects []runtime.Object
			if c.uid != "" {
				objects = append(objects, o)
			}
			client := fake.NewSimpleDynamicClient(runtime.NewScheme(), objects...)
			client.PrependReactor("patch", "*", func(ktesting.Action) (bool, runtime.Object, error) {
				c.conflicts--
				return c.conflicts >= 0, nil, apierrors.NewConflict(attestations.GroupResource(), "worker-0", errors.New("changed"))
			})
			cluster := &Cluster{dynamic: client}
			own := []*v1alpha1.MachineAttestation{{ObjectMeta: metav1.ObjectMeta{Namespace: "m", Name: "worker-0", UID: "one"},
				Spec: v1alpha1.MachineAttestationSpec{Quarantined: true}}}
			done, err := cluster.clearField(t.Context(), own, nil, Write{}, "quarantined",
				func(s *v1alpha1.MachineAttestationSpec) bool { return s.Quarantined })
			if fmt.Sprint(err) != fmt.Sprint(c.want) || (len(done) > 0) != c.cleared {
				t.Errorf("%+v, %v", done, err)
			}
			patched := slices.ContainsFunc(client.Actions(), func(a ktesting.Action) bool { return a.GetVerb() == "patch" })
			if patched != (c.uid == "one") {
				t.Errorf("patched: %v", patched)
			}
		})
	}
}
