// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/approver"
	"github.com/mcs-attest/mcs-attest/pkg/approver/approvertest"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/approval"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
)

// late is an inventory that has the record of a credential only from the second look-up on.
type late struct{ lookups int }

func (l *late) ByInternalDNS(string) []machine.Ref { return nil }
func (l *late) ByNode(string) []machine.Ref        { return nil }
func (l *late) Counts() (machines, nodes int)      { return 1, 0 }
func (l *late) ByCredential(string) (uid string, ok bool) {
	l.lookups++
	return "uid", l.lookups > 1
}
func (l *late) Record(context.Context, string) (*v1alpha1.MachineAttestation, error) { return nil, nil }
func (l *late) Update(context.Context, string, store.Change) error                   { return nil }

// inventory has Machines and records.
type inventory interface {
	approval.Directory
	Records
}

// over returns a function that decides a request once, and the API.
func over(t *testing.T, known inventory, log *slog.Logger, objects ...client.Object) (
	decide func(name string) reconcile.Result, api client.Client,
) {
	t.Helper()
	r := overAPI(t, known, log, objects...)
	return func(name string) reconcile.Result {
		t.Helper()
		result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: name}})
		if err != nil {
			t.Fatal(err)
		}
		return result
	}, r.client
}

// overAPI returns a reconciler with an API that has these objects.
func overAPI(t *testing.T, known inventory, log *slog.Logger, objects ...client.Object) *reconciler {
	t.Helper()
	c, err := New(Options{
		Config: config.Approver{
			Attestation: config.AttestationRequired, ConfigMap: "ns/switch", StockConfigMap: "ns/stock", KubeletCA: "ns/ca",
		},
		Credential: &config.Credential{Kind: config.ServiceAccountToken, ServiceAccount: "ns/node-bootstrapper",
			Mode: config.ModeCertificateOrToken},
		Machines: known, Records: known, Log: log, Namespace: "ns",
	})
	if err != nil {
		t.Fatal(err)
	}
	scheme, err := kube.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	requests := new(certificatesv1.CertificateSigningRequest)
	api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(requests).
		WithIndex(requests, "spec.signerName", func(o client.Object) []string {
			csr, _ := o.(*certificatesv1.CertificateSigningRequest)
			return []string{csr.Spec.SignerName}
		}).Build()
	return &reconciler{Controllers: c, client: trimmed{api}, reader: approval.NewReader(approval.Options{
		Client: api, Config: c.o.Config, Rules: c.rules, Machines: known, Records: known, Namespaces: []string{"ns"},
		Waiting: func(context.Context, string) ([]*certificatesv1.CertificateSigningRequest, error) { return nil, nil },
	})}
}

// trimmed is a cache.
type trimmed struct{ client.Client }

func (c trimmed) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	err := c.Client.Get(ctx, key, o, opts...)
	if csr, ok := o.(*certificatesv1.CertificateSigningRequest); ok && err == nil {
		*csr = *approver.Trim(csr)
	}
	return err
}

// asks returns a request for a client certificate, which a credential made.
func asks(name, credential string, request []byte) *certificatesv1.CertificateSigningRequest {
	return &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Now())},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName, Request: request,
			Usages:   []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
			Username: "system:serviceaccount:ns:node-bootstrapper",
			Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:ns", "system:authenticated"},
			Extra:    map[string]certificatesv1.ExtraValue{"authentication.kubernetes.io/credential-id": {credential}},
		},
	}
}

// recorded has one record.
type recorded struct {
	late
	rec *v1alpha1.MachineAttestation
}

func (r *recorded) Update(_ context.Context, _ string, change store.Change) error {
	next, err := change(r.rec)
	if next != nil {
		r.rec = next
	}
	return err
}

// The approval of a request that supersedes others is tried until the API takes it.
func TestApprove_NotesOnceThatOthersAreSuperseded(t *testing.T) {
	const key = "k1"
	known := &recorded{rec: &v1alpha1.MachineAttestation{Status: v1alpha1.MachineAttestationStatus{
		Phase:       v1alpha1.PhaseFetched,
		Credentials: []v1alpha1.CredentialStatus{{ID: "JTI=1", Expiry: metav1.NewTime(time.Now().Add(time.Hour))}},
		// A stolen front forged the note.
		History: []v1alpha1.HistoryEntry{{Event: "CertificateReplaced",
			Message: "the certificate of another key, from csr-0, stays valid"}},
	}}}
	request := asks("csr-1", "JTI=1", nil)
	r := overAPI(t, known, slog.New(slog.DiscardHandler), request)
	r.client = interceptor.NewClient(r.client.(trimmed).Client.(client.WithWatch), interceptor.Funcs{
		SubResourceUpdate: func(context.Context, client.Client, string, client.Object,
			...client.SubResourceUpdateOption) error {
			return errors.New("the endpoint fails")
		}})
	d := &approver.Decision{Kind: approver.Client, RecordUID: "uid", Proven: true, Node: "w-0", PublicKeySHA256: key,
		CredentialID: "JTI=1", Superseded: []string{"csr-0"}}
	for range 3 {
		if err := r.approve(t.Context(), request, d, time.Now()); err == nil {
			t.Fatal("the approval was written")
		}
	}
	var notes int
	for _, h := range known.rec.Status.History {
		if h.Event == "CertificateReplaced" {
			notes++
		}
	}
	if notes != 2 {
		t.Errorf("%d notes: %+v", notes, known.rec.Status.History)
	}
}

