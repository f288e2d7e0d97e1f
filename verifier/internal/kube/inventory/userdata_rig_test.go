// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/pointer"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	verifier "github.com/mcs-attest/mcs-attest/verifier/internal/kube/inventory"
)

var machineSets = schema.GroupVersionResource{Group: "machine.openshift.io", Version: "v1beta1",
	Resource: "machinesets"}

// managedLabel is on the Secrets that the operator renders. Its controller of certificates skips them.
const managedLabel = "machineconfiguration.openshift.io/managed-ca-bundle-derived-from-configmap"

// standInOperator writes user data as the machine-config-operator does. Both of its writers react to every change
// of a Secret in the namespace.
type standInOperator struct {
	*whole
	mu sync.Mutex
	// published is the bundle that the controller of certificates uses, rendered the operator's.
	published, rendered string
	// writes counts the writes of each Secret.
	writes map[string]int
}

// startOperator runs a stand-in until the test ends.
func (w *whole) startOperator(bundle string) *standInOperator {
	w.Helper()
	o := &standInOperator{whole: w, published: bundle, rendered: bundle, writes: map[string]int{}}
	watch, err := w.in(secrets, machineNamespace).Watch(context.Background(), metav1.ListOptions{})
	if err != nil {
		w.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for events := watch.ResultChan(); ctx.Err() == nil; {
			select {
			case <-ctx.Done():
			case e, open := <-events:
				if !open {
					events = nil
				} else if s, ok := e.Object.(*unstructured.Unstructured); ok {
					o.certificates(s)
					o.render()
				}
			case <-time.After(time.Second): // an update failed, or the watch ended
				if all, err := w.in(secrets, machineNamespace).List(ctx, metav1.ListOptions{}); err == nil {
					for i := range all.Items {
						o.certificates(&all.Items[i])
					}
				}
				o.render()
			}
		}
	})
	w.Cleanup(func() { cancel(); watch.Stop(); wg.Wait() })
	return o
}

func (o *standInOperator) bundles() (published, rendered string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.published, o.rendered
}

// rotate changes the bundle. As in a cluster, the two writers follow at different times.
func (o *standInOperator) rotate(bundle string) {
	o.mu.Lock()
	o.published = bundle
	o.mu.Unlock()
	for _, pool := range []string{"worker", "master"} {
		o.certificates(o.get(secrets, machineNamespace, pool+"-user-data"))
	}
	time.Sleep(time.Second)
	o.mu.Lock()
	o.rendered = bundle
	o.mu.Unlock()
	o.render()
}

func (o *standInOperator) written(name string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.writes[name]
}

// update replaces the user data of a Secret as it was read. A failed one is repeated a second later.
func (o *standInOperator) update(s *unstructured.Unstructured, raw []byte) {
	s = s.DeepCopy()
	_ = unstructured.SetNestedField(s.Object, base64.StdEncoding.EncodeToString(raw), "data", "userData")
	if _, err := o.in(secrets, machineNamespace).Update(context.Background(), s, metav1.UpdateOptions{}); err != nil {
		return
	}
	o.mu.Lock()
	o.writes[s.GetName()]++
	o.mu.Unlock()
}

func userDataOf(s *unstructured.Unstructured) []byte {
	text, _, _ := unstructured.NestedString(s.Object, "data", "userData")
	raw, _ := base64.StdEncoding.DecodeString(text)
	return raw
}

// certificates writes the bundle as the only authority, in the canonical JSON of Go.
func (o *standInOperator) certificates(s *unstructured.Unstructured) {
	if _, managed := s.GetLabels()[managedLabel]; managed {
		return
	}
	var ignition map[string]any
	if json.Unmarshal(userDataOf(s), &ignition) != nil {
		return
	}
	all, found, err := unstructured.NestedSlice(ignition, "ignition", "security", "tls", "certificateAuthorities")
	if !found || err != nil || len(all) != 1 {
		return
	}
	all[0].(map[string]any)["source"], _ = o.bundles()
	_ = unstructured.SetNestedSlice(ignition, all, "ignition", "security", "tls", "certificateAuthorities")
	next, err := json.Marshal(ignition)
	if err != nil || bytes.Equal(next, userDataOf(s)) {
		return
	}
	o.update(s, next)
}

// render writes the operator's own Secrets.
func (o *standInOperator) render() {
	for _, pool := range []string{"worker", "master"} {
		s, err := o.in(secrets, machineNamespace).Get(context.Background(), pool+"-user-data-managed", metav1.GetOptions{})
		if err != nil {
			continue
		}
		_, bundle := o.bundles()
		if next := pointerConfigWith(pool, bundle); next != string(userDataOf(s)) {
			o.update(s, []byte(next))
		}
	}
}

// pointerConfigWith is a pointer config in the form that the operator and the installer write.
func pointerConfigWith(pool, bundle string) string {
	return fmt.Sprintf(`{"ignition":{"config":{"merge":[{"source":"%s/config/%s"}]},`+
		`"security":{"tls":{"certificateAuthorities":[{"source":"%s"}]}},"version":"3.4.0"}}`, origin, pool, bundle)
}

