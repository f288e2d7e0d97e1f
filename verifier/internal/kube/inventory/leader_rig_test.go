// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/pki"
	"github.com/mcs-attest/mcs-attest/pkg/pointer"
	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/keys"
	verifier "github.com/mcs-attest/mcs-attest/verifier/internal/kube/inventory"
)

// wireCut is a replica's way to the API that can be cut.
type wireCut struct{ cut atomic.Bool }

// cutTransport is one of the transports of a replica.
type cutTransport struct {
	http.RoundTripper
	*wireCut
}

func (c cutTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if c.cut.Load() {
		return nil, errors.New("the wire is cut")
	}
	return c.RoundTripper.RoundTrip(r)
}

func (w *whole) wire() (*rest.Config, *wireCut) {
	cut := &wireCut{}
	r := rest.CopyConfig(w.cluster.Admin())
	r.Wrap(func(rt http.RoundTripper) http.RoundTripper { return cutTransport{rt, cut} })
	return r, cut
}

func (p *process) holds() int {
	log := p.log.String()
	return strings.Count(log, "this replica holds the lease") - strings.Count(log, "no longer holds the lease")
}

// keyIDs are a replica's signing keys.
func (p *process) keyIDs() []string {
	var ids []string
	for _, k := range p.Keys().Tokens.Keys {
		ids = append(ids, k.ID)
	}
	return ids
}

func TestThreeReplicasShareKeysAndOneHoldsTheLease(t *testing.T) {
	w := theWhole(t)
	w.policy("all", map[string]any{})
	publish := 2 * time.Second
	w.keyRotation = 6 * publish // a set has at most 16 keys
	w.lease = shortLease
	quick := func(_ *config.Kubernetes, o *verifier.Options) {
		o.KeyPublishDelay, o.Pass = publish, 300*time.Millisecond
	}
	var all []*process
	var cuts []*wireCut
	for i := range 3 {
		r, cut := w.wire()
		all, cuts = append(all, w.startAs(r, fmt.Sprintf("replica-%d", i), quick)), append(cuts, cut)
	}
	agree := func(living ...*process) func() error {
		return func() error {
			first := living[0].keyIDs()
			for _, p := range living {
				if ids := p.keyIDs(); len(ids) == 0 || !slices.Equal(ids, first) || len(p.Keys().Seals.Keys) == 0 {
					return fmt.Errorf("keys %v and %v", first, ids)
				}
			}
			return nil
		}
	}
	for _, p := range all {
		until(t, "sync", p.synced)
	}
	until(t, "all have the first keys", agree(all...))
	// On a slow machine the holder may lose the lease for a moment.
	until(t, "one holds the lease", func() error {
		sum := 0
		for _, p := range all {
			sum += p.holds()
		}
		return errorIf(sum != 1, "%d hold the lease", sum)
	})

	t.Run("rotation overlaps", func(t *testing.T) {
		old, _ := all[0].Keys().Tokens.Current(time.Now())
		until(t, "a next key is published", func() error { return errorIf(len(all[0].keyIDs()) < 2, "%v", all[0].keyIDs()) })
		until(t, "everyone has it", agree(all...))
		until(t, "it signs", func() error {
			now, ok := all[1].Keys().Tokens.Current(time.Now())
			return errorIf(!ok || now.ID == old.ID, "%s still signs", now.ID)
		})
		if !slices.Contains(all[2].keyIDs(), old.ID) {
			t.Error("the old key no longer verifies what it signed a moment ago")
		}
	})
	t.Run("F15: the holder is cut off, and another goes on", func(t *testing.T) {
		holder := -1
		until(t, "one holds the lease", func() error {
			holder = slices.IndexFunc(all, func(p *process) bool { return p.holds() == 1 })
			return errorIf(holder < 0, "none")
		})
		cuts[holder].cut.Store(true)
		rest := slices.Delete(slices.Clone(all), holder, holder+1)
		until(t, "one of the others holds the lease", func() error {
			return errorIf(rest[0].holds()+rest[1].holds() != 1, "%d, %d", rest[0].holds(), rest[1].holds())
		})
		if len(all[holder].keyIDs()) == 0 || len(all[holder].View().Policies.Pools()) != 1 {
			t.Error("a replica that lost the lease stopped serving")
		}
		known := rest[0].keyIDs()
		until(t, "keys rotate on", func() error {
			ids := rest[0].keyIDs()
			return errorIf(slices.Contains(known, ids[len(ids)-1]), "%v", ids)
		})
		cuts[holder].cut.Store(false)
		until(t, "the one that was cut off comes back to the same keys", agree(all...))
	})
	t.Run("released at shutdown", func(t *testing.T) {
		now := -1
		until(t, "one holds the lease", func() error {
			now = slices.IndexFunc(all, func(p *process) bool { return p.holds() == 1 })
			return errorIf(now < 0, "none")
		})
		began := time.Now()
		all[now].stop()
		rest := slices.Delete(slices.Clone(all), now, now+1)
		until(t, "another holds it", func() error {
			return errorIf(rest[0].holds()+rest[1].holds() != 1, "%d, %d", rest[0].holds(), rest[1].holds())
		})
		t.Logf("taken over after %v", time.Since(began))
	})
}

