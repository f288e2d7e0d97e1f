// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mcs-attest/mcs-attest/deploy"
	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/testvm/cluster"
	verifier "github.com/mcs-attest/mcs-attest/verifier/internal/kube/inventory"
)

var (
	hosts         = schema.GroupVersionResource{Group: "metal3.io", Version: "v1alpha1", Resource: "baremetalhosts"}
	otherMachines = schema.GroupVersionResource{Group: "cluster.x-k8s.io", Version: "v1beta2", Resource: "machines"}
	crds          = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
		Resource: "customresourcedefinitions"}
)

const hostCRD = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: baremetalhosts.metal3.io}
spec:
  group: metal3.io
  scope: Namespaced
  names: {kind: BareMetalHost, listKind: BareMetalHostList, plural: baremetalhosts, singular: baremetalhost}
  versions:
  - name: v1alpha1
    served: true
    storage: true
    subresources: {status: {}}
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

func hash(t testing.TB, n int) machine.EKHash {
	h, err := machine.ParseEKHash(ek(n))
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func annotated(n int) func(map[string]any) {
	return func(o map[string]any) {
		o["metadata"].(map[string]any)["annotations"] = map[string]any{v1alpha1.AnnotationEKSHA256: ek(n)}
	}
}

// match says whom an EK leads to.
func (p *process) match(t testing.TB, n int, pool string) (string, error) {
	m, err := p.View().Machines.Match(machine.Identity{EK: hash(t, n)},
		machine.Rules{Pool: pool, Now: time.Now(), MaxAge: time.Hour, EKEnrolled: true})
	if err != nil {
		return "", err
	}
	return m.String(), nil
}

func (p *process) matches(t testing.TB, n int, pool, want string) func() error {
	return func() error {
		got, err := p.match(t, n, pool)
		return errorIf(err != nil || got != want, "EK %d and pool %s lead to %q (%v), not %q", n, pool, got, err, want)
	}
}

func (p *process) denies(t testing.TB, n int, pool string, code reason.Code) func() error {
	return func() error {
		got, err := p.match(t, n, pool)
		return errorIf(err == nil || reason.From(err).Code != code, "EK %d leads to %q (%v), not to %v", n, got, err, code)
	}
}

func TestEachKindAppearsChangesAndGoes(t *testing.T) {
	w := newWhole(t)
	w.cluster.InstallClusterAPI(t)
	w.cluster.KubectlApply(t, hostCRD)
	w.policy("all", map[string]any{})
	p := w.start("a")
	until(t, "sync", p.synced)
	patch := func(resource schema.GroupVersionResource, name, merge string, sub ...string) {
		t.Helper()
		w.patch(resource, machineNamespace, name, merge, sub...)
	}

	t.Run("a Machine", func(t *testing.T) {
		w.worker("m1", annotated(1))
		until(t, "it exists", p.matches(t, 1, "worker", "openshift-machine-api/m1"))
		patch(machines, "m1", `{"metadata":{"annotations":{"`+v1alpha1.AnnotationEKSHA256+`":"`+ek(2)+`"}}}`)
		until(t, "its EK changed", p.matches(t, 2, "worker", "openshift-machine-api/m1"))
		until(t, "and the old one is not enrolled", p.denies(t, 1, "worker", reason.EKNotEnrolled))
		patch(machines, "m1", `{"status":{"nodeRef":{"name":"n1"}}}`, "status")
		until(t, "it joined", p.denies(t, 2, "worker", reason.MachineJoined))
		w.delete(machines, machineNamespace, "m1")
		until(t, "it is gone", p.denies(t, 2, "worker", reason.EKNotEnrolled))
	})
	t.Run("a Node makes a Machine joined", func(t *testing.T) {
		w.worker("m2", annotated(3), func(o map[string]any) { o["spec"] = map[string]any{"providerID": "aws:///a/i-2"} })
		until(t, "it exists", p.matches(t, 3, "worker", "openshift-machine-api/m2"))
		w.create(nodes, "", map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": "n2"},
			"spec": map[string]any{"providerID": "aws:///a/i-2"}})
		until(t, "it joined", p.denies(t, 3, "worker", reason.MachineJoined))
	})
	t.Run("the pool of its user data", func(t *testing.T) {
		w.secret(machineNamespace, "master-user-data-managed", map[string]string{"userData": pointerConfig("gold")})
		o := w.worker("m3", annotated(4), func(o map[string]any) {
			delete(o["metadata"].(map[string]any), "labels")
			o["spec"] = map[string]any{
				"providerSpec": map[string]any{
					"value": map[string]any{"userDataSecret": map[string]any{"name": "master-user-data-managed"}}}}
		})
		until(t, "the pool of the pointer config", p.matches(t, 4, "gold", "openshift-machine-api/"+o.GetName()))
		w.secret(machineNamespace, "master-user-data-managed", map[string]string{"userData": pointerConfig("silver")})
		until(t, "the pointer config changed", p.matches(t, 4, "silver", "openshift-machine-api/"+o.GetName()))
		until(t, "the other pool is not its own", p.denies(t, 4, "gold", reason.MachinePool))
		patch(machines, o.GetName(),
			`{"spec":{"providerSpec":{"value":{"userDataSecret":null,"userData":{"name":"master-user-data-managed"}}}}}`)
		until(t, "the field of bare metal", p.matches(t, 4, "silver", "openshift-machine-api/"+o.GetName()))
		patch(machines, o.GetName(), `{"spec":{"providerSpec":{"value":{"userData":{"namespace":"elsewhere"}}}}}`)
		until(t, "a Secret of another namespace", p.denies(t, 4, "silver", reason.MachinePool))
	})
	t.Run("an enrollment", func(t *testing.T) {
		w.worker("m4")
		enrolment := func(spec map[string]any) map[string]any {
			return map[string]any{"apiVersion": v1alpha1.APIVersion, "kind": v1alpha1.KindMachineAttestation,
				"metadata": map[string]any{"name": "e4"}, "spec": spec}
		}
		w.put(attestations, machineNamespace,
			enrolment(map[string]any{"machineRef": map[string]any{"name": "m4"}, "ekSHA256": []any{ek(5)}}))
		until(t, "it is in force", p.matches(t, 5, "worker", "openshift-machine-api/m4"))
		patch(attestations, "e4", `{"spec":{"quarantined":true}}`)
		until(t, "quarantined", p.denies(t, 5, "worker", reason.Quarantined))
		w.delete(attestations, machineNamespace, "e4")
		until(t, "it is gone", p.denies(t, 5, "worker", reason.EKNotEnrolled))
	})
	t.Run("a stand-in, in the verifier's own namespace too", func(t *testing.T) {
		for i, ns := range []string{machineNamespace, ownNamespace} {
			w.create(attestations, ns, map[string]any{"apiVersion": v1alpha1.APIVersion, "kind": v1alpha1.KindMachineAttestation,
				"metadata": map[string]any{"name": "s5"}, "spec": map[string]any{"pool": "edge", "ekSHA256": []any{ek(6 + i)}}})
			until(t, "it stands in", p.matches(t, 6+i, "edge", ns+"/s5"))
		}
	})
	t.Run("E12: a BareMetalHost enrolls its consumer", func(t *testing.T) {
		w.worker("m6")
		w.create(hosts, machineNamespace, map[string]any{"apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost",
			"metadata": map[string]any{"name": "h6", "annotations": map[string]any{v1alpha1.AnnotationEKSHA256: ek(8)}},
			"spec": map[string]any{"consumerRef": map[string]any{"apiVersion": "machine.openshift.io/v1beta1",
				"kind": "Machine", "namespace": machineNamespace, "name": "m6"}}})
		until(t, "the host's EK is the Machine's", p.matches(t, 8, "worker", "openshift-machine-api/m6"))
		patch(hosts, "h6", `{"spec":{"consumerRef":null}}`)
		until(t, "the host no longer has a consumer", p.denies(t, 8, "worker", reason.EKNotEnrolled))
	})
	t.Run("E12: a BareMetalHost enrolls the Machine of its Metal3Machine", func(t *testing.T) {
		w.create(otherMachines, machineNamespace, map[string]any{"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
			"metadata": map[string]any{"name": "m10"},
			"spec": map[string]any{"clusterName": "c", "bootstrap": map[string]any{"dataSecretName": "worker-user-data"},
				"infrastructureRef": map[string]any{"kind": "Metal3Machine", "name": "metal-10",
					"apiGroup": "infrastructure.cluster.x-k8s.io"}}})
		w.create(hosts, machineNamespace, map[string]any{"apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost",
			"metadata": map[string]any{"name": "h10", "annotations": map[string]any{v1alpha1.AnnotationEKSHA256: ek(10)}},
			"spec": map[string]any{"consumerRef": map[string]any{"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1",
				"kind": "Metal3Machine", "namespace": machineNamespace, "name": "metal-10"}}})
		until(t, "the host's EK is the Machine's", p.matches(t, 10, "worker", "openshift-machine-api/m10"))
	})
	t.Run("the two objects of a Machine that moves to Cluster API", func(t *testing.T) {
		w.worker("m7", annotated(9), func(o map[string]any) { o["spec"] = map[string]any{"providerID": "aws:///a/i-7"} })
		until(t, "the Machine API's", p.matches(t, 9, "worker", "openshift-machine-api/m7"))
		w.create(namespaces, "", map[string]any{"apiVersion": "v1", "kind": "Namespace",
			"metadata": map[string]any{"name": "openshift-cluster-api"}})
		o := map[string]any{"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
			"metadata": map[string]any{"name": "m7"},
			"spec": map[string]any{"providerID": "aws:///a/i-7", "clusterName": "c",
				"bootstrap": map[string]any{"dataSecretName": "worker-user-data"},
				"infrastructureRef": map[string]any{"kind": "AWSMachine", "name": "m7",
					"apiGroup": "infrastructure.cluster.x-k8s.io"}}}
		w.create(otherMachines, "openshift-cluster-api", o)
		until(t, "both are known", func() error {
			return errorIf(len(p.Registry().ByName("openshift-cluster-api", "m7")) != 1, "not there")
		})
		until(t, "the Machine API's still counts", p.matches(t, 9, "worker", "openshift-machine-api/m7"))
		w.delete(otherMachines, "openshift-cluster-api", "m7")
		until(t, "the mirror is gone", func() error {
			return errorIf(len(p.Registry().ByName("openshift-cluster-api", "m7")) != 0, "still there")
		})
	})
	t.Run("policies", func(t *testing.T) {
		w.policy("gold", map[string]any{"pools": []any{"gold"}, "mode": "Audit"})
		until(t, "it is in force", p.mode("gold", "gold", v1alpha1.ModeAudit))
		until(t, "Accepted", func() error {
			c := w.condition(policies, "", "gold", v1alpha1.ConditionAccepted)
			return errorIf(c.Status != metav1.ConditionTrue, "%+v", c)
		})
		w.policy("gold", map[string]any{"pools": []any{"gold"}, "mode": "Enforce"})
		until(t, "it changed", p.mode("gold", "gold", v1alpha1.ModeEnforce))
		w.delete(policies, "", "gold")
		until(t, "that of * counts", p.mode("gold", "all", v1alpha1.ModeEnforce))
	})
}

