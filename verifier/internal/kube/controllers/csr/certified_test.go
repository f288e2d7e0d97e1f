// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/approver"
	"github.com/mcs-attest/mcs-attest/pkg/approver/approvertest"
)

// certified is a machine whose request the verifier made, with its record.
type certified struct {
	*testing.T
	*reconciler
	log   strings.Builder
	known *twice
	csr   *certificatesv1.CertificateSigningRequest
}

// newCertified also has the approved requests of earlier keys.
func newCertified(t *testing.T, former int) *certified {
	t.Helper()
	request := func() *certificatesv1.CertificateSigningRequest {
		csr := asks("", "JTI=controller", approvertest.Client(t, "w-0", approvertest.NewKey(t)).Spec.Request)
		csr.Spec.Username = "system:serviceaccount:ns:mcs-attest-controller"
		csr.Name = approver.Name("a", approver.FromCSR(csr).PublicKeySHA256)
		return csr
	}
	c := &certified{T: t, known: &twice{records: map[string]*v1alpha1.MachineAttestation{}}, csr: request()}
	parsed := approver.FromCSR(c.csr)
	rec := new(v1alpha1.MachineAttestation)
	rec.Namespace = "ns"
	rec.Status = v1alpha1.MachineAttestationStatus{
		MachineUID: "a", Phase: v1alpha1.PhaseAttested, CSRKeySHA256: parsed.PublicKeySHA256,
		Token:              &v1alpha1.TokenStatus{ID: "t1", Expiry: metav1.NewTime(time.Now().Add(time.Hour))},
		CertificateRequest: &v1alpha1.CertificateRequestStatus{Request: parsed.CSR.Raw, Token: "t1"},
	}
	c.known.records["a"] = rec
	objects := []client.Object{c.csr, machineObject("machine.openshift.io/v1beta1", "a"),
		machineObject("cluster.x-k8s.io/v1beta2", "b")}
	for range former {
		csr := request()
		approveFor(csr, ConditionReason)
		objects = append(objects, csr)
	}
	c.reconciler = overAPI(t, c.known, slog.New(slog.NewTextHandler(&c.log, nil)), objects...)
	return c
}

func approveFor(csr *certificatesv1.CertificateSigningRequest, why string) {
	csr.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: why,
		LastTransitionTime: metav1.Now(),
	}}
}

func (c *certified) decide() reconcile.Result {
	c.Helper()
	name := types.NamespacedName{Name: c.csr.Name}
	result, err := c.Reconcile(c.Context(), reconcile.Request{NamespacedName: name})
	if err != nil {
		c.Fatal(err)
	}
	if err := c.client.Get(c.Context(), name, c.csr); err != nil {
		c.Fatal(err)
	}
	return result
}

func (c *certified) history() (events []string) {
	for _, h := range c.known.records["a"].Status.History {
		events = append(events, h.Event)
	}
	return events
}

// A stolen front can get a second certificate for a machine that waits for its first boot. The approver
// reports it, also if the front has already written the certificate to the record.
func TestAttack_T73_ASecondKeyIsReported(t *testing.T) {
	for name, c := range map[string]struct {
		former   int
		recorded bool
		want     []string
	}{
		"the first key":                       {0, false, []string{"Certified"}},
		"a second key":                        {1, false, []string{"Certified", "CertificateReplaced"}},
		"a second key, already on the record": {1, true, []string{"CertificateReplaced"}},
	} {
		t.Run(name, func(t *testing.T) {
			m := newCertified(t, c.former)
			if c.recorded {
				m.known.records["a"].Status.Certificate = &v1alpha1.CertificateStatus{Node: "w-0",
					PublicKeySHA256: approver.FromCSR(m.csr).PublicKeySHA256, Request: m.csr.Name}
			}
			m.decide()
			if approved(m.csr) == nil {
				t.Fatalf("not approved:\n%s", &m.log)
			}
			if got := m.history(); !slices.Equal(got, c.want) {
				t.Errorf("the history is %q", got)
			}
			if got := strings.Contains(m.log.String(), "supersedes=mcs-attest-a-"); got != (c.former > 0) {
				t.Errorf("the audit log:\n%s", &m.log)
			}
		})
	}
}

// The machine waits in its initramfs, so it gets its certificate when the cause has ended.
func TestReconcile_DecidesARefusedRequestOfTheVerifierAgain(t *testing.T) {
	c := newCertified(t, 0)
	old := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "w-0"}}
	if err := c.client.Create(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	result := c.decide()
	if got := c.history(); result.RequeueAfter == 0 || result.RequeueAfter > time.Minute ||
		!slices.Equal(got, []string{"CertificateRefused"}) {
		t.Fatalf("%+v, the history is %q", result, got)
	}
	if err := c.client.Delete(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	if c.decide(); approved(c.csr) == nil {
		t.Errorf("not approved:\n%s", &c.log)
	}
}

// A request of the verifier that another approver approves is a finding, as one of a kubelet is.
func TestAttack_T73_ARequestOfTheVerifierApprovedByOthers(t *testing.T) {
	for name, c := range map[string]struct {
		by          string
		quarantined bool
		found       bool
		want        []string
	}{
		"this approver":                     {ConditionReason, false, false, nil},
		"an administrator":                  {byHand, false, false, []string{"Certified"}},
		"another approver":                  {"AutoApproved", false, true, []string{"Certified"}},
		"another, of a quarantined machine": {"AutoApproved", true, true, []string{"CertificateRefused"}},
	} {
		t.Run(name, func(t *testing.T) {
			m := newCertified(t, 0)
			m.known.records["a"].Status.Quarantined = c.quarantined
			approveFor(m.csr, c.by)
			if err := m.client.SubResource("approval").Update(t.Context(), m.csr); err != nil {
				t.Fatal(err)
			}
			m.decide()
			if got := m.findings.request != ""; got != c.found {
				t.Errorf("a finding: %v", got)
			}
			if got := m.history(); !slices.Equal(got, c.want) {
				t.Errorf("the history is %q", got)
			}
		})
	}
}