func TestKeysOutliveTheirSecret(t *testing.T) {
	w := theWhole(t)
	w.policy("all", map[string]any{})
	p, q := w.start("a"), w.start("b")
	until(t, "keys", func() error { return errorIf(len(p.keyIDs()) != 1 || len(q.keyIDs()) != 1, "none") })
	first := p.keyIDs()
	keysOf := func() map[string]any {
		o := w.get(secrets, ownNamespace, verifier.KeysSecret)
		data, _, _ := unstructured.NestedMap(o.Object, "data")
		return data
	}
	good := keysOf()

	w.secret(ownNamespace, verifier.KeysSecret, map[string]string{keys.TokenFile: "{", keys.SealFile: "{"})
	until(t, "it is reported", func() error { return errorIf(len(p.Problems()) != 1, "%v", p.Problems()) })
	time.Sleep(2 * time.Second) // several passes of the holder
	if !slices.Equal(p.keyIDs(), first) || !slices.Equal(q.keyIDs(), first) || len(keysOf()) != 2 {
		t.Error("keys that cannot be read replaced the good ones, or were written over")
	}
	w.put(secrets, ownNamespace, map[string]any{"apiVersion": "v1", "kind": "Secret",
		"metadata": map[string]any{"name": verifier.KeysSecret}, "data": good})
	until(t, "fixed", func() error { return errorIf(len(p.Problems()) != 0, "%v", p.Problems()) })

	w.delete(secrets, ownNamespace, verifier.KeysSecret)
	until(t, "new ones are made", func() error {
		ids := p.keyIDs()
		return errorIf(len(ids) != 1 || ids[0] == first[0] || !slices.Equal(ids, q.keyIDs()), "%v, %v", ids, q.keyIDs())
	})
}

func (w *whole) there(resource schema.GroupVersionResource, namespace,
	name string) (*unstructured.Unstructured, error) {
	o, err := w.in(resource, namespace).Get(context.Background(), name, metav1.GetOptions{})
	if kerrors.IsNotFound(err) {
		return nil, nil
	}
	return o, err
}

