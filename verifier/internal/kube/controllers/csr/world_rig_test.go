// SPDX-License-Identifier: Apache-2.0

package csr_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/approval"
)

const off = "nodeClientCert:\n  disabled: true\n"

var loopback = net.IPv4(127, 0, 0, 1)

// kubeletAt serves as a kubelet does, and has its Node say where.
func (k *kubelet) kubeletAt(cert *x509.Certificate, key *ecdsa.PrivateKey) {
	k.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0",
		&tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: key}}})
	k.ok(err)
	server := &http.Server{Handler: http.NotFoundHandler(), ReadHeaderTimeout: limit}
	go server.Serve(l)
	k.Cleanup(func() { server.Close() })
	k.at(l.Addr().String())
}

// at has the Node name the address of its kubelet.
func (k *kubelet) at(address string) {
	k.Helper()
	host, port, err := net.SplitHostPort(address)
	k.ok(err)
	n, err := strconv.Atoi(port)
	k.ok(err)
	node, err := k.admin.CoreV1().Nodes().Get(k.context(), k.node, metav1.GetOptions{})
	k.ok(err)
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: host}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(n)
	_, err = k.admin.CoreV1().Nodes().UpdateStatus(k.context(), node, metav1.UpdateOptions{})
	k.ok(err)
}

// Status rows D7 and D8.
func TestServing_FirstByTheMachineThenByThePreviousCertificate(t *testing.T) {
	s := newSite(t).run()
	m := s.machine("w-0", address("InternalIP", "127.0.0.1"))
	k := s.attested(m).join()
	names, addresses := []string{k.node}, []net.IP{loopback}

	first := k.askServing(names, addresses)
	s.left(first, "retry", "MachineNotFound") // the Machine of the Node is not known yet
	s.joins(m)
	cert := s.signed(first)
	k.kubeletAt(cert, k.key)

	// The Machine does not say any more what it is called.
	s.ok(s.dyn.Resource(machines).Namespace(s.namespace).Delete(s.context(), m.Name, metav1.DeleteOptions{}))
	s.signed(k.askServing(names, addresses))
	s.left(k.askServing(append(names, "api.example.com"), addresses), "retry", "MachineNotFound")
	s.left(k.askServing(names, append(addresses, net.IPv4(192, 0, 2, 1))), "retry", "MachineNotFound")
}

// Status row D7: what is on a Node is the node's own word.
func TestAttack_T54_ServingCertificateForWhatIsNotTheMachines(t *testing.T) {
	s := newSite(t).run()
	m := s.machine("w-0", address("InternalIP", "127.0.0.1"))
	k := s.attested(m).join()
	s.joins(m)
	s.left(k.askServing([]string{k.node, "api.example.com"}, []net.IP{loopback}), "retry", "CSRAddress")
	s.left(k.askServing([]string{k.node}, []net.IP{net.IPv4(192, 0, 2, 1)}), "retry", "CSRAddress")
	s.left(k.askServing(nil, nil), "refuse", "CSRContent")

	// The certificate that it shows is its own work.
	k.kubeletAt(selfSigned(t, k.key, k.node), k.key)
	s.left(k.askServing([]string{k.node, "api.example.com"}, []net.IP{loopback}), "retry", "CSRAddress")
	s.signed(k.askServing([]string{k.node}, []net.IP{loopback}))
}

// A kubelet that accepts connections but does not answer delays only its own requests.
func TestAttack_T54_KubeletThatNeverAnswers(t *testing.T) {
	s := newSite(t).run()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	s.ok(err)
	t.Cleanup(func() { silent.Close() })
	m := s.machine("a", address("InternalIP", "127.0.0.1"))
	k := s.attested(m).join()
	s.joins(m)
	k.at(silent.Addr().String())
	for range 9 { // more than are decided at a time
		k.askServing([]string{k.node, "api.example.com"}, []net.IP{loopback})
	}
	other := s.machine("b", address("InternalIP", "127.0.0.1"))
	o := s.attested(other).join()
	s.joins(other)
	s.signed(o.askServing([]string{o.node}, []net.IP{loopback}))
}

// A Node may say that its kubelet is wherever it likes.
func TestAttack_T54_ANodeSendsTheVerifierToItsOwnHost(t *testing.T) {
	s := newSite(t)
	s.options.Dial = nil
	s.run()
	var knocked atomic.Int64
	l, err := net.Listen("tcp", "127.0.0.1:0")
	s.ok(err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			knocked.Add(1)
			c.Close()
		}
	}()
	m := s.machine("w-0", address("InternalIP", "127.0.0.1"))
	k := s.attested(m).join()
	s.joins(m)
	k.at(l.Addr().String())
	s.left(k.askServing([]string{k.node, "api.example.com"}, []net.IP{loopback}), "retry", "CSRAddress")
	if n := knocked.Load(); n != 0 {
		t.Errorf("%d connections to the verifier's own host", n)
	}
}

