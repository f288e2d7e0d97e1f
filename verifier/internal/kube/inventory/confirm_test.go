// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// A live read confirms a permanent denial. That read does not change what was watched: a
// deleted Machine stays deleted.
func TestConfirmation(t *testing.T) {
	object := func(node string) *unstructured.Unstructured {
		o := map[string]any{
			"apiVersion": "machine.openshift.io/v1beta1", "kind": "Machine",
			"metadata": map[string]any{"namespace": "ns", "name": "m", "uid": "u", "creationTimestamp": "2026-11-21T05:00:00Z",
				"labels": map[string]any{"machine.openshift.io/cluster-api-machine-role": "worker"}},
		}
		if node != "" {
			o["status"] = map[string]any{"nodeRef": map[string]any{"name": node},
				"addresses": []any{map[string]any{"type": "InternalDNS", "address": "m.example"}}}
		}
		return &unstructured.Unstructured{Object: o}
	}
	watched := func(o *unstructured.Unstructured) (*machine.Registry, *machine.Machine) {
		t.Helper()
		found, problems := machine.FromObject(o.Object)
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		r := machine.NewRegistry(nil)
		r.PutMachine(found.Machines[0])
		m, ok := r.ByUID("u")
		if !ok {
			t.Fatal("not there")
		}
		return r, m
	}
	code := func(err error) reason.Code {
		if err == nil {
			return 0
		}
		return reason.From(err).Code
	}
	for name, c := range map[string]struct {
		known, live *unstructured.Unstructured
		want        reason.Code
	}{
		"it is as it was":          {object("n"), object("n"), 0},
		"it has joined since":      {object(""), object("n"), reason.StoreUnavailable},
		"it has not joined at all": {object("n"), object(""), reason.StoreUnavailable},
		"it is gone":               {object("n"), nil, reason.MachineNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewSimpleDynamicClient(runtime.NewScheme())
			if c.live != nil {
				client = fake.NewSimpleDynamicClient(runtime.NewScheme(), c.live)
			}
			r, m := watched(c.known)
			confirm := Confirmation{Client: client, Machines: r, Timeout: time.Minute}
			if err := confirm.ConfirmUID(t.Context(), "u"); code(err) != c.want {
				t.Errorf("%v, want %v", err, c.want)
			}
			r.DeleteMachine("machine.openshift.io", "ns", "m")
			_ = confirm.Confirm(t.Context(), m)
			if r.Known("u") {
				t.Error("a Machine that was gone came back")
			}
			if err := confirm.ConfirmUID(t.Context(), "u"); err != nil {
				t.Errorf("an unknown one: %v", err)
			}
		})
	}
}