func TestRecordsFollowTheirMachines(t *testing.T) {
	w := theWhole(t)
	w.policy("all", map[string]any{})
	p := w.start("a")
	until(t, "sync", p.synced)
	record := func(uid string) v1alpha1.MachineAttestationStatus {
		rec, err := p.Records().Record(t.Context(), uid)
		if err != nil || rec == nil {
			return v1alpha1.MachineAttestationStatus{}
		}
		return rec.Status
	}

	o := w.worker("one", annotated(1), func(o map[string]any) { o["spec"] = map[string]any{"providerID": "aws:///a/i-1"} })
	uid := string(o.GetUID())
	attestationsOf(w, uid)
	t.Run("quarantine is latched, and lifted", func(t *testing.T) {
		w.patch(attestations, machineNamespace, uid, `{"spec":{"quarantined":true}}`)
		until(t, "latched", func() error { return errorIf(!record(uid).Quarantined, "not") })
		w.patch(attestations, machineNamespace, uid, `{"spec":{"quarantined":false}}`)
		until(t, "lifted", func() error { return errorIf(record(uid).Quarantined, "still") })
	})
	t.Run("joining is latched", func(t *testing.T) {
		w.create(nodes, "", map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": "n1"},
			"spec": map[string]any{"providerID": "aws:///a/i-1"}})
		until(t, "latched", func() error {
			return errorIf(record(uid).Phase != v1alpha1.PhaseJoined, "%v", record(uid).Phase)
		})
		w.delete(nodes, "", "n1")
		time.Sleep(time.Second)
		if got := record(uid).Phase; got != v1alpha1.PhaseJoined {
			t.Errorf("the Node went, and the latch fell: %s", got)
		}
	})
	t.Run("a Machine that is a Node from the start has no record made for it", func(t *testing.T) {
		p.stop() // who sees it before it is a Node makes a record
		o := w.worker("old")
		w.patch(machines, machineNamespace, "old", `{"status":{"nodeRef":{"name":"n"}}}`, "status")
		p = w.start("a2")
		until(t, "known", func() error { return errorIf(!p.Registry().Known(string(o.GetUID())), "not") })
		later := w.worker("later")
		attestationsOf(w, string(later.GetUID()))
		if r, err := w.there(attestations, machineNamespace, string(o.GetUID())); err != nil || r != nil {
			t.Errorf("it has one: %v, %v", r, err)
		}
	})
	t.Run("records and claims go with the Machine, also while no replica held the lease", func(t *testing.T) {
		id := unique()
		m, _ := p.Registry().ByUID(uid)
		other := w.worker("two", annotated(2))
		attestationsOf(w, string(other.GetUID()))
		until(t, "known", func() error { return errorIf(!p.Registry().Known(string(other.GetUID())), "not") })
		two, _ := p.Registry().ByUID(string(other.GetUID()))
		if err := attest(p.Records(), two, id, "token", time.Now()); err != nil {
			t.Fatal(err)
		}
		if n := len(w.list(claims, "")); n != 1 {
			t.Fatalf("%d claims", n)
		}
		p.stop()
		w.delete(machines, machineNamespace, m.Name)
		w.delete(machines, machineNamespace, two.Name)
		p = w.start("b")
		until(t, "all of it is gone", func() error {
			a, err1 := w.there(attestations, machineNamespace, uid)
			b, err2 := w.there(attestations, machineNamespace, two.UID)
			return errorIf(a != nil || b != nil || err1 != nil || err2 != nil || len(w.list(claims, "")) != 0,
				"%v, %v, %d claims",
				a, b, len(w.list(claims, "")))
		})
	})
	t.Run("a claim that no record leads to", func(t *testing.T) {
		o := w.worker("three")
		until(t, "known", func() error { return errorIf(!p.Registry().Known(string(o.GetUID())), "not") })
		m, _ := p.Registry().ByUID(string(o.GetUID()))
		if err := attest(p.Records(), m, unique(), "token", time.Now()); err != nil {
			t.Fatal(err)
		}
		p.stop()
		w.delete(machines, machineNamespace, "three")
		w.delete(attestations, machineNamespace, m.UID)
		p = w.start("c")
		until(t, "it is gone", func() error { return errorIf(len(w.list(claims, "")) != 0, "still there") })
	})
	t.Run("who waits too long", func(t *testing.T) {
		for name, seen := range map[string]time.Time{"pending-00000000000000aa": time.Now().Add(-25 * time.Hour),
			"pending-00000000000000bb": time.Now()} {
			w.create(attestations, ownNamespace,
				map[string]any{"apiVersion": v1alpha1.APIVersion, "kind": v1alpha1.KindMachineAttestation,
					"metadata": map[string]any{"name": name, "labels": map[string]any{"mcs-attest.dev/pending": "true"}}})
			at := seen.UTC().Format(time.RFC3339)
			w.patch(attestations, ownNamespace, name, `{"status":{"phase":"Pending","pending":{"ekSHA256":"`+ek(1)+`","firstSeen":"`+at+`","lastSeen":"`+at+`"}}}`, "status")
		}
		until(t, "the old one is gone", func() error {
			o, err := w.there(attestations, ownNamespace, "pending-00000000000000aa")
			return errorIf(o != nil || err != nil, "%v", err)
		})
		if o, err := w.there(attestations, ownNamespace, "pending-00000000000000bb"); o == nil {
			t.Error("the other, too:", err)
		}
	})
}

