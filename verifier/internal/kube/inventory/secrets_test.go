// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/pki"
	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/controllers/machinerecord"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/restore"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/sources"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
)

// secretAPI is as much of an API as there is to one Secret, whatever its name, to
// the lists and objects that a probe reads, and to records.
type secretAPI struct {
	server *httptest.Server

	mu           sync.Mutex
	data         map[string][]byte // nil: there is none
	version      int
	revision     int                // of lists
	away         bool               // every call fails
	acknowledged string             // the AttestationVerifier's annotation
	between      func(a *secretAPI) // called once, before a Secret is written
	writes       int
	wrote        int                       // records
	records      map[string]map[string]any // by path
	forbidden    string                    // a namespace
}

func newSecretAPI(t testing.TB) *secretAPI {
	t.Helper()
	a := &secretAPI{revision: 1}
	a.server = httptest.NewServer(a)
	t.Cleanup(a.server.Close)
	return a
}

func (a *secretAPI) config() *rest.Config {
	return &rest.Config{Host: a.server.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
}

// cluster has watches that are fed by the test, and calls this API.
func (a *secretAPI) cluster(t testing.TB) *Inventory {
	t.Helper()
	o := Options{Log: slog.New(slog.DiscardHandler)}
	o.ProvisioningToken.Secret = "openshift-config/machineconfig-auth"
	c, err := New(a.config(), config.Kubernetes{
		Namespace: "own", MachineNamespaces: []string{"m"}, ServingSecret: "mco/tls", CAConfigMap: "mco/ca",
	}, o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (a *secretAPI) secret() *corev1.Secret {
	s := &corev1.Secret{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}, Data: a.data}
	s.Namespace, s.Name, s.ResourceVersion = "some", "secret", strconv.Itoa(a.version)
	return s
}

func (a *secretAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	answer := func(code int, v any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(v) // the caller sees what is missing
	}
	status := func(code int, reason metav1.StatusReason) {
		answer(code, &metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
			Code: int32(code), Reason: reason})
	}
	switch {
	case a.away:
		status(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable)
	case strings.HasSuffix(r.URL.Path, "/attestationpolicies"):
		answer(http.StatusOK, map[string]any{"apiVersion": "mcs-attest.dev/v1alpha1", "kind": "AttestationPolicyList",
			"metadata": map[string]any{"resourceVersion": strconv.Itoa(a.revision)}, "items": []any{}})
	case strings.Contains(r.URL.Path, "/attestationverifiers/"):
		annotations := map[string]any{}
		if a.acknowledged != "" {
			annotations[restore.AnnotationRestoreSeen] = a.acknowledged
		}
		answer(http.StatusOK, map[string]any{"apiVersion": "mcs-attest.dev/v1alpha1", "kind": "AttestationVerifier",
			"metadata": map[string]any{"name": "cluster", "annotations": annotations}})
	case a.forbidden != "" && strings.Contains(r.URL.Path, "/namespaces/"+a.forbidden+"/"):
		status(http.StatusForbidden, metav1.StatusReasonForbidden)
	case strings.Contains(r.URL.Path, "/machineattestations") && r.Method == http.MethodGet &&
		a.records[r.URL.Path] != nil:
		answer(http.StatusOK, a.records[r.URL.Path])
	case strings.Contains(r.URL.Path, "/machineattestations") && r.Method != http.MethodGet:
		var o map[string]any
		if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
			status(http.StatusBadRequest, metav1.StatusReasonBadRequest)
			return
		}
		at := strings.TrimSuffix(r.URL.Path, "/status")
		meta, _ := o["metadata"].(map[string]any)
		if name, _ := meta["name"].(string); r.Method == http.MethodPost {
			at += "/" + name
		}
		if was := a.records[at]; r.Method == http.MethodPatch && was != nil { // of the status, and of what has none yet
			was["status"] = o["status"]
			o, meta = was, was["metadata"].(map[string]any)
		}
		a.wrote++
		meta["resourceVersion"] = strconv.Itoa(100 + a.wrote) // higher than any that a test lists
		if a.records == nil {
			a.records = map[string]map[string]any{}
		}
		a.records[at] = o
		answer(http.StatusOK, o)
	case !strings.Contains(r.URL.Path, "/secrets"):
		status(http.StatusNotFound, metav1.StatusReasonNotFound)
	case r.Method == http.MethodGet && a.data == nil:
		status(http.StatusNotFound, metav1.StatusReasonNotFound)
	case r.Method == http.MethodGet:
		answer(http.StatusOK, a.secret())
	default:
		if f := a.between; f != nil {
			a.between = nil
			f(a)
		}
		var s corev1.Secret
		if err := json.NewDecoder(r.Body).Decode(&s); err != nil {
			status(http.StatusBadRequest, metav1.StatusReasonBadRequest)
			return
		}
		if r.Method == http.MethodPut && s.ResourceVersion != strconv.Itoa(a.version) {
			status(http.StatusConflict, metav1.StatusReasonConflict)
			return
		}
		a.data, a.version, a.writes = s.Data, a.version+1, a.writes+1
		answer(http.StatusOK, a.secret())
	}
}

