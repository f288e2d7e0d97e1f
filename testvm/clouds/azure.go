// SPDX-License-Identifier: Apache-2.0

package clouds

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"time"

	"github.com/mcs-attest/mcs-attest/testvm/cloud/azure"
	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

const azureGroup = "demo-x7k2p-rg"

type microsoft struct {
	cloud    *azure.Cloud
	machines int
	// The authority that certifies the keys of virtual TPMs.
	ca    *x509.Certificate
	caKey *ecdsa.PrivateKey
}

func newAzure(t rig.TB) provider {
	t.Helper()
	c, err := azure.New()
	if err != nil {
		t.Fatalf("emulated Azure: %v", err)
	}
	m := &microsoft{cloud: c}
	if m.caKey, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatalf("emulated Azure: %v", err)
	}
	m.ca = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "Emulated Azure Virtual TPM Root"}, IsCA: true,
		BasicConstraintsValid: true,
		NotBefore:             time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(10, 0, 0),
		KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, m.ca, m.ca, m.caKey.Public(), m.caKey)
	if err == nil {
		m.ca, err = x509.ParseCertificate(der)
	}
	if err != nil {
		t.Fatalf("emulated Azure: %v", err)
	}
	return m
}

// certify returns an AK certificate in Azure's form, which names no machine.
func (m *microsoft) certify(key crypto.PublicKey) ([]byte, error) {
	return x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "emulated.VirtualTPM.Azure"},
		BasicConstraintsValid: true,
		NotBefore:             m.ca.NotBefore, NotAfter: m.ca.NotAfter, KeyUsage: x509.KeyUsageDigitalSignature,
		UnknownExtKeyUsage: []asn1.ObjectIdentifier{{2, 23, 133, 8, 3}}, // tcg-kp-AIKCertificate
	}, m.ca, key, m.caKey)
}

func (m *microsoft) section(t rig.TB, _ string) (string, map[string]string, []string) {
	t.Helper()
	api, err := m.cloud.Serve()
	if err != nil {
		t.Fatalf("emulated Azure: %v", err)
	}
	t.Cleanup(api.Close)
	text := fmt.Sprintf(`
azure:
  subscriptions: [%s]
  resourceGroups: [%s]
  arm: {url: %q, ca: azure-api.crt}
  login: {url: %q, ca: azure-api.crt}
`, m.cloud.Subscription, azureGroup, api.URL, api.URL)
	return text, map[string]string{
			"azure-api.crt":            string(api.CA),
			"azure-roots/emulated.pem": string(m.cloud.AnchorsPEM()),
			"ak-roots/emulated.pem":    string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: m.ca.Raw})),
		}, []string{
			"AZURE_TENANT_ID=" + m.cloud.Tenant, "AZURE_CLIENT_ID=" + m.cloud.ClientID,
			"AZURE_CLIENT_SECRET=" + m.cloud.ClientSecret,
		}
}

func (m *microsoft) add(t rig.TB, name string, userData []byte, tpm *rig.TPM) (string, http.Handler) {
	t.Helper()
	if tpm != nil {
		tpm.CertifyAsAzure(m.certify)
	}
	m.machines++
	i := &azure.Instance{Name: name, ResourceGroup: azureGroup,
		VMID: fmt.Sprintf("02aab8a4-74ef-476e-8182-f6d2ba4166%02d", m.machines), UserData: userData}
	if err := m.cloud.Add(i); err != nil {
		t.Fatalf("emulated Azure: %v", err)
	}
	return i.ProviderID(), m.cloud.Metadata(i)
}
