// SPDX-License-Identifier: Apache-2.0

package csr_test

import (
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/testvm/cluster"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
)

func TestJoin_AttestedMachineBecomesANode(t *testing.T) {
	s := newSite(t).run()
	m := s.machine("w-0")
	k := s.attested(m)
	name := k.ask()
	cert := s.signed(name)
	if want := "system:node:" + s.node("w-0"); cert.Subject.CommonName != want {
		t.Errorf("the certificate is for %q, not %q", cert.Subject.CommonName, want)
	}
	k.withCertificate(cert)
	rec := s.record(m)
	switch c := rec.Certificate; {
	case c == nil:
		t.Error("the record has no certificate")
	case c.Node != k.node || c.Request != name || c.PublicKeySHA256 == "" || c.CredentialID != rec.Credentials[0].ID:
		t.Errorf("the record has the certificate %+v", c)
	}
	if rec.Phase != v1alpha1.PhaseJoined {
		t.Errorf("the phase is %s", rec.Phase)
	}
	if got := s.events.about(m); !slices.Equal(got, []string{"Joined"}) {
		t.Errorf("the events are %q", got)
	}
	if n := s.count("mcs_attest_csr_decisions_total", "kind", "client", "outcome", "approve", "reason", ""); n != 1 {
		t.Errorf("%v approvals were counted", n)
	}
}

// Status row D12: a cluster has Cluster API without the Machine API, then both.
// In TestAttack_T54_OnlyTheMachineThatAttestedBecomesItsNode, a cluster has only the Machine API.
func TestJoin_ClusterAPIMachineBecomesANode(t *testing.T) {
	c := cluster.Start(t, cluster.Controllers("certificatesigningrequest-signing-controller"))
	c.InstallClusterAPI(t)
	c.InstallOwn(t)
	s := siteIn(t, c).run()
	m := s.capiMachine("w-0")
	k := s.attested(m).join()
	s.joins(m)
	s.signed(k.askServing([]string{k.node}, nil))
	c.InstallOpenShift(t)
	s.attested(s.capiMachine("w-1")).join()
	s.attested(s.machine("w-2")).join()
}

// Status rows D12 and D17: a cluster has neither API, and a host that was enrolled
// becomes a node.
func TestJoin_StandInBecomesANodeWithoutMachines(t *testing.T) {
	c := cluster.Start(t, cluster.Controllers("certificatesigningrequest-signing-controller"))
	c.InstallOwn(t)
	s := siteIn(t, c).run()
	k := s.attested(s.standIn("host-0")).join()
	s.left(k.askServing([]string{"elsewhere.example"}, nil), "retry", "CSRAddress")
	s.signed(k.askServing([]string{k.node}, nil))
}

// standIn creates an enrollment of a host. Its name is the node's.
func (s *site) standIn(name string) *machine.Machine {
	s.Helper()
	o, err := s.dyn.Resource(attestations).Namespace(s.namespace).Create(s.context(),
		&unstructured.Unstructured{Object: map[string]any{
			"apiVersion": v1alpha1.APIVersion, "kind": v1alpha1.KindMachineAttestation,
			"metadata": map[string]any{"name": s.node(name)},
			"spec":     map[string]any{"pool": "worker", "ekSHA256": []any{strings.Repeat("ab", 32)}},
		}}, metav1.CreateOptions{})
	s.ok(err)
	m := *s.watched(o)
	m.Name = name // as the tests name machines
	return &m
}

func TestJoin_MachineWithABootstrapTokenBecomesANode(t *testing.T) {
	s := newSite(t)
	group := "system:bootstrappers:" + s.namespace
	s.options.Credential = &config.Credential{Kind: config.BootstrapToken, Groups: []string{group}}
	s.run()
	_, err := s.admin.RbacV1().ClusterRoleBindings().Create(s.context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: s.namespace + "-group"},
		RoleRef: rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "ClusterRole",
			Name: "system:node-bootstrapper"},
		Subjects: []rbacv1.Subject{{Kind: "Group", APIGroup: "rbac.authorization.k8s.io", Name: group}},
	}, metav1.CreateOptions{})
	s.ok(err)
	token := func() (id, text string) {
		id, secret := strings.ToLower(rand.Text()[:6]), strings.ToLower(rand.Text()[:16])
		made, err := s.admin.CoreV1().Secrets("kube-system").Create(s.context(), &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-" + id}, Type: corev1.SecretTypeBootstrapToken,
			StringData: map[string]string{"token-id": id, "token-secret": secret, "usage-bootstrap-authentication": "true",
				"auth-extra-groups": group},
		}, metav1.CreateOptions{})
		s.ok(err)
		t.Cleanup(func() {
			s.ok(s.admin.CoreV1().Secrets("kube-system").Delete(s.context(), made.Name, metav1.DeleteOptions{}))
		})
		return "system:bootstrap:" + id, id + "." + secret
	}
	t.Cleanup(func() {
		s.ok(s.admin.RbacV1().ClusterRoleBindings().Delete(s.context(), s.namespace+"-group", metav1.DeleteOptions{}))
	})
	id, text := token()
	m := s.machine("w-0")
	s.credential(m, id)
	k := s.bearer(text)
	k.node = s.node("w-0")
	k.join()

	// Another's, that no machine attested for.
	s.machine("w-1")
	_, text = token()
	k = s.bearer(text)
	k.node = s.node("w-1")
	s.left(k.ask(), "refuse", "CSRCredential")
}