const (
	tokenA = "AAAA-bbb_CCCC-ddd_EEEE-fff_GGGG-hhh_IIII-jjj"
	tokenB = "1111-bbb_2222-ddd_3333-fff_4444-hhh_5555-jjj"
	tokenC = "6666-bbb_7777-ddd_8888-fff_9999-hhh_0000-jjj"
)

// put is what the watch of the token's Secret delivers, and what exists.
func (a *secretAPI) put(c *Inventory, version int, data map[string]string) {
	a.mu.Lock()
	a.version, a.data = version, map[string][]byte{}
	for k, v := range data {
		a.data[k] = []byte(v)
	}
	i := &sources.Object{Version: uint64(version), Value: secretData{a.data}}
	a.mu.Unlock()
	c.putToken(c.guard.Epoch(), i)
}

// T58: a restored Secret may have an earlier token. A live read would take it for an edit.
func TestAttack_T58_ALiveReadOfARestoredTokenShowsTheRestore(t *testing.T) {
	api := newSecretAPI(t)
	c := api.cluster(t)
	api.put(c, 1, map[string]string{"token": tokenB})
	if _, err := c.ReadProvisioning(t.Context()); err != nil {
		t.Fatal(err)
	}
	api = newSecretAPI(t)
	c = api.cluster(t)
	api.put(c, 1, map[string]string{"token": tokenB})
	c.guard.Observe(0, 50)
	api.revision, api.data["token"] = 20, []byte(tokenA)
	if _, err := c.ReadProvisioning(t.Context()); !errors.Is(err, store.ErrRestored) || c.guard.Epoch() != 1 {
		t.Errorf("%v, %d restores", err, c.guard.Epoch())
	}
}

// What an edit means stays when the watch begins again before it is in the Secret.
func TestProvisioningToken_EditSurvivesASecondList(t *testing.T) {
	api := newSecretAPI(t)
	c := api.cluster(t)
	api.put(c, 1, map[string]string{"token": tokenA})
	for range 2 {
		api.put(c, 2, map[string]string{"token": tokenB}) // by hand: the first has its grace
		view, version, ok := c.Token()
		tokens, _ := view.At(time.Now())
		if tokens.Check(time.Now(), []byte(tokenA)) != provisioning.Previous || version != "2" || !ok {
			t.Errorf("version %s: the token before is %s", version, tokens.Check(time.Now(), []byte(tokenA)))
		}
	}
	api.put(c, 3, map[string]string{"token": tokenB, "previous-expires": "2020-01-01T00:00:00Z"})
	view, _, _ := c.Token()
	if tokens, _ := view.At(time.Now()); tokens.Check(time.Now(), []byte(tokenA)).Valid() {
		t.Error("it was voided, and is valid")
	}
}

