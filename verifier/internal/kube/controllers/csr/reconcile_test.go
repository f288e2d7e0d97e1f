package csr

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
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

// Two requests of one machine are not decided at the same time, even if both came before
// the inventory had the machine's record.
func TestADecisionWithoutTheMachinesLockIsMadeAgain(t *testing.T) {
	log := new(strings.Builder)
	known := new(late)
	c, err := New(Options{
		Config: config.Approver{
			Attestation: config.AttestationRequired, ConfigMap: "ns/switch", StockConfigMap: "ns/stock", KubeletCA: "ns/ca",
		},
		Credential: &config.Credential{Kind: config.ServiceAccountToken, ServiceAccount: "ns/node-bootstrapper"},
		Machines:   known, Records: known, Log: slog.New(slog.NewTextHandler(log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	scheme, err := kube.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(&certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "csr-1", CreationTimestamp: metav1.NewTime(time.Now())},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
			Username:   "system:serviceaccount:ns:node-bootstrapper",
			Groups:     []string{"system:serviceaccounts", "system:serviceaccounts:ns", "system:authenticated"},
			Extra:      map[string]certificatesv1.ExtraValue{"authentication.kubernetes.io/credential-id": {"JTI=1"}},
		},
	}).Build()
	r := &reconciler{Controllers: c, client: api, reader: approval.NewReader(approval.Options{
		Client: api, Config: c.o.Config, Rules: c.rules, Machines: known, Records: known,
	})}
	decide := func() reconcile.Result {
		result, err := r.Reconcile(t.Context(),
			reconcile.Request{NamespacedName: types.NamespacedName(client.ObjectKey{Name: "csr-1"})})
		if err != nil {
			t.Fatal(err)
		}
		return result
	}
	if result := decide(); result.RequeueAfter != busyPause || log.Len() > 0 {
		t.Errorf("it was decided: %+v\n%s", result, log)
	}
	if decide(); log.Len() == 0 {
		t.Error("it was not decided then")
	}
}
