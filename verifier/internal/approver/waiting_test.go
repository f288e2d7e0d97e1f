package approver

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/approver"
)

// ours are the credentials of a test: "ours-N" is on the record of machine N modulo 10.
type ours struct{ Directory }

func (ours) ByCredential(id string) (string, bool) {
	var n int
	if _, err := fmt.Sscanf(id, "ours-%d", &n); err != nil {
		return "", false
	}
	return fmt.Sprint("m-", n%10), true
}

func (ours) Counts() (machines, nodes int) { return 1, 1 }

var began = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

var attested, off = approver.Config{Attestation: true}, approver.Config{ServiceAccount: "ns/bootstrapper"}

// some request: with a credential of ours, with another's, or by a node.
func some(r *rand.Rand) *certificatesv1.CertificateSigningRequest {
	csr := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("csr-", r.IntN(300)), CreationTimestamp: metav1.NewTime(began.Add(time.Duration(r.IntN(7200)) * time.Second))},
		Spec:       certificatesv1.CertificateSigningRequestSpec{SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName, Username: "system:serviceaccount:ns:bootstrapper"},
	}
	switch r.IntN(4) {
	case 0:
		csr.Spec.Extra = map[string]certificatesv1.ExtraValue{credentialExtra: {fmt.Sprint("ours-", r.IntN(100))}}
	case 1:
		csr.Spec.Extra = map[string]certificatesv1.ExtraValue{credentialExtra: {"another"}}
	case 2:
		csr.Spec.Username = "a stranger"
	default:
		csr.Spec.SignerName, csr.Spec.Username = certificatesv1.KubeletServingSignerName, fmt.Sprint("system:node:", r.IntN(10))
		if r.IntN(4) > 0 {
			csr.Spec.Groups = []string{"system:authenticated", "system:nodes"}
		}
	}
	condition := certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "a person",
		LastTransitionTime: metav1.NewTime(csr.CreationTimestamp.Add(time.Duration(r.IntN(3600)) * time.Second)),
	}
	switch r.IntN(8) {
	case 0:
		condition.Type = certificatesv1.CertificateDenied
	case 1:
		condition.Reason = ConditionReason
	case 2:
		condition.Message = "This CSR was approved by the Node CSR Approver (cluster-machine-approver)"
	case 3:
	default:
		return csr
	}
	csr.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{condition}
	return csr
}

// stockPending is the stock approver's count, in the order of its own rules.
func stockPending(all map[string]*certificatesv1.CertificateSigningRequest, now time.Time) (n int) {
	within := func(at time.Time, before time.Duration) bool {
		return at.After(now.Add(-before)) && at.Before(now.Add(10*time.Second))
	}
	for _, csr := range all {
		approved, lately, own := false, false, false
		for _, c := range csr.Status.Conditions {
			if c.Type == certificatesv1.CertificateApproved {
				approved, lately = true, within(c.LastTransitionTime.Time, 30*time.Second)
				own = strings.Contains(c.Message, "cluster-machine-approver") || c.Reason == ConditionReason
			}
		}
		switch {
		case !within(csr.CreationTimestamp.Time, time.Hour) || approved && (!lately || own):
		case csr.Spec.SignerName == certificatesv1.KubeletServingSignerName && slices.Contains(csr.Spec.Groups, "system:nodes"),
			csr.Spec.SignerName != certificatesv1.KubeletServingSignerName && csr.Spec.Username == "system:serviceaccount:ns:bootstrapper":
			n++
		}
	}
	return n
}