func (p *process) mode(pool, name string, mode v1alpha1.Mode) func() error {
	return func() error {
		got, err := p.View().Policies.For(pool)
		return errorIf(err != nil || got.Name != name || got.Mode != mode, "pool %s has policy %s, mode %s (%v)",
			pool, got.Name,
			got.Mode, err)
	}
}

func TestMalformedObjectsStopNoOther(t *testing.T) {
	w := theWhole(t)
	w.policy("worker", map[string]any{"pools": []any{"worker"}})
	w.policy("rest", map[string]any{})
	w.worker("good", annotated(1))
	p := w.start("a")
	until(t, "sync", p.synced)
	accepted := func(resource schema.GroupVersionResource, ns, name string, status metav1.ConditionStatus,
		reason string) func() error {
		return func() error {
			c := w.condition(resource, ns, name, v1alpha1.ConditionAccepted)
			return errorIf(c.Status != status || c.Reason != reason, "%+v", c)
		}
	}

	t.Run("a Machine", func(t *testing.T) {
		bad := string(w.worker("bad", func(o map[string]any) {
			o["metadata"].(map[string]any)["annotations"] = map[string]any{v1alpha1.AnnotationEKSHA256: "nonsense"}
		}).GetUID())
		until(t, "it is reported", func() error { return errorIf(len(p.Problems()) != 1, "%v", p.Problems()) })
		until(t, "an Event", w.event(machineNamespace, "bad", "NotUsable"))
		if err := p.Outdated(bad); err == nil || !strings.Contains(err.Error(), "cannot be used as it is") {
			t.Errorf("another replica may have its last good state, but here: %v", err)
		}
		until(t, "not everything is in force", func() error { return errorIf(p.View().Complete, "complete") })
		w.worker("next", annotated(2))
		until(t, "others come and go", p.matches(t, 2, "worker", "openshift-machine-api/next"))
		w.patch(machines, machineNamespace, "good", `{"metadata":{"annotations":{"`+v1alpha1.AnnotationEKSHA256+`":"x"}}}`)
		until(t, "a good one that went bad is reported",
			func() error { return errorIf(len(p.Problems()) != 2, "%v", p.Problems()) })
		if err := p.matches(t, 1, "worker", "openshift-machine-api/good")(); err != nil {
			t.Errorf("its last good state: %v", err)
		}
		until(t, "Degraded reports it", func() error {
			c := w.condition(verifiers, "", "cluster", v1alpha1.ConditionDegraded)
			return errorIf(c.Status != metav1.ConditionTrue || c.Reason != "ObjectsNotUsable" ||
				!strings.Contains(c.Message, "openshift-machine-api/bad"), "%+v", c)
		})
		w.delete(machines, machineNamespace, "bad")
		w.patch(machines, machineNamespace, "good", `{"metadata":{"annotations":{"`+v1alpha1.AnnotationEKSHA256+`":"`+ek(1)+`"}}}`)
		until(t, "no problem is left",
			func() error { return errorIf(len(p.Problems()) != 0 || !p.View().Complete, "%v", p.Problems()) })
		if err := p.Outdated(bad); err != nil {
			t.Errorf("it was deleted, but %v", err)
		}
		until(t, "not Degraded", func() error {
			c := w.condition(verifiers, "", "cluster", v1alpha1.ConditionDegraded)
			return errorIf(c.Status != metav1.ConditionFalse, "%+v", c)
		})
	})
	t.Run("an enrollment", func(t *testing.T) {
		w.create(attestations, machineNamespace,
			map[string]any{"apiVersion": v1alpha1.APIVersion, "kind": v1alpha1.KindMachineAttestation,
				"metadata": map[string]any{"name": "zeros"},
				"spec":     map[string]any{"pool": "edge", "ekSHA256": []any{strings.Repeat("0", 64)}}})
		until(t, "not Accepted", accepted(attestations, machineNamespace, "zeros", metav1.ConditionFalse, "NotUsable"))
		w.patch(attestations, machineNamespace, "zeros", `{"spec":{"ekSHA256":["`+ek(7)+`"]}}`)
		until(t, "Accepted", accepted(attestations, machineNamespace, "zeros", metav1.ConditionTrue, "Accepted"))
		until(t, "in force", p.matches(t, 7, "edge", "openshift-machine-api/zeros"))
	})
	t.Run("a policy keeps its last good state", func(t *testing.T) {
		w.policy("worker", map[string]any{"pools": []any{"worker"}, "mode": "Off",
			"tpm2": map[string]any{"profile": "nonsense"}})
		until(t, "not Accepted", accepted(policies, "", "worker", metav1.ConditionFalse, "NotUsable"))
		if err := p.mode("worker", "worker", v1alpha1.ModeEnforce)(); err != nil {
			t.Error(err)
		}
		if err := p.mode("other", "rest", v1alpha1.ModeEnforce)(); err != nil {
			t.Error("one that broke later does not affect other pools:", err)
		}
		b := w.start("b")
		until(t, "another replica starts meanwhile", b.synced)
		until(t, "it has no last good state, and no pool falls back to *", func() error {
			_, errWorker := b.View().Policies.For("worker")
			_, errOther := b.View().Policies.For("other")
			return errorIf(errWorker == nil || errOther == nil, "worker: %v, other: %v", errWorker, errOther)
		})
		b.stop()
		w.policy("worker", map[string]any{"pools": []any{"worker"}, "mode": "Audit"})
		until(t, "Accepted", accepted(policies, "", "worker", metav1.ConditionTrue, "Accepted"))
		until(t, "in force", p.mode("worker", "worker", v1alpha1.ModeAudit))
	})
	t.Run("policies that contradict each other", func(t *testing.T) {
		w.policy("zz", map[string]any{"pools": []any{"worker", "zz"}, "mode": "Off"})
		until(t, "not Accepted", accepted(policies, "", "zz", metav1.ConditionFalse, "ContradictsAnother"))
		if err := p.mode("worker", "worker", v1alpha1.ModeAudit)(); err != nil {
			t.Error(err)
		}
		w.delete(policies, "", "zz")
		until(t, "the set is whole again", func() error { return errorIf(len(p.Problems()) != 0, "%v", p.Problems()) })
	})
	t.Run("a policy for a pool that does not exist", func(t *testing.T) {
		w.cluster.KubectlApply(t, `
apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfigPool
metadata: {name: worker}
spec: {machineConfigSelector: {}, nodeSelector: {}}
`)
		w.policy("typo", map[string]any{"pools": []any{"wroker"}})
		until(t, "it is reported", accepted(policies, "", "typo", metav1.ConditionTrue, "PoolNotFound"))
		w.delete(policies, "", "typo")
		w.cluster.Kubectl(t, "delete", "machineconfigpool", "worker")
	})
	t.Run("reference values and roots", func(t *testing.T) {
		values := func(name string) string {
			return "apiVersion: mcs-attest.dev/v1alpha1\nkind: ReferenceValues\nmetadata: {name: " + name + "}\n"
		}
		label := map[string]any{verifier.LabelContent: verifier.ContentReferences}
		w.configMap(ownNamespace, "refs", label, map[string]string{"a.yaml": values("a"), "b.yaml": values("b")})
		w.configMap(ownNamespace, "roots", map[string]any{verifier.LabelContent: verifier.ContentRoots},
			map[string]string{"ca.pem": w.ca})
		until(t, "they are in force", func() error {
			current := p.View()
			return errorIf(len(current.References) != 2 || p.EKRoots().Len() != 1, "%d sets, %d roots", len(current.References),
				p.EKRoots().Len())
		})
		w.configMap(ownNamespace, "refs", label, map[string]string{"a.yaml": "broken: [", "b.yaml": values("c")})
		until(t, "the good key is read, the other keeps its state", func() error {
			var names []string
			for _, r := range p.View().References {
				names = append(names, r.Metadata.Name)
			}
			return errorIf(fmt.Sprint(names) != "[a c]" || len(p.Problems()) != 1, "%v, problems %v", names, p.Problems())
		})
		w.delete(configMaps, ownNamespace, "refs")
		until(t, "they are gone", func() error {
			return errorIf(len(p.View().References) != 0 || len(p.Problems()) != 0, "%d, %v", len(p.View().References),
				p.Problems())
		})
	})
}

