// SPDX-License-Identifier: Apache-2.0

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

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
)

// ours returns the owner of a credential: "ours-N" is on the record of machine N modulo 10.
func ours(id string) (uid string, ok bool) {
	var n int
	if _, err := fmt.Sscanf(id, "ours-%d", &n); err != nil {
		return "", false
	}
	return fmt.Sprint("m-", n%10), true
}

func isOurs(id string) bool {
	_, ok := ours(id)
	return ok
}

// ownRecord returns the record of machine N modulo 10, with its ten credentials.
func ownRecord(uid string) *v1alpha1.MachineAttestation {
	rec := new(v1alpha1.MachineAttestation)
	for n := range 100 {
		if id := fmt.Sprint("ours-", n); fmt.Sprint("m-", n%10) == uid {
			rec.Status.Credentials = append(rec.Status.Credentials, v1alpha1.CredentialStatus{ID: id})
		}
	}
	return rec
}

// indexed is a cache with the index.
type indexed struct {
	c   Config
	all map[string]*certificatesv1.CertificateSigningRequest
}

func newIndexed(c Config) indexed {
	return indexed{c, map[string]*certificatesv1.CertificateSigningRequest{}}
}

func (x indexed) put(csr *certificatesv1.CertificateSigningRequest) { x.all[csr.Name] = Trim(csr) }

func (x indexed) list(keys ...string) (found []*certificatesv1.CertificateSigningRequest) {
	for _, csr := range x.all {
		for _, key := range x.c.IndexKeys(csr) {
			if slices.Contains(keys, key) {
				found = append(found, csr)
			}
		}
	}
	return found
}

func (x indexed) own(r *Request, rec *v1alpha1.MachineAttestation) []*certificatesv1.CertificateSigningRequest {
	return x.list(r.OwnKeys(rec)...)
}

func (x indexed) pending(now time.Time) int {
	return x.c.CountPending(x.list(KeyCounted), isOurs, now)
}

var began = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

var attested, attestationOff = Config{Attestation: true}, Config{ServiceAccount: "ns/bootstrapper"}

// some returns a request: with a recorded credential, with another one, or by a node.
func some(r *rand.Rand) *certificatesv1.CertificateSigningRequest {
	csr := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("csr-", r.IntN(300)),
			CreationTimestamp: metav1.NewTime(began.Add(time.Duration(r.IntN(7200)) * time.Second))},
		Spec: certificatesv1.CertificateSigningRequestSpec{SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
			Username: "system:serviceaccount:ns:bootstrapper"},
	}
	switch r.IntN(4) {
	case 0:
		csr.Spec.Extra = map[string]certificatesv1.ExtraValue{extraCredentialID: {fmt.Sprint("ours-", r.IntN(100))}}
	case 1:
		csr.Spec.Extra = map[string]certificatesv1.ExtraValue{extraCredentialID: {"another"}}
	case 2:
		csr.Spec.Username = "a stranger"
	default:
		csr.Spec.SignerName, csr.Spec.Username = certificatesv1.KubeletServingSignerName,
			fmt.Sprint("system:node:", r.IntN(10))
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
		condition.Reason = ownReason
	case 2:
		condition.Message = "This CSR was approved by the Node CSR Approver (cluster-machine-approver)"
	case 3:
	default:
		return csr
	}
	csr.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{condition}
	return csr
}

// stockCount is the stock approver's count, in the order of its rules.
func stockCount(all map[string]*certificatesv1.CertificateSigningRequest, now time.Time) (n int) {
	within := func(at time.Time, before time.Duration) bool {
		return at.After(now.Add(-before)) && at.Before(now.Add(10*time.Second))
	}
	for _, csr := range all {
		approved, lately, own := false, false, false
		for _, c := range csr.Status.Conditions {
			if c.Type == certificatesv1.CertificateApproved {
				approved, lately = true, within(c.LastTransitionTime.Time, 30*time.Second)
				own = strings.Contains(c.Message, "cluster-machine-approver") || c.Reason == ownReason
			}
		}
		switch {
		case !within(csr.CreationTimestamp.Time, time.Hour) || approved && (!lately || own):
		case csr.Spec.SignerName == certificatesv1.KubeletServingSignerName &&
			slices.Contains(csr.Spec.Groups, "system:nodes"),
			csr.Spec.SignerName != certificatesv1.KubeletServingSignerName &&
				csr.Spec.Username == "system:serviceaccount:ns:bootstrapper":
			n++
		}
	}
	return n
}