// A kubelet that does not rotate names its request node-csr-, followed by base64 (kubelet, certificate/bootstrap).
func TestNewerRequest_MayHaveAnyName(t *testing.T) {
	newer := asks("node-csr-AbC_1", "JTI=2", nil)
	r := overAPI(t, new(late), slog.New(slog.DiscardHandler), newer)
	reader := approval.NewReader(approval.Options{Client: r.client.(trimmed).Client, Config: r.o.Config, Rules: r.rules,
		Machines: r.o.Machines, Records: r.o.Records, Namespaces: []string{"ns"},
		Waiting: func(context.Context, string) ([]*certificatesv1.CertificateSigningRequest, error) {
			return []*certificatesv1.CertificateSigningRequest{newer, asks("node-csr-DeF_2", "JTI=2", nil)}, nil
		}})
	first := asks("csr-1", "JTI=1", nil)
	first.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Minute))
	all, err := reader.Newer(t.Context(), approver.FromCSR(first), nil)
	if err != nil || len(all) != 1 || all[0].Name != newer.Name {
		t.Errorf("%d newer requests, %v; want only the existing one", len(all), err)
	}
}

// Two requests of one machine are not decided at the same time, even if both came before
// the inventory had the machine's record.
func TestDecisionWithoutTheMachinesLock_IsRepeated(t *testing.T) {
	log := new(strings.Builder)
	decide, _ := over(t, new(late), slog.New(slog.NewTextHandler(log, nil)), asks("csr-1", "JTI=1", nil))
	if result := decide("csr-1"); result.RequeueAfter != busyPause || log.Len() > 0 {
		t.Errorf("it was decided: %+v\n%s", result, log)
	}
	if decide("csr-1"); log.Len() == 0 {
		t.Error("it was not decided then")
	}
}

// absent is an inventory that misses the record of a credential for a moment.
type absent struct {
	late
	known bool
}

func (a *absent) ByCredential(string) (uid string, ok bool) { return "uid", a.known }

// The clocks of the API server and of the controller may differ, so a request may seem old.
func TestScan_TriggersADecisionWhenTheMachineIsKnown(t *testing.T) {
	request := asks("csr-1", "JTI=1", approvertest.Client(t, "w-0", approvertest.NewKey(t)).Spec.Request)
	request.CreationTimestamp.Time = time.Now().Add(-4 * time.Minute)
	byOther := asks("csr-2", "JTI=1", approvertest.Client(t, "w-0", approvertest.NewKey(t)).Spec.Request)
	byOther.CreationTimestamp = request.CreationTimestamp
	byOther.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{
		{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "AutoApproved"}}
	known := new(absent)
	r := overAPI(t, known, slog.New(slog.NewTextHandler(t.Output(), nil)), request, byOther)
	r.wake = make(chan event.GenericEvent, 3)
	for _, name := range []string{"csr-1", "csr-2"} {
		result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: name}})
		if err != nil || result.RequeueAfter != oldPause {
			t.Errorf("%s: %+v, %v", name, result, err)
		}
	}
	for _, want := range []int{0, 2, 0} {
		if r.wakeKnown(t.Context()); len(r.wake) != want {
			t.Errorf("%d decisions are triggered, want %d", len(r.wake), want)
		}
		for range len(r.wake) {
			<-r.wake
		}
		known.known = true
	}
}

// twice is a machine that is an object of both Machine APIs, with a record for each of the two.
type twice struct {
	records map[string]*v1alpha1.MachineAttestation
	written func()
	// wrong is what the next look-ups of a credential return; "": what is right.
	wrong []string
}

func (w *twice) ByInternalDNS(string) []machine.Ref {
	return []machine.Ref{
		{APIVersion: "machine.openshift.io/v1beta1", Namespace: "ns", Name: "m", UID: "a"},
		{APIVersion: "cluster.x-k8s.io/v1beta2", Namespace: "ns", Name: "m", UID: "b"},
	}
}
func (w *twice) ByNode(string) []machine.Ref   { return nil }
func (w *twice) Counts() (machines, nodes int) { return 2, 0 }
func (w *twice) ByCredential(id string) (uid string, ok bool) {
	uid, ok = strings.CutPrefix(strings.TrimRight(id, "0123456789"), "JTI=")
	if len(w.wrong) > 0 {
		uid, w.wrong = cmp.Or(w.wrong[0], uid), w.wrong[1:]
	}
	return uid, ok
}
func (w *twice) Record(_ context.Context, uid string) (*v1alpha1.MachineAttestation, error) {
	return w.records[uid].DeepCopy(), nil
}
func (w *twice) Update(_ context.Context, uid string, change store.Change) error {
	next, err := change(w.records[uid].DeepCopy())
	if err == nil && next != nil {
		w.records[uid] = next
		if then := w.written; then != nil {
			w.written = nil
			then()
		}
	}
	return err
}

