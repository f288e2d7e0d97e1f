// SPDX-License-Identifier: Apache-2.0

package mcscertificates_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vincent-petithory/dataurl"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/mcs-attest/mcs-attest/deploy"
	"github.com/mcs-attest/mcs-attest/pkg/mcscert"
	"github.com/mcs-attest/mcs-attest/pkg/pki"
	"github.com/mcs-attest/mcs-attest/pkg/pointer"
	"github.com/mcs-attest/mcs-attest/testvm/cluster"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/controllers/mcscertificates"
)

const (
	mco      = "openshift-machine-config-operator"
	machines = "openshift-machine-api"
	hostname = "api-int.example.com"

	// boot is the longest pause of a machine here between its user data and its request.
	boot = 400 * time.Millisecond
	// hosts is how many machines boot at a time.
	hosts = 4
)

// site is a cluster as openshift-install leaves it, without an operator.
type site struct {
	*testing.T
	c      *cluster.Cluster
	admin  kubernetes.Interface
	leaf   atomic.Pointer[tls.Certificate]
	addr   string
	booted [hosts]atomic.Int64 // machines, by host
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{T: t, c: cluster.Start(t)}
	s.c.InstallOpenShift(t)
	for _, ns := range []string{mco, machines, "openshift-config", "mcs-attest"} {
		s.c.KubectlApply(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+ns+"}\n")
	}
	s.c.KubectlApply(t, "apiVersion: v1\nkind: ServiceAccount\n"+
		"metadata: {namespace: mcs-attest, name: mcs-attest-controller}\n")
	for _, file := range []string{"overlays/openshift/controller-rbac.yaml", "components/certificates/rbac.yaml"} {
		raw, err := os.ReadFile(filepath.Join(deploy.Dir(t), file))
		if err != nil {
			t.Fatal(err)
		}
		s.c.KubectlApply(t, string(raw))
	}
	s.admin = kubernetes.NewForConfigOrDie(s.c.Admin())
	return s
}

func (s *site) create(o any) {
	s.Helper()
	var err error
	switch o := o.(type) {
	case *corev1.Secret:
		_, err = s.admin.CoreV1().Secrets(o.Namespace).Create(s.Context(), o, metav1.CreateOptions{})
	case *corev1.ConfigMap:
		_, err = s.admin.CoreV1().ConfigMaps(o.Namespace).Create(s.Context(), o, metav1.CreateOptions{})
	}
	if err != nil {
		s.Fatal(err)
	}
}

// install leaves what the installer does: root-ca, whose key is thrown away, an
// Opaque serving Secret, pointer configs.
func (s *site) install() {
	s.Helper()
	now := time.Now()
	ca, err := pki.NewCA("root-ca", now)
	if err != nil {
		s.Fatal(err)
	}
	leaf, err := ca.Serve([]string{hostname}, now)
	if err != nil {
		s.Fatal(err)
	}
	s.create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "root-ca"},
		Data: map[string]string{"ca.crt": string(ca.Certificate)}})
	s.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: mco, Name: "machine-config-server-tls"},
		Data: map[string][]byte{"tls.crt": leaf.Certificate, "tls.key": leaf.Key.Expose()}})
	for _, name := range []string{"worker", "infra"} {
		source, err := json.Marshal(dataurl.New(ca.Certificate, "text/plain", "charset", "utf-8").String())
		if err != nil {
			s.Fatal(err)
		}
		raw := fmt.Sprintf(`{"ignition":{"config":{"merge":[{"source":"https://%s:22623/config/worker"}]},"security":{"tls":{"certificateAuthorities":[{"source":%s}]}},"version":"3.2.0"}}`, hostname, source)
		s.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: machines, Name: name + "-user-data"},
			Data: map[string][]byte{"userData": []byte(raw), "disableTemplating": []byte("true")}})
	}
	s.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: machines, Name: "windows-user-data"},
		Data: map[string][]byte{"userData": []byte("<powershell>")}})
	s.c.KubectlApply(s, `
apiVersion: machine.openshift.io/v1beta1
kind: MachineSet
metadata: {namespace: `+machines+`, name: infra}
spec: {template: {spec: {providerSpec: {value: {userDataSecret: {name: infra-user-data}}}}}}
`)
}