// The counts by index equal those of a scan of all requests.
func TestIndex_AgreesWithAScanOfAllRequests(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	w, stock := newIndexed(attested), newIndexed(attestationOff)
	all := map[string]*certificatesv1.CertificateSigningRequest{}
	for range 5000 {
		csr := some(r)
		if r.IntN(5) == 0 {
			delete(w.all, csr.Name)
			delete(stock.all, csr.Name)
			delete(all, csr.Name)
			continue
		}
		w.put(csr)
		stock.put(csr)
		all[csr.Name] = csr
	}
	owner := func(csr *certificatesv1.CertificateSigningRequest) (string, bool) {
		if ids := csr.Spec.Extra[extraCredentialID]; len(ids) == 1 {
			if uid, ok := ours(ids[0]); ok {
				return uid, true
			}
		}
		return csr.Spec.Username, false
	}
	since := began.Add(time.Hour)
	for _, csr := range all {
		r := FromCSR(csr)
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
			after := csr.CreationTimestamp.Before(&o.CreationTimestamp) || o.CreationTimestamp.Equal(&csr.CreationTimestamp) &&
				o.Name >= csr.Name
			if whose == mine && ok == isOurs && after {
				own++
			}
		}
		now := since.Add(Window)
		if p := w.pending(now); p != others {
			t.Fatalf("%d pending of others, not %d", p, others)
		}
		var rec *v1alpha1.MachineAttestation
		if isOurs {
			rec = ownRecord(mine)
		} else if r.Kind == Client {
			continue // refused before it is counted
		}
		if o := r.Own(w.own(r, rec), now); o != own {
			t.Fatalf("%s of %s: %d own, not %d", csr.Name, mine, o, own)
		}
	}
	most := 0
	for second := -20; second < 11_000; second += 7 {
		for _, now := range []time.Time{began.Add(time.Duration(second) * time.Second),
			began.Add(time.Duration(second)*time.Second + 300*time.Millisecond)} {
			got, want := stock.pending(now), stockCount(all, now)
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

func TestOwn_NeverBlocksTheNewestRequest(t *testing.T) {
	w := newIndexed(attested)
	made := func(name, credential string, after time.Duration) *Request {
		csr := &certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(began.Add(after))},
			Spec: certificatesv1.CertificateSigningRequestSpec{
				SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
				Extra:      map[string]certificatesv1.ExtraValue{extraCredentialID: {credential}},
			},
		}
		w.put(csr)
		return FromCSR(csr)
	}
	var all []*Request
	for n := range 30 {
		all = append(all, made(fmt.Sprint("csr-", n), "ours-1", time.Duration(n)*time.Minute))
	}
	other := made("other", "ours-2", time.Hour)
	newer := func(r *Request, uid string, limit int) (names []string) {
		return r.Newer(w.own(r, ownRecord(uid)), limit)
	}
	at := began.Add(Window - time.Minute)
	if own := all[29].Own(w.own(all[29], ownRecord("m-1")), at); own != 1 {
		t.Errorf("%d requests count against the newest", own)
	}
	if own := all[0].Own(w.own(all[0], ownRecord("m-1")), at); own != 30 {
		t.Errorf("%d requests count against the oldest", own)
	}
	if got := newer(all[29], "m-1", 10); got != nil {
		t.Errorf("newer than the newest are %q", got)
	}
	if got := fmt.Sprint(newer(all[26], "m-1", 10)); got != "[csr-29 csr-28 csr-27]" {
		t.Errorf("newer are %s", got)
	}
	if got := fmt.Sprint(newer(all[0], "m-1", 2)); got != "[csr-29 csr-28]" {
		t.Errorf("the first of the newer are %s", got)
	}
	if got := newer(other, "m-2", 10); got != nil {
		t.Errorf("newer than another machine's only one are %q", got)
	}
	if n := len(w.list(KeyClient)); n != 31 {
		t.Errorf("%d requests for client certificates", n)
	}
}