// event finds an Event about an object.
func (w *whole) event(namespace, object, reason string) func() error {
	return func() error {
		l, err := w.in(events, namespace).List(context.Background(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, e := range l.Items {
			name, _, _ := unstructured.NestedString(e.Object, "involvedObject", "name")
			if name == object && e.Object["reason"] == reason {
				return nil
			}
		}
		return fmt.Errorf("no Event %s about %s", reason, object)
	}
}

func TestClusterWithoutOpenShiftKinds_HasNoProblems(t *testing.T) {
	c := cluster.Start(t)
	c.InstallOwn(t)
	w := prepare(t, c)
	w.policy("all", map[string]any{})
	p := w.start("a")
	until(t, "sync without Machines of any API", p.synced)
	reported := func() int { return strings.Count(p.log.String(), "does not have a kind; it will") }
	until(t, "each is reported", func() error { return errorIf(reported() < 7, "%d", reported()) })
	time.Sleep(3 * time.Second) // several more looks, each of which could be told
	if n := reported(); n != 7 {
		t.Errorf("reported %d times: there are 3 kinds in 2 namespaces, and the pools", n)
	}
	w.cluster.InstallClusterAPI(t)
	o := map[string]any{"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
		"metadata": map[string]any{"name": "capi"},
		"spec": map[string]any{"clusterName": "c", "bootstrap": map[string]any{"dataSecretName": "worker-user-data"},
			"infrastructureRef": map[string]any{"kind": "AWSMachine", "name": "capi",
				"apiGroup": "infrastructure.cluster.x-k8s.io"}}}
	annotated(2)(o)
	w.create(otherMachines, machineNamespace, o)
	until(t, "a Machine of Cluster API, without the Machine API", p.matches(t, 2, "worker", "openshift-machine-api/capi"))
	if err := p.synced(); err != nil {
		t.Error(err)
	}
	w.cluster.InstallOpenShift(t)
	w.worker("late", annotated(1))
	until(t, "the kind appeared", p.matches(t, 1, "worker", "openshift-machine-api/late"))
	w.delete(crds, "", "machines.machine.openshift.io")
	until(t, "and went", p.denies(t, 1, "worker", reason.EKNotEnrolled))
	if err := p.synced(); err != nil {
		t.Error(err)
	}
}

func TestForbiddenNamesTheMissingRule(t *testing.T) {
	w := theWhole(t)
	w.policy("all", map[string]any{})
	w.cluster.KubectlApply(t, `
apiVersion: v1
kind: ServiceAccount
metadata: {name: few, namespace: mcs-attest}
`)
	w.cluster.Kubectl(t, "create", "clusterrolebinding", "few", "--clusterrole=cluster-admin",
		"--serviceaccount=mcs-attest:few")
	p := w.startAs(w.cluster.ServiceAccount(t, "mcs-attest", "few"), "a")
	until(t, "sync", p.synced)
	w.cluster.Kubectl(t, "delete", "clusterrolebinding", "few")
	w.cluster.Kubectl(t, "create", "clusterrole", "most", "--verb=*", "--resource=attestationpolicies.mcs-attest.dev,machineattestations.mcs-attest.dev,configmaps,secrets,nodes,leases.coordination.k8s.io")
	w.cluster.Kubectl(t, "create", "clusterrole", "status", "--verb=*", "--resource=attestationverifiers.mcs-attest.dev,attestationverifiers.mcs-attest.dev/status,identityclaims.mcs-attest.dev")
	for _, role := range []string{"most", "status"} {
		w.cluster.Kubectl(t, "create", "clusterrolebinding", role, "--clusterrole="+role, "--serviceaccount=mcs-attest:few")
	}
	p.stop()
	p = w.startAs(w.cluster.ServiceAccount(t, "mcs-attest", "few"), "b")
	until(t, "the missing rule is named", func() error {
		_, missing := p.Synced()
		text := strings.Join(missing, "\n")
		return errorIf(!strings.Contains(text,
			"get, list and watch on machines.machine.openshift.io in namespace openshift-machine-api"), "%s", text)
	})
	until(t, "in the conditions, too", func() error {
		c := w.condition(verifiers, "", "cluster", v1alpha1.ConditionDegraded)
		return errorIf(c.Reason != "Forbidden" || !strings.Contains(c.Message, "machines.machine.openshift.io"), "%+v", c)
	})
	if c := w.condition(verifiers, "", "cluster", v1alpha1.ConditionAvailable); c.Status != metav1.ConditionFalse {
		t.Errorf("%+v", c)
	}
	w.cluster.Kubectl(t, "create", "clusterrolebinding", "few", "--clusterrole=cluster-admin",
		"--serviceaccount=mcs-attest:few")
	until(t, "it works once it may", p.synced)
}

// The controller may read the Machines of a namespace, and the processes that serve may not.
func TestForbiddenToTheFront_NamesTheMissingRule(t *testing.T) {
	c := cluster.Start(t)
	c.InstallClusterAPI(t)
	c.InstallOpenShift(t)
	c.InstallMetal3(t)
	deploy.Apply(t, c, "openshift")
	w := prepare(t, c)
	w.policy("all", map[string]any{})
	p := w.startAs(c.ServiceAccount(t, ownNamespace, deploy.Controller), "a")
	until(t, "sync", p.synced)
	reported := func(want bool) func() error {
		return func() error {
			d := w.condition(verifiers, "", "cluster", v1alpha1.ConditionDegraded)
			a := w.condition(verifiers, "", "cluster", v1alpha1.ConditionAvailable)
			missing := d.Reason == "Forbidden" && strings.Contains(d.Message, "the service account "+deploy.ServiceAccount+
				" needs get, list and watch on machines.machine.openshift.io in namespace "+machineNamespace)
			return errorIf(missing != want || !want && strings.Contains(d.Message, deploy.ServiceAccount) ||
				a.Status != metav1.ConditionTrue, "%+v, %+v", d, a)
		}
	}
	const passes = 3 * time.Second
	until(t, "it is available", reported(false))
	time.Sleep(passes)
	until(t, "nothing is missing", reported(false))
	c.Kubectl(t, "-n", machineNamespace, "delete", "rolebinding", "mcs-attest-verifier-machines")
	until(t, "the missing rule is named", reported(true))
	c.KubectlApply(t, string(deploy.Rendered(t, "openshift")))
	until(t, "nothing is missing again", reported(false))
}

// Without the API server nothing is granted, nothing that is known is lost, and
// what happens right afterwards is seen (attack T58).
func TestAttack_T58_TheAPIServerIsUnavailableForAWhile(t *testing.T) {
	w := newWhole(t)
	w.lease = shortLease
	w.policy("all", map[string]any{})
	o := w.worker("one", annotated(1))
	w.worker("two", annotated(2))
	p := w.start("a")
	until(t, "sync", p.synced)
	until(t, "the view", p.matches(t, 2, "worker", "openshift-machine-api/two"))
	until(t, "keys", func() error { _, ok := p.Keys().Tokens.Current(time.Now()); return errorIf(!ok, "none") })
	before := p.Keys().Tokens

	w.cluster.StopAPIServer()
	time.Sleep(8 * time.Second) // long enough for the lease to run out
	if err := p.matches(t, 1, "worker", "openshift-machine-api/one")(); err != nil {
		t.Error(err)
	}
	if err := p.mode("worker", "all", v1alpha1.ModeEnforce)(); err != nil || !p.View().Complete {
		t.Error(err, p.View().Complete)
	}
	if k, ok := p.Keys().Tokens.Current(time.Now()); !ok || k.ID != before.Keys[0].ID {
		t.Error("the keys went")
	}
	_, err := p.Records().Record(t.Context(), string(o.GetUID()))
	denied(t, err, reason.StoreUnavailable)

	if err := w.cluster.StartAPIServer(); err != nil {
		t.Fatal(err)
	}
	w.patch(attestationsOf(w, string(o.GetUID())), machineNamespace, string(o.GetUID()), `{"spec":{"quarantined":true}}`)
	w.delete(machines, machineNamespace, "two")
	w.worker("three", annotated(3))
	until(t, "a quarantine is seen", p.denies(t, 1, "worker", reason.Quarantined))
	until(t, "a deletion", p.denies(t, 2, "worker", reason.EKNotEnrolled))
	until(t, "a new Machine", p.matches(t, 3, "worker", "openshift-machine-api/three"))
	until(t, "the lease has a holder again, who latches", func() error {
		rec, err := p.Records().Record(t.Context(), string(o.GetUID()))
		return errorIf(err != nil || rec == nil || !rec.Status.Quarantined, "%v, %v", rec, err)
	})
	if strings.Contains(p.log.String(), "went back to an earlier time") {
		t.Error("an outage was taken for a restore")
	}
}

// attestationsOf waits for a Machine's record.
func attestationsOf(w *whole, uid string) schema.GroupVersionResource {
	until(w, "record of "+uid, func() error {
		_, err := w.in(attestations, machineNamespace).Get(context.Background(), uid, metav1.GetOptions{})
		return err
	})
	return attestations
}