// A grant that the watch of MachineAttestations has not reported yet.
func TestConfirmation_ReadsTheGrant(t *testing.T) {
	m := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "machine.openshift.io/v1beta1", "kind": "Machine",
		"metadata": map[string]any{"namespace": "ns", "name": "m", "uid": "u", "creationTimestamp": "2026-11-21T05:00:00Z"},
		"status":   map[string]any{"nodeRef": map[string]any{"name": "n"}},
	}}
	attestation := func(name, until string) *unstructured.Unstructured {
		spec := map[string]any{"machineRef": map[string]any{"namespace": "ns", "name": "m"}}
		if until != "" {
			spec["reattest"] = map[string]any{"until": until}
		}
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "mcs-attest.dev/v1alpha1", "kind": "MachineAttestation", "spec": spec,
			"metadata": map[string]any{"namespace": "ns", "name": name, "uid": "a", "creationTimestamp": "2026-11-21T05:00:00Z"},
		}}
	}
	const granted, expired = "2026-11-21T07:00:00Z", "2026-11-20T07:00:00Z"
	host := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost",
		"metadata": map[string]any{"namespace": "ns", "name": "host", "uid": "h",
			"annotations": map[string]any{"mcs-attest.dev/ek-sha256": strings.Repeat("ab", 32)}},
		"spec": map[string]any{"consumerRef": map[string]any{"apiVersion": "machine.openshift.io/v1beta1", "kind": "Machine",
			"namespace": "ns", "name": "m"}},
	}}
	for name, c := range map[string]struct {
		known, live *unstructured.Unstructured
		failing     bool
		want        bool
	}{
		"enrolled by a BareMetalHost":                  {known: host, want: true},
		"enrolled by a BareMetalHost, and a new grant": {known: host, live: attestation("u", granted)},
		"a grant on the record of a Machine with an enrollment": {known: attestation("e", expired),
			live: attestation("u", granted)},
		"no record":                   {want: true},
		"a record without a grant":    {live: attestation("u", ""), want: true},
		"the same grant":              {known: attestation("u", granted), live: attestation("u", granted), want: true},
		"a new grant":                 {live: attestation("u", granted)},
		"a grant after another":       {known: attestation("u", expired), live: attestation("u", granted)},
		"a grant on the enrollment":   {known: attestation("e", expired), live: attestation("e", granted)},
		"a grant that was withdrawn":  {known: attestation("u", granted), live: attestation("u", "")},
		"an enrollment that is gone":  {known: attestation("e", granted)},
		"an API that does not answer": {live: attestation("u", ""), failing: true},
	} {
		t.Run(name, func(t *testing.T) {
			objects := []runtime.Object{m}
			if c.live != nil {
				objects = append(objects, c.live)
			}
			client := fake.NewSimpleDynamicClient(runtime.NewScheme(), objects...)
			if c.failing {
				client.PrependReactor("get", "machineattestations", func(clienttesting.Action) (bool, runtime.Object, error) {
					return true, nil, errors.New("no answer")
				})
			}
			r := machine.NewRegistry(nil)
			found, _ := machine.FromObject(m.Object)
			r.PutMachine(found.Machines[0])
			if c.known != nil {
				found, problems := machine.FromObject(c.known.Object)
				if len(problems) > 0 {
					t.Fatal(problems)
				}
				for _, e := range found.Enrollments {
					r.PutEnrollment(e)
				}
			}
			err := Confirmation{Client: client, Machines: r, Timeout: time.Minute}.ConfirmUID(t.Context(), "u")
			if d := reason.From(err); c.want != (d == nil) || d != nil && d.Code != reason.StoreUnavailable {
				t.Errorf("%v", err)
			}
		})
	}
}

// While a cluster migrates to Cluster API, a record may have the UID of either object of a machine.
func TestConfirmation_NodeNamesOfAMirroredMachine(t *testing.T) {
	object := func(apiVersion, uid, name string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": apiVersion, "kind": "Machine",
			"metadata": map[string]any{"namespace": "ns", "name": "m", "uid": uid,
				"creationTimestamp": "2026-11-21T05:00:00Z"},
			"spec":   map[string]any{"providerID": "aws:///eu-1a/i-0123456789abcdef0", "authoritativeAPI": "ClusterAPI"},
			"status": map[string]any{"addresses": []any{map[string]any{"type": "InternalDNS", "address": name}}},
		}}
	}
	here, mirror := object("machine.openshift.io/v1beta1", "here", "old.example"),
		object("cluster.x-k8s.io/v1beta2", "mirror", "m.example")
	r := machine.NewRegistry(nil)
	for _, o := range []*unstructured.Unstructured{here, mirror} {
		found, problems := machine.FromObject(o.Object)
		if len(problems) > 0 || len(found.Machines) != 1 {
			t.Fatalf("%+v, %v", found, problems)
		}
		r.PutMachine(found.Machines[0])
	}
	confirm := Confirmation{Client: fake.NewSimpleDynamicClient(runtime.NewScheme(), here, mirror), Machines: r}
	for _, uid := range []string{"here", "mirror"} {
		names, err := confirm.NodeNames(t.Context(), uid)
		if err != nil || !slices.Equal(names, []string{"m.example"}) {
			t.Errorf("UID %s: %q, %v", uid, names, err)
		}
	}
}