// A7, C6: beside an operator that writes user data as well, the token and the CA reach the pointer configs, each
// rotation costs a few writes, and then no client writes. The operator's own Secrets stay its own.
func TestPointerConfigsWithoutAFightWithTheOperator(t *testing.T) {
	w := theWhole(t)
	bundle := func(i int) string { return fmt.Sprintf("data:,bundle-%d", i) }
	for _, pool := range []string{"worker", "master"} {
		// An administrator's form, with spaces and in another order.
		own := strings.Replace(pointerConfigWith(pool, bundle(0)), `{"ignition":{`, "{ \"ignition\": {\n  ", 1)
		w.secret(machineNamespace, pool+"-user-data", map[string]string{"userData": own})
		w.put(secrets, machineNamespace, map[string]any{"apiVersion": "v1", "kind": "Secret",
			"metadata": map[string]any{"name": pool + "-user-data-managed", "labels": map[string]any{managedLabel: ""}},
			"data": encode(map[string]string{"userData": pointerConfigWith(pool, bundle(0)),
				"disableTemplating": "true\n"})})
	}
	w.policy("all", map[string]any{})
	w.policy("shared", map[string]any{"pools": []any{"worker", "master"}, "provisioningTokenAlone": true,
		"evidence": []any{map[string]any{"all": []any{"provisioning-token"}}}})
	operator := w.startOperator(bundle(0))
	p := w.start("a", func(_ *config.Kubernetes, o *verifier.Options) { o.ProvisioningToken.RotateEvery = 0 })
	until(t, "sync", p.synced)

	const rotations = 4
	for i := 1; i <= rotations; i++ {
		random := sha256.Sum256([]byte{byte(i)})
		token := base64.StdEncoding.EncodeToString(random[:])
		w.secret("openshift-config", "machineconfig-auth", map[string]string{"token": token})
		operator.rotate(bundle(i))
		until(t, "token and CA", func() error {
			for _, pool := range []string{"worker", "master"} {
				raw := userDataOf(w.get(secrets, machineNamespace, pool+"-user-data"))
				c, err := pointer.Parse(raw)
				if err != nil {
					return err
				}
				got, _ := c.Presented(origin, pool)
				if string(got.Expose()) != token || !strings.Contains(string(raw), bundle(i)+`"`) {
					return fmt.Errorf("rotation %d: %s", i, raw)
				}
				if managed := string(userDataOf(w.get(secrets, machineNamespace, pool+"-user-data-managed"))); managed !=
					pointerConfigWith(pool, bundle(i)) {
					return fmt.Errorf("rotation %d: the operator's is %s", i, managed)
				}
			}
			return nil
		})
	}
	version := func() (all string) {
		for _, name := range []string{"worker-user-data", "master-user-data", "worker-user-data-managed",
			"master-user-data-managed"} {
			all += w.get(secrets, machineNamespace, name).GetResourceVersion() + " "
		}
		return all
	}
	until(t, "no client writes", func() error {
		before := version()
		time.Sleep(3 * time.Second) // several intervals of the controller
		after := version()
		return errorIf(after != before, "the Secrets still change: %s to %s", before, after)
	})
	for _, pool := range []string{"worker", "master"} {
		if n := operator.written(pool + "-user-data-managed"); n != rotations {
			t.Errorf("the operator wrote its own Secret %d times in %d rotations: another client did, too", n, rotations)
		}
		// One write for each bundle, one for the first form, and one to sort the new header.
		if n := operator.written(pool + "-user-data"); n > rotations+2 {
			t.Errorf("the operator wrote the CA %d times in %d rotations", n, rotations)
		}
	}

	t.Run("a MachineSet on bare metal that names the operator's Secret is reported", func(t *testing.T) {
		t.Cleanup(func() {
			_ = w.in(machineSets, machineNamespace).Delete(context.Background(), "metal", metav1.DeleteOptions{})
		})
		w.create(machineSets, machineNamespace, map[string]any{"apiVersion": "machine.openshift.io/v1beta1",
			"kind": "MachineSet", "metadata": map[string]any{"name": "metal"}, "spec": map[string]any{
				"selector": map[string]any{"matchLabels": map[string]any{"a": "b"}},
				"template": map[string]any{"spec": map[string]any{"providerSpec": map[string]any{"value": map[string]any{
					"userData": map[string]any{"name": "worker-user-data-managed"}}}}}}})
		degraded := func() string {
			return w.condition(verifiers, "", "cluster", v1alpha1.ConditionDegraded).Message
		}
		until(t, "reported", func() error {
			message := degraded()
			return errorIf(!strings.Contains(message, "metal names it; let that name worker-user-data instead"), "%s", message)
		})
		w.patch(machineSets, machineNamespace, "metal",
			`{"spec":{"template":{"spec":{"providerSpec":{"value":{"userData":{"name":"worker-user-data"}}}}}}}`)
		until(t, "no longer reported", func() error {
			message := degraded()
			return errorIf(strings.Contains(message, "-managed"), "%s", message)
		})
	})
}
