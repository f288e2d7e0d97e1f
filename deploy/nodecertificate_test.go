// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"slices"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/mcs-attest/mcs-attest/testvm/cluster"
)

// The component lets the controller request kubelets' certificates, and restricts what a stolen account
// of it can request. The processes that serve machines request nothing.
func TestAttack_T73_TheControllerRequestsOnlyCertificatesOfKubelets(t *testing.T) {
	objects := withComponent(t, "node-certificate")
	c := cluster.StartShared(t)
	applyComponent(t, c, objects, 4, "mcs-attest-node-certificate")
	client := func(account string) kubernetes.Interface {
		api, err := kubernetes.NewForConfig(c.ServiceAccount(t, Namespace, account))
		if err != nil {
			t.Fatal(err)
		}
		return api
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{Organization: []string{"system:nodes"}, CommonName: "system:node:worker-0"}}, key)
	if err != nil {
		t.Fatal(err)
	}
	// try returns the error of the API server, which stores nothing.
	try := func(api kubernetes.Interface, change func(*certificatesv1.CertificateSigningRequest)) error {
		csr := &certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{Name: "mcs-attest-u1-k1"},
			Spec: certificatesv1.CertificateSigningRequestSpec{
				Request:           pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
				SignerName:        certificatesv1.KubeAPIServerClientKubeletSignerName,
				Usages:            []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
				ExpirationSeconds: ptr.To[int32](4 * 3600),
			},
		}
		if change != nil {
			change(csr)
		}
		_, err := api.CertificatesV1().CertificateSigningRequests().Create(t.Context(), csr,
			metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	controller := client(Controller)
	if !until(func() bool { err = try(controller, nil); return err == nil }) {
		t.Fatalf("the controller: %v", err)
	}
	if err := try(client(ServiceAccount), nil); err == nil {
		t.Error("a process that serves made a request")
	}
	for name, change := range map[string]func(*certificatesv1.CertificateSigningRequest){
		"only client certificates of kubelets": func(csr *certificatesv1.CertificateSigningRequest) {
			csr.Spec.SignerName = certificatesv1.KubeAPIServerClientSignerName
		},
		"only requests named": func(csr *certificatesv1.CertificateSigningRequest) { csr.Name = "csr-1" },
		"only the usages of a client": func(csr *certificatesv1.CertificateSigningRequest) {
			csr.Spec.Usages = append(slices.Clone(csr.Spec.Usages), certificatesv1.UsageServerAuth)
		},
		"at most a day": func(csr *certificatesv1.CertificateSigningRequest) {
			csr.Spec.ExpirationSeconds = ptr.To[int32](86401)
		},
		"lasts": func(csr *certificatesv1.CertificateSigningRequest) { csr.Spec.ExpirationSeconds = nil },
	} {
		// A policy takes effect some time after its creation.
		if !until(func() bool { err = try(controller, change); return err != nil }) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
