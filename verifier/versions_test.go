// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/testvm/binaries"
	"github.com/mcs-attest/mcs-attest/testvm/cluster"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube"
)

// An upgrade from the version before, and back, step by step as docs/deploying.md
// says, while machines boot all the time. What one version has granted
// the other redeems, each way. Every machine gets in, no record is lost, and no two
// replicas lead.
func TestClusterTwoVersionsConcurrently(t *testing.T) {
	for name, settings := range map[string]string{"plain": "", "credential": "credential: {}\n"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			newVersions(t, settings).upgradeAndBack()
		})
	}
}

// versions are two fronts, and a controller of this version.
type versions struct {
	*joining
	t           *testing.T
	before      binaries.Release
	now         string // the program of this version
	components  []string
	credentials bool
	a, b        *replica
	controllers []*replica
	load        *chaos
	crossed     int
	began       time.Time
	written     map[string]*unstructured.Unstructured // records and claims
}

func newVersions(t *testing.T, settings string) *versions {
	t.Helper()
	v := &versions{t: t, began: time.Now(), credentials: settings != ""}
	var err error
	if v.before, err = binaries.Before(t.Logf); err != nil {
		t.Fatal(err)
	}
	if v.now, err = binaries.Verifier(); err != nil {
		t.Fatal(err)
	}
	v.joining = installed(t, cluster.Start(t, cluster.Audit()), v.before.Source).joining()
	if v.credentials {
		v.components = []string{"credential"}
		v.install(v.components...)
	}
	v.a, v.b = v.replica(v.before.Verifier, settings), v.replica(v.before.Verifier, settings)
	for _, r := range v.all {
		r.startFront()
	}
	for _, r := range v.all {
		r.waitReady()
	}
	v.balanced()
	v.controllers = []*replica{v.replica(v.now, settings), v.replica(v.now, settings)}
	return v
}

func (v *versions) upgradeAndBack() {
	stop := v.boots()
	old := []*replica{v.a, v.b}
	v.leads(old)
	v.crosses(v.a, v.b, true)
	v.crosses(v.b, v.a, true)
	granted := v.grants("granted-by-the-version-before")
	stopped := v.grants("quarantined-before")
	v.quarantine(stopped.uid, true)
	v.staysOut(stopped)
	v.recordsAreKept()

	v.step("apply the manifests of this version")
	v.source = ".."
	v.definitions()
	v.install(v.components...)
	for _, r := range v.controllers {
		r.startController()
	}
	v.crosses(v.a, v.b, false)
	v.replace(v.a, v.now)
	v.crosses(v.a, v.b, false)
	v.crosses(v.b, v.a, true)
	v.redeems(granted, v.a)
	v.leads(v.controllers)
	v.replace(v.b, v.now)
	v.crosses(v.a, v.b, true)
	v.crosses(v.b, v.a, true)
	v.machinesGoOn()
	v.staysOut(stopped)
	v.recordsAreKept()
	granted = v.grants("granted-by-this-version")

	v.step("apply the manifests of the version before")
	v.source = v.before.Source
	v.overlay(v.components, withoutDefinitions)
	v.crosses(v.a, v.b, false)
	v.replace(v.a, v.before.Verifier)
	v.crosses(v.a, v.b, false)
	v.crosses(v.b, v.a, true)
	v.redeems(granted, v.a)
	v.keepsTheCounters(granted)
	v.replace(v.b, v.before.Verifier)
	for _, r := range v.controllers {
		r.stop(&r.control)
	}
	v.leads(old)
	v.crosses(v.a, v.b, true)
	v.crosses(v.b, v.a, true)
	v.machinesGoOn()
	v.staysOut(stopped)
	v.recordsAreKept()

	stop()
	v.recordsAreKept()
	v.oneLeads()
}

// withoutDefinitions leaves the CRDs of this version in place, as docs/deploying.md says.
const withoutDefinitions = `patches:
- target: {kind: CustomResourceDefinition}
  patch: |
    $patch: delete
    apiVersion: apiextensions.k8s.io/v1
    kind: CustomResourceDefinition
    metadata: {name: any}
`

func (v *versions) step(name string) {
	v.t.Helper()
	v.t.Logf("%v: %s: %d machines are in", time.Since(v.began).Round(time.Second), name, v.load.in.Load())
}

// replace is what the DaemonSet does with one pod.
func (v *versions) replace(r *replica, program string) {
	v.t.Helper()
	if program == v.now {
		v.step("a front of this version")
	} else {
		v.step("a front of the version before")
	}
	r.stop(&r.cmd)
	r.program = program
	r.startFront()
	r.waitReady()
}