// What is counted in one step is what a look through all requests finds.
func TestWaitingCountsAsALookThroughAllDoes(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	w, stock := newWaiting(ours{}, attested), newWaiting(ours{}, off)
	all := map[string]*certificatesv1.CertificateSigningRequest{}
	for range 5000 {
		csr := some(r)
		if r.IntN(5) == 0 {
			w.drop(csr.Name)
			stock.drop(csr.Name)
			delete(all, csr.Name)
			continue
		}
		small, err := trim(csr) // as the watch keeps it
		if err != nil {
			t.Fatal(err)
		}
		w.put(small.(*certificatesv1.CertificateSigningRequest))
		stock.put(small.(*certificatesv1.CertificateSigningRequest))
		all[csr.Name] = csr
	}
	owner := func(csr *certificatesv1.CertificateSigningRequest) (string, bool) {
		if ids := csr.Spec.Extra[credentialExtra]; len(ids) == 1 {
			if uid, ok := (ours{}).ByCredential(ids[0]); ok {
				return uid, true
			}
		}
		return csr.Spec.Username, false
	}
	since := began.Add(time.Hour)
	for _, csr := range all {
		r := approver.FromCSR(csr)
		mine, isOurs := owner(csr)
		others, own := 0, 0
		for _, o := range all {
			if len(o.Status.Conditions) > 0 || o.CreationTimestamp.Time.Before(since) {
				continue
			}
			whose, ok := owner(o)
			if !ok {
				others++
			}
			after := csr.CreationTimestamp.Before(&o.CreationTimestamp) || o.CreationTimestamp.Equal(&csr.CreationTimestamp) && o.Name >= csr.Name
			if whose == mine && ok == isOurs && after {
				own++
			}
		}
		uid := ""
		if isOurs {
			uid = mine
		}
		if p, o := w.load(r, uid, since.Add(approver.Window)); p != others || o != own {
			t.Fatalf("%s of %s: %d pending of others and %d own, not %d and %d", csr.Name, mine, p, o, others, own)
		}
	}
	most := 0
	for second := -20; second < 11_000; second++ {
		for _, now := range []time.Time{began.Add(time.Duration(second) * time.Second), began.Add(time.Duration(second)*time.Second + 300*time.Millisecond)} {
			got, want := stock.pending(now), stockPending(all, now)
			if got != want {
				t.Fatalf("%v after the beginning %d are pending, and the stock approver counts %d", now.Sub(began), got, want)
			}
			most = max(most, got)
		}
	}
	if most < 50 {
		t.Errorf("at most %d were pending: the test proves little", most)
	}
}

func TestTheNewestOfAMachineIsNeverHeldUp(t *testing.T) {
	w := newWaiting(ours{}, attested)
	made := func(name, credential string, after time.Duration) *approver.Request {
		csr := &certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(began.Add(after))},
			Spec: certificatesv1.CertificateSigningRequestSpec{
				SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
				Extra:      map[string]certificatesv1.ExtraValue{credentialExtra: {credential}},
			},
		}
		w.put(csr)
		return approver.FromCSR(csr)
	}
	var all []*approver.Request
	for n := range 30 {
		all = append(all, made(fmt.Sprint("csr-", n), "ours-1", time.Duration(n)*time.Minute))
	}
	other := made("other", "ours-2", time.Hour)
	at := began.Add(approver.Window - time.Minute)
	if _, own := w.load(all[29], "m-1", at); own != 1 {
		t.Errorf("%d requests count against the newest", own)
	}
	if _, own := w.load(all[0], "m-1", at); own != 30 {
		t.Errorf("%d requests count against the oldest", own)
	}
	if got := w.newer(all[29], "m-1", 10); got != nil {
		t.Errorf("newer than the newest are %q", got)
	}
	if got := fmt.Sprint(w.newer(all[26], "m-1", 10)); got != "[csr-29 csr-28 csr-27]" {
		t.Errorf("newer are %s", got)
	}
	if got := fmt.Sprint(w.newer(all[0], "m-1", 2)); got != "[csr-29 csr-28]" {
		t.Errorf("the first of the newer are %s", got)
	}
	if got := w.newer(other, "m-2", 10); got != nil {
		t.Errorf("newer than another machine's only one are %q", got)
	}
	if n := len(w.clients()); n != 31 {
		t.Errorf("%d requests for client certificates", n)
	}
	if got := w.whose("other"); got != ofMachine("m-2") {
		t.Errorf("the other is %q's", got)
	}
}