// An object that cannot be used keeps only the quarantine of the Machine that it names.
func TestUnreadableObject_DelaysNoOtherRelease(t *testing.T) {
	w := theWhole(t)
	w.policy("all", map[string]any{})
	p := w.start("a")
	until(t, "sync", p.synced)
	quarantined := func(uid string) bool {
		rec, err := p.Records().Record(t.Context(), uid)
		return err == nil && rec != nil && rec.Status.Quarantined
	}
	uids := map[string]string{}
	for _, name := range []string{"one", "two"} {
		uids[name] = string(w.worker(name).GetUID())
		w.patch(attestationsOf(w, uids[name]), machineNamespace, uids[name], `{"spec":{"quarantined":true}}`)
	}
	for name, uid := range uids {
		until(t, name+" is latched", func() error { return errorIf(!quarantined(uid), "not") })
	}
	for name, spec := range map[string]map[string]any{
		"broken-one": {"machineRef": map[string]any{"name": "one"}},
		"broken-two": {"machineRef": map[string]any{"name": "two"}, "quarantined": true},
	} {
		spec["ekSHA256"] = []any{strings.Repeat("0", 64)}
		w.create(attestations, machineNamespace,
			map[string]any{"apiVersion": v1alpha1.APIVersion, "kind": v1alpha1.KindMachineAttestation,
				"metadata": map[string]any{"name": name}, "spec": spec})
	}
	until(t, "both are reported", func() error { return errorIf(len(p.Problems()) != 2, "%v", p.Problems()) })
	for _, uid := range uids {
		w.patch(attestations, machineNamespace, uid, `{"spec":{"quarantined":false}}`)
	}
	until(t, "one is lifted", func() error { return errorIf(quarantined(uids["one"]), "still") })
	time.Sleep(2 * time.Second) // two passes
	if !quarantined(uids["two"]) {
		t.Error("an object quarantines two, but its quarantine was lifted")
	}
	w.delete(attestations, machineNamespace, "broken-two")
	until(t, "two is lifted", func() error { return errorIf(quarantined(uids["two"]), "still") })
}