// boots lets machines boot, one after another, until stop is called.
func (v *versions) boots() (stop func()) {
	v.load = &chaos{rs: v.replicas, whole: v.whole}
	ctx, cancel := context.WithCancel(v.t.Context())
	var workers sync.WaitGroup
	for i := range 3 {
		workers.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				keys, err := newSoftKeys()
				if err != nil {
					v.t.Error(err)
					return
				}
				m := &chaosMachine{name: fmt.Sprintf("boots-%d-%d", i, n), ek: keys.spki, node: v.node(keys)}
				v.machine(m.name, m.ek)
				// The last one boots to its end, too.
				v.load.boot(v.t.Context(), m)
				time.Sleep(200 * time.Millisecond) // others have the machine's processors, too
			}
		})
	}
	return func() {
		cancel()
		workers.Wait()
		v.t.Logf("%d machines were admitted, %d calls were denied for now", v.load.in.Load(), v.load.again.Load())
		for _, why := range v.load.final {
			v.t.Error(why)
		}
		if n := v.load.void.Load(); n > 0 {
			v.t.Errorf("%d times the gate did not accept a token", n)
		}
	}
}

// machinesGoOn waits until more machines are in.
func (v *versions) machinesGoOn() {
	v.t.Helper()
	before := v.load.in.Load()
	eventually(v.t, func() bool { return v.load.in.Load() > before+3 }, func() string { return "no machine gets in" })
}

// whole: a config with the credential that it must have.
func (v *versions) whole(config string) bool { return (v.tokenIn(config) != v.shared) == v.credentials }

// grant is what a machine received.
type grant struct {
	keys                   *softKeys
	uid, token, credential string
}

// attests boots a machine at one front up to its token.
func (v *versions) attests(name string, at *replica) grant {
	v.t.Helper()
	keys := soft(v.t)
	g := grant{keys: keys, uid: string(v.machine(name, keys.spki).GetUID())}
	n := v.node(keys)
	n.addr = at.addr
	why := error(nil)
	eventually(v.t, func() bool {
		g.token, _, why = n.attest(v.t.Context())
		return why == nil
	}, func() string { return fmt.Sprintf("%s does not get in: %v", name, why) })
	return g
}

// fetches is Ignition: it tries again after 503.
func (v *versions) fetches(g grant, at *replica) grant {
	v.t.Helper()
	var status int
	var body string
	eventually(v.t, func() bool {
		var err error
		status, body, err = v.fetch(v.t.Context(), at.addr, "/config/worker", g.token)
		return err == nil && status != 503
	}, func() string { return fmt.Sprintf("the gate answers %d %s", status, body) })
	if status != 200 || !v.whole(body) {
		v.t.Fatalf("the gate answers %d %s", status, body)
	}
	if rec := v.record(g.uid); rec == nil || rec.Status.Phase != v1alpha1.PhaseFetched {
		v.t.Errorf("the record of a machine that has its config: %+v", rec)
	}
	g.credential = v.tokenIn(body)
	return g
}

// crosses has a machine attest at one front and fetch at another one. If credentials
// are made elsewhere, that one may answer 503, but never with the shared credential.
func (v *versions) crosses(attests, fetches *replica, makesCredentials bool) {
	v.t.Helper()
	v.crossed++
	g := v.attests(fmt.Sprintf("crosses-%d", v.crossed), attests)
	if makesCredentials || !v.credentials {
		v.fetches(g, fetches)
		return
	}
	status, body, err := v.fetch(v.t.Context(), fetches.addr, "/config/worker", g.token)
	if err != nil || status != 503 && !(status == 200 && v.whole(body)) {
		v.t.Errorf("a front without a credential for the machine answers %d %s %v", status, body, err)
	}
}

// grants boots a machine.
func (v *versions) grants(name string) grant {
	v.t.Helper()
	return v.fetches(v.attests(name, v.a), v.b)
}