// Decisions about a machine with very many requests are not expensive.
func TestOwn_CopiesNoRequests(t *testing.T) {
	allocations := func(size int) float64 {
		var all []*certificatesv1.CertificateSigningRequest
		for n := range size {
			all = append(all, &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{
				Name: fmt.Sprintf("csr-%06d", n), CreationTimestamp: metav1.NewTime(began)}})
		}
		r := FromCSR(all[0])
		return testing.AllocsPerRun(5, func() {
			if own, newer := r.Own(all, began), r.Newer(all, 10); own != size || len(newer) != 10 {
				t.Errorf("%d own, newer are %q", own, newer)
			}
		})
	}
	if few, many := allocations(100), allocations(20_000); many > few {
		t.Errorf("%v allocations for 20 000 requests, %v for 100", many, few)
	}
}

// A record may be read later than the request. The request then counts as its machine's.
func TestCountPending_OmitsRequestsOfRecordedCredentials(t *testing.T) {
	w := newIndexed(attested)
	csr := some(rand.New(rand.NewPCG(3, 4)))
	csr.Spec.SignerName, csr.Spec.Extra, csr.Status.Conditions = certificatesv1.KubeAPIServerClientKubeletSignerName,
		map[string]certificatesv1.ExtraValue{extraCredentialID: {"late"}}, nil
	w.put(csr)
	recorded := false
	pending := func() int {
		return w.c.CountPending(w.list(KeyCounted), func(string) bool { return recorded }, began)
	}
	if n := pending(); n != 1 {
		t.Errorf("%d requests of others, not 1", n)
	}
	recorded = true
	rec := &v1alpha1.MachineAttestation{
		Status: v1alpha1.MachineAttestationStatus{Credentials: []v1alpha1.CredentialStatus{{ID: "late"}}},
	}
	r := FromCSR(csr)
	if others, own := pending(), r.Own(w.own(r, rec), began); others != 0 || own != 1 {
		t.Errorf("%d of others and %d of its own, not 0 and 1", others, own)
	}
}

