// SPDX-License-Identifier: Apache-2.0

package gcpidentity_test

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/anchors"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/gcpidentity"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// modulus returns a number of the given size with the form of a modulus.
func modulus(bits int) string {
	n := make([]byte, bits/8)
	for i := range n {
		n[i] = 0xa5
	}
	return base64.RawURLEncoding.EncodeToString(n)
}

func jwk(kid, rest string) string {
	return `{"kty":"RSA","use":"sig","alg":"RS256","e":"AQAB","kid":"` + kid + `","n":"` + modulus(2048) + `"` + rest + `}`
}

func TestParseKeySet_AcceptsGooglesForm(t *testing.T) {
	w := newSetup(t)
	set, err := gcpidentity.ParseKeySet(w.cloud.Keys())
	if err != nil || len(set) != 2 {
		t.Fatalf("%v, %v", set, err)
	}
	kid, private := w.cloud.SigningKey()
	if key, err := set.Key(t.Context(), kid); err != nil || !private.PublicKey.Equal(key) {
		t.Errorf("%v, %v", key, err)
	}
	if _, err := set.Key(t.Context(), "other"); reason.From(err) == nil ||
		reason.From(err).Code != reason.DocumentUntrusted {
		t.Errorf("%v", err)
	}
	// Keys for other purposes are ignored.
	for _, other := range []string{
		`{"kty":"EC","crv":"P-256","kid":"b","x":"AAAA","y":"AAAA"}`, `{"kty":"RSA"}`, `{}`, `null`, `"x"`, `[]`,
		strings.Replace(jwk("b", ""), "RS256", "PS256", 1), strings.Replace(jwk("b", ""), `"sig"`, `"enc"`, 1),
		strings.Replace(jwk("b", ""), "AQAB", "AQ", 1), strings.Replace(jwk("b", ""), modulus(2048), modulus(1024), 1),
		strings.Replace(jwk("b", ""), modulus(2048), modulus(16384), 1), strings.Replace(jwk("b", ""), modulus(2048), "=", 1),
		strings.Replace(jwk("b", ""), `"b"`, `""`, 1), strings.Replace(jwk("b", ""), `"kid"`, `"KID"`, 1),
		`{"kty":"RSA",` + jwk("b", "")[1:],
	} {
		set, err := gcpidentity.ParseKeySet([]byte(`{"keys":[` + other + `,` + jwk("a", "") + `]}`))
		if err != nil || len(set) != 1 || set["a"] == nil {
			t.Errorf("with %.60s: %d keys, %v", other, len(set), err)
		}
	}
}

func TestParseKeySet_RejectsAWholeSet(t *testing.T) {
	var many []string
	for i := range 33 {
		many = append(many, jwk(fmt.Sprint("k", i), ""))
	}
	for name, raw := range map[string]string{
		"nothing":                              ``,
		"no keys":                              `{"keys":[]}`,
		"no usable key":                        `{"keys":[{"kty":"EC"}]}`,
		"an error page":                        `<html>`,
		"an error of an API":                   `{"error":{"code":503}}`,
		"an array":                             `[` + jwk("a", "") + `]`,
		"keys as an object":                    `{"keys":{"a":` + jwk("a", "") + `}}`,
		"keys twice":                           `{"keys":[],"keys":[` + jwk("a", "") + `]}`,
		"a kid twice":                          `{"keys":[` + jwk("a", "") + `,` + jwk("a", "") + `]}`,
		"a private key":                        `{"keys":[` + jwk("a", "") + `,` + jwk("b", `,"d":"AAAA"`) + `]}`,
		"a secret":                             `{"keys":[` + jwk("a", "") + `,{"kty":"oct","kid":"b","k":"AAAA"}]}`,
		"something after it":                   `{"keys":[` + jwk("a", "") + `]}x`,
		"33 keys":                              `{"keys":[` + strings.Join(many, ",") + `]}`,
		"64 KiB and more":                      `{"keys":[` + jwk("a", `,"x":"`+strings.Repeat("a", 64<<10)+`"`) + `]}`,
		"Google's other form, of certificates": `{"eec534fa5b8caca201ca8d0ff96b54c562210d1e":"-----BEGIN CERTIFICATE-----"}`,
	} {
		if set, err := gcpidentity.ParseKeySet([]byte(raw)); err == nil {
			t.Errorf("%s: accepted: %v", name, set)
		}
		if set, err := gcpidentity.ParseKeys("f.json", []byte(raw)); err == nil {
			t.Errorf("%s: accepted as a file: %v", name, set)
		}
	}
}

