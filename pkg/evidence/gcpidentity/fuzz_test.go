// SPDX-License-Identifier: Apache-2.0

package gcpidentity

import (
	"bytes"
	"crypto"
	"crypto/rsa"
	"crypto/sha256"
	gojson "encoding/json"
	"math/big"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/mcs-attest/mcs-attest/pkg/evidence"
)

func vector(t testing.TB, name string) []byte {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// A token that passes up to its audience is the one that Google signed, because only that token has
// a signature of the key.
func FuzzToken(f *testing.F) {
	genuine := vector(f, "wi-test-vm-1.jwt")
	keys, err := ParseKeySet(vector(f, "google-certs-2025-02.json"))
	if err != nil {
		f.Fatal(err)
	}
	parts := bytes.Split(genuine, []byte("."))
	f.Add(genuine)
	f.Add(append(bytes.Clone(genuine), '='))
	f.Add(bytes.Join([][]byte{[]byte("eyJhbGciOiJub25lIn0"), parts[1], nil}, []byte(".")))
	f.Add([]byte(`{"payload":"e30","protected":"e30","signature":"AA"}`))
	f.Add([]byte(".."))
	then := time.Unix(1739324791, 0)
	v := &Verifier{Keys: keys, Projects: []string{"weipengpanda-project"}}
	f.Fuzz(func(t *testing.T, raw []byte) {
		if claim, err := v.Verify(t.Context(), evidence.Document{Raw: raw}, evidence.Binding{}, then); err == nil {
			t.Fatalf("accepted without an audience: %+v", claim.Statement())
		}
		ours, err := split(raw)
		if err != nil {
			return
		}
		// go-jose reads the same token and gives the same result for its signature.
		jws, err := jose.ParseSignedCompact(string(raw), []jose.SignatureAlgorithm{jose.RS256})
		if err != nil {
			return // it also checks members that this package ignores
		}
		if jws.Signatures[0].Header.KeyID != ours.kid || jws.Signatures[0].Header.JSONWebKey != nil ||
			!bytes.Equal(jws.UnsafePayloadWithoutVerification(), ours.payload) {
			t.Fatalf("read in two ways: %q, %+v", ours.kid, jws.Signatures[0].Header)
		}
		if key := keys[ours.kid]; key != nil {
			digest := sha256.Sum256(ours.signed)
			_, theirs := jws.Verify(key)
			if mine := rsa.VerifyPKCS1v15(key, crypto.SHA256, digest[:], ours.signature); (mine == nil) != (theirs == nil) ||
				mine == nil && !bytes.Equal(raw, genuine) {
				t.Fatalf("signature: %v, go-jose: %v", mine, theirs)
			}
		}
	})
}

// The standard library reads the same claims, and no claim breaks the form of a provider id.
func FuzzClaims(f *testing.F) {
	payload, err := jose.ParseSignedCompact(string(vector(f, "wi-test-vm-1.jwt")), []jose.SignatureAlgorithm{jose.RS256})
	if err != nil {
		f.Fatal(err)
	}
	genuine := payload.UnsafePayloadWithoutVerification()
	f.Add(genuine)
	f.Add(bytes.Replace(genuine, []byte(`"aud"`), []byte(`"AUD"`), 1))
	f.Add(bytes.Replace(genuine, []byte(`"aud"`), []byte(`"iss":"x","aud"`), 1))
	f.Add(bytes.Replace(genuine, []byte(`wi-test-vm-1`), []byte(`example.com:a`), 1))
	f.Add([]byte(`{"exp":1e9,"iat":-1}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, err := decode(raw)
		if err != nil || c.check() != nil {
			return
		}
		s := c.statement()
		rest, ok := strings.CutPrefix(s.ProviderID, "gce://")
		if parts := strings.Split(rest, "/"); !ok || len(parts) != 3 || parts[0] != c.Engine.ProjectID ||
			parts[2] != c.Engine.InstanceName {
			t.Fatalf("provider ID %q", s.ProviderID)
		}
		if id, err := strconv.ParseUint(strings.TrimPrefix(s.InstanceID, "gcp:"), 10, 64); err != nil ||
			"gcp:"+strconv.FormatUint(id, 10) != s.InstanceID {
			t.Fatalf("instance ID %q", s.InstanceID)
		}
		if s.Created.Year() > 9999 || !gojson.Valid(raw) {
			t.Fatalf("%v of %s", s.Created, raw)
		}
		// By name, so that the case matters, as in the claims.
		var other map[string]gojson.RawMessage
		var issuer string
		if err := gojson.Unmarshal(raw, &other); err != nil {
			t.Fatal(err)
		}
		if raw, ok := other["iss"]; ok {
			if err := gojson.Unmarshal(raw, &issuer); err != nil || issuer != c.Issuer {
				t.Fatalf("issuer %q, %v; want %q", issuer, err, c.Issuer)
			}
		}
	})
}

func FuzzKeySet(f *testing.F) {
	genuine := vector(f, "google-certs-2025-02.json")
	f.Add(genuine)
	f.Add(bytes.Replace(genuine, []byte(`"AQAB"`), []byte(`"AQ"`), 1))
	f.Add(bytes.Replace(genuine, []byte(`"kty"`), []byte(`"d":"AA","kty"`), 1))
	f.Add([]byte(`{"keys":[]}`))
	f.Add([]byte(`{"provenance":"x","keys":[{"kty":"EC"}],"x":[[[]]]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		set, err := ParseKeySet(raw)
		static, staticErr := ParseKeys("f", raw)
		if staticErr == nil && err != nil {
			t.Fatalf("a file of keys, and no set: %v", err)
		}
		if err != nil {
			return
		}
		if staticErr == nil && len(static.All()) != len(set) {
			t.Fatalf("%d and %d keys", len(static.All()), len(set))
		}
		// If go-jose can parse the set, it agrees about each key.
		var other jose.JSONWebKeySet
		if gojson.Unmarshal(raw, &other) != nil {
			return
		}
		for kid, key := range set {
			if key.N.BitLen() < minRSABits || key.N.BitLen() > maxRSABits || key.E != 65537 ||
				new(big.Int).And(key.N, big.NewInt(1)).Sign() == 0 {
				t.Fatalf("key %q: %v", kid, key)
			}
			found := other.Key(kid)
			if len(found) > 0 && !key.Equal(found[0].Key) {
				t.Fatalf("key %q is another one for go-jose", kid)
			}
		}
	})
}
