// SPDX-License-Identifier: Apache-2.0

package tpm2_test

import (
	"bytes"
	"crypto"
	"testing"

	tpm "github.com/google/go-tpm/tpm2"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

func TestAttack_T23_SignatureWithOneWrongField(t *testing.T) {
	f := newForger(t)
	c := f.forgery(t, nil)
	if _, err := c.verify(); err != nil {
		t.Fatalf("the valid case: %v", err)
	}
	good := c.evidence.Signature
	rSize := int(good[4])<<8 | int(good[5])
	r, s := good[6:6+rSize], good[8+rSize:]
	ecdsa := func(scheme, hash uint16, r, s []byte) []byte {
		out := []byte{byte(scheme >> 8), byte(scheme), byte(hash >> 8), byte(hash), byte(len(r) >> 8), byte(len(r))}
		out = append(out, r...)
		out = append(out, byte(len(s)>>8), byte(len(s)))
		return append(out, s...)
	}
	zero := make([]byte, 32)
	for name, sig := range map[string][]byte{
		"empty":                         {},
		"TPM_ALG_NULL":                  {0x00, 0x10},
		"only the scheme":               {0x00, 0x18},
		"another hash":                  ecdsa(0x18, 0x0C, r, s),
		"SHA-1":                         ecdsa(0x18, 0x04, r, s),
		"ECDAA":                         ecdsa(0x1A, 0x0B, r, s),
		"RSASSA by the bytes of ECDSA":  ecdsa(0x14, 0x0B, r, s),
		"RSASSA":                        append([]byte{0x00, 0x14, 0x00, 0x0B, 0x01, 0x00}, make([]byte, 256)...),
		"HMAC":                          append([]byte{0x00, 0x05, 0x00, 0x0B}, zero...),
		"r and s of zero":               ecdsa(0x18, 0x0B, zero, zero),
		"r and s without bytes":         ecdsa(0x18, 0x0B, nil, nil),
		"r of zero":                     ecdsa(0x18, 0x0B, zero, s),
		"s of zero":                     ecdsa(0x18, 0x0B, r, zero),
		"r and s swapped":               ecdsa(0x18, 0x0B, s, r),
		"r longer than the curve":       ecdsa(0x18, 0x0B, append(make([]byte, 33-len(r)), r...), s),
		"s longer than the curve":       ecdsa(0x18, 0x0B, r, append(make([]byte, 33-len(s)), s...)),
		"s cut short":                   good[:len(good)-1],
		"trailing byte":                 append(bytes.Clone(good), 0),
		"all ones":                      ecdsa(0x18, 0x0B, bytes.Repeat([]byte{0xFF}, 32), bytes.Repeat([]byte{0xFF}, 32)),
		"DER instead of TPMT_SIGNATURE": append([]byte{0x30, 0x44, 0x02, 0x20}, r...),
	} {
		t.Run(name, func(t *testing.T) {
			attack := c.clone()
			attack.evidence.Signature = sig
			_, err := attack.verify()
			denied(t, err, reason.QuoteInvalid)
		})
	}
	t.Run("good signature with another hash than the AK's", func(t *testing.T) {
		attack := c.clone()
		attack.evidence.Signature = f.signWith(t, attack.evidence.Quote, crypto.SHA384, tpm.TPMAlgSHA384)
		_, err := attack.verify()
		denied(t, err, reason.QuoteInvalid)
	})
	t.Run("leading zeros as some TPMs send them are accepted", func(t *testing.T) {
		padded := c.clone()
		padded.evidence.Signature = ecdsa(0x18, 0x0B, append(make([]byte, 32-len(r)), r...),
			append(make([]byte, 32-len(s)), s...))
		if _, err := padded.verify(); err != nil {
			t.Error(err)
		}
	})
}