// controller works with an account: the verifier's, or an administrator's.
func (s *site) controller(r *rest.Config, person bool) *mcscertificates.Reconciler {
	s.Helper()
	r = rest.CopyConfig(r)
	r.QPS, r.Burst = -1, 0
	api, err := kube.NewClient(r)
	if err != nil {
		s.Fatal(err)
	}
	c, err := mcscertificates.New(mcscertificates.Options{
		Client: api, ListUserData: person, Hostnames: []string{hostname}, Every: 50 * time.Millisecond,
		Config: &config.Config{Kubernetes: &config.Kubernetes{
			ServingSecret: mco + "/machine-config-server-tls", CAConfigMap: mco + "/machine-config-server-ca",
			UserDataSecrets:   []string{machines + "/worker-user-data", machines + "/master-user-data"},
			MachineNamespaces: []string{machines},
		}},
	})
	if err != nil {
		s.Fatal(err)
	}
	return c
}

// serve answers TLS with what the Secret holds, a moment behind.
func (s *site) serve() {
	s.Helper()
	read := func() error {
		o, err := s.admin.CoreV1().Secrets(mco).Get(s.Context(), "machine-config-server-tls", metav1.GetOptions{})
		if err != nil {
			return err
		}
		c, err := pki.ParseServing([][]byte{o.Data["tls.crt"], o.Data["tls.key"]})
		if err == nil {
			s.leaf.Store(c)
		}
		return err
	}
	if err := read(); err != nil {
		s.Fatal(err)
	}
	go func() {
		for s.Context().Err() == nil {
			_ = read() // what was read last stays, as in the verifier
			time.Sleep(20 * time.Millisecond)
		}
	}()
	l, err := tls.Listen("tcp", "127.0.0.1:0",
		&tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.leaf.Load(), nil }})
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = l.Close() })
	s.addr = l.Addr().String()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				if c, ok := conn.(*tls.Conn); ok {
					_ = c.Handshake() // the client says what was wrong
				}
			}()
		}
	}()
}

// roots are what a machine with this user data trusts.
func (s *site) roots(name string) *x509.CertPool {
	s.Helper()
	o, err := s.admin.CoreV1().Secrets(machines).Get(context.WithoutCancel(s.Context()), name, metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	p, err := pointer.Parse(o.Data["userData"])
	if err != nil {
		s.Fatal(err)
	}
	all, err := p.CertificateAuthorities()
	if err != nil {
		s.Fatal(err)
	}
	roots := x509.NewCertPool()
	for _, c := range all {
		roots.AddCert(c)
	}
	return roots
}

func (s *site) fetch(roots *x509.CertPool) error {
	d := tls.Dialer{NetDialer: &net.Dialer{Timeout: time.Minute},
		Config: &tls.Config{RootCAs: roots, ServerName: hostname}}
	conn, err := d.DialContext(context.WithoutCancel(s.Context()), "tcp", s.addr)
	if err != nil {
		return err
	}
	return conn.Close()
}

// boots starts machines, one after the other on each of some hosts: each reads its
// user data and asks for its config a while later.
func (s *site) boots(name string) (stop func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	for i := range hosts {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				roots := s.roots(name)
				time.Sleep(mathrand.N(boot))
				if err := s.fetch(roots); err != nil {
					s.Errorf("a machine failed: %v", err)
				}
				s.booted[i].Add(1)
			}
		})
	}
	stop = sync.OnceFunc(func() { close(done); wg.Wait() })
	s.Cleanup(stop)
	return stop
}

// settle waits until each machine that has read its user data by now has its config. The day of mcscert.Publish stands
// for it elsewhere.
func (s *site) settle() {
	s.Helper()
	for i := range s.booted {
		// The first of these may have begun before.
		two := s.booted[i].Load() + 2
		s.eventually("a machine boots", func() bool { return s.booted[i].Load() >= two })
	}
}

func (s *site) eventually(what string, check func() bool) {
	s.Helper()
	for end := time.Now().Add(2 * time.Minute); !check(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			s.Fatalf("never: %s", what)
		}
	}
}