// What counts at the exact limits of an hour, and of which account.
func TestCountPending_Limits(t *testing.T) {
	type change = func(*certificatesv1.CertificateSigningRequest)
	credential := func(id string) change {
		return func(csr *certificatesv1.CertificateSigningRequest) {
			csr.Spec.Extra = map[string]certificatesv1.ExtraValue{extraCredentialID: {id}}
		}
	}
	condition := func(kind certificatesv1.RequestConditionType, why string) change {
		return func(csr *certificatesv1.CertificateSigningRequest) {
			csr.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: kind,
				Status: corev1.ConditionTrue, Reason: why, LastTransitionTime: metav1.NewTime(began)}}
		}
	}
	created := func(d time.Duration) change {
		return func(csr *certificatesv1.CertificateSigningRequest) {
			csr.CreationTimestamp = metav1.NewTime(began.Add(d))
		}
	}
	config := Config{Attestation: true, Issuer: issuer, ServiceAccount: "ns/bootstrapper"}
	off := config
	off.Attestation = false
	for name, c := range map[string]struct {
		change      change
		bound, free int // with attestation, and without
		keys        int // in the index, with attestation
	}{
		"a bootstrapper's": {func(*certificatesv1.CertificateSigningRequest) {}, 1, 1, 3},
		"another signer's": {func(csr *certificatesv1.CertificateSigningRequest) { csr.Spec.SignerName = "x" }, 0, 0, 0},
		"of a record":      {credential("ours-1"), 0, 1, 4},
		"of no record":     {credential("another"), 1, 1, 4},
		"the verifier's":   {func(csr *certificatesv1.CertificateSigningRequest) { csr.Spec.Username = issuer }, 0, 0, 3},
		"a stranger's":     {func(csr *certificatesv1.CertificateSigningRequest) { csr.Spec.Username = "eve" }, 1, 0, 3},
		"a node's, with a credential": {func(csr *certificatesv1.CertificateSigningRequest) {
			credential("ours-1")(csr)
			csr.Spec.SignerName, csr.Spec.Groups = certificatesv1.KubeletServingSignerName, []string{nodesGroup}
		}, 1, 1, 2},
		"an approved one":   {condition(certificatesv1.CertificateApproved, "a person"), 0, 1, 0},
		"our own approval":  {condition(certificatesv1.CertificateApproved, ownReason), 0, 0, 0},
		"a denied one":      {condition(certificatesv1.CertificateDenied, "a person"), 0, 1, 0},
		"an hour old":       {created(-time.Hour), 1, 0, 3},
		"more than an hour": {created(-time.Hour - time.Second), 0, 0, 3},
		"less than an hour": {created(-time.Hour + time.Second), 1, 1, 3},
		"from 9 s later":    {created(9 * time.Second), 1, 1, 3},
	} {
		csr := &certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{Name: "csr-1", CreationTimestamp: metav1.NewTime(began)},
			Spec: certificatesv1.CertificateSigningRequestSpec{SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
				Username: "system:serviceaccount:ns:bootstrapper"},
		}
		c.change(csr)
		all := []*certificatesv1.CertificateSigningRequest{csr}
		recorded := func(id string) bool { return isOurs(id) || id == "" }
		if bound, free := config.CountPending(all, recorded, began), off.CountPending(all, recorded,
			began); bound != c.bound || free != c.free {
			t.Errorf("%s: %d count, without attestation %d", name, bound, free)
		}
		if keys := config.IndexKeys(csr); len(keys) != c.keys || slices.Contains(keys, KeyCounted) != (c.keys > 0) {
			t.Errorf("%s: keys %q", name, keys)
		}
		may := c.free > 0 || strings.Contains(name, "an hour")
		if keys := off.IndexKeys(csr); slices.Contains(keys, KeyCounted) != may {
			t.Errorf("%s: keys without attestation %q", name, keys)
		}
		if _, _, ok := off.Pending(csr); ok != may {
			t.Errorf("%s: may count without attestation: %v", name, ok)
		}
	}
	r := &Request{Name: "csr-0", Created: began.Add(-2 * time.Hour)}
	for age, want := range map[time.Duration]int{time.Hour: 1, time.Hour + time.Second: 0} {
		csr := &certificatesv1.CertificateSigningRequest{}
		csr.CreationTimestamp = metav1.NewTime(began.Add(-age))
		if got := r.Own([]*certificatesv1.CertificateSigningRequest{csr}, began); got != want {
			t.Errorf("its own of %v before: %d", age, got)
		}
	}
}

