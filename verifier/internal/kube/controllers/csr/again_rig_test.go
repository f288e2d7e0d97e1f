// SPDX-License-Identifier: Apache-2.0

package csr_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/approver"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/record"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/approval"
)

// asksAgain is the same kubelet after a quarter of an hour: with a key that it has
// just made, and without the one before.
func (k *kubelet) asksAgain() (now *kubelet, request string) {
	k.Helper()
	again := *k
	again.key = k.kubelet(k.c.Admin()).key
	return &again, again.ask()
}

func TestJoin_NewestOfSeveralWaitingRequests(t *testing.T) {
	s := newSite(t)
	m := s.machine("w-0")
	s.configMap("switch", "config.yaml", "nodeClientCert: {disabled: true}")
	s.run()
	k := s.attested(m)
	first := k.ask()
	s.left(first, "retry", "CSRDisabled")
	now, second := k.asksAgain()
	s.left(second, "retry", "CSRDisabled")
	s.configMap("switch", "config.yaml", "")
	now.withCertificate(s.signed(second))
	if got := conditions(s.csr(first)); got != "" {
		t.Errorf("the first request has the conditions %q", got)
	}
	if c := s.record(m).Certificate; c == nil || c.Request != second {
		t.Errorf("the record has %+v", c)
	}
}

// recorded is what the record says when the approver died before the approval.
func (s *site) recorded(m *machine.Machine, request string) {
	s.Helper()
	r := approver.FromCSR(s.csr(request))
	c := v1alpha1.CertificateStatus{Node: r.Node(), PublicKeySHA256: r.PublicKeySHA256, Request: request,
		CredentialID: r.CredentialID}
	s.ok(s.records.Update(s.Context(), m.UID,
		func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
			return record.Approve(rec, c, time.Now())
		}))
}

func TestJoin_NewKeyReplacesOneThatWasNeverApproved(t *testing.T) {
	for name, what := range map[string]func(*site, string){
		"its request waits": func(*site, string) {},
		"its request is gone": func(s *site, name string) {
			s.ok(s.admin.CertificatesV1().CertificateSigningRequests().Delete(s.context(), name, metav1.DeleteOptions{}))
		},
		"its request was denied": func(s *site, name string) { s.decide(name, certificatesv1.CertificateDenied) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			m := s.machine("w-0")
			k := s.attested(m)
			first := k.ask()
			s.recorded(m, first)
			what(s, first)
			now, second := k.asksAgain()
			s.run()
			now.withCertificate(s.signed(second))
			if c := s.record(m).Certificate; c == nil || c.Request != second {
				t.Errorf("the record has %+v", c)
			}
			if name == "its request waits" {
				if got := conditions(s.csr(first)); got != "Denied mcs-attest" {
					t.Errorf("the first request could still be approved: %q", got)
				}
			}
		})
	}
}

func TestAttack_T54_AKeyThatWasApprovedGivesWayToNoOther(t *testing.T) {
	s := newSite(t)
	m := s.machine("w-0")
	k := s.attested(m)
	first := k.ask()
	s.recorded(m, first)
	s.approve(first) // by another approver, and the Node does not exist yet
	_, second := k.asksAgain()
	s.run()
	s.left(second, "refuse", "CSRKeyChanged")
	if c := s.record(m).Certificate; c == nil || c.Request != first {
		t.Errorf("the record has %+v", c)
	}
}

// The Node is gone, and no request with the key is approved. The record says that the Node existed.
func TestAttack_T54_AKeyWhoseNodeExistedGivesWayToNoOther(t *testing.T) {
	s := newSite(t)
	m := s.machine("w-0")
	k := s.attested(m)
	s.recorded(m, k.ask())
	s.ok(s.records.Update(s.Context(), m.UID,
		func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
			return record.CertificateUsed(rec, k.node), nil
		}))
	_, second := k.asksAgain()
	s.run()
	s.left(second, "refuse", "CSRKeyChanged")
}

