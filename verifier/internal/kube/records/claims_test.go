// SPDX-License-Identifier: Apache-2.0

package records_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/records"
)

// Answers of an API server: of a version that it does not serve, of an object
// that does not exist, and of one that the caller may not read.
const (
	unserved  = http.StatusNotImplemented
	notThere  = http.StatusNotFound
	forbidden = http.StatusForbidden
	itsUID    = http.StatusOK
	otherUID  = http.StatusCreated
)

// answers is an API server that has one claim, of a Machine in the API version
// asked for, and answers the rest as told.
func answers(t *testing.T, apiVersion string, codes map[string]int) *records.Records {
	t.Helper()
	name := fmt.Sprintf("%x", sha256.Sum256([]byte("ek:1")))
	object := func(w http.ResponseWriter, o any) {
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(o); err != nil {
			t.Error(err)
		}
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/identityclaims/"+name) {
			object(w, map[string]any{"apiVersion": v1alpha1.APIVersion, "kind": v1alpha1.KindIdentityClaim,
				"metadata": map[string]any{"name": name},
				"spec": map[string]any{"component": "ek:1", "machineUID": "u",
					"machineRef": map[string]any{"apiVersion": apiVersion, "kind": "Machine", "namespace": "ns", "name": "m"}}})
			return
		}
		code, ok := codes[r.URL.Path]
		switch {
		case !ok:
			t.Errorf("unexpected request for %s", r.URL.Path)
			w.WriteHeader(http.StatusTeapot)
		case code == unserved:
			http.NotFound(w, r)
		case code == itsUID, code == otherUID:
			object(w, map[string]any{"apiVersion": "a/v1", "kind": "Any",
				"metadata": map[string]any{"name": "m", "uid": map[int]string{itsUID: "u", otherUID: "v"}[code]}})
		default:
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(code)
			object(w, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
				Code: int32(code),
				Reason: map[int]metav1.StatusReason{notThere: metav1.StatusReasonNotFound,
					forbidden: metav1.StatusReasonForbidden}[code]})
		}
	}))
	t.Cleanup(server.Close)
	client, err := records.NewClient(&rest.Config{Host: server.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	return records.New(records.Options{Client: client, Namespace: "own", Log: slog.New(slog.DiscardHandler),
		Machine: func(string) (*machine.Machine, bool) { return nil, false }})
}

// A claim is not held indefinitely by a Machine about which the API can no longer answer,
// and never released for want of an answer.
func TestAttack_T42_WhoHoldsAClaimWhenTheAPIHasChangedSince(t *testing.T) {
	const (
		old, v1beta1, v1beta2 = "/apis/cluster.x-k8s.io/v1alpha4/namespaces/ns/machines/m",
			"/apis/cluster.x-k8s.io/v1beta1/namespaces/ns/machines/m", "/apis/cluster.x-k8s.io/v1beta2/namespaces/ns/machines/m"
		mapi      = "/apis/machine.openshift.io/v1beta1/namespaces/ns/machines/m"
		namespace = "/api/v1/namespaces/ns"
	)
	const unknown = "?"
	for _, c := range []struct {
		name, apiVersion string
		codes            map[string]int
		holder           string
	}{
		{"there", "machine.openshift.io/v1beta1", map[string]int{mapi: itsUID}, "u"},
		{"another of its name", "machine.openshift.io/v1beta1", map[string]int{mapi: otherUID}, ""},
		{"gone", "machine.openshift.io/v1beta1", map[string]int{mapi: notThere}, ""},
		{"the version is no longer served, but it exists", "cluster.x-k8s.io/v1beta1",
			map[string]int{v1beta1: unserved, v1beta2: itsUID}, "u"},
		{"the version is no longer served, and it is gone", "cluster.x-k8s.io/v1beta1",
			map[string]int{v1beta1: unserved, v1beta2: notThere}, ""},
		{"a version from before those known", "cluster.x-k8s.io/v1alpha4",
			map[string]int{old: unserved, v1beta2: unserved, v1beta1: notThere}, ""},
		{"none is served", "cluster.x-k8s.io/v1beta2", map[string]int{v1beta2: unserved, v1beta1: unserved}, unknown},
		{"another version may not be asked", "cluster.x-k8s.io/v1beta1",
			map[string]int{v1beta1: unserved, v1beta2: forbidden, namespace: itsUID}, unknown},
		{"the namespace is gone, and its RoleBinding with it", "machine.openshift.io/v1beta1",
			map[string]int{mapi: forbidden, namespace: notThere}, ""},
		{"the namespace exists, without a RoleBinding", "machine.openshift.io/v1beta1",
			map[string]int{mapi: forbidden, namespace: itsUID}, unknown},
		{"it is unknown whether the namespace exists", "machine.openshift.io/v1beta1",
			map[string]int{mapi: forbidden, namespace: forbidden}, unknown},
		{"the API is unwell", "machine.openshift.io/v1beta1", map[string]int{mapi: http.StatusInternalServerError}, unknown},
	} {
		t.Run(c.name, func(t *testing.T) {
			holder, err := answers(t, c.apiVersion, c.codes).Holder(t.Context(), "ek:1")
			if c.holder == unknown {
				denied(t, err, reason.StoreUnavailable)
				return
			}
			if err != nil || holder != c.holder {
				t.Errorf("%q, %v instead of %q", holder, err, c.holder)
			}
		})
	}
}

// An object that cannot be decoded stops neither the deletion of a record nor the release
// of claims.
func TestDelete_ContinuesAfterAnObjectThatCannotBeDecoded(t *testing.T) {
	const api = "/apis/" + v1alpha1.APIVersion
	object := func(kind, namespace, name string, more map[string]any) map[string]any {
		o := map[string]any{"apiVersion": v1alpha1.APIVersion, "kind": kind,
			"metadata": map[string]any{"namespace": namespace, "name": name, "uid": namespace + name, "resourceVersion": "1"}}
		maps.Copy(o, more)
		return o
	}
	ref := map[string]any{"apiVersion": "machine.openshift.io/v1beta1", "kind": "Machine", "namespace": "ns", "name": "m"}
	name := records.ClaimName("ek:1")
	owned := object("MachineAttestation", "ns", "u", map[string]any{"spec": map[string]any{"machineRef": ref}})
	owned["metadata"].(map[string]any)["ownerReferences"] = []any{map[string]any{"uid": "u"}}
	lists := map[string][]map[string]any{
		api + "/machineattestations": {
			object("MachineAttestation", "bad", "u", map[string]any{"status": map[string]any{"history": 3}}),
			owned,
		},
		api + "/identityclaims": {
			object("IdentityClaim", "", "bad", map[string]any{"spec": map[string]any{"machineUID": 3}}),
			object("IdentityClaim", "", name, map[string]any{
				"spec": map[string]any{"component": "ek:1", "machineUID": "u", "machineRef": ref}}),
		},
	}
	var deleted []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		answer := any(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
			Status: metav1.StatusSuccess})
		switch items := lists[r.URL.Path]; {
		case items != nil:
			answer = map[string]any{"apiVersion": v1alpha1.APIVersion, "kind": items[0]["kind"].(string) + "List",
				"metadata": map[string]any{"resourceVersion": "1"}, "items": items}
		case r.Method == http.MethodDelete:
			deleted = append(deleted, strings.TrimPrefix(r.URL.Path, api+"/"))
		default: // the Machine
			w.WriteHeader(http.StatusNotFound)
			answer = metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
				Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound}
		}
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	client, err := records.NewClient(&rest.Config{Host: server.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	r := records.New(records.Options{Client: client, Namespace: "own", Log: slog.New(slog.DiscardHandler),
		Machine: func(string) (*machine.Machine, bool) { return nil, false }})
	if err := r.Delete(t.Context(), "u"); err != nil {
		t.Error(err)
	}
	if want := []string{"namespaces/ns/machineattestations/u", "identityclaims/" + name}; !slices.Equal(deleted, want) {
		t.Errorf("deleted %v, want %v", deleted, want)
	}
	var seen []string
	if err := r.EachClaim(t.Context(),
		func(c v1alpha1.IdentityClaimSpec) { seen = append(seen, c.Component) }); err != nil {
		t.Error(err)
	}
	if !slices.Equal(seen, []string{"ek:1"}) {
		t.Errorf("claims %v", seen)
	}
}
