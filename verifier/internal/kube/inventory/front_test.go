// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/mcs-attest/mcs-attest/deploy"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
)

// reviewAPI reviews access for the account of the processes that serve, and has every namespace but one.
type reviewAPI struct {
	allows func(authorizationv1.ResourceAttributes) bool
	// result, if set, changes the answer to a question that is denied.
	result func(*authorizationv1.SubjectAccessReviewStatus) (code int)
	gone   string
	passes atomic.Int32
}

func (a *reviewAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var answer any = &metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status: metav1.StatusFailure, Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound}
	code := http.StatusNotFound
	switch {
	case path.Base(r.URL.Path) == "subjectaccessreviews":
		review := new(authorizationv1.SubjectAccessReview)
		if err := json.NewDecoder(r.Body).Decode(review); err != nil {
			panic(err) // the client sees it
		}
		s, of := &review.Spec, *review.Spec.ResourceAttributes
		if of.Namespace == "" && of.Resource == "machineattestations" {
			a.passes.Add(1)
		}
		review.Status.Allowed = s.User == "system:serviceaccount:own:"+deploy.ServiceAccount &&
			slices.Contains(s.Groups, "system:serviceaccounts:own") && slices.Contains(s.Groups, "system:authenticated") &&
			a.allows(of)
		answer, code = review, http.StatusCreated
		if !review.Status.Allowed && a.result != nil {
			code = a.result(&review.Status)
		}
	case path.Dir(r.URL.Path) == "/api/v1/namespaces" && path.Base(r.URL.Path) != a.gone:
		answer, code = map[string]any{"apiVersion": "v1", "kind": "Namespace"}, http.StatusOK
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(answer) // the caller sees what is missing
}

// Machines of a namespace wait if only the processes that serve may not read it. The condition then reports it.
func TestLead_ReportsWhatOnlyTheFrontMayNotRead(t *testing.T) {
	const (
		needs        = "the service account " + deploy.ServiceAccount + " needs get, list and watch on "
		ofController = "the service account " + deploy.Controller +
			" needs get, list and watch on machines.cluster.x-k8s.io in namespace m"
	)
	all := func(authorizationv1.ResourceAttributes) bool { return true }
	bound := func(of authorizationv1.ResourceAttributes) bool { // all but the RoleBinding of namespace m
		return of.Namespace != "m" || of.Resource == "machineattestations" && of.Verb == "list"
	}
	inM := []string{
		needs + "machines.machine.openshift.io in namespace m", needs + "machines.cluster.x-k8s.io in namespace m",
		"baremetalhosts.metal3.io in namespace m", needs + "machineattestations.mcs-attest.dev in namespace m",
	}
	for name, test := range map[string]struct {
		api  *reviewAPI
		fail bool // the controller itself may not read the Machines of Cluster API
		want []string
	}{
		"nothing is missing": {api: &reviewAPI{allows: all}},
		"no RoleBinding":     {api: &reviewAPI{allows: bound}, want: inM},
		"it may only watch": {api: &reviewAPI{allows: func(of authorizationv1.ResourceAttributes) bool {
			return of.Namespace != "m" || of.Verb != "list"
		}}, want: inM},
		"the namespace is deleted": {api: &reviewAPI{allows: bound, gone: "m"}},
		"nor may the controller": {api: &reviewAPI{allows: bound}, fail: true,
			want: slices.Concat([]string{ofController}, inM[:1], inM[2:])},
		"no rule for a Secret": {
			api:  &reviewAPI{allows: func(of authorizationv1.ResourceAttributes) bool { return of.Name != "tls" }},
			want: []string{"needs list and watch on secrets (resourceNames: tls) in namespace mco"}},
		"the review fails": {api: &reviewAPI{allows: bound, result: func(*authorizationv1.SubjectAccessReviewStatus) int {
			return http.StatusInternalServerError
		}}},
		"an authorizer does not answer": {
			api: &reviewAPI{allows: bound, result: func(s *authorizationv1.SubjectAccessReviewStatus) int {
				s.EvaluationError = "timeout"
				return http.StatusCreated
			}}},
		"another account serves": {api: &reviewAPI{allows: func(authorizationv1.ResourceAttributes) bool { return false }}},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(test.api)
			t.Cleanup(server.Close)
			api := &rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
			c, err := New(api, config.Kubernetes{
				Namespace: "own", MachineNamespaces: []string{"m", "other"}, ServingSecret: "mco/tls", CAConfigMap: "mco/ca",
			}, Options{Log: slog.New(slog.DiscardHandler), Account: deploy.Controller, Pass: 10 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			for _, w := range c.sources() {
				w.list(t, 10)
			}
			if test.fail {
				resource := schema.GroupResource{Group: clusterAPIKind.Group, Resource: clusterAPIKind.Resource}
				c.watching(t, clusterAPIKind, "m").Fail(kerrors.NewForbidden(resource, "", errors.New("no")))
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			var leads sync.WaitGroup
			leads.Go(func() { _ = c.Lead(ctx) })
			for test.api.passes.Load() < 2 && ctx.Err() == nil {
				time.Sleep(time.Millisecond)
			}
			if ctx.Err() != nil {
				t.Error("it does not review twice")
			}
			var got []string
			for _, f := range c.Findings() {
				got = append(got, fmt.Sprint(f.Reason, ": ", f.Text))
			}
			matches := func(got, want string) bool {
				return strings.HasPrefix(got, "Forbidden: ") && strings.Contains(got, want)
			}
			if !slices.EqualFunc(got, test.want, matches) {
				t.Errorf("findings %q", got)
			}
			cancel()
			leads.Wait()
			if left := c.frontFindings(); len(left) > 0 {
				t.Errorf("a replica that does not lead finds %+v", left)
			}
		})
	}
}
