// SPDX-License-Identifier: Apache-2.0

package csr_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
)

type request = certificatesv1.CertificateSigningRequest

func TestAttack_T54_CredentialOfOneMachineForTheNameOfAnother(t *testing.T) {
	s := newSite(t).run()
	a, b := s.machine("a"), s.machine("b")
	thief, rightful := s.attested(a), s.attested(b)
	thief.node = s.node("b")
	s.denied(thief.ask(), "CSROtherMachine")
	s.refusal(a, "CSROtherMachine")
	if got := s.events.about(a); !slices.Equal(got, []string{"CertificateRefused CSROtherMachine"}) {
		t.Errorf("the events about the machine whose credential it is are %q", got)
	}
	if got := s.events.about(b); got != nil {
		t.Errorf("the events about the other are %q", got)
	}
	rightful.join()
	thief.node = s.node("a")
	thief.join() // it was never stopped from being itself
	s.wantNoRefusal(a)
}

// refusal is what the record of a machine says of a refused request.
func (s *site) refusal(m *machine.Machine, code string) {
	s.Helper()
	for _, c := range s.record(m).Conditions {
		if c.Type == v1alpha1.ConditionCertificateRefused && c.Status == metav1.ConditionTrue && c.Reason == code {
			return
		}
	}
	s.Errorf("%s: the conditions are %+v; a refusal as %s was expected", m, s.record(m).Conditions, code)
}

func (s *site) wantNoRefusal(m *machine.Machine) {
	s.Helper()
	for _, c := range s.record(m).Conditions {
		if c.Type == v1alpha1.ConditionCertificateRefused && c.Status != metav1.ConditionFalse {
			s.Errorf("%s: the conditions are %+v", m, c)
		}
	}
}

// unmoved makes sure that nothing was written about a machine, or told.
func (s *site) unmoved(m *machine.Machine) {
	s.Helper()
	if rec, err := s.records.Record(s.Context(), m.UID); err != nil || rec != nil &&
		len(rec.Status.Conditions)+len(rec.Status.History) > 0 {
		s.Errorf("the record of %s was written: %+v (%v)", m, rec, err)
	}
	if got := s.events.about(m); got != nil {
		s.Errorf("the events about %s are %q", m, got)
	}
}

func TestAttack_T54_SharedCredential(t *testing.T) {
	s := newSite(t).run()
	m := s.machine("w-0")
	// As OpenShift has it: a Secret whose token never expires, and has no id.
	secrets := s.admin.CoreV1().Secrets(s.namespace)
	_, err := secrets.Create(s.context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "node-bootstrapper-token",
			Annotations: map[string]string{corev1.ServiceAccountNameKey: "node-bootstrapper"}},
		Type: corev1.SecretTypeServiceAccountToken,
	}, metav1.CreateOptions{})
	s.ok(err)
	var token string
	s.eventually(func() error {
		secret, err := secrets.Get(s.context(), "node-bootstrapper-token", metav1.GetOptions{})
		if token = string(secret.Data["token"]); err == nil && token == "" {
			err = errors.New("the Secret has no token yet")
		}
		return err
	})
	k := s.bearer(token)
	k.node = s.node("w-0")
	s.left(k.ask(), "refuse", "CSRCredential")

	k, _ = s.bootstrap() // one that expires, and that no machine received
	k.node = s.node("w-0")
	s.left(k.ask(), "refuse", "CSRCredential")
	s.unmoved(m)
	s.attested(m).join()
}

func TestAttack_T54_QuarantinedMachine(t *testing.T) {
	s := newSite(t).run()
	m := s.machine("w-0")
	k := s.attested(m)
	quarantined := func(yes bool) {
		s.ok(s.records.Update(t.Context(), m.UID,
			func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
				next := rec.DeepCopy()
				next.Status.Quarantined = yes
				return next, nil
			}))
	}
	quarantined(true)
	name := k.ask()
	s.left(name, "retry", "Quarantined")
	if s.record(m).Certificate != nil {
		t.Error("the record has a certificate")
	}
	quarantined(false)
	s.signed(name)
}

