// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/controllers/identityclaim"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/records"
)

// claimsAPI has the claims of two Machines that were deleted. In the namespace "m"
// nothing may be read.
type claimsAPI struct {
	namespaceAPI
	t       *testing.T
	claims  []v1alpha1.IdentityClaim
	deleted []string
}

func (a *claimsAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	const resource = "/apis/mcs-attest.dev/v1alpha1/identityclaims"
	var answer any
	switch {
	case r.URL.Path == resource:
		list := v1alpha1.IdentityClaimList{}
		list.APIVersion, list.Kind = v1alpha1.APIVersion, "IdentityClaimList"
		for _, c := range a.claims {
			selector := r.URL.Query().Get("labelSelector")
			if selector == "" || strings.HasSuffix(selector, "="+c.Spec.MachineUID) {
				list.Items = append(list.Items, c)
			}
		}
		answer = list
	case r.Method == http.MethodDelete && strings.HasPrefix(r.URL.Path, resource+"/"):
		a.deleted = append(a.deleted, r.URL.Path[len(resource)+1:])
		answer = &metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusSuccess}
	case strings.Contains(r.URL.Path, "/namespaces/other/machines/"):
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		answer = &metav1.Status{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
			Status:   metav1.StatusFailure, Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound,
		}
	default:
		a.namespaceAPI.ServeHTTP(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(answer); err != nil {
		a.t.Error(err)
	}
}

// A namespace that may not be read keeps the claims of its own Machines, and of no
// others.
func TestSweepClaims_ReleasesWhileOneNamespaceIsForbidden(t *testing.T) {
	api := &claimsAPI{t: t}
	api.namespace.Store(&metav1.ObjectMeta{Name: "m"})
	for _, namespace := range []string{"m", "other"} {
		component := "ek:" + namespace
		api.claims = append(api.claims, v1alpha1.IdentityClaim{
			TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.APIVersion, Kind: v1alpha1.KindIdentityClaim},
			ObjectMeta: metav1.ObjectMeta{Name: records.ClaimName(component)},
			Spec: v1alpha1.IdentityClaimSpec{
				Component: component, MachineUID: "u-" + namespace,
				MachineRef: v1alpha1.MachineReference{
					APIVersion: "machine.openshift.io/v1beta1", Kind: "Machine", Namespace: namespace, Name: "gone",
				},
			},
		})
	}
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	c, err := New(&rest.Config{Host: server.URL}, config.Kubernetes{
		Namespace: "own", MachineNamespaces: []string{"m", "other"}, ServingSecret: "mco/tls", CAConfigMap: "mco/ca",
	}, Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	var inM []watched
	for _, w := range c.sources() {
		if w.list(t, 10); w.Namespace == "m" {
			inM = append(inM, w)
		}
	}
	c.runUntil(t, inM, func(w watched) bool { return w.Forbidden() })
	c.build()
	sweep := identityclaim.New(identityclaim.Options{
		Claims: c.Records(), Known: c.registry.Known, Synced: c.Synced, Limit: flowcontrol.NewFakeAlwaysRateLimiter(),
		CanChange: func(namespace string) bool { return c.CanChange(namespace, false) },
	})
	if _, err := sweep.Reconcile(t.Context(), reconcile.Request{}); err != nil {
		t.Fatal(err)
	}
	if want := records.ClaimName("ek:other"); len(api.deleted) != 1 || api.deleted[0] != want {
		t.Errorf("deleted %q, want %q", api.deleted, want)
	}
}