// redeems: what the other version has granted counts, and so does the credential that
// it made.
func (v *versions) redeems(g grant, at *replica) {
	v.t.Helper()
	again := v.fetches(g, at)
	for _, credential := range []string{g.credential, again.credential} {
		who, err := v.as(credential).AuthenticationV1().SelfSubjectReviews().Create(v.t.Context(),
			&authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		if err != nil {
			v.t.Errorf("a credential of the config: %v", err)
			continue
		}
		id := strings.Join(who.Status.UserInfo.Extra["authentication.kubernetes.io/credential-id"], " ")
		known := slices.ContainsFunc(v.record(g.uid).Status.Credentials,
			func(c v1alpha1.CredentialStatus) bool { return c.ID == id })
		if known != v.credentials {
			v.t.Errorf("the record has the credential %q: %v", id, known)
		}
	}
}

// keepsTheCounters has a machine attest again at a front of the version before, which does not know status.tpm. Its
// writes leave that field as it is.
func (v *versions) keepsTheCounters(g grant) {
	v.t.Helper()
	before := v.record(g.uid).Status
	if before.TPM == nil {
		v.t.Fatalf("this version recorded no counters: %+v", before)
	}
	n := v.node(g.keys)
	n.addr = v.a.addr
	var err error
	eventually(v.t, func() bool {
		_, _, err = n.attest(v.t.Context())
		return err == nil
	}, func() string { return fmt.Sprintf("it does not attest again: %v", err) })
	after := v.record(g.uid).Status
	if len(after.History) <= len(before.History) {
		v.t.Fatalf("the version before wrote nothing: %+v", after)
	}
	if after.TPM == nil || *after.TPM != *before.TPM {
		v.t.Errorf("the counters were %+v and are %+v", before.TPM, after.TPM)
	}
}

// staysOut: a quarantine counts at every front.
func (v *versions) staysOut(g grant) {
	v.t.Helper()
	for _, r := range []*replica{v.a, v.b} {
		n := v.node(g.keys)
		n.addr = r.addr
		eventually(v.t, func() bool {
			r.log.drain()
			_, _, err := n.attest(v.t.Context())
			status, _, _ := v.fetch(v.t.Context(), r.addr, "/config/worker", g.token)
			return err != nil && status != 200 && strings.Contains(r.log.drain(), `"reason":"Quarantined"`)
		}, func() string { return "the quarantine does not count at " + r.addr })
	}
}

// leads waits until one of these leads.
func (v *versions) leads(among []*replica) {
	v.t.Helper()
	holder := ""
	leases := v.client.Resource(
		schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"})
	eventually(v.t, func() bool {
		lease, err := leases.Namespace(ownNamespace).Get(v.t.Context(), kube.LeaseName, metav1.GetOptions{})
		if err != nil {
			holder = err.Error()
			return false
		}
		spec, _ := lease.Object["spec"].(map[string]any)
		holder, _ = spec["holderIdentity"].(string)
		return slices.ContainsFunc(among, func(r *replica) bool { return r.addr == holder })
	}, func() string { return "the holder of the Lease is " + holder })
}

// oneLeads: only the account of the holder of the Lease writes what leaders write.
func (v *versions) oneLeads() {
	v.t.Helper()
	// Every controller makes credentials, whether it leads or not.
	written := []string{"attestationverifiers ", "attestationpolicies ", "secrets " + ownNamespace}
	holder, changes := "", 0
	for _, r := range v.cluster.Requests(v.t) {
		if !slices.Contains([]string{frontAccount, controllerAccount}, r.User) || r.Code >= 300 ||
			!slices.Contains([]string{"create", "update", "patch"}, r.Verb) {
			continue
		}
		switch {
		case r.Resource == "leases":
			if r.User != holder {
				holder = r.User
				changes++
			}
		case slices.Contains(written, r.Resource+" "+r.Namespace) && r.User != holder:
			v.t.Errorf("%s writes %s %s while %s leads", r.User, r.Resource, r.Name, holder)
		}
	}
	if changes != 3 {
		v.t.Errorf("the Lease had %d accounts one after another", changes)
	}
}

// recordsAreKept: nothing is lost of the records and claims that there were.
func (v *versions) recordsAreKept() {
	v.t.Helper()
	now := map[string]*unstructured.Unstructured{}
	for _, resource := range []schema.GroupVersionResource{recordsResource, claimsResource} {
		list, err := v.client.Resource(resource).List(v.t.Context(), metav1.ListOptions{})
		if err != nil {
			v.t.Fatal(err)
		}
		for i := range list.Items {
			o := &list.Items[i]
			now[fmt.Sprintf("%s %s/%s", resource.Resource, o.GetNamespace(), o.GetName())] = o
		}
	}
	for name, was := range v.written {
		is := now[name]
		if is == nil || is.GetUID() != was.GetUID() {
			v.t.Errorf("%s is lost", name)
			continue
		}
		if !reflect.DeepEqual(was.Object["spec"], is.Object["spec"]) {
			v.t.Errorf("%s: the spec was %v and is %v", name, was.Object["spec"], is.Object["spec"])
		}
		if was.GetKind() != v1alpha1.KindMachineAttestation {
			continue
		}
		before, after := v.decode(was).Status, v.decode(is).Status
		if before.Identity.EKSHA256 == "" { // it had not attested
			continue
		}
		if !reflect.DeepEqual(before.Identity, after.Identity) || before.MachineUID != after.MachineUID {
			v.t.Errorf("%s: the identity was %+v and is %+v", name, before.Identity, after.Identity)
		}
		if before.TPM != nil && (after.TPM == nil || after.TPM.ResetCount < before.TPM.ResetCount) {
			v.t.Errorf("%s: the TPM's counters were %+v and are %+v", name, before.TPM, after.TPM)
		}
		for _, entry := range before.History {
			if !slices.ContainsFunc(after.History, func(e v1alpha1.HistoryEntry) bool { return reflect.DeepEqual(e, entry) }) {
				v.t.Errorf("%s: the history lacks %+v", name, entry)
			}
		}
		for _, c := range before.Credentials {
			if !slices.ContainsFunc(after.Credentials, func(other v1alpha1.CredentialStatus) bool { return other.ID == c.ID }) {
				v.t.Errorf("%s: the credential %s is lost", name, c.ID)
			}
		}
	}
	v.t.Logf("%d records and claims were kept, and there are %d more", len(v.written), len(now)-len(v.written))
	v.written = now
}