// bearer is a kubelet with a token. It waits until the API server knows the token and lets it make
// requests: the API server watches Secrets and bindings, so it learns of new ones late.
func (s *site) bearer(token string) *kubelet {
	s.Helper()
	api := rest.AnonymousClientConfig(s.c.Admin())
	api.QPS, api.BearerToken = -1, token
	k := s.kubelet(api)
	s.eventually(func() error {
		review, err := k.api.AuthorizationV1().SelfSubjectAccessReviews().Create(s.context(),
			&authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
				ResourceAttributes: &authorizationv1.ResourceAttributes{
					Verb: "create", Group: certificatesv1.GroupName, Resource: "certificatesigningrequests",
				},
			}}, metav1.CreateOptions{})
		if err == nil && !review.Status.Allowed {
			err = errors.New("the token may not make requests for certificates")
		}
		return err
	})
	return k
}

// A Machine's names may be late.
func TestMachineThatDoesNotExistYet_IsRetried(t *testing.T) {
	s := newSite(t).run()
	m := s.machineOf(machines, map[string]any{
		"apiVersion": "machine.openshift.io/v1beta1", "kind": "Machine", "metadata": map[string]any{"name": "w-0"},
		"spec": map[string]any{},
	}, []any{address("InternalIP", "192.0.2.7")})
	name := s.attested(m).ask()
	s.left(name, "retry", "MachineNotFound")
	client := s.dyn.Resource(machines).Namespace(s.namespace)
	o, err := client.Get(s.context(), m.Name, metav1.GetOptions{})
	s.ok(err)
	s.ok(unstructured.SetNestedSlice(o.Object, []any{address("InternalDNS", strings.ToUpper(s.node("w-0"))+".")}, "status",
		"addresses"))
	_, err = client.UpdateStatus(s.context(), o, metav1.UpdateOptions{})
	s.ok(err)
	s.signed(name)
}

// Status row D13.
func TestRequestsOfOthersAreNotTouched(t *testing.T) {
	s := newSite(t).run()
	k := s.attested(s.machine("w-0"))
	other := k.ask(func(csr *certificatesv1.CertificateSigningRequest, _ *certificateRequest) {
		csr.Spec.SignerName = "example.com/other"
	})
	admin := *k
	admin.api = s.admin
	renewal := admin.ask() // not by the bootstrapper
	s.signed(k.ask())
	for _, name := range []string{other, renewal} {
		if got := conditions(s.csr(name)); got != "" {
			t.Errorf("%s: the conditions are %q", name, got)
		}
	}
}

// A machine that joined once has joined, whichever approver approved it.
func TestRequestApprovedByAnotherApprover_IsTheFirst(t *testing.T) {
	s := newSite(t)
	m := s.machine("w-0")
	k := s.attested(m)
	csr := s.csr(k.ask())
	s.approve(csr.Name)
	s.run()
	s.eventually(func() error {
		if c := s.record(m).Certificate; c == nil || c.Request != csr.Name {
			return fmt.Errorf("the record has the certificate %+v", c)
		}
		return nil
	})
	thief := *k
	thief.key = s.kubelet(s.c.Admin()).key
	second := thief.ask()
	s.left(second, "refuse", "CSRKeyChanged")

	// If another approver approves what the verifier would not, that is reported.
	m2 := s.machine("w-1")
	k = s.attested(m2)
	s.signed(k.ask())
	thief = *k
	thief.key = s.kubelet(s.c.Admin()).key
	s.stop()
	s.approve(thief.ask())
	if got := s.events.about(m2); slices.Contains(got, "CertificateRefused CSRKeyChanged") {
		t.Fatalf("the events are %q", got)
	}
	s.run()
	s.eventually(func() error {
		if got := s.events.about(m2); !slices.Contains(got, "CertificateRefused CSRKeyChanged") {
			return fmt.Errorf("the events are %q", got)
		}
		return nil
	})
}

// approve approves a request as another approver.
func (s *site) approve(name string) {
	s.Helper()
	s.decide(name, certificatesv1.CertificateApproved)
}

func (s *site) decide(name string, how certificatesv1.RequestConditionType) {
	s.Helper()
	csr := s.csr(name)
	csr.Status.Conditions = append(csr.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: how, Status: corev1.ConditionTrue, Reason: "NodeCSRApprove",
		Message: "by another approver",
	})
	_, err := s.admin.CertificatesV1().CertificateSigningRequests().UpdateApproval(s.context(), csr.Name, csr, metav1.UpdateOptions{})
	s.ok(err)
}