// While what was watched cannot be relied on nothing is decided, and nothing denied.
func TestNothingIsDecidedOnOutdatedState(t *testing.T) {
	s := newSite(t)
	a := s.machine("a")
	s.machine("b")
	var asked, ready atomic.Int32
	s.options.Ready = func() error {
		asked.Add(1)
		if ready.Load() == 0 {
			return errors.New("the Machines are being listed")
		}
		return nil
	}
	k := s.attested(a)
	thief := *k
	thief.node = s.node("b")
	good, bad := k.ask(), thief.ask()
	s.run()
	s.eventually(func() error {
		if asked.Load() < 6 {
			return errors.New("it was not asked yet")
		}
		return nil
	})
	for _, name := range []string{good, bad} {
		if got := conditions(s.csr(name)); got != "" {
			t.Errorf("%s has the conditions %q", name, got)
		}
	}
	if s.record(a).Certificate != nil {
		t.Error("a certificate is on the record")
	}
	ready.Store(1)
	s.denied(bad, "CSROtherMachine")
	s.signed(good)
}

// A Machine that is slow to get its addresses, and one before it that still has the
// name: not a lie.
func TestPredecessorOfTheSameHostName_DelaysTheApproval(t *testing.T) {
	s := newSite(t).run()
	old := s.machine("old")
	m := s.machineOf(machines, map[string]any{
		"apiVersion": "machine.openshift.io/v1beta1", "kind": "Machine",
		"metadata": map[string]any{"name": "new",
			"labels": map[string]any{"machine.openshift.io/cluster-api-machine-role": "worker"}},
		"spec": map[string]any{},
	}, []any{address("InternalIP", "10.0.0.9")})
	k := s.attested(m)
	k.node = s.node("old")
	name := k.ask()
	s.left(name, "retry", "MachineNotFound")
	s.ok(s.dyn.Resource(machines).Namespace(s.namespace).Delete(s.context(), old.Name, metav1.DeleteOptions{}))
	client := s.dyn.Resource(machines).Namespace(s.namespace)
	o, err := client.Get(s.context(), m.Name, metav1.GetOptions{})
	s.ok(err)
	o.Object["status"] = map[string]any{"addresses": []any{address("InternalDNS", s.node("old"))}}
	_, err = client.UpdateStatus(s.context(), o, metav1.UpdateOptions{})
	s.ok(err)
	s.signed(name)
}

// A record that comes back: its credential is as good as before.
func TestCredentialWithoutARecord_IsEvaluatedAgain(t *testing.T) {
	s := newSite(t).run()
	m := s.machine("w-0")
	k, id := s.bootstrap()
	k.node = s.node("w-0")
	name := k.ask()
	s.left(name, "refuse", "CSRCredential")
	s.credential(m, id)
	s.signed(name)
}

// stale is a directory that still has a Machine which was recreated since.
type stale struct {
	*site
	old machine.Ref
}

func (d stale) ByInternalDNS(name string) []machine.Ref {
	return append([]machine.Ref{d.old}, append(d.site.ByInternalDNS(name), d.site.ByInternalDNS(name)...)...)
}

func TestRecreatedMachine_IsOneMachine(t *testing.T) {
	s := newSite(t)
	m := s.machine("w-0")
	ref := s.list().ByInternalDNS(s.node("w-0"))[0]
	ref.UID = "gone"
	w := approval.NewReader(approval.Options{
		Client: s.reader, Config: s.options.Config, Namespaces: []string{s.namespace}, Machines: stale{s, ref},
		Records: s.records,
	})
	found, err := w.MachinesByInternalDNS(context.Background(), s.node("w-0"))
	s.ok(err)
	if len(found) != 1 || found[0].UID != m.UID {
		t.Errorf("%+v", found)
	}
	s.attested(m)
	rec, err := s.records.Record(t.Context(), m.UID)
	s.ok(err)
	own, err := w.MachineOf(context.Background(), rec)
	s.ok(err)
	if own == nil || own.UID != m.UID || len(own.Addresses) == 0 {
		t.Errorf("its record's Machine is %+v", own)
	}
	rec.Status.MachineUID = "gone"
	if own, err = w.MachineOf(context.Background(), rec); err != nil || own != nil {
		t.Errorf("the Machine before it: %+v, %v", own, err)
	}
}
