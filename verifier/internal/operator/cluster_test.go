// SPDX-License-Identifier: Apache-2.0

package operator_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/token"
	"github.com/mcs-attest/mcs-attest/testvm/cluster"
	"github.com/mcs-attest/mcs-attest/verifier/internal/admin"
	"github.com/mcs-attest/mcs-attest/verifier/internal/operator"
)

// room is a pair of namespaces of a test's own, and the backend that works in them.
func room(t *testing.T, c *cluster.Cluster, name string) (fixture, *operator.Cluster) {
	t.Helper()
	f := fixture{d: client(t, c), namespace: "m-" + name, own: "v-" + name}
	c.KubectlApply(t, fmt.Sprintf("apiVersion: v1\nkind: Namespace\nmetadata: {name: %s}\n---\napiVersion: v1\nkind: "+
		"Namespace\nmetadata: {name: %s}\n", f.namespace, f.own))
	b, err := operator.OpenCluster(operator.ClusterOptions{Rest: c.Admin(), Namespaces: []string{f.namespace}, Own: f.own,
		FieldManager: "test", Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	return f, b
}

// The conditions do not change any more when no controller runs.
func TestState_WithoutAControllerTheConditionsAreOld(t *testing.T) {
	f, b := room(t, installed(t), "lease")
	leases := schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}
	state := func(what string, leads bool) {
		t.Helper()
		s, err := b.State(t.Context())
		old := err == nil && slices.ContainsFunc(s.Problems, func(p string) bool {
			return strings.HasPrefix(p, "no controller runs: none has renewed Lease v-lease/mcs-attest-verifier since 20")
		})
		if err != nil || !s.Serving || old == leads {
			t.Errorf("%s: serving %v, problems %v, %v", what, s.Serving, s.Problems, err)
		}
	}
	state("there is no Lease", true)
	for _, c := range []struct {
		what string
		ago  time.Duration
		want bool
	}{{"the controllers ended yesterday", 24 * time.Hour, false}, {"one leads", time.Second, true}} {
		_, err := f.put(leases, fmt.Sprintf("apiVersion: coordination.k8s.io/v1\nkind: Lease\nmetadata: {name: "+
			"mcs-attest-verifier, namespace: %s}\nspec: {holderIdentity: pod, leaseDurationSeconds: 30, renewTime: %q}\n",
			f.own, time.Now().Add(-c.ago).UTC().Format("2006-01-02T15:04:05.000000Z")))
		if err != nil {
			t.Fatal(err)
		}
		state(c.what, c.want)
		err = f.d.Resource(leases).Namespace(f.own).Delete(t.Context(), "mcs-attest-verifier", metav1.DeleteOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestListsLongerThanAPageAreWhole(t *testing.T) {
	f, b := room(t, installed(t), "pages")
	operator.SetPage(3)
	t.Cleanup(func() { operator.SetPage(500) })
	for i := range 10 {
		name := fmt.Sprintf("worker-%d", i)
		uid, err := f.machine(name, "")
		if err == nil && i%2 == 0 {
			err = f.record(name, uid, "Attested", "")
		}
		if err == nil {
			id := fmt.Sprintf("%016x", i)
			err = f.waiting(id, strings.Repeat(id, 4))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	s, err := b.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	records := 0
	for _, m := range s.Machines {
		if m.Record != nil {
			records++
		}
	}
	if len(s.Machines) != 10 || records != 5 || len(s.Pending) != 10 {
		t.Errorf("%d Machines, %d records, %d wait", len(s.Machines), records, len(s.Pending))
	}
}

// The verifier makes the records of new Machines by itself; the second writer
// finds the record of the first.
func TestCommands_ConcurrentAdministratorsAndVerifier(t *testing.T) {
	f, b := room(t, installed(t), "atonce")
	uid, err := f.machine("worker-0", "")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			var err error
			switch i % 3 {
			case 0:
				_, err = b.Quarantine(t.Context(), "worker-0", true, operator.Write{})
			case 1:
				_, err = b.Reattest(t.Context(), "worker-0", time.Now().Add(time.Hour), operator.Write{})
			default:
				if err = f.record("worker-0", uid, "Attested", ""); err != nil && strings.Contains(err.Error(), "already exists") {
					err = nil
				}
			}
			// The fixture ignores a status that another writer changed in between.
			if err != nil && !strings.Contains(err.Error(), "the object has been modified") {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	o, err := f.d.Resource(attestations).Namespace(f.namespace).Get(t.Context(), uid, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	spec, _ := o.Object["spec"].(map[string]any)
	if spec["quarantined"] != true || spec["reattest"] == nil || spec["machineRef"] == nil ||
		len(o.GetOwnerReferences()) != 1 {
		t.Errorf("something was lost: %v, owned by %v", spec, o.GetOwnerReferences())
	}
}

func TestRotate_ConcurrentCallsMakeOneRotation(t *testing.T) {
	c := installed(t)
	f, b := room(t, c, "rotations")
	dir := t.TempDir()
	run(t, nil, "mcs-attest-verifier", "init", dir+"/w", "--origin", "https://api-int.test:22623")
	c.Kubectl(t, "create", "secret", "generic", "mcs-attest-keys", "-n", f.own, "--from-file="+dir+"/w/keys/token.json",
		"--from-file="+dir+"/w/keys/seal.json", "--from-literal=another=kept")
	var made, waited atomic.Int32
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			err := b.ChangeKeys(t.Context(), func(k operator.Keys) (operator.Keys, error) {
				return operator.Rotate(k, time.Now(), 10*time.Minute, false)
			})
			switch {
			case err == nil:
				made.Add(1)
			case errors.Is(err, token.ErrRotating):
				waited.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	k, err := b.Keys(t.Context())
	if err != nil || made.Load() != 1 || waited.Load() != 5 || len(k.Tokens.Keys) != 2 {
		t.Errorf("%d made, %d waited, %d keys, %v", made.Load(), waited.Load(), len(k.Tokens.Keys), err)
	}
	if kept := c.Kubectl(t, "get", "secret", "mcs-attest-keys", "-n", f.own,
		"-o", "jsonpath={.data.another}"); kept == "" {
		t.Error("a key of the Secret that is not ours is gone")
	}
}

// What an administrator wrote in one of several places counts, whatever the
// objects are called.
func TestState_ReadsAGrantInAnyObject(t *testing.T) {
	f, b := room(t, installed(t), "grants")
	for i, name := range []string{"000-first", "zzz-last"} {
		machine := fmt.Sprintf("worker-%d", i)
		if _, err := f.machine(machine, "node-"+name); err != nil {
			t.Fatal(err)
		}
		e := &v1alpha1.MachineAttestation{}
		e.Namespace, e.Name = f.namespace, name
		e.Spec.MachineRef = &v1alpha1.MachineReference{Namespace: f.namespace, Name: machine}
		e.Spec.EKSHA256 = []string{strings.Repeat(fmt.Sprint(i+1), 64)}
		if _, err := b.Enroll(t.Context(), e, operator.Write{}); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Reattest(t.Context(), machine, time.Now().Add(time.Hour), operator.Write{}); err != nil {
			t.Fatal(err)
		}
		s, err := b.Find(t.Context(), machine)
		if err != nil || len(s.Machines) != 1 || s.Machines[0].Reattest == nil || len(s.Machines[0].EKSHA256) != 1 {
			t.Errorf("%s: %+v, %v", name, s, err)
		}
	}
}

func TestState_UnreadableObjectAffectsNoOther(t *testing.T) {
	f, b := room(t, installed(t), "broken")
	for _, text := range []string{
		// The API takes these; we cannot use them.
		"apiVersion: mcs-attest.dev/v1alpha1\nkind: MachineAttestation\nmetadata: {name: neither, namespace: " + f.namespace +
			"}\nspec: {ekSHA256: [" + ek + "]}\n",
		"apiVersion: machine.openshift.io/v1beta1\nkind: Machine\nmetadata: {name: odd, namespace: " + f.namespace +
			", annotations: {mcs-attest.dev/ek-sha256: nonsense}}\nspec: {}\n",
	} {
		r := attestations
		if strings.Contains(text, "kind: Machine\n") {
			r = machines
		}
		if _, err := f.put(r, text); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := f.machine("worker-0", ""); err != nil {
		t.Fatal(err)
	}
	s, err := b.State(t.Context())
	if err != nil || len(s.Problems) < 2 {
		t.Fatalf("%v, %+v", err, s)
	}
	var found bool
	for _, m := range s.Machines {
		found = found || strings.HasSuffix(m.Name, "/worker-0")
	}
	if !found {
		t.Errorf("%+v", s.Machines)
	}
}

func TestState_FailsWithACanceledContext(t *testing.T) {
	_, b := room(t, installed(t), "ended")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.State(ctx); err == nil {
		t.Error("read all the same")
	}
	if _, err := b.Events(ctx, admin.Machine{Name: "a/b", UID: "x"}); err == nil {
		t.Error("read all the same")
	}
}