// An administrator's object counts from the moment that the API has it, before it
// reaches the record.
func TestAttack_T67_AQuarantineThatIsNotOnTheRecordYet(t *testing.T) {
	s := newSite(t)
	const instance = "aws:///eu-1/i-0123"
	ek := strings.Repeat("ab", 32)
	elsewhere := "e" + s.namespace
	_, err := s.admin.CoreV1().Namespaces().Create(s.context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: elsewhere}}, metav1.CreateOptions{})
	s.ok(err)
	t.Cleanup(func() {
		s.ok(s.admin.CoreV1().Namespaces().Delete(context.Background(), elsewhere, metav1.DeleteOptions{}))
	})
	s.options.Namespaces = append(s.options.Namespaces, elsewhere, "t-this-namespace-does-not-exist")
	s.run()
	for i, c := range []struct {
		name, namespace string
		spec            func(m *machine.Machine) map[string]any
	}{
		{"it names the Machine", s.namespace, func(m *machine.Machine) map[string]any {
			return map[string]any{"machineRef": map[string]any{"name": m.Name}}
		}},
		{"it is in another namespace", elsewhere, func(m *machine.Machine) map[string]any {
			return map[string]any{"machineRef": map[string]any{"namespace": m.Namespace, "name": m.Name}}
		}},
		{"it names the TPM", s.namespace, func(*machine.Machine) map[string]any {
			return map[string]any{"pool": "worker", "ekSHA256": []any{strings.ToUpper(ek)}}
		}},
		{"it names the instance", elsewhere, func(*machine.Machine) map[string]any {
			return map[string]any{"pool": "worker", "expectedProviderID": instance}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := *s
			s.TB = t
			s.requests = 100 * (i + 1)
			m := s.machine(fmt.Sprintf("w-%d", i))
			k := s.attested(m)
			s.ok(s.records.Update(t.Context(), m.UID,
				func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
					next := rec.DeepCopy()
					next.Status.Identity = v1alpha1.RecordedIdentity{EKSHA256: ek, ProviderID: instance}
					return next, nil
				}))
			spec := c.spec(m)
			spec["quarantined"] = true
			objects := s.dyn.Resource(attestations).Namespace(c.namespace)
			_, err := objects.Create(s.context(), &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": v1alpha1.APIVersion, "kind": v1alpha1.KindMachineAttestation,
				"metadata": map[string]any{"name": "stop"}, "spec": spec,
			}}, metav1.CreateOptions{})
			s.ok(err)
			name := k.ask()
			s.left(name, "retry", "Quarantined")
			if s.record(m).Certificate != nil {
				t.Error("the record has a certificate")
			}
			s.ok(objects.Delete(s.context(), "stop", metav1.DeleteOptions{}))
			s.signed(name)
		})
	}
}

// The API server accepts times in lower case, which this program cannot decode.
func TestAttack_T67_AnObjectThatCannotBeDecodedStopsOnlyItsMachine(t *testing.T) {
	for name, c := range map[string]struct {
		everywhere bool
		spec       map[string]any
		status     string
	}{
		"a time in its status": {spec: map[string]any{}, status: `{"status":{"lastAttested":"2026-11-27t04:00:00z"}}`},
		"a time in its spec":   {spec: map[string]any{"reattest": map[string]any{"until": "2026-11-28t04:00:00z"}}},
		"of any namespace": {everywhere: true,
			spec: map[string]any{"reattest": map[string]any{"until": "2026-11-28t04:00:00z"}}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			if c.everywhere {
				s.options.Namespaces = []string{"*"}
			}
			s.run()
			a, b := s.machine("a"), s.machine("b")
			first, other := s.attested(a), s.attested(b)
			spec := maps.Clone(c.spec)
			spec["quarantined"], spec["machineRef"] = true, map[string]any{"name": a.Name}
			objects := s.dyn.Resource(attestations).Namespace(s.namespace)
			// Its name is that of the node of the other machine, so it is read as a stand-in as well.
			_, err := objects.Create(s.context(), &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": v1alpha1.APIVersion, "kind": v1alpha1.KindMachineAttestation,
				"metadata": map[string]any{"name": s.node("b")}, "spec": spec,
			}}, metav1.CreateOptions{})
			s.ok(err)
			if c.status != "" {
				_, err = objects.Patch(s.context(), s.node("b"), types.MergePatchType, []byte(c.status), metav1.PatchOptions{},
					"status")
				s.ok(err)
			}
			waits := first.ask()
			s.left(waits, "retry", "Quarantined")
			other.join()
			s.ok(objects.Delete(s.context(), s.node("b"), metav1.DeleteOptions{}))
			s.signed(waits)
		})
	}
}