// A record may be read after the request was: then the request is its machine's from
// there on.
func TestARequestIsItsMachinesOnceTheRecordSaysSo(t *testing.T) {
	w := newWaiting(ours{}, attested)
	csr := some(rand.New(rand.NewPCG(3, 4)))
	csr.Spec.SignerName, csr.Spec.Extra, csr.Status.Conditions = certificatesv1.KubeAPIServerClientKubeletSignerName, map[string]certificatesv1.ExtraValue{credentialExtra: {"late"}}, nil
	w.put(csr)
	if n := w.pending(began); n != 1 {
		t.Errorf("%d requests of others, not 1", n)
	}
	if others, own := w.load(approver.FromCSR(csr), "m-1", began); others != 0 || own != 1 {
		t.Errorf("%d of others and %d of its own, not 0 and 1", others, own)
	}
	w.reset()
	if n := w.pending(began); n != 0 {
		t.Errorf("%d requests after a reset", n)
	}
}

// What is kept of a request is enough to tell whose it is, and no more.
func TestTrimKeepsWhoseARequestIs(t *testing.T) {
	csr := some(rand.New(rand.NewPCG(5, 6)))
	csr.Spec.Request, csr.Spec.Groups = make([]byte, 1<<20), []string{"system:nodes"}
	csr.Spec.Extra = map[string]certificatesv1.ExtraValue{credentialExtra: {"JTI=1"}, "other": {"x"}}
	csr.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "m"}}
	out, err := trim(csr)
	if err != nil {
		t.Fatal(err)
	}
	small := out.(*certificatesv1.CertificateSigningRequest)
	if a, b := approver.FromCSR(csr), approver.FromCSR(small); a.CredentialID != b.CredentialID || a.Username != b.Username || a.Kind != b.Kind || a.Decided != b.Decided {
		t.Errorf("%+v became %+v", a, b)
	}
	if small.Spec.Request != nil || small.ManagedFields != nil || len(small.Spec.Extra) != 1 {
		t.Errorf("%+v was kept", small)
	}
}

func TestBudgetIsOfEachMachine(t *testing.T) {
	b := newBudget()
	allowed := func(of string, at time.Time) (n int) {
		for range 100 {
			if b.allow(of, at) {
				n++
			}
		}
		return n
	}
	if n := allowed("a", began); n != refusalsBurst {
		t.Errorf("%d writes at once", n)
	}
	if n := allowed("b", began); n != refusalsBurst {
		t.Errorf("%d writes at once for another", n)
	}
	if n := allowed("a", began.Add(refusalsEvery)); n != 1 {
		t.Errorf("%d writes after a pause", n)
	}
	for i := range 3 * b.max {
		b.allow(fmt.Sprint(i), began)
	}
	if len(b.of) > b.max {
		t.Errorf("%d machines are remembered", len(b.of))
	}
}

// Flat: a decision's counts cost the same whatever waits.
func BenchmarkLoad(b *testing.B) {
	for _, n := range []int{10, 1000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			w := newWaiting(ours{}, attested)
			var csr *certificatesv1.CertificateSigningRequest
			for i := range n {
				csr = &certificatesv1.CertificateSigningRequest{
					ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i), CreationTimestamp: metav1.NewTime(began.Add(time.Duration(i) * time.Second))},
					Spec:       certificatesv1.CertificateSigningRequestSpec{SignerName: certificatesv1.KubeletServingSignerName, Username: fmt.Sprint("system:node:", i%100)},
				}
				w.put(csr)
			}
			r := approver.FromCSR(csr)
			b.ReportAllocs()
			for b.Loop() {
				w.load(r, "", began)
			}
		})
	}
}