// Status row D10: the switch is in force immediately, in both directions.
func TestSwitch_StopsAndResumesClientCertificates(t *testing.T) {
	s := newSite(t)
	s.configMap("switch", "config.yaml", off)
	s.run()
	name := s.attested(s.machine("w-0")).ask()
	s.left(name, "retry", "CSRDisabled")
	s.configMap("switch", "config.yaml", "nodeClientCert: [")
	s.left(name, "retry", "StoreUnavailable")
	s.finds("ApproverSwitchUnreadable")
	s.configMap("switch", "config.yaml", "nodeClientCert: {}")
	s.signed(name)
	s.finds("")
}

// finds waits until this is the only finding, or none if it is empty.
func (s *site) finds(want string) {
	s.Helper()
	s.eventually(func() error {
		got := ""
		for _, f := range s.approver.Findings() {
			got += f.Reason
		}
		if got != want {
			return fmt.Errorf("the findings are %+v", s.approver.Findings())
		}
		return nil
	})
}

// A stock approver that was not restarted approves, whatever its ConfigMap says.
func TestApprovalByAnotherApproverIsReported(t *testing.T) {
	s := newSite(t).run()
	shared, _ := s.bootstrap()
	shared.node = s.node("w-0")
	approvedFor := func(reason string) {
		t.Helper()
		csr := s.csr(shared.ask())
		csr.Status.Conditions = append(csr.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
			Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: reason,
		})
		_, err := s.admin.CertificatesV1().CertificateSigningRequests().UpdateApproval(s.context(), csr.Name, csr, metav1.UpdateOptions{})
		s.ok(err)
	}
	approvedFor("KubectlApprove")
	s.machine("w-1")
	s.attested(s.machine("w-2")).join() // made after it, and decided
	s.finds("")
	approvedFor("NodeCSRApprove")
	s.finds("StockApproverActive")
	if got := s.count("mcs_attest_csr_stock_approver"); got != 1 {
		t.Errorf("the metric is %v", got)
	}
}

// While the stock approver approves, attestation decides nothing.
func TestScan_ReportsAnActiveStockApprover(t *testing.T) {
	s := newSite(t)
	s.makeStock(1)
	s.run()
	s.finds("StockApproverActive")
	if s.count("mcs_attest_csr_stock_approver") != 1 {
		t.Error("no metric reports it")
	}
	s.configMap("stock-switch", "config.yaml", off)
	s.finds("")
	s.configMap("stock-switch", "config.yaml", "nodeClientCert: [") // the stock approver then takes its defaults
	s.finds("StockApproverActive")
	s.makeStock(0)
	s.finds("")
}

// makeStock makes the stock approver's Deployment, or changes it.
func (s *site) makeStock(replicas int32) {
	s.Helper()
	const namespace, name = "openshift-cluster-machine-approver", "machine-approver"
	_, err := s.admin.CoreV1().Namespaces().Create(s.context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	if err != nil && !strings.Contains(err.Error(), "already exists") {
		s.Fatal(err)
	}
	deployments := s.admin.AppsV1().Deployments(namespace)
	labels := map[string]string{"app": name}
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "example.com/i"}}}},
		},
	}
	if _, err = deployments.Update(s.context(), d, metav1.UpdateOptions{}); err != nil {
		_, err = deployments.Create(s.context(), d, metav1.CreateOptions{})
		s.Cleanup(func() {
			if err := deployments.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
				s.Errorf("delete Deployment %s: %v", name, err)
			}
		})
	}
	s.ok(err)
}

// Status row D18, beside the vectors of pkg/approver: without attestation the shared
// credential is enough, as for the stock approver.
func TestWithoutAttestationTheStockApproversChecksAreMade(t *testing.T) {
	s := newSite(t)
	s.options.Config.Attestation = config.AttestationOff
	s.options.Config.ConfigMap = s.options.Config.StockConfigMap
	s.makeStock(1)
	s.run()
	m := s.machine("w-0")
	k, _ := s.bootstrap()
	k.node = s.node("w-0")
	node := k.join()
	s.left(k.ask(), "refuse", "CSRNodeExists")
	stranger, _ := s.bootstrap()
	stranger.node = s.node("nobody")
	s.left(stranger.ask(), "retry", "MachineNotFound")
	s.joins(m)
	s.signed(node.askServing([]string{node.node}, nil))
	s.unmoved(m)
	s.finds("") // beside the stock approver, as good as it
}

// flaky is a connection to the API that breaks where it is told.
type flaky struct {
	next http.RoundTripper
	fail func(*http.Request) bool
}

func (f *flaky) RoundTrip(r *http.Request) (*http.Response, error) {
	if f.fail(r) {
		return nil, errors.New("the connection broke")
	}
	return f.next.RoundTrip(r)
}

