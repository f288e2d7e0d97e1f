// SPDX-License-Identifier: Apache-2.0

package azure

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"encoding/json"
	"math/big"
	"time"
)

// Content returns the signed part of an attested document.
func (c *Cloud) Content(i *Instance, nonce string) []byte {
	now := c.Now().UTC()
	if nonce == "" { // the expiry, as in Azure's documents
		nonce = now.Add(6 * time.Hour).Format("20060102-150405")
	}
	// Azure writes UTC as -0000.
	stamp := func(t time.Time) string { return t.Format("01/02/06 15:04:05") + " -0000" }
	type plan struct {
		Name      string `json:"name"`
		Product   string `json:"product"`
		Publisher string `json:"publisher"`
	}
	type times struct {
		CreatedOn string `json:"createdOn"`
		ExpiresOn string `json:"expiresOn"`
	}
	raw, err := json.Marshal(struct {
		LicenseType    string `json:"licenseType"`
		Nonce          string `json:"nonce"`
		Plan           plan   `json:"plan"`
		SKU            string `json:"sku"`
		SubscriptionID string `json:"subscriptionId"`
		TimeStamp      times  `json:"timeStamp"`
		VMID           string `json:"vmId"`
	}{Nonce: nonce, SKU: "aro_420", SubscriptionID: i.Subscription,
		TimeStamp: times{stamp(now), stamp(now.Add(6 * time.Hour))}, VMID: i.VMID})
	if err != nil {
		return nil // strings always encode
	}
	return raw
}

// Document returns the attested document of a machine, as DER.
func (c *Cloud) Document(i *Instance, nonce string) ([]byte, error) {
	return Sign(c.Content(i, nonce), c.pki.leafKey, c.pki.leaf, append([][]byte{c.pki.leaf.Raw}, c.Bag...)...)
}

var (
	oidSignedData    = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 7, 2}
	oidData          = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 7, 1}
	oidSHA256WithRSA = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 11}
	oidRSA           = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 1}
)

type algorithm struct {
	OID  asn1.ObjectIdentifier
	Null asn1.RawValue
}

type signerInfo struct {
	Version         int
	Issuer          issuerAndSerial
	DigestAlgorithm algorithm
	Algorithm       algorithm
	Signature       []byte
}

type issuerAndSerial struct {
	Issuer asn1.RawValue
	Serial *big.Int
}

type contentInfo struct {
	Type    asn1.ObjectIdentifier
	Content asn1.RawValue
}

type signedData struct {
	Version          int
	DigestAlgorithms []algorithm `asn1:"set"`
	Content          contentInfo
	Certificates     asn1.RawValue `asn1:"optional"`
	Signers          []signerInfo  `asn1:"set"`
}

// Sign returns PKCS#7 in Azure's form. The signer is named by its issuer and serial number; the
// caller chooses the other certificates.
func Sign(content []byte, key *rsa.PrivateKey, signer *x509.Certificate, bag ...[]byte) ([]byte, error) {
	return Pack(content, [][]byte{nil}, key, signer, bag...)
}

// Pack is like Sign with one signer for each signature. A nil signature is replaced by a valid one.
func Pack(content []byte, signatures [][]byte, key *rsa.PrivateKey, signer *x509.Certificate,
	bag ...[]byte) ([]byte, error) {
	null := asn1.RawValue{FullBytes: []byte{5, 0}}
	quirk := algorithm{oidSHA256WithRSA, null}
	octets, err := asn1.Marshal(content)
	if err != nil {
		return nil, err
	}
	d := signedData{
		Version: 1, DigestAlgorithms: []algorithm{quirk},
		Content: contentInfo{oidData, asn1.RawValue{Class: asn1.ClassContextSpecific, IsCompound: true, Bytes: octets}},
		Signers: []signerInfo{},
	}
	if len(bag) > 0 {
		d.Certificates = asn1.RawValue{Class: asn1.ClassContextSpecific, IsCompound: true}
		for _, der := range bag {
			d.Certificates.Bytes = append(d.Certificates.Bytes, der...)
		}
	}
	for _, signature := range signatures {
		if signature == nil {
			digest := sha256.Sum256(content)
			if signature, err = rsa.SignPKCS1v15(rand.Reader, key, crypto.SHA256, digest[:]); err != nil {
				return nil, err
			}
		}
		d.Signers = append(d.Signers, signerInfo{
			Version: 1, Issuer: issuerAndSerial{asn1.RawValue{FullBytes: signer.RawIssuer}, signer.SerialNumber},
			DigestAlgorithm: quirk, Algorithm: algorithm{oidRSA, null}, Signature: signature,
		})
	}
	inner, err := asn1.Marshal(d)
	if err != nil {
		return nil, err
	}
	return asn1.Marshal(contentInfo{oidSignedData,
		asn1.RawValue{Class: asn1.ClassContextSpecific, IsCompound: true, Bytes: inner}})
}