// Attack T58: a backup brings back a token that was voided, or the time before
// there was one.
func TestAttack_T58_TheProvisioningTokenOfYesterday(t *testing.T) {
	now := time.Now()
	at := func(d time.Duration) string { return now.Add(d).UTC().Format(time.RFC3339) }
	is := func(t *testing.T, c *Inventory, want provisioning.Presence, valid ...string) {
		t.Helper()
		tokens, presence := c.Provisioning().At(time.Now())
		if presence != want {
			t.Errorf("the token is %s, not %s", presence, want)
		}
		for _, token := range []string{tokenA, tokenB, tokenC} {
			if got := tokens.Check(time.Now(), []byte(token)).Valid(); got != slices.Contains(valid, token) {
				t.Errorf("%s... valid: %v", token[:4], got)
			}
		}
	}
	type data = map[string]string
	put := func(api *secretAPI, c *Inventory, version int, d data) {
		if d != nil {
			api.put(c, version, d)
			return
		}
		api.mu.Lock()
		api.version, api.data = version, nil
		api.mu.Unlock()
		c.dropToken(c.guard.Epoch())
	}
	restored := func(t *testing.T, before, back data) (*secretAPI, *Inventory) {
		api := newSecretAPI(t)
		c := api.cluster(t)
		put(api, c, 10, before)
		c.guard.Restored(0, "test")
		is(t, c, provisioning.Unknown)
		// What the old watch still had on its way is no word on what came back.
		if before != nil {
			c.putToken(0, &sources.Object{Version: 10, Value: secretData{map[string][]byte{"token": []byte(before["token"])}}})
		} else {
			c.dropToken(0)
		}
		is(t, c, provisioning.Unknown)
		put(api, c, 5, back)
		return api, c
	}
	grace := data{"token": tokenB, "previous-token": tokenA, "previous-expires": at(time.Hour)}
	for name, test := range map[string]struct {
		before, back data
		want         provisioning.Presence
		valid        []string
	}{
		"the same": {data{"token": tokenB}, data{"token": tokenB}, provisioning.Present,
			[]string{tokenB}},
		"both, as before": {grace, grace, provisioning.Present, []string{tokenA, tokenB}},
		"never one":       {nil, nil, provisioning.Absent, nil},
		"attack: within its grace, which would have no end": {grace, data{"token": tokenA}, provisioning.Unknown, nil},
		"attack: voided": {data{"token": tokenB, "previous-expires": at(-time.Hour)},
			data{"token": tokenA}, provisioning.Unknown, nil},
		"attack: its grace is over": {data{"token": tokenB, "previous-token": tokenA,
			"previous-expires": at(-time.Hour)}, data{"token": tokenA}, provisioning.Unknown, nil},
		"attack: voided as the previous one": {data{"token": tokenB}, grace, provisioning.Unknown, nil},
		"attack: a grace that was cut short": {data{"token": tokenB, "previous-token": tokenA,
			"previous-expires": at(time.Minute)}, grace, provisioning.Unknown, nil},
		"attack: before there was one":    {data{"token": tokenB}, nil, provisioning.Unknown, nil},
		"attack: it had been deleted":     {nil, data{"token": tokenA}, provisioning.Unknown, nil},
		"attack: one that cannot be read": {data{"token": tokenB}, data{"token": "x"}, provisioning.Unknown, nil},
	} {
		t.Run(name, func(t *testing.T) {
			api, c := restored(t, test.before, test.back)
			is(t, c, test.want, test.valid...)
			if test.want != provisioning.Unknown {
				return
			}
			if view, err := c.ReadProvisioning(t.Context()); err != nil {
				t.Error(err)
			} else if _, presence := view.At(time.Now()); presence != provisioning.Unknown {
				t.Errorf("read again, it is %s", presence)
			}
			if _, _, ok := c.Token(); ok {
				t.Error("it may be rotated, which would keep it as the previous one")
			}
			if f := c.Findings(); len(f) == 0 || f[0].Reason != "EtcdRestored" ||
				!strings.Contains(f[0].Text, "provisioning token") {
				t.Errorf("findings %+v", f)
			}
			put(api, c, 11, test.back) // touched
			is(t, c, provisioning.Unknown)
			if test.back != nil {
				put(api, c, 12, nil) // deleting it does not open the pools
				is(t, c, provisioning.Unknown)
			}
			if test.back["token"] == tokenA {
				put(api, c, 13, data{"token": tokenC, "previous-token": tokenA, "previous-expires": at(time.Hour)})
				is(t, c, provisioning.Unknown)
			}
			put(api, c, 14, data{"token": tokenC, "previous-expires": at(0)})
			is(t, c, provisioning.Present, tokenC)
			if f := c.Findings(); len(f) == 0 || strings.Contains(f[0].Text, "provisioning token") {
				t.Errorf("findings %+v", f)
			}
		})
	}
	t.Run("restored once more", func(t *testing.T) {
		api, c := restored(t, data{"token": tokenB}, data{"token": tokenA})
		c.guard.Restored(1, "test")
		put(api, c, 3, data{"token": tokenA})
		is(t, c, provisioning.Unknown)
		c.guard.Restored(2, "test")
		put(api, c, 4, data{"token": tokenB})
		is(t, c, provisioning.Present, tokenB)
	})
	t.Run("an administrator acknowledges", func(t *testing.T) {
		api, c := restored(t, data{"token": tokenB}, data{"token": tokenA})
		api.acknowledged = at(-time.Hour) // an earlier restore
		c.guard.ReadAcknowledgement(t.Context())
		is(t, c, provisioning.Unknown)
		api.acknowledged = at(time.Minute)
		c.guard.ReadAcknowledgement(t.Context())
		put(api, c, 5, data{"token": tokenA}) // everything is read again
		is(t, c, provisioning.Present, tokenA)

		api, c = restored(t, data{"token": tokenB}, nil)
		api.acknowledged = at(time.Minute)
		c.guard.ReadAcknowledgement(t.Context())
		put(api, c, 5, nil)
		is(t, c, provisioning.Absent)
	})
}