func TestProvisioningTokenReachesThePointerConfigs(t *testing.T) {
	w := theWhole(t)
	w.policy("all", map[string]any{})
	w.policy("shared", map[string]any{"pools": []any{"worker", "master"}, "provisioningTokenAlone": true,
		"evidence": []any{
			map[string]any{"all": []any{"tpm2"}}, map[string]any{"all": []any{"provisioning-token"}},
		}})
	p := w.start("a", func(_ *config.Kubernetes, o *verifier.Options) { o.ProvisioningToken.RotateEvery = 0 })
	until(t, "sync", p.synced)
	if _, presence := p.Provisioning().At(time.Now()); presence != provisioning.Absent {
		t.Errorf("A13: without a Secret the token is %s", presence)
	}
	managed := w.get(secrets, machineNamespace, "worker-user-data-managed").GetResourceVersion()
	shown := w.presented
	one, two := strings.Repeat("abcdefgh", 6), strings.Repeat("ijklmnop", 6)
	w.secret("openshift-config", "machineconfig-auth", map[string]string{"token": one})
	until(t, "A7: the pointer configs have it", func() error {
		return errorIf(shown("worker-user-data") != one || shown("master-user-data") != one, "not yet")
	})
	w.secret("openshift-config", "machineconfig-auth", map[string]string{"token": two})
	until(t, "A12: an administrator's new one", func() error {
		return errorIf(shown("worker-user-data") != two, "not yet")
	})
	until(t, "A9: the old one is kept for its grace, for replicas that start later", func() error {
		o := w.get(secrets, "openshift-config", "machineconfig-auth")
		data, _, _ := unstructured.NestedStringMap(o.Object, "data")
		previous, _ := base64.StdEncoding.DecodeString(data["previous-token"])
		return errorIf(string(previous) != one, "previous-token is %d bytes", len(previous))
	})
	tokens, _ := p.Provisioning().At(time.Now())
	if tokens.Check(time.Now(), []byte(one)) != provisioning.Previous ||
		tokens.Check(time.Now(), []byte(two)) != provisioning.Current {
		t.Error("both tokens should be valid")
	}
	if got := w.get(secrets, machineNamespace, "worker-user-data-managed").GetResourceVersion(); got != managed {
		t.Error("a Secret of the machine-config-operator was written")
	}

	t.Run("what another client writes is not changed, and is reported", func(t *testing.T) {
		w.patch(secrets, machineNamespace, "master-user-data", `{"metadata":{"annotations":{"`+pointer.AnnotationHandsOff+`":"ours"}},"data":{"userData":"`+base64.StdEncoding.EncodeToString([]byte(pointerConfig("master")))+`"}}`)
		until(t, "told", func() error {
			c := w.condition(verifiers, "", "cluster", v1alpha1.ConditionDegraded)
			return errorIf(c.Reason != "UserDataLeftAlone" || !strings.Contains(c.Message, "master-user-data"), "%+v", c)
		})
		if got := shown("master-user-data"); got != "" {
			t.Error("it was written")
		}
	})
	three := strings.Repeat("qrstuvwx", 6)
	t.Run("every older one is void, and the pointer configs follow", func(t *testing.T) {
		w.secret("openshift-config", "machineconfig-auth",
			map[string]string{"token": three, "previous-expires": "2020-01-01T00:00:00Z"})
		until(t, "A12: the newest", func() error { return errorIf(shown("worker-user-data") != three, "not yet") })
	})
	t.Run("another tool's token stays", func(t *testing.T) {
		theirs := strings.Replace(pointerConfig("worker"), `/config/worker"`, `/config/worker","httpHeaders":[{"name":"Authorization","value":"Bearer theirs"}]`, 1)
		w.patch(secrets, machineNamespace, "worker-user-data", `{"metadata":{"annotations":{"mcs-attest.dev/provisioning-token":null}},"data":{"userData":"`+base64.StdEncoding.EncodeToString([]byte(theirs))+`"}}`)
		until(t, "told", func() error {
			c := w.condition(verifiers, "", "cluster", v1alpha1.ConditionDegraded)
			return errorIf(!strings.Contains(c.Message, "worker-user-data"), "%+v", c)
		})
		if got := shown("worker-user-data"); got != "theirs" {
			t.Errorf("it was replaced: %d bytes", len(got))
		}
	})
	t.Run("a pool that does not take it has it not", func(t *testing.T) {
		w.delete(policies, "", "shared")
		until(t, "its policy is gone", func() error {
			policy, err := p.View().Policies.For("worker")
			return errorIf(err != nil || policy.ProvisioningTokenAlone, "%v", err)
		})
		w.patch(secrets, machineNamespace, "worker-user-data", `{"data":{"userData":"`+base64.StdEncoding.EncodeToString([]byte(pointerConfig("worker")))+`"}}`)
		until(t, "nothing is wrong with it", func() error {
			c := w.condition(verifiers, "", "cluster", v1alpha1.ConditionDegraded)
			return errorIf(strings.Contains(c.Message, "worker-user-data"), "%+v", c)
		})
		if got := shown("worker-user-data"); got != "" {
			t.Error("it has it")
		}
	})
	if log := p.log.String(); strings.Contains(log, one) || strings.Contains(log, two) || strings.Contains(log, three) {
		t.Error("A21: a token is in the log")
	}
}

// presented returns the provisioning token in a pointer config.
func (w *whole) presented(name string) string {
	w.Helper()
	o := w.get(secrets, machineNamespace, name)
	data, _, _ := unstructured.NestedStringMap(o.Object, "data")
	raw, err := base64.StdEncoding.DecodeString(data["userData"])
	if err != nil {
		w.Fatal(err)
	}
	c, err := pointer.Parse(raw)
	if err != nil {
		w.Fatal(err)
	}
	token, _ := c.Presented(origin, strings.TrimSuffix(name, "-user-data"))
	return string(token.Expose())
}