// A cluster of an installer is taken over, and its certificates are renewed twice,
// while machines boot all the time, with the verifier's own account and its roles.
// None of them fails.
func TestRotationWhileMachinesBoot(t *testing.T) {
	s := newSite(t)
	s.install()
	s.serve()
	verifier := s.c.ServiceAccount(t, "mcs-attest", "mcs-attest-controller")
	replica := func() (c *mcscertificates.Reconciler, stop func()) {
		c = s.controller(verifier, false)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			log := slog.New(slog.DiscardHandler)
			kube.RunManager(ctx, log, func() (manager.Manager, error) {
				m, err := kube.NewManager(verifier, kube.Options{Log: log})
				if err != nil {
					return nil, err
				}
				return m, c.SetupWithManager(m)
			})
		})
		return c, func() { cancel(); wg.Wait() }
	}
	first := s.roots("worker-user-data")
	stopBoots := s.boots("worker-user-data")

	// Nothing is decided yet, so nothing is written.
	one, stop := replica()
	s.eventually("it says who renews", func() bool { return one.Status().Case == mcscert.CaseOperatorToCome })
	if _, err := s.admin.CoreV1().Secrets(mco).Get(t.Context(), "machine-config-server-ca",
		metav1.GetOptions{}); err == nil {
		t.Error("it made a CA")
	}

	person := s.controller(s.c.Admin(), true)
	if _, err := person.Init(t.Context(), false); !errors.Is(err, mcscert.ErrNotOurs) {
		t.Errorf("init where there are MachineSets: %v", err)
	}
	state, err := person.Init(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	if len(state.Bundle) != 2 || state.Leaf.Issuer.CommonName != "root-ca" {
		t.Errorf("%d CAs, served by %s", len(state.Bundle), state.Leaf.Issuer)
	}
	if err := s.fetch(first); err != nil {
		t.Errorf("a machine with the installer's pointer config, after init: %v", err)
	}
	s.eventually("the replica sees that it is its own", func() bool { return one.Status().Case == mcscert.CaseOurs })
	// It may not read what the installer did not make.
	s.eventually("a finding", func() bool {
		f := one.Findings()
		return len(f) == 1 && strings.Contains(f[0].Text, machines+"/infra-user-data") && strings.Contains(f[0].Text, "Role")
	})
	s.c.Kubectl(t, "patch", "role", "mcs-attest-controller", "-n", machines, "--type=json",
		`-p=[{"op":"add","path":"/rules/0/resourceNames/-","value":"infra-user-data"}]`)
	s.eventually("no finding", func() bool { return len(one.Findings()) == 0 })

	rotate := func(want mcscert.Step, now bool) {
		t.Helper()
		s.settle()
		step, _, err := person.Rotate(t.Context(), mcscert.Force{Serving: now})
		if err != nil || step != want {
			t.Fatalf("%s, %v; want %s", step, err, want)
		}
		state = person.Status()
		s.eventually("the replica sees and serves it", func() bool {
			at, served := one.Status(), s.leaf.Load().Leaf
			return at.Leaf != nil && at.Leaf.Equal(state.Leaf) && at.CA.Equal(state.CA) &&
				served != nil && served.Equal(state.Leaf)
		})
	}
	var early *mcscert.TooEarly
	if _, _, err := person.Rotate(t.Context(), mcscert.Force{}); !errors.As(err, &early) {
		t.Errorf("what is served by the new CA, a moment after it was made: %v", err)
	}
	rotate(mcscert.StepServing, true)
	rotate(mcscert.StepCA, false)
	// Another replica takes the lease between the steps.
	stop()
	one, stop = replica()
	rotate(mcscert.StepServing, true)
	rotate(mcscert.StepCA, false)
	rotate(mcscert.StepServing, true)
	s.settle()
	stop()
	stopBoots()
	if f := one.Findings(); len(f) > 0 {
		t.Errorf("findings %v", f)
	}
	if err := s.fetch(s.roots("infra-user-data")); err != nil {
		t.Errorf("the pointer config of the other MachineSet: %v", err)
	}
	if o, err := s.admin.CoreV1().Secrets(machines).Get(t.Context(), "windows-user-data",
		metav1.GetOptions{}); err != nil || string(o.Data["userData"]) != "<powershell>" {
		t.Errorf("what is no Ignition was changed: %v", err)
	}

	// That this test can fail: both steps together fail an older machine.
	before := s.roots("worker-user-data")
	for step := mcscert.StepCA; ; {
		var err error
		if step, _, err = person.Rotate(t.Context(), mcscert.Force{Serving: true}); err != nil {
			t.Fatal(err)
		}
		if step == mcscert.StepServing {
			break
		}
	}
	state = person.Status()
	s.eventually("it is served", func() bool { l := s.leaf.Load(); return l.Leaf != nil && l.Leaf.Equal(state.Leaf) })
	if err := s.fetch(before); err == nil {
		t.Error("a machine that knows nothing of the new CA trusts it")
	}
}
