// SPDX-License-Identifier: Apache-2.0

package token_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/token"
)

// A denial has the check that failed first, and not what a later check makes of it.
func TestVerify_NamesTheCause(t *testing.T) {
	s, key := goldenKeys(t)
	parts := strings.Split(string(golden(t, "token.golden.txt")), ".")
	decoded, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		t.Fatal(err)
	}
	payload, kid := string(decoded), s.Keys[0].ID
	header := `{"alg":"ES256","kid":"` + kid + `","typ":"` + token.Type + `"}`
	if _, err := s.Verify(noon, es256(t, key, header, payload)); err != nil {
		t.Fatal(err)
	}
	other, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		raw  []byte
		want string
	}{
		"another member of the header": {es256(t, key, strings.Replace(header, "{", `{"x":1,`, 1), payload), "header: member"},
		"another algorithm":            {es256(t, key, strings.Replace(header, "ES256", "ES384", 1), payload), "want ES256"},
		"another key":                  {es256(t, other, header, payload), "signature of key " + kid},
		"another member of the claims": {es256(t, key, header, strings.Replace(payload, "{", `{"x":1,`, 1)), "claims: member"},
		"claims of another type":       {es256(t, key, header, strings.Replace(payload, `"mcs"`, "1", 1)), "claims: json:"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := s.Verify(noon, c.raw)
			want(t, err, reason.TokenInvalid)
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
	// Claims that cannot be read do not say that the token has expired.
	_, err = token.KeySet{}.Verify(noon, es256(t, key, header, "{}"))
	want(t, err, reason.TokenKeyUnknown)
}

func TestSign_AcceptsTheBoundsOfClaims(t *testing.T) {
	s, _ := goldenKeys(t)
	for name, c := range map[string]struct {
		change func(*token.Claims)
		ok     bool
	}{
		"512 bytes":           {func(c *token.Claims) { c.ID = strings.Repeat("~", 512) }, true},
		"513 bytes":           {func(c *token.Claims) { c.ID = strings.Repeat("~", 513) }, false},
		"a control character": {func(c *token.Claims) { c.ID = "a\x7f" }, false},
		"a warning":           {func(c *token.Claims) { c.Status = token.Warning }, true},
		"a module warns":      {func(c *token.Claims) { c.Submods["tpm2"] = token.Appraisal{Status: token.Warning} }, true},
		"no lifetime":         {func(c *token.Claims) { c.Expiry = noon }, false},
		"another status":      {func(c *token.Claims) { c.Status = "contraindicated" }, false},
		"a module's status":   {func(c *token.Claims) { c.Submods["tpm2"] = token.Appraisal{Status: "none"} }, false},
		"no module status":    {func(c *token.Claims) { c.Submods["tpm2"] = token.Appraisal{} }, false},
	} {
		cl := claims()
		c.change(&cl)
		if _, err := s.Sign(noon, cl); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSign_TimesDefaultToNow(t *testing.T) {
	s, _ := goldenKeys(t)
	c := claims()
	c.IssuedAt, c.NotBefore = time.Time{}, time.Time{}
	raw, err := s.Sign(noon, c)
	if err != nil {
		t.Fatal(err)
	}
	got, err := s.Verify(noon, raw.Expose())
	if err != nil || !got.IssuedAt.Equal(noon) || !got.NotBefore.Equal(noon) {
		t.Errorf("%v: issued at %s, not before %s", err, got.IssuedAt, got.NotBefore)
	}
}

// Each of the two times is compared with the clock of the replica.
func TestVerify_EitherTimeIsInTheFuture(t *testing.T) {
	s, _ := goldenKeys(t)
	ahead := noon.Add(token.Leeway + time.Second)
	for name, change := range map[string]func(*token.Claims){
		"issued at":  func(c *token.Claims) { c.IssuedAt = ahead },
		"not before": func(c *token.Claims) { c.NotBefore = ahead },
	} {
		c := claims()
		change(&c)
		raw, err := s.Sign(noon, c)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Verify(noon.Add(time.Second), raw.Expose()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		_, err = s.Verify(noon, raw.Expose())
		want(t, err, reason.Internal)
	}
}

// The next key is the only one from its time on, even if an older key was to be used longer.
func TestRotate_EndsEachOlderKey(t *testing.T) {
	s := rotate(t, token.KeySet{}, noon, 0)
	s.Keys[0].NotAfter = noon.Add(24 * time.Hour)
	s = rotate(t, s, noon.Add(time.Minute), time.Hour)
	if !s.Keys[0].NotAfter.Equal(s.Keys[1].NotBefore) {
		t.Errorf("a key ends at %s, and the next begins at %s", s.Keys[0].NotAfter, s.Keys[1].NotBefore)
	}
}

func TestParseKeySet_RejectsOtherKeysAndTypes(t *testing.T) {
	s := rotate(t, token.KeySet{}, noon, 0)
	encoded, err := s.EncodeSecret()
	if err != nil {
		t.Fatal(err)
	}
	good := strings.TrimSpace(string(encoded.Expose()))
	// The last member of the only key. All others were read before it.
	late, closing := good[:strings.LastIndex(good, "]")], "]}"
	late = late[:strings.LastIndex(late, "}")]
	if _, err := token.ParseKeySet([]byte(late + "}" + closing)); err != nil {
		t.Fatal(err)
	}
	_, d, _ := strings.Cut(good, `"d": "`)
	d, _, _ = strings.Cut(d, `"`)
	for name, raw := range map[string]string{
		"a time that is a number":   late + `, "publishedAt": 5}` + closing,
		"a list of lists":           `[["keys"]]`,
		"a key on P-384":            p384Set(t),
		"a number beyond the curve": strings.Replace(good, d, strings.Repeat("_", 42)+"8", 1),
	} {
		if _, err := token.ParseKeySet([]byte(raw)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// p384Set returns a set with one key on P-384 that is right otherwise.
func p384Set(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	jwk := jose.JSONWebKey{Key: key}
	sum, err := jwk.Thumbprint(crypto.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	jwk.KeyID = base64.RawURLEncoding.EncodeToString(sum)
	raw, err := json.Marshal(map[string]any{"keys": []any{map[string]any{"notBefore": noon, "jwk": jwk}}})
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}