func TestOneForbiddenNamespaceDelaysNoKeys(t *testing.T) {
	api := newSecretAPI(t)
	c := api.cluster(t)
	machines := []*unstructured.Unstructured{object(1, 1, nil),
		object(2, 2, func(o map[string]any) { o["metadata"].(map[string]any)["namespace"] = "x" })}
	c.watching(t, machineAPIKind, "m").list(t, 5, machines...)
	uids := c.registry.UIDs()
	if len(uids) != 2 {
		t.Fatal(uids)
	}
	for _, uid := range uids {
		c.latches[uid] = latch{joined: true}
	}
	c.guard.Restored(0, "test")
	c.latches = map[string]latch{} // the backup is from before

	forbidden := kerrors.NewForbidden(attestationsResource.GroupResource(), "", errors.New("no"))
	for _, w := range c.sources() {
		switch w.Kind.String() {
		case machineAPIKind.String():
			w.list(t, 5, machines...)
		case clusterAPIKind.String():
			w.list(t, 0)
		}
	}
	if c.repairable(true) {
		t.Error("before the records were read")
	}
	for i, namespace := range []string{"own", "m"} {
		w := c.watching(t, attestationKind, namespace)
		if i > 0 {
			w.list(t, 0)
		} else {
			w.Fail(forbidden)
		}
	}
	if c.repairable(true) {
		t.Error("a newly started API server refused once, and the state is considered repairable")
	}
	c.o.Now = func() time.Time { return time.Now().Add(c.o.Pass) }
	if !c.repairable(false) {
		t.Error("without keys indefinitely: a namespace that may not be read, and Nodes and ConfigMaps that are not " +
			"needed for " +
			"this")
	}

	api.forbidden = "x"
	renewed := 0
	c.o.RenewKeys = func(context.Context) error { renewed++; return nil }
	joined := func() (n int) {
		for _, o := range api.records {
			if phase, _, _ := unstructured.NestedString(o, "status", "phase"); phase == string(v1alpha1.PhaseJoined) {
				n++
			}
		}
		return n
	}
	repair := func() error {
		_, err := c.repair.Reconcile(t.Context(), reconcile.Request{})
		return err
	}
	if err := repair(); !kerrors.IsForbidden(err) {
		t.Errorf("what was left is reported as %v", err)
	}
	if joined() != 1 || renewed != 1 || !c.guard.Repairing() {
		t.Errorf("%d Machines latched, keys renewed %d times, repairing %v", joined(), renewed, c.guard.Repairing())
	}
	api.forbidden = ""
	if err := repair(); err != nil {
		t.Error(err)
	}
	if joined() != 2 || renewed != 2 || c.guard.Repairing() {
		t.Errorf("%d Machines latched, keys renewed %d times, repairing %v", joined(), renewed, c.guard.Repairing())
	}
}