func TestAttack_T54_SecondKeyOfAMachine(t *testing.T) {
	s := newSite(t).run()
	m := s.machine("w-0")
	k := s.attested(m)
	s.signed(k.ask())
	s.signed(k.ask()) // the same key again: the kubelet was stopped before it had stored its certificate
	thief := *k
	thief.key = s.kubelet(s.c.Admin()).key
	s.left(thief.ask(), "refuse", "CSRKeyChanged")
	s.refusal(m, "CSRKeyChanged")
	if got := s.events.about(m); !slices.Contains(got, "CertificateRefused CSRKeyChanged") {
		t.Errorf("the events are %q", got)
	}
}

// The front may patch records, so it can clear the certificate of a machine that joined.
func TestAttack_T54_AnEmptiedRecordDoesNotPermitASecondKey(t *testing.T) {
	s := newSite(t).run()
	m := s.machine("w-0")
	thief := s.attested(m)
	s.signed(thief.ask())
	s.ok(s.records.Update(t.Context(), m.UID,
		func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
			next := rec.DeepCopy()
			next.Status.Certificate, next.Status.Phase = nil, v1alpha1.PhaseFetched
			return next, nil
		}))
	_, second := thief.asksAgain()
	s.left(second, "refuse", "CSRKeyChanged")
	s.refusal(m, "CSRKeyChanged")
}

func TestAttack_T54_TheKeyIsNotTheOneThatWasAttested(t *testing.T) {
	s := newSite(t).run()
	m := s.machine("w-0")
	k := s.attested(m)
	s.ok(s.records.Update(t.Context(), m.UID,
		func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
			next := rec.DeepCopy()
			next.Status.CSRKeySHA256 = strings.Repeat("ab", 32)
			return next, nil
		}))
	s.left(k.ask(), "refuse", "CSRKeyChanged")
	s.refusal(m, "CSRKeyChanged")
}

func TestAttack_T54_CredentialThatHasEnded(t *testing.T) {
	s := newSite(t).run()
	m := s.machine("w-0")
	k := s.attested(m)
	s.ok(s.records.Update(t.Context(), m.UID,
		func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
			next := rec.DeepCopy()
			next.Status.Credentials[0].Expiry = metav1.NewTime(time.Now().Add(-time.Second))
			return next, nil
		}))
	s.left(k.ask(), "refuse", "CSRCredential")
	s.unmoved(m)
}

func TestAttack_T54_RequestsForMoreThanAClientCertificate(t *testing.T) {
	s := newSite(t).run()
	m := s.machine("w-0")
	k := s.attested(m)
	for name, change := range map[string]func(*request, *certificateRequest){
		"another organization": func(_ *request, r *certificateRequest) {
			r.Subject.Organization = append(r.Subject.Organization, "example.com:admins")
		},
		"a URI": func(_ *request, r *certificateRequest) {
			r.URIs = []*url.URL{{Scheme: "spiffe", Host: "example.com", Path: "/root"}}
		},
		"a name":         func(_ *request, r *certificateRequest) { r.DNSNames = []string{"api.example.com"} },
		"an attribute":   func(_ *request, r *certificateRequest) { r.Subject.OrganizationalUnit = []string{"admins"} },
		"no node's name": func(_ *request, r *certificateRequest) { r.Subject.CommonName = "system:admin" },
	} {
		t.Run(name, func(t *testing.T) {
			s := *s
			s.TB = t
			k := *k
			k.site = &s
			name := k.ask(change, func(csr *request, _ *certificateRequest) {
				csr.Name += "-" + strings.ToLower(rand.Text()[:6])
			})
			s.denied(name, "CSRContent")
		})
	}
	s.refusal(m, "CSRContent")
	k.join()
}

