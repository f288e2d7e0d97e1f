// SPDX-License-Identifier: Apache-2.0

package mcscertificates

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/openshift/api/annotations"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mcs-attest/mcs-attest/pkg/mcscert"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
)

// notServed answers as an API server that does not have the kinds of these groups.
func notServed(groups ...string) func(verb string, o runtime.Object, key client.ObjectKey) error {
	return func(_ string, o runtime.Object, _ client.ObjectKey) error {
		if kind := o.GetObjectKind().GroupVersionKind(); slices.Contains(groups, kind.Group) {
			return &meta.NoKindMatchError{GroupKind: kind.GroupKind(), SearchedVersions: []string{kind.Version}}
		}
		return nil
	}
}

// One answer that the kind MachineSet does not exist hides the only pointer config that prevents the switch to the new
// CA. A minute of such answers shows that the cluster has no MachineSets.
func TestAbsentKind_DelaysTheSwitchForAMinute(t *testing.T) {
	const name = "worker-user-data-managed"
	absent := notServed("machine.openshift.io")
	down := func(string, runtime.Object, client.ObjectKey) error { return errors.New("connection refused") }
	synctest.Test(t, func(t *testing.T) {
		old := installerCA(t, "root-ca", time.Now().Add(-year))
		r := newRig(t, old.serving(t, corev1.SecretTypeTLS, "192.0.2.5", host), rootCA(old), userData(t, name, old.pem),
			userData(t, "worker-user-data", old.pem), machineSetWith("userData", name))
		r.o.Config.Certificates.Rotate = config.RotateAlways
		r.start()
		r.sync()
		time.Sleep(7*year + year/2)
		for i, pass := range []struct {
			after    time.Duration
			refuse   func(string, runtime.Object, client.ObjectKey) error
			findings int
			switched bool
		}{
			{after: 0, findings: 1}, // the pointer config, which is unknown while the kind is absent
			{after: time.Minute, refuse: absent},
			{after: time.Minute, findings: 1},
			{after: time.Minute, refuse: absent},
			{after: 40 * time.Second, refuse: down, findings: 1},
			{after: 40 * time.Second, refuse: absent},
			{after: 40 * time.Second, refuse: absent},
			{after: 30 * time.Second, refuse: absent, switched: true},
		} {
			time.Sleep(pass.after)
			r.refuse = pass.refuse
			_ = r.reconcile()
			if f := r.c.Findings(); len(f) != pass.findings {
				t.Errorf("pass %d: findings %v", i, f)
			}
			if fails := verify(r.c.Status().Leaf, r.pointerRoots(name), time.Now()) != nil; fails != pass.switched {
				t.Fatalf("pass %d: a machine of the MachineSet fails: %v", i, fails)
			}
		}
	})
}

// The CA that signed the served certificate needs no pointer config, so an absent kind delays nothing.
func TestAbsentKind_DoesNotDelayTheSameCA(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, userData(t, "worker-user-data", []byte(installed())))
		r.sync()
		r.refuse = notServed("cluster.x-k8s.io")
		r.o.Hostnames = append(r.o.Hostnames, "192.0.2.9")
		r.start()
		if s := r.sync(); !slices.Contains(mcscert.Hosts(s.Leaf), "192.0.2.9") || len(r.c.Findings()) > 0 {
			t.Errorf("it is for %v, findings %v", mcscert.Hosts(s.Leaf), r.c.Findings())
		}
	})
}

// Without a CA, the MachineSets decide who makes it.
func TestAbsentKind_DelaysTheDecisionWhoRenews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, machineSetOf("worker-user-data"), userData(t, "worker-user-data", []byte(installed())))
		before := r.objects()
		r.refuse = notServed("machine.openshift.io")
		if err := r.reconcile(); err == nil || r.objects() != before {
			t.Errorf("a CA was made, or there is no error: %v", err)
		}
		r.refuse = nil
		if s := r.sync(); s.Case != mcscert.CaseOperatorToCome {
			t.Errorf("it is %s", s.Case)
		}
		r.refuse = notServed("machine.openshift.io")
		_ = r.reconcile()
		time.Sleep(certain)
		if s := r.sync(); s.Case != mcscert.CaseNoMachineSets || s.CA == nil {
			t.Errorf("a cluster without the kind: %s", s.Case)
		}
	})
}

func TestAbsentKind_DelaysTheFindingAboutTheOperator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, machineSetOf("worker-user-data"), userData(t, "worker-user-data", []byte(installed())))
		r.o.Config.Certificates.Rotate = config.RotateAlways
		r.start()
		r.sync()
		ca := r.secret(mco, "machine-config-server-ca")
		ca.Annotations[annotations.OpenShiftComponent] = "Machine Config Operator"
		r.update(ca)
		r.o.Config.Certificates.Rotate = ""
		r.start()
		r.refuse = notServed("machine.openshift.io")
		if s := r.sync(); s.Case != mcscert.CaseOperator || s.Abandoned || len(r.c.Findings()) > 0 {
			t.Errorf("%s, findings %v", s.Case, r.c.Findings())
		}
		time.Sleep(certain)
		if s := r.sync(); !s.Abandoned {
			t.Error("a cluster without the kind: no finding")
		}
	})
}