func TestRestore_UnrepairedRecordHoldsOnlyItsMachine(t *testing.T) {
	api := newSecretAPI(t)
	c := api.cluster(t)
	machines := []*unstructured.Unstructured{object(1, 1, nil), object(2, 2, nil)}
	held, other := string(machines[0].GetUID()), string(machines[1].GetUID())
	read := func() {
		for _, w := range c.sources() {
			if w.Kind.String() == machineAPIKind.String() {
				w.list(t, 5, machines...)
			} else {
				w.list(t, 5)
			}
		}
		c.build()
	}
	read()
	c.latches[held], c.latches[other] = latch{quarantined: true}, latch{quarantined: true}
	c.guard.Restored(0, "test")
	c.latches = map[string]latch{} // the backup is from before
	read()
	c.o.RenewKeys = func(context.Context) error { return nil }
	repair := func() error {
		_, err := c.repair.Reconcile(t.Context(), reconcile.Request{})
		return err
	}
	api.away = true
	if err := repair(); err == nil || c.Ready() == nil {
		t.Errorf("the API is unavailable: %v, and controllers decide", err)
	}
	api.away = false
	foreign := map[string]any{"apiVersion": v1alpha1.APIVersion, "kind": v1alpha1.KindMachineAttestation,
		"metadata": map[string]any{"namespace": "m", "name": held, "resourceVersion": "1"},
		"status":   map[string]any{"machineUID": "of-another-machine"}}
	const path = "/apis/mcs-attest.dev/v1alpha1/namespaces/m/machineattestations/"
	api.records = map[string]map[string]any{path + held: foreign}
	if err := repair(); err == nil {
		t.Error("the record of another Machine was repaired")
	}
	repaired := &unstructured.Unstructured{Object: api.records[path+other]}
	c.watching(t, attestationKind, "m").receive(t, repaired)
	if err := c.Ready(); err != nil {
		t.Errorf("no controller decides anything: %v", err)
	}
	if c.Unrepaired(held) == nil || c.Unrepaired(other) != nil {
		t.Errorf("%v for the one, %v for the other", c.Unrepaired(held), c.Unrepaired(other))
	}
	machines = machines[1:]
	read()
	if c.Outdated(held) == nil {
		t.Error("the Machine was deleted, but its record counts")
	}
}

