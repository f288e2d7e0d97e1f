// SPDX-License-Identifier: Apache-2.0

package azure

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"strings"
	"time"
)

// pki has the authorities of the emulated Azure and the key of its tokens.
type pki struct {
	root, intermediate, leaf *x509.Certificate
	leafKey                  *rsa.PrivateKey
	issuer                   *rsa.PrivateKey // of the leaf
	tokenKey                 *rsa.PrivateKey
}

// AIA is the address of the issuer in a leaf, as in Azure's certificates. A verifier must never
// fetch it.
const AIA = "http://www.microsoft.com/pkiops/certs/emulated-issuing-ca.crt"

func newPKI(now time.Time, host string) (pki, error) {
	var p pki
	keys := make([]*rsa.PrivateKey, 4)
	for i := range keys {
		var err error
		if keys[i], err = rsa.GenerateKey(rand.Reader, 2048); err != nil {
			return p, err
		}
	}
	rootKey := keys[0]
	p.issuer, p.leafKey, p.tokenKey = keys[1], keys[2], keys[3]
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{Country: []string{"US"}, Organization: []string{"Emulated"},
			CommonName: "Emulated Global Root G2"},
		NotBefore: now.AddDate(-1, 0, 0), NotAfter: now.AddDate(10, 0, 0), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	var err error
	if p.root, err = issue(ca, ca, rootKey, rootKey); err != nil {
		return p, err
	}
	sub := *ca
	sub.SerialNumber, sub.Subject.CommonName = big.NewInt(2), "Emulated Azure RSA TLS Issuing CA 07"
	sub.NotAfter, sub.MaxPathLenZero = now.AddDate(3, 0, 0), true
	sub.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	if p.intermediate, err = issue(&sub, p.root, p.issuer, rootKey); err != nil {
		return p, err
	}
	p.leaf, err = issue(leafTemplate(now, host), p.intermediate, p.leafKey, p.issuer)
	return p, err
}

func leafTemplate(now time.Time, host string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: new(big.Int).SetBytes([]byte{0x33, 0, 0x85, 0xd0, 0x2b, 0xd9, 0xf6, 0x61}),
		Subject:      pkix.Name{CommonName: host}, DNSNames: []string{host, "westeurope." + host},
		NotBefore: now.AddDate(0, 0, -1), NotAfter: now.AddDate(0, 6, 0), BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IssuingCertificateURL: []string{AIA},
	}
}

// Issue returns another leaf under the cloud's intermediate, modified by change.
func (c *Cloud) Issue(key *rsa.PrivateKey, change func(*x509.Certificate)) (*x509.Certificate, error) {
	template := leafTemplate(c.Now(), c.Host)
	if change != nil {
		change(template)
	}
	return issue(template, c.pki.intermediate, key, c.pki.issuer)
}

func issue(template, parent *x509.Certificate, key, signer *rsa.PrivateKey) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

func encode(text string, c *x509.Certificate) []byte {
	return append([]byte(text), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
}

// sign returns a JWT in the form of Azure's login endpoint.
func (c *Cloud) sign(claims map[string]any) (string, error) {
	header, err := json.Marshal(map[string]string{"typ": "JWT", "alg": "RS256", "x5t": c.keyID(), "kid": c.keyID()})
	if err != nil {
		return "", err
	}
	body, err := json.Marshal(claims)
	if err != nil {
		return "", err
	}
	text := base64.RawURLEncoding.EncodeToString(header) + "." + base64.RawURLEncoding.EncodeToString(body)
	digest := sha256.Sum256([]byte(text))
	signature, err := rsa.SignPKCS1v15(nil, c.pki.tokenKey, crypto.SHA256, digest[:])
	if err != nil {
		return "", err
	}
	return text + "." + base64.RawURLEncoding.EncodeToString(signature), nil
}

// keyID returns an id in Azure's form: the thumbprint (SHA-1) in base64url. Nothing depends on it.
func (c *Cloud) keyID() string {
	sum := sha1.Sum(c.pki.tokenKey.N.Bytes())
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// KeysJSON returns the tenant's key set.
func (c *Cloud) KeysJSON() []byte {
	k := &c.pki.tokenKey.PublicKey
	raw, err := json.Marshal(map[string]any{"keys": []map[string]string{{
		"kty": "RSA", "use": "sig", "kid": c.keyID(), "x5t": c.keyID(), "e": "AQAB",
		"n":      base64.RawURLEncoding.EncodeToString(k.N.Bytes()),
		"issuer": "https://login.microsoftonline.com/" + c.Tenant + "/v2.0",
	}}})
	if err != nil {
		return nil // strings always encode
	}
	return raw
}

// IdentityToken returns a token of a machine's managed identity for a resource; change may modify
// its claims before it is signed.
func (c *Cloud) IdentityToken(i *Instance, resource string, change func(map[string]any)) (string, error) {
	now := c.Now()
	vm := strings.Replace(i.ResourceID(), "/resourceGroups/", "/resourcegroups/", 1)
	claims := map[string]any{
		"aud": resource, "iss": "https://sts.windows.net/" + c.Tenant + "/", "iat": now.Unix(), "nbf": now.Unix(),
		"exp": now.Add(24 * time.Hour).Unix(),
		"aio": "E2", "appid": "5f2c0000-0000-4000-8000-000000000001", "appidacr": "2",
		"idp": "https://sts.windows.net/" + c.Tenant + "/", "idtyp": "app",
		"oid": "0d0c0000-0000-4000-8000-000000000001", "rh": "1.A", "sub": "0d0c0000-0000-4000-8000-000000000001",
		"tid": c.Tenant, "uti": "u", "ver": "1.0",
		"xms_mirid": vm,
	}
	if i.Identity != "system" {
		claims["xms_mirid"], claims["xms_az_rid"] = i.Identity, vm
	}
	if change != nil {
		change(claims)
	}
	return c.sign(claims)
}