// What a request holds is read once, and cheaply; those beside it are decided.
func TestAttack_T54_BrokenAndHugeRequestsBesideGoodOnes(t *testing.T) {
	s := newSite(t).run()
	m := s.machine("w-0")
	k := s.attested(m)
	pemOf := func(der []byte) []byte {
		return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	}
	good := func(r *x509.CertificateRequest) []byte {
		der, err := x509.CreateCertificateRequest(rand.Reader, r, k.key)
		s.ok(err)
		return der
	}
	many := new(x509.CertificateRequest)
	for i := range 10_000 {
		many.DNSNames = append(many.DNSNames, fmt.Sprintf("n%d.example.com", i))
	}
	unsigned := good(new(x509.CertificateRequest))
	unsigned[len(unsigned)-1] ^= 1
	for name, raw := range map[string][]byte{
		"10 000 names":        pemOf(good(many)),
		"a megabyte":          append(pemOf(good(new(x509.CertificateRequest))), bytes.Repeat([]byte{'\n'}, 1<<20)...),
		"not signed with key": pemOf(unsigned),
	} {
		// The API server lets some through, and refuses others itself.
		csr := &request{
			ObjectMeta: metav1.ObjectMeta{Name: s.namespace + "-" + strings.ToLower(rand.Text()[:8])},
			Spec: certificatesv1.CertificateSigningRequestSpec{
				Request: raw, SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
				Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
			},
		}
		_, err := k.api.CertificatesV1().CertificateSigningRequests().Create(s.context(), csr, metav1.CreateOptions{})
		if err != nil {
			t.Logf("%s: the API server does not take it: %.200v", name, err)
			continue
		}
		s.left(csr.Name, "refuse", "CSRMalformed")
	}
	s.unmoved(m)
	k.join()
}

// Status row D11 with attestation: who has one credential can only stop its machine.
func TestAttack_T54_FloodOfRequestsDelaysNoOtherMachine(t *testing.T) {
	s := newSite(t)
	s.options.Config.PendingPerMachine = 3
	flooder, victim, stranger := s.machine("a"), s.machine("b"), s.machine("c")
	f, v := s.attested(flooder), s.attested(victim)
	f.node = "unknown.example" // of no Machine, so it waits
	var waiting []string
	for range 5 {
		waiting = append(waiting, f.ask())
	}
	shared, _ := s.bootstrap()
	for range 200 { // more than the stock approver's limit for all together
		shared.node = s.node("c")
		shared.ask()
	}
	s.run()
	v.join()
	for _, name := range waiting[2:] { // the last that it made
		s.left(name, "retry", "MachineNotFound")
	}
	for _, name := range waiting[:2] {
		s.left(name, "retry", "CSRLimit")
	}
	s.unmoved(stranger)
	s.attested(stranger).join()
	s.eventually(func() error {
		for _, f := range s.approver.Findings() {
			if f.Reason == "TooManyRequests" {
				return nil
			}
		}
		return fmt.Errorf("the findings are %v", s.approver.Findings())
	})
	if n, limit := s.count("mcs_attest_csr_pending"), s.count("mcs_attest_csr_pending_limit"); n < 200 || limit < 103 {
		t.Errorf("%v requests are pending, with a limit of %v", n, limit)
	}
	// They are gone, and the machine has its turn.
	for _, name := range waiting {
		s.ok(s.admin.CertificatesV1().CertificateSigningRequests().Delete(s.context(), name, metav1.DeleteOptions{}))
	}
	f.node = s.node("a")
	f.join()
}

// Without attestation there is one limit for all. Only who may make a kubelet's request
// can use it up, as with the stock approver.
func TestAttack_T54_StrangersDoNotUseUpTheLimitOfAll(t *testing.T) {
	s := newSite(t)
	s.options.Config.Attestation = config.AttestationOff
	s.machine("w-0")
	stranger := s.kubelet(s.c.Admin())
	stranger.node = s.node("w-0")
	for range 60 {
		stranger.ask()
		stranger.askServing([]string{stranger.node}, nil)
	}
	s.run()
	k, _ := s.bootstrap()
	k.node = s.node("w-0")
	s.signed(k.ask())
	for _, f := range s.approver.Findings() {
		if f.Reason == "TooManyRequests" {
			t.Error(f.Text)
		}
	}
}

// Who has a machine's credential has the verifier write no more than a person reads.
func TestAttack_T49_RefusalsOfOneMachineAreWrittenFromABudget(t *testing.T) {
	s := newSite(t).run()
	m := s.machine("a")
	k := s.attested(m)
	before, began := len(s.events.about(m)), time.Now()
	var last string
	for i := range 30 {
		other := s.machine(fmt.Sprintf("b-%d", i))
		k.node = s.node(other.Name)
		last = k.ask()
	}
	s.eventually(func() error {
		if got := conditions(s.csr(last)); got != "Denied mcs-attest" {
			return fmt.Errorf("the conditions are %q", got)
		}
		return nil
	})
	// A burst of 10, and one a minute.
	if n := len(s.events.about(m)) - before; n > 12+int(time.Since(began)/time.Minute) {
		t.Errorf("%d events about it", n)
	}
	k.node = s.node("a")
	k.join()
}