// No API server, no redemption: the token may have been voided meanwhile.
func TestNoProvisioningTokenWhileTheAPIIsSilent(t *testing.T) {
	api := newSecretAPI(t)
	c := api.cluster(t)
	is := func(what string, want provisioning.Presence) {
		t.Helper()
		if _, got := c.Provisioning().At(time.Now()); got != want {
			t.Errorf("%s: %s", what, got)
		}
	}
	silentFor := func(d time.Duration) {
		was := c.guard.Clock
		c.guard.Clock = func() time.Time { return was().Add(d) }
	}
	c.dropToken(0)
	silentFor(time.Hour)
	is("there never was one: nothing is protected by it", provisioning.Absent)
	if c.TokenInUse() {
		t.Error("without one the API is asked all the time")
	}

	api.put(c, 10, map[string]string{"token": tokenA})
	is("just read", provisioning.Present)
	if !c.TokenInUse() {
		t.Error("not in use")
	}
	silentFor(restore.SilentAfter - 5*time.Second)
	is("a short outage", provisioning.Present)
	silentFor(restore.SilentAfter + time.Second)
	is("a long one", provisioning.Unknown)
	if c.Provisioning().Err() == nil {
		t.Error("no reason is reported")
	}
	api.away = true
	if c.guard.Probe(t.Context()) == nil {
		t.Error("a probe came through")
	}
	is("it was asked in vain", provisioning.Unknown)
	if _, err := c.ReadProvisioning(t.Context()); err == nil {
		t.Error("read while the API is unavailable")
	}
	api.away, api.revision = false, 20
	if view, err := c.ReadProvisioning(t.Context()); err != nil {
		t.Error(err)
	} else if _, presence := view.At(time.Now()); presence != provisioning.Present {
		t.Errorf("read just now: %s", presence)
	}
	if err := c.guard.Probe(t.Context()); err != nil {
		t.Error(err)
	}
	is("it answers again", provisioning.Present)

	c.o.Probe = time.Hour
	silentFor(restore.SilentAfter + time.Second)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { c.guard.Run(ctx); close(done) }()
	for c.guard.Silent() {
		time.Sleep(50 * time.Millisecond)
	}
	stop()
	<-done
	is("fetched without a request", provisioning.Present)
}

func TestOnlyTheLeaderReconcilesEverything(t *testing.T) {
	api := newSecretAPI(t)
	c := api.cluster(t)
	for _, w := range c.sources() {
		w.list(t, 0)
	}
	c.watching(t, machineAPIKind, "m").list(t, 5, object(1, 1, nil))
	trigger := &c.Triggers.MachineRecord
	machinerecord.New(machinerecord.Options{Trigger: trigger, Inventory: c.Machines, Retry: time.Hour})
	trigger.EnqueueAll()
	if trigger.Running() {
		t.Error("asked of a replica that does not hold the lease")
	}
	queue := priorityqueue.New[reconcile.Request]("test")
	defer queue.ShutDown()
	if err := trigger.Start(t.Context(), queue); err != nil {
		t.Fatal(err)
	}
	wanted := func() string {
		one, _ := queue.Get()
		queue.Done(one)
		return one.Name
	}
	first := wanted()
	if _, known := c.registry.ByUID(first); !known {
		t.Errorf("asked for %q", first)
	}
	in, problems := machine.FromObject(object(2, 2, nil).Object)
	if len(in.Machines) != 1 {
		t.Fatal(problems)
	}
	c.registry.PutMachine(in.Machines[0]) // without a word
	trigger.EnqueueAll()
	if second := []string{wanted(), wanted()}; !slices.Contains(second, first) ||
		!slices.Contains(second, in.Machines[0].UID) {
		t.Errorf("asked for %q", second)
	}
}

func TestSecrets_ServesAChangedChainOfTheSameCertificate(t *testing.T) {
	ca, err := pki.NewCA("ca", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	pair, err := ca.Serve([]string{"mcs.test"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	served := 0
	s := newSecrets(secretsOptions{Log: slog.New(slog.DiscardHandler), Changed: func() {},
		Triggers: &Triggers{}, Certificate: func(*tls.Certificate) { served++ }})
	put := func(chain []byte) int {
		s.putServing(&sources.Object{Value: secretData{map[string][]byte{"tls.crt": chain, "tls.key": pair.Key.Expose()}}})
		return served
	}
	whole := slices.Concat(pair.Certificate, ca.Certificate)
	if first, again, changed := put(pair.Certificate), put(pair.Certificate), put(whole); first != 1 || again != 1 ||
		changed != 2 {
		t.Errorf("served %d, %d and %d", first, again, changed)
	}
}