// After a crash between the record and the approval: only the same key is approved
// again.
func TestAttack_T54_TheVerifierDiesBetweenTheRecordAndTheApproval(t *testing.T) {
	s := newSite(t)
	var reached atomic.Bool
	api := rest.CopyConfig(s.c.Admin())
	api.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &flaky{next, func(r *http.Request) bool {
			dead := reached.Load() || strings.HasSuffix(r.URL.Path, "/approval")
			reached.Store(dead)
			return dead
		}}
	})
	s.api = api
	m := s.machine("w-0")
	k := s.attested(m)
	name := k.ask()
	s.run()
	s.eventually(func() error {
		if !reached.Load() {
			return errors.New("nothing was approved")
		}
		return nil
	})
	s.stop()
	if c := s.record(m).Certificate; c == nil || c.Request != name {
		t.Fatalf("the record has the certificate %+v", c)
	}
	if got := conditions(s.csr(name)); got != "" {
		t.Fatalf("the conditions are %q", got)
	}
	s.api = s.c.Admin()
	s.run()
	s.signed(name)
	thief := *k
	thief.key = s.kubelet(s.c.Admin()).key
	s.left(thief.ask(), "refuse", "CSRKeyChanged")
}

// The API is unavailable for a while, and no request is denied because of that.
func TestDecide_DeniesNothingDuringAnOutageOfTheAPI(t *testing.T) {
	s := newSite(t)
	var away atomic.Bool
	api := rest.CopyConfig(s.c.Admin())
	api.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &flaky{next, func(r *http.Request) bool {
			discovery := strings.Count(r.URL.Path, "/") <= 3
			return away.Load() && !discovery && !strings.Contains(r.URL.Path, "certificatesigningrequests")
		}}
	})
	s.api = api
	away.Store(true)
	s.run()
	m := s.machine("w-0")
	name := s.attested(m).ask()
	s.left(name, "retry", "StoreUnavailable")
	away.Store(false)
	s.signed(name)
}

// What csr explain sees of the cluster is what the approver does.
func TestSnapshot_DecidesLikeTheApprover(t *testing.T) {
	s := newSite(t)
	a, b := s.machine("a"), s.capiMachine("b")
	s.joins(a)
	s.attested(b)
	_, id := s.bootstrap()
	s.credential(a, id)
	l, err := s.snapshot(s.namespace)
	s.ok(err)
	if got := l.ByNode(s.node("a")); len(got) != 1 || got[0] != a.Ref() {
		t.Errorf("of node a there are %v", got)
	}
	if got := l.ByInternalDNS(strings.ToUpper(s.node("b")) + "."); len(got) != 1 || got[0] != b.Ref() {
		t.Errorf("of name b there are %v", got)
	}
	if uid, ok := l.ByCredential(id); !ok || uid != a.UID {
		t.Errorf("the credential is %s's", uid)
	}
	if n, _ := l.Counts(); n != 2 {
		t.Errorf("there are %d Machines", n)
	}
	if rec, err := l.Record(t.Context(), a.UID); err != nil || rec == nil {
		t.Errorf("the record is %v (%v)", rec, err)
	}
	_, err = s.dyn.Resource(attestations).Namespace(s.namespace).Patch(t.Context(), b.UID, types.MergePatchType,
		[]byte(`{"status":{"lastAttested":"2026-11-27t04:00:00z"}}`), metav1.PatchOptions{}, "status")
	s.ok(err)
	everywhere, err := s.snapshot("*")
	s.ok(err)
	if rec, err := everywhere.Record(t.Context(), b.UID); err == nil {
		t.Errorf("a record that cannot be decoded is %v", rec)
	}
	if got := everywhere.ByNode(s.node("a")); len(got) != 1 || got[0] != a.Ref() {
		t.Errorf("of node a there are %v everywhere", got)
	}
	w := approval.NewReader(approval.Options{Client: s.reader, Config: s.options.Config, Namespaces: []string{"*"},
		Machines: everywhere, Records: everywhere})
	found, err := w.MachinesByNode(s.context(), s.node("a"))
	if err != nil || len(found) != 1 || found[0].UID != a.UID {
		t.Errorf("of node a there are %v (%v)", found, err)
	}
}

// What the verifier may not read is named.
func TestFindings_NameWhatTheVerifierMayNotRead(t *testing.T) {
	s := newSite(t)
	s.api = s.c.ServiceAccount(t, s.namespace, "nobody")
	s.run()
	s.eventually(func() error {
		all := ""
		for _, f := range s.approver.Findings() {
			if strings.Contains(f.Text, "forbidden") {
				all += f.Reason + " "
			}
		}
		if all != "StockApproverUnknown RequestsUnreadable ApproverSwitchUnreadable " {
			return fmt.Errorf("the findings are %+v", s.approver.Findings())
		}
		return nil
	})
	if s.count("mcs_attest_csr_stock_approver") != 0 {
		t.Error("the metric, which has an alert of its own, reports what is unknown")
	}
	s.stop()
	if all := s.approver.Findings(); len(all) != 0 {
		t.Errorf("a replica that does not decide finds %+v", all)
	}
}
