// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/asn1"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"
)

// IdentityDocument returns an instance's document, as at instance-identity/document.
func (c *Cloud) IdentityDocument(id string) []byte {
	i, _ := c.instance(id)
	var out bytes.Buffer
	out.WriteString("{\n")
	for n, f := range []struct {
		name  string
		value any
	}{
		{"accountId", i.Account}, {"architecture", "x86_64"}, {"availabilityZone", i.Zone}, {"billingProducts", nil},
		{"devpayProductCodes", nil}, {"marketplaceProductCodes", nil}, {"imageId", "ami-0a1b2c3d4e5f60718"},
		{"instanceId", i.ID},
		{"instanceType", "m6i.xlarge"}, {"kernelId", nil}, {"pendingTime", i.Launch.Format(time.RFC3339)},
		{"privateIp", i.Address},
		{"ramdiskId", nil}, {"region", i.Region()}, {"version", "2017-09-30"},
	} {
		value, _ := json.Marshal(f.value) // a string or null
		if n > 0 {
			out.WriteString(",\n")
		}
		fmt.Fprintf(&out, "  %q : %s", f.name, value)
	}
	out.WriteString("\n}")
	return out.Bytes()
}

// RSA2048 returns the instance's document, as at instance-identity/rsa2048, before base64.
func (c *Cloud) RSA2048(id string) []byte {
	i, _ := c.instance(id)
	return c.SignDocument(i.Region(), c.IdentityDocument(id), i.Launch.Add(3*time.Second))
}

// SignDocument signs any content with the key of a region, in AWS's exact form: BER, with
// indefinite lengths around a definite signer; no certificate; the signer named by issuer and
// serial number; four signed attributes. AWS signs once, when the instance starts, so the signing
// time is unrelated to the request.
func (c *Cloud) SignDocument(regionName string, content []byte, at time.Time) []byte {
	r := c.region(regionName)
	digest := sha256.Sum256(content)
	attributes := cat(
		tlv(0x30, oidContentType, tlv(0x31, oidData)),
		tlv(0x30, oidSigningTime, tlv(0x31, tlv(0x17, []byte(at.UTC().Format("060102150405Z"))))),
		tlv(0x30, oidAlgorithmProtection, tlv(0x31, tlv(0x30, sha256Algorithm, tlv(0xa1, rsaAlgorithm[2:])))),
		tlv(0x30, oidMessageDigest, tlv(0x31, tlv(0x04, digest[:]))),
	)
	// RFC 5652, 5.4: the signed bytes have the tag of a SET.
	signed := sha256.Sum256(tlv(0x31, attributes))
	signature, err := rsa.SignPKCS1v15(rand.Reader, r.key, crypto.SHA256, signed[:])
	if err != nil {
		panic(err) // the key is valid and long enough
	}
	serial, err := asn1.Marshal(r.certificate.SerialNumber)
	if err != nil {
		panic(err)
	}
	version := []byte{2, 1, 1}
	signer := tlv(0x30, version, tlv(0x30, r.certificate.RawIssuer, serial), sha256Algorithm, tlv(0xa0, attributes),
		rsaAlgorithm, tlv(0x04, signature))
	return ber(0x30, oidSignedData, ber(0xa0, ber(0x30,
		version,
		tlv(0x31, sha256Algorithm),
		ber(0x30, oidData, ber(0xa0, ber(0x24, tlv(0x04, content)))),
		tlv(0x31, signer),
	)))
}

// lines returns base64 in the form of the metadata service: lines of 76 characters without a final
// newline.
func lines(raw []byte) []byte {
	var out []byte
	for text := []byte(base64.StdEncoding.EncodeToString(raw)); len(text) > 0; {
		n := min(76, len(text))
		if out != nil {
			out = append(out, '\n')
		}
		out, text = append(out, text[:n]...), text[n:]
	}
	return out
}

// The object identifiers of RFC 5652 and RFC 6211, and two AlgorithmIdentifiers.
var (
	oidSignedData          = oid(1, 2, 840, 113549, 1, 7, 2)
	oidData                = oid(1, 2, 840, 113549, 1, 7, 1)
	oidContentType         = oid(1, 2, 840, 113549, 1, 9, 3)
	oidMessageDigest       = oid(1, 2, 840, 113549, 1, 9, 4)
	oidSigningTime         = oid(1, 2, 840, 113549, 1, 9, 5)
	oidAlgorithmProtection = oid(1, 2, 840, 113549, 1, 9, 52)
	null                   = []byte{5, 0}
	sha256Algorithm        = tlv(0x30, oid(2, 16, 840, 1, 101, 3, 4, 2, 1), null)
	rsaAlgorithm           = tlv(0x30, oid(1, 2, 840, 113549, 1, 1, 11), null)
)

func oid(arcs ...int) []byte {
	out, err := asn1.Marshal(asn1.ObjectIdentifier(arcs))
	if err != nil {
		panic(err) // a constant
	}
	return out
}

func cat(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

// tlv returns an element of definite length.
func tlv(tag byte, parts ...[]byte) []byte {
	value := cat(parts...)
	out := []byte{tag}
	switch n := len(value); {
	case n < 0x80:
		out = append(out, byte(n))
	case n < 0x100:
		out = append(out, 0x81, byte(n))
	default:
		out = append(out, 0x82, byte(n>>8), byte(n))
	}
	return append(out, value...)
}

// ber returns an element of indefinite length.
func ber(tag byte, parts ...[]byte) []byte {
	return append(append([]byte{tag, 0x80}, cat(parts...)...), 0, 0)
}