// A machine that may attest can attest many times, each time with another key.
func TestMayIssue_LimitsTheRequestsOfAMachine(t *testing.T) {
	made := func(n int, change func(*certificatesv1.CertificateSigningRequest)) (
		all []certificatesv1.CertificateSigningRequest) {
		for i := range n {
			csr := certificatesv1.CertificateSigningRequest{
				ObjectMeta: metav1.ObjectMeta{Name: Name("u", fmt.Sprint("k", i)),
					CreationTimestamp: metav1.NewTime(began.Add(-time.Hour))},
				Spec: certificatesv1.CertificateSigningRequestSpec{Username: issuer,
					SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName},
			}
			if i == 0 && change != nil {
				change(&csr)
			}
			all = append(all, csr)
		}
		return all
	}
	config := Config{Attestation: true, Issuer: issuer}
	three := config
	three.PendingPerMachine = 3
	for name, c := range map[string]struct {
		config Config
		all    []certificatesv1.CertificateSigningRequest
		ok     bool
	}{
		"none":   {config, nil, true},
		"9":      {config, made(9, nil), true},
		"10":     {config, made(10, nil), false},
		"2 of 3": {three, made(2, nil), true},
		"3 of 3": {three, made(3, nil), false},
		"4 of 3": {three, made(4, nil), false},
		"3, one is approved": {three, made(3, func(csr *certificatesv1.CertificateSigningRequest) {
			csr.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{
				{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue}}
		}), false},
		"3, one is older than an hour": {three, made(3, func(csr *certificatesv1.CertificateSigningRequest) {
			csr.CreationTimestamp = metav1.NewTime(began.Add(-time.Hour - time.Second))
		}), true},
		"3, one is another account's": {three, made(3, func(csr *certificatesv1.CertificateSigningRequest) {
			csr.Spec.Username = "eve"
		}), true},
		"3, one is another machine's": {three, made(3, func(csr *certificatesv1.CertificateSigningRequest) {
			csr.Name = Name("u2", "k")
		}), true},
		"3, one is no machine's": {three, made(3, func(csr *certificatesv1.CertificateSigningRequest) {
			csr.Name = "csr-1"
		}), true},
	} {
		if err := c.config.MayIssue("u", c.all, began); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		} else if err != nil && !strings.Contains(err.Error(), "CSRLimit") {
			t.Errorf("%s: %v", name, err)
		}
	}
	three.PendingPerMachine = 1
	if err := three.MayIssue("", made(1, func(csr *certificatesv1.CertificateSigningRequest) { csr.Name = "x" }),
		began); err != nil {
		t.Errorf("a machine without a UID: %v", err)
	}
}

// What a cache keeps of many requests is small.
func TestTrim_OmitsTexts(t *testing.T) {
	csr := some(rand.New(rand.NewPCG(7, 8)))
	csr.Spec.Extra = nil
	updated := metav1.NewTime(began)
	for _, kind := range []certificatesv1.RequestConditionType{certificatesv1.CertificateApproved,
		certificatesv1.CertificateDenied} {
		csr.Status.Conditions = append(csr.Status.Conditions[:0:0], append(csr.Status.Conditions,
			certificatesv1.CertificateSigningRequestCondition{Type: kind, Message: strings.Repeat("m", 101),
				LastUpdateTime: updated, LastTransitionTime: updated})...)
	}
	small := Trim(csr)
	if small.Spec.Extra != nil {
		t.Errorf("%v", small.Spec.Extra)
	}
	for _, c := range small.Status.Conditions[len(small.Status.Conditions)-2:] {
		want := map[certificatesv1.RequestConditionType]int{certificatesv1.CertificateApproved: 100}[c.Type]
		if len(c.Message) != want || !c.LastUpdateTime.IsZero() || !c.LastTransitionTime.Equal(&updated) {
			t.Errorf("%+v", c)
		}
	}
}

// A trimmed request still identifies its owner.
func TestTrim_KeepsTheOwner(t *testing.T) {
	csr := some(rand.New(rand.NewPCG(5, 6)))
	csr.Spec.Request, csr.Spec.Groups = make([]byte, 1<<20), []string{"system:nodes"}
	csr.Spec.Extra = map[string]certificatesv1.ExtraValue{extraCredentialID: {"JTI=1"}, "other": {"x"}}
	csr.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "m"}}
	small := Trim(csr)
	if a, b := FromCSR(csr), FromCSR(small); a.CredentialID != b.CredentialID || a.Username != b.Username ||
		a.Kind != b.Kind || a.Decided != b.Decided {
		t.Errorf("%+v became %+v", a, b)
	}
	if small.Spec.Request != nil || small.ManagedFields != nil || len(small.Spec.Extra) != 1 {
		t.Errorf("%+v was kept", small)
	}
}
