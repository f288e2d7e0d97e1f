// SPDX-License-Identifier: Apache-2.0

package pointerconfig

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/mcs-attest/mcs-attest/pkg/pointer"
	"github.com/mcs-attest/mcs-attest/pkg/policy"
	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/machinesets"
)

const (
	origin = "https://api-int.example.com:22623"
	token  = "AAAA-bbb_CCCC-ddd_EEEE-fff_GGGG-hhh_IIII-jjj"
)

const accepts = `apiVersion: mcs-attest.dev/v1alpha1
kind: AttestationPolicy
metadata: {name: shared}
spec:
  pools: [worker]
  provisioningTokenAlone: true
  evidence: [{all: [provisioning-token]}]
`

func pointerConfig(pool string) []byte {
	return fmt.Appendf(nil, `{"ignition":{"version":"3.4.0","config":{"merge":[{"source":"%s/config/%s"}]}}}`, origin, pool)
}

func userData(name, pool string, change func(*corev1.Secret)) *corev1.Secret {
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "m", Name: name},
		Data: map[string][]byte{"userData": pointerConfig(pool)}}
	if change != nil {
		change(s)
	}
	return s
}

// withToken returns user data with the current token.
func withToken(userData []byte) []byte {
	return []byte(strings.Replace(string(userData), `/config/worker"`,
		`/config/worker","httpHeaders":[{"name":"Authorization","value":"Bearer `+token+`"}]`, 1))
}

func named(userData string) machinesets.MachineSet {
	return machinesets.MachineSet{Kind: machinesets.MachineAPI, Name: client.ObjectKey{Namespace: "m", Name: "workers"},
		UserData: client.ObjectKey{Namespace: "m", Name: userData}}
}