func TestParseKeys_ReportsFaultAndLine(t *testing.T) {
	two := "{\n  \"provenance\": \"taken by Ann on 2026-11-20\",\n  \"keys\": [\n    " + jwk("a", "") + ",\n    " +
		jwk("b", "") + "\n  ]\n}\n"
	s, err := gcpidentity.ParseKeys("google-keys/2026.json", []byte(two))
	if err != nil {
		t.Fatal(err)
	}
	all := s.All()
	if len(all) != 2 || all[1].ID != "b" || all[1].Line != 5 || all[1].File != "google-keys/2026.json" {
		t.Errorf("%+v", all)
	}
	for _, c := range []struct{ name, raw, want string }{
		{"a curve", strings.Replace(two, jwk("b", ""), `{"kty":"EC","kid":"b"}`, 1),
			`f.json:5: not a key that signs identity tokens: kty "EC", want RSA`},
		{"a private key", strings.Replace(two, jwk("b", ""), jwk("b", `,"d":"AAAA"`), 1),
			`f.json:5: a private or symmetric key; only Google's public keys are allowed`},
		{"a kid twice", strings.Replace(two, `"b"`, `"a"`, 1), `f.json:5: kid "a" occurs twice`},
		{"a bracket too few", strings.Replace(two, "]", "", 1), `f.json:7: not a set of keys`},
		{"RSA of 1024 bits", strings.Replace(two, modulus(2048), modulus(1024), 1),
			`f.json:4: not a key that signs identity tokens: RSA of 1024 bits`},
		{"certificates", `{"a":"-----BEGIN CERTIFICATE-----"}`,
			`f.json: not a set of keys: no member "keys"; the answer of https://www.googleapis.com/oauth2/v3/certs, unchanged`},
		{"no key", `{"keys":[]}`, `f.json: no key in it`},
	} {
		_, err := gcpidentity.ParseKeys("f.json", []byte(c.raw))
		var a *anchors.Error
		if !errors.As(err, &a) || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s...", c.name, err, c.want)
		}
	}
}

func TestJoinKeys(t *testing.T) {
	parse := func(file, raw string) *gcpidentity.StaticKeys {
		t.Helper()
		s, err := gcpidentity.ParseKeys(file, []byte(raw))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	a, b := parse("a.json", `{"keys":[`+jwk("a", "")+`]}`), parse("b.json", `{"keys":[`+jwk("a", "")+","+jwk("b", "")+`]}`)
	joined, err := gcpidentity.JoinKeys(a, nil, b)
	if err != nil || len(joined.All()) != 2 || joined.All()[0].File != "a.json" {
		t.Errorf("%+v, %v", joined, err)
	}
	other, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	c := parse("c.json", `{"keys":[`+strings.Replace(jwk("a", ""), modulus(2048),
		base64.RawURLEncoding.EncodeToString(other.N.Bytes()), 1)+`]}`)
	var fault *anchors.Error
	if _, err := gcpidentity.JoinKeys(a, c); !errors.As(err, &fault) || fault.File != "c.json" || fault.Line != 1 {
		t.Errorf("%v", err)
	}
	var none *gcpidentity.StaticKeys
	if _, err := none.Key(t.Context(), "a"); reason.From(err) == nil ||
		reason.From(err).Code != reason.ProviderUnavailable || none.All() != nil {
		t.Errorf("of no set: %v", err)
	}
}

// A verifier that has the keys only in a file.
func TestVerify_AcceptsKeysFromAFile(t *testing.T) {
	w := newFreshSetup(t)
	static, err := gcpidentity.ParseKeys("google-keys/now.json", w.cloud.Keys())
	if err != nil {
		t.Fatal(err)
	}
	w.verifier.Keys = static
	if _, err := w.verify(t.Context(), w.honest(t)); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := w.cloud.Rotate(); err != nil {
			t.Fatal(err)
		}
	}
	w.refused(t, w.honest(t), reason.ProviderUnavailable) // the key may be newer than the file
	if _, err := os.Stat(filepath.Join("testdata", "README.md")); err != nil {
		t.Error("the vectors have no provenance")
	}
}