// A8: the controller rotates the token by time. The pointer configs follow, and the token of the pointer config from
// before is valid until its grace period ends.
func TestProvisioningTokenIsRotatedByTime(t *testing.T) {
	w := theWhole(t)
	w.policy("shared", map[string]any{"pools": []any{"worker", "master"}, "provisioningTokenAlone": true,
		"evidence": []any{map[string]any{"all": []any{"provisioning-token"}}}})
	p := w.start("a", func(_ *config.Kubernetes, o *verifier.Options) {
		o.ProvisioningToken.RotateEvery = config.Duration(10 * time.Second)
		o.ProvisioningToken.Grace = config.Duration(5 * time.Second)
	})
	until(t, "sync", p.synced)
	w.secret("openshift-config", "machineconfig-auth", map[string]string{"token": strings.Repeat("abcdefgh", 6)})
	var tokens provisioning.Tokens
	last := ""
	for rotations := 0; rotations < 2; last = string(tokens.Current.Expose()) {
		until(t, "both pointer configs have another token, which is valid", func() error {
			tokens, _ = p.Provisioning().At(time.Now())
			now := string(tokens.Current.Expose())
			return errorIf(now == "" || now == last || w.presented("worker-user-data") != now ||
				w.presented("master-user-data") != now, "not yet")
		})
		if last == "" || string(tokens.Previous.Expose()) != last { // a slow machine may miss a rotation
			continue
		}
		rotations++
		end := tokens.PreviousExpires
		if got := tokens.Check(end.Add(-time.Second), []byte(last)); got != provisioning.Previous {
			t.Errorf("a machine with the pointer config from before is locked out: %v", got)
		}
		if got := tokens.Check(end, []byte(last)); got != provisioning.Expired {
			t.Errorf("after its grace period the token is %v", got)
		}
	}
	if log := p.log.String(); strings.Contains(log, last) {
		t.Error("A21: a token is in the log")
	}
}

func TestConditionsMatchTheState(t *testing.T) {
	w := theWhole(t)
	p := w.start("a")
	is := func(kind string, status metav1.ConditionStatus, reason string) {
		t.Helper()
		until(t, kind, func() error {
			c := w.condition(verifiers, "", "cluster", kind)
			return errorIf(c.Status != status || c.Reason != reason, "%+v", c)
		})
	}
	is(v1alpha1.ConditionAvailable, metav1.ConditionFalse, "NoPolicy")
	w.policy("all", map[string]any{})
	is(v1alpha1.ConditionAvailable, metav1.ConditionTrue, "AsExpected")
	is(v1alpha1.ConditionDegraded, metav1.ConditionFalse, "AsExpected")
	is(v1alpha1.ConditionProgressing, metav1.ConditionFalse, "AsExpected")
	is(v1alpha1.ConditionUpgradeable, metav1.ConditionTrue, "AsExpected")
	var o *unstructured.Unstructured
	until(t, "an unchanged status is not written again", func() error {
		o = w.get(verifiers, "", "cluster")
		time.Sleep(3 * time.Second) // several passes
		again := w.get(verifiers, "", "cluster")
		return errorIf(again.GetResourceVersion() != o.GetResourceVersion(), "%v", again.Object["status"])
	})
	if holder, _, _ := unstructured.NestedString(o.Object, "status", "holder"); holder != "a" {
		t.Errorf("holder %q", holder)
	}
	w.delete(policies, "", "all")
	is(v1alpha1.ConditionAvailable, metav1.ConditionFalse, "NoPolicy")
	is(v1alpha1.ConditionUpgradeable, metav1.ConditionFalse, "NoPolicy")
	w.policy("all", map[string]any{})

	w.secret(operatorNS, "machine-config-server-tls", w.certificate(time.Now().Add(20*24*time.Hour-pki.Validity)))
	is(v1alpha1.ConditionDegraded, metav1.ConditionTrue, "CertificateExpires")
	w.secret(operatorNS, "machine-config-server-tls", map[string]string{"tls.crt": "x"})
	is(v1alpha1.ConditionDegraded, metav1.ConditionTrue, "ObjectsNotUsable")
	if p.ServingCertificate() == nil {
		t.Error("the last good certificate went")
	}
	p.stop()
	w.start("b")
	is(v1alpha1.ConditionAvailable, metav1.ConditionFalse, "NoCertificate")
}