func TestReconcile(t *testing.T) {
	parsed, problems := policy.Parse("policy.yaml", []byte(accepts))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	policies, problems := policy.CompileParsed(parsed...)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	forbidden := kerrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "", nil)
	conflict := kerrors.NewConflict(schema.GroupResource{Resource: "secrets"}, "", nil)
	for name, test := range map[string]struct {
		secret  *corev1.Secret
		none    bool // there is no token
		sets    []machinesets.MachineSet
		list    error // of the MachineSets
		fails   error // each update
		has     bool
		finding string
		again   bool
		// unwritten reports that it has the token already.
		unwritten bool
	}{
		"the current token":                      {secret: userData("worker-user-data", "worker", nil), has: true},
		"no token":                               {secret: userData("worker-user-data", "worker", nil), none: true},
		"a pool whose policy does not accept it": {secret: userData("master-user-data", "master", nil)},
		"a Secret of the machine-config-operator": {secret: userData("worker-user-data-managed", "worker", nil),
			sets: []machinesets.MachineSet{named("worker-user-data"), named("")}},
		"one that a MachineSet names": {secret: userData("worker-user-data-managed", "worker", nil),
			sets:    []machinesets.MachineSet{named("worker-user-data"), named("worker-user-data-managed")},
			finding: "MachineSet.machine.openshift.io m/workers names it; let that name worker-user-data instead"},
		"one that a MachineSet of a pool without the token names": {
			secret: userData("master-user-data-managed", "master", nil),
			sets:   []machinesets.MachineSet{named("master-user-data-managed")}},
		"one without the permission to list MachineSets": {secret: userData("worker-user-data-managed", "worker", nil),
			list: forbidden, finding: "deploy/components/user-data"},
		"one with the token that a GitOps tool keeps": {secret: userData("worker-user-data", "worker",
			func(s *corev1.Secret) {
				s.Labels = map[string]string{"argocd.argoproj.io/instance": "x"}
				s.Data["userData"] = withToken(s.Data["userData"])
			}), has: true, unwritten: true},
		"one without the token that a GitOps tool keeps": {secret: userData("worker-user-data", "worker",
			func(s *corev1.Secret) { s.Labels = map[string]string{"argocd.argoproj.io/instance": "x"} }),
			finding: "argocd.argoproj.io/instance"},
		"an update that is forbidden": {secret: userData("worker-user-data", "worker", nil), fails: forbidden,
			finding: "deploy/components/user-data"},
		"an update that conflicts": {secret: userData("worker-user-data", "worker", nil), fails: conflict,
			again: true},
		"user data that is no Ignition config": {secret: userData("windows", "",
			func(s *corev1.Secret) { s.Data["userData"] = []byte("<powershell>") }), finding: "windows"},
		"a Secret without user data": {secret: userData("empty", "", func(s *corev1.Secret) { s.Data = nil }),
			finding: "empty"},
		"a Secret that is marked as not managed": {secret: userData("worker-user-data", "worker",
			func(s *corev1.Secret) { s.Annotations = map[string]string{pointer.AnnotationHandsOff: "ours"} }),
			finding: "worker-user-data"},
	} {
		t.Run(name, func(t *testing.T) {
			writes := 0
			api := fake.NewClientBuilder().WithObjects(test.secret).WithInterceptorFuncs(interceptor.Funcs{
				Update: func(ctx context.Context, api client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
					writes++
					if test.fails != nil {
						return test.fails
					}
					return api.Update(ctx, o, opts...)
				},
			}).Build()
			at := client.ObjectKeyFromObject(test.secret)
			view := provisioning.View{}.Gone(time.Now())
			if !test.none {
				view, _ = view.Read(time.Now(), map[string][]byte{"token": []byte(token)}, time.Hour)
			}
			r := New(Options{
				Client: api, Origins: []string{origin},
				Token: func() provisioning.View { return view }, Policies: func() *policy.Set { return policies },
				MachineSets: func(_ context.Context, namespace string) ([]machinesets.MachineSet, error) {
					if namespace != "m" {
						t.Errorf("namespace %s", namespace)
					}
					return test.sets, test.list
				},
				Now: time.Now, Log: slog.New(slog.DiscardHandler),
			})
			for range 2 {
				result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: at})
				if err != nil || result.RequeueAfter > 0 != test.again {
					t.Errorf("%v, again after %v", err, result.RequeueAfter)
				}
			}
			var s corev1.Secret
			if err := api.Get(t.Context(), at, &s); err != nil {
				t.Fatal(err)
			}
			if has := strings.Contains(string(s.Data["userData"]), token); has != test.has {
				t.Errorf("it has the token: %v\n%s", has, s.Data["userData"])
			}
			written := test.has && !test.unwritten
			if written && (writes != 1 || s.Annotations[AnnotationWritten] == "") ||
				!written && test.fails == nil && writes > 0 {
				t.Errorf("%d writes, annotations %v", writes, s.Annotations)
			}
			findings := r.Findings()
			if len(findings) > 1 || (len(findings) == 1) != (test.finding != "") {
				t.Fatalf("findings %v", findings)
			}
			for _, f := range findings {
				if f.Reason != "UserDataLeftAlone" || !strings.Contains(f.Text, test.finding) || strings.Contains(f.Text, token) {
					t.Errorf("finding %v", f)
				}
			}
			// Without the Secret there is nothing to report.
			if err := api.Delete(t.Context(), &s); err != nil {
				t.Fatal(err)
			}
			if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: at}); err != nil || len(r.Findings()) > 0 {
				t.Errorf("after it was deleted: %v, findings %v", err, r.Findings())
			}
		})
	}
}

// While another replica leads, nothing tells this one that a Secret was deleted.
func TestFindings_OfBeforeAnotherReplicaLedAreNotKept(t *testing.T) {
	secret := userData("worker-user-data", "worker", func(s *corev1.Secret) { s.Data = nil })
	api := fake.NewClientBuilder().WithObjects(secret).Build()
	view, _ := provisioning.View{}.Read(time.Now(), map[string][]byte{"token": []byte(token)}, time.Hour)
	r := New(Options{
		Client: api, Origins: []string{origin}, Trigger: &kube.Trigger{}, Now: time.Now, Log: slog.New(slog.DiscardHandler),
		Token: func() provisioning.View { return view }, Policies: func() *policy.Set { return &policy.Set{} },
	})
	lead := func() {
		m, err := kube.NewManager(&rest.Config{}, kube.Options{Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		if err := r.SetupWithManager(m); err != nil {
			t.Fatal(err)
		}
	}
	lead()
	at := reconcile.Request{NamespacedName: client.ObjectKeyFromObject(secret)}
	if _, err := r.Reconcile(t.Context(), at); err != nil || len(r.Findings()) != 1 {
		t.Fatalf("%v, findings %v", err, r.Findings())
	}
	if err := api.Delete(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	lead()
	if all := r.Findings(); len(all) > 0 {
		t.Errorf("findings %v", all)
	}
}