// A stolen front can move credentials between records, and make a second record. So only the name in a request
// says which requests exclude each other.
func TestAttack_T54_OneNodeNameHasOneDecisionAtATime(t *testing.T) {
	for name, second := range map[string]string{"of another record": "JTI=b1", "of a record that changes": "JTI=a2"} {
		t.Run(name, func(t *testing.T) {
			known := &twice{records: map[string]*v1alpha1.MachineAttestation{}}
			for _, uid := range []string{"a", "b"} {
				rec := new(v1alpha1.MachineAttestation)
				rec.Namespace, rec.Status.MachineUID, rec.Status.Phase = "ns", uid, v1alpha1.PhaseFetched
				for _, n := range []string{"1", "2"} {
					rec.Status.Credentials = append(rec.Status.Credentials, v1alpha1.CredentialStatus{
						ID: "JTI=" + uid + n, Expiry: metav1.NewTime(time.Now().Add(time.Hour)),
					})
				}
				known.records[uid] = rec
			}
			request := func() []byte { return approvertest.Client(t, "w-0", approvertest.NewKey(t)).Spec.Request }
			decide, api := over(t, known, slog.New(slog.NewTextHandler(t.Output(), nil)),
				asks("first", "JTI=a1", request()), asks("second", second, request()),
				machineObject("machine.openshift.io/v1beta1", "a"), machineObject("cluster.x-k8s.io/v1beta2", "b"))
			known.written = func() { // the record has the first key, and the request is not approved yet
				known.records["a"].Status.Certificate, known.records["a"].Status.Phase = nil, v1alpha1.PhaseFetched
				if second == "JTI=a2" {
					known.wrong = []string{"elsewhere", "", "elsewhere"}
				}
				if result := decide("second"); result.RequeueAfter != busyPause {
					t.Errorf("decided at the same time: %+v", result)
				}
			}
			decide("first")
			decide("second")
			for name, want := range map[string]bool{"first": true, "second": false} {
				csr := new(certificatesv1.CertificateSigningRequest)
				if err := api.Get(t.Context(), client.ObjectKey{Name: name}, csr); err != nil {
					t.Fatal(err)
				}
				if got := approved(csr) != nil; got != want {
					t.Errorf("the %s request: approved %v, %+v", name, got, csr.Status.Conditions)
				}
			}
		})
	}
}

// lossy loses the next writes.
type lossy struct {
	*twice
	lost int
}

func (l *lossy) Update(ctx context.Context, uid string, change store.Change) error {
	if l.lost > 0 {
		l.lost--
		return reason.Deny(reason.StoreUnavailable, "no answer")
	}
	return l.twice.Update(ctx, uid, change)
}

// A refusal is on the record of its machine, where an administrator finds it, also if the API was unavailable.
func TestRefusal_IsRecordedAfterTheAPIIsBack(t *testing.T) {
	rec := new(v1alpha1.MachineAttestation)
	rec.Namespace, rec.Status.MachineUID, rec.Status.Phase = "ns", "a", v1alpha1.PhaseFetched
	rec.Status.Credentials = []v1alpha1.CredentialStatus{{ID: "JTI=a1", Expiry: metav1.NewTime(time.Now().Add(time.Hour))}}
	known := &lossy{&twice{records: map[string]*v1alpha1.MachineAttestation{"a": rec}}, 1}
	decide, _ := over(t, known, slog.New(slog.NewTextHandler(t.Output(), nil)),
		asks("csr-1", "JTI=a1", approvertest.Client(t, "w-0", approvertest.NewKey(t)).Spec.Request),
		machineObject("machine.openshift.io/v1beta1", "a"), machineObject("cluster.x-k8s.io/v1beta2", "b"),
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "w-0"}})
	for i, recorded := range []bool{false, true} {
		result := decide("csr-1")
		refused := meta.IsStatusConditionTrue(known.records["a"].Status.Conditions, v1alpha1.ConditionCertificateRefused)
		if refused != recorded || (result.RequeueAfter == 0) != recorded {
			t.Errorf("decision %d: recorded %v, the next one after %v", i+1, refused, result.RequeueAfter)
		}
	}
}

func machineObject(apiVersion, uid string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": apiVersion, "kind": "Machine",
		"metadata": map[string]any{"namespace": "ns", "name": "m", "uid": uid,
			"creationTimestamp": time.Now().UTC().Format(time.RFC3339)},
		"spec": map[string]any{"providerID": "aws:///z/i-1"},
		"status": map[string]any{"authoritativeAPI": "MachineAPI", "addresses": []any{
			map[string]any{"type": "InternalDNS", "address": "w-0"},
		}},
	}}
}
