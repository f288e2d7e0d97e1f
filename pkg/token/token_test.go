// SPDX-License-Identifier: Apache-2.0

package token_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/token"
)

// noon is when the token of the golden files was issued.
var noon = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

func golden(t testing.TB, name string) []byte {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return bytes.TrimSuffix(raw, []byte("\n"))
}

// goldenKeys are only for these tests, because they are public.
func goldenKeys(t testing.TB) (token.KeySet, *ecdsa.PrivateKey) {
	t.Helper()
	raw := golden(t, "keys.golden.json")
	s, err := token.ParseKeySet(raw)
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Keys []struct {
			JWK struct{ D string } `json:"jwk"`
		} `json:"keys"`
	}
	if err := json.Unmarshal(raw, &d); err != nil {
		t.Fatal(err)
	}
	scalar, err := base64.RawURLEncoding.DecodeString(d.Keys[0].JWK.D)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), scalar)
	if err != nil {
		t.Fatal(err)
	}
	return s, key
}

func claims() token.Claims {
	return token.Claims{
		Issuer: "https://api-int.example:22623", Audience: "mcs", Subject: "openshift-machine-api/worker-a",
		MachineUID: "7c0a6a51-1f5e-4f5c-9d1c-0f4f5b9f6f10", Pool: "worker", ID: "q0Zp1ZQm3mR2o3k6",
		IssuedAt: noon, NotBefore: noon, Expiry: noon.Add(30 * time.Minute), Nonce: "AAECAwQFBgcICQoLDA0ODw",
		Verifier: token.VerifierID{Developer: "mcs-attest", Build: "v0.1.0"}, Status: token.Affirming,
		Submods: map[string]token.Appraisal{
			"tpm2": {Status: token.Affirming, Vector: map[string]int8{"hardware": 2, "executables": 2}},
		},
	}
}

func b64(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// es256 signs any header and any payload with the verifier's own key. An attacker cannot do more.
func es256(t testing.TB, key *ecdsa.PrivateKey, header, payload string) []byte {
	t.Helper()
	in := b64([]byte(header)) + "." + b64([]byte(payload))
	sum := sha256.Sum256([]byte(in))
	r, s, err := ecdsa.Sign(rand.Reader, key, sum[:])
	if err != nil {
		t.Fatal(err)
	}
	sig := make([]byte, 64)
	r.FillBytes(sig[:32])
	s.FillBytes(sig[32:])
	return []byte(in + "." + b64(sig))
}

func want(t *testing.T, err error, code reason.Code) {
	t.Helper()
	var d *reason.Denial
	if !errors.As(err, &d) {
		t.Fatalf("got %v, want the denial %v", err, code)
	}
	if d.Code != code {
		t.Errorf("got %v, want %v", d, code)
	}
}

func TestGoldenToken(t *testing.T) {
	s, _ := goldenKeys(t)
	raw := golden(t, "token.golden.txt")
	got, err := s.Verify(noon, raw)
	if err != nil {
		t.Fatal(err)
	}
	have, err := json.MarshalIndent(got, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	if want := golden(t, "claims.golden.json"); !bytes.Equal(have, want) {
		t.Errorf("verified claims:\n%s\nwant:\n%s", have, want)
	}
	// A token that is issued now has the same bytes, except for the signature.
	again, err := s.Sign(noon, claims())
	if err != nil {
		t.Fatal(err)
	}
	cut := func(b []byte) string { return string(b[:bytes.LastIndexByte(b, '.')]) }
	if cut(again.Expose()) != cut(raw) {
		t.Errorf("signed now:\n%s\ngolden:\n%s", again.Expose(), raw)
	}
	header, err := base64.RawURLEncoding.DecodeString(string(raw[:bytes.IndexByte(raw, '.')]))
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf(`{"alg":"ES256","kid":%q,"typ":"eat+jwt"}`, s.Keys[0].ID); string(header) != want {
		t.Errorf("header %s, want %s", header, want)
	}
}

func TestAttack_T45_ForgedTokenIsDenied(t *testing.T) {
	s, key := goldenKeys(t)
	kid := s.Keys[0].ID
	header := fmt.Sprintf(`{"alg":"ES256","kid":%q,"typ":"eat+jwt"}`, kid)
	payload, err := json.Marshal(claims())
	if err != nil {
		t.Fatal(err)
	}
	honest := es256(t, key, header, string(payload))
	if _, err := s.Verify(noon, honest); err != nil {
		t.Fatalf("the valid token: %v", err)
	}

	stranger, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	public, err := stranger.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	jwk := fmt.Sprintf(`{"kty":"EC","crv":"P-256","x":%q,"y":%q}`, b64(public[1:33]), b64(public[33:]))
	withHeader := func(h string) []byte { return es256(t, key, fmt.Sprintf(h, kid), string(payload)) }
	withClaims := func(old, new string) []byte {
		t.Helper()
		changed := strings.Replace(string(payload), old, new, 1)
		if changed == string(payload) {
			t.Fatalf("the claims have no %s", old)
		}
		return es256(t, key, header, changed)
	}
	parts := strings.Split(string(honest), ".")

	for name, raw := range map[string][]byte{
		"empty":                                {},
		"a stranger's key signs under our kid": es256(t, stranger, header, string(payload)),
		"the claims are changed after signing": []byte(parts[0] + "." +
			b64(bytes.Replace(payload, []byte("worker-a"), []byte("worker-b"), 1)) + "." + parts[2]),
		"a signature of zeros": []byte(parts[0] + "." + parts[1] + "." + b64(make([]byte, 64))),
		"no signature":         []byte(parts[0] + "." + parts[1] + "."),
		"half a signature":     []byte(parts[0] + "." + parts[1] + "." + parts[2][:43]),
		"alg none and no signature": []byte(b64(fmt.Appendf(nil, `{"alg":"none","kid":%q,"typ":"eat+jwt"}`,
			kid)) + "." + parts[1] + "."),
		"alg None with our signature":         withHeader(`{"alg":"None","kid":%q,"typ":"eat+jwt"}`),
		"alg ES384 with a signature by ES256": withHeader(`{"alg":"ES384","kid":%q,"typ":"eat+jwt"}`),
		"alg es256 in small letters":          withHeader(`{"alg":"es256","kid":%q,"typ":"eat+jwt"}`),
		"alg HS256 keyed with our public key": hs256(key, kid, payload),
		"alg ES384 made with a P-384 key":     es384(t, kid, payload),
		"no alg":                              withHeader(`{"kid":%q,"typ":"eat+jwt"}`),
		"typ JWT":                             withHeader(`{"alg":"ES256","kid":%q,"typ":"JWT"}`),
		"typ with its prefix":                 withHeader(`{"alg":"ES256","kid":%q,"typ":"application/eat+jwt"}`),
		"no typ":                              withHeader(`{"alg":"ES256","kid":%q}`),
		"no kid":                              es256(t, key, `{"alg":"ES256","typ":"eat+jwt"}`, string(payload)),
		"header brings a jwk": es256(t, stranger,
			fmt.Sprintf(`{"alg":"ES256","kid":%q,"typ":"eat+jwt","jwk":%s}`, kid, jwk), string(payload)),
		"header brings a jku":  withHeader(`{"alg":"ES256","kid":%q,"typ":"eat+jwt","jku":"https://evil.example/"}`),
		"header brings an x5u": withHeader(`{"alg":"ES256","kid":%q,"typ":"eat+jwt","x5u":"https://evil.example/"}`),
		"header brings a crit": withHeader(
			`{"alg":"ES256","kid":%q,"typ":"eat+jwt","crit":["b64"],"b64":false}`),
		"header brings an empty crit":        withHeader(`{"alg":"ES256","kid":%q,"typ":"eat+jwt","crit":[]}`),
		"header has alg twice":               withHeader(`{"alg":"none","alg":"ES256","kid":%q,"typ":"eat+jwt"}`),
		"header has alg twice, once escaped": withHeader(`{"\u0061lg":"none","alg":"ES256","kid":%q,"typ":"eat+jwt"}`),
		"header has ALG as well":             withHeader(`{"ALG":"none","alg":"ES256","kid":%q,"typ":"eat+jwt"}`),
		"header has ALG instead":             withHeader(`{"ALG":"ES256","kid":%q,"typ":"eat+jwt"}`),
		"header has trailing bytes":          withHeader(`{"alg":"ES256","kid":%q,"typ":"eat+jwt"} {}`),
		"header is null":                     es256(t, key, `null`, string(payload)),
		"header is a list":                   es256(t, key, `[]`, string(payload)),
		"another audience":                   withClaims(`"aud":"mcs"`, `"aud":"report"`),
		"audience is a list with ours in it": withClaims(`"aud":"mcs"`, `"aud":["mcs","report"]`),
		"no audience":                        withClaims(`"aud":"mcs",`, ``),
		"another profile":                    withClaims(`mcs-token#1`, `mcs-token#2`),
		"no pool":                            withClaims(`"pool":"worker",`, ``),
		"pool twice":                         withClaims(`"pool":"worker"`, `"pool":"worker","pool":"master"`),
		"pool twice, once escaped":           withClaims(`"pool":"worker"`, `"pool":"worker","p\u006fol":"master"`),
		"Pool in another case as well":       withClaims(`"pool":"worker"`, `"pool":"worker","Pool":"master"`),
		"Pool in another case instead":       withClaims(`"pool":"worker"`, `"Pool":"worker"`),
		"an unknown claim":                   withClaims(`"pool":"worker"`, `"pool":"worker","admin":true`),
		"pool is a number":                   withClaims(`"pool":"worker"`, `"pool":7`),
		"pool has a line break":              withClaims(`"pool":"worker"`, `"pool":"wor\nker"`),
		"pool has a letter outside of ASCII": withClaims(`"pool":"worker"`, `"pool":"wörker"`),
		"no machine UID":                     withClaims(`,"machine_uid":"7c0a6a51-1f5e-4f5c-9d1c-0f4f5b9f6f10"`, ``),
		"no jti":                             withClaims(`"jti":"q0Zp1ZQm3mR2o3k6",`, ``),
		"a jti of 513 bytes":                 withClaims(`q0Zp1ZQm3mR2o3k6`, strings.Repeat("x", 513)),
		"contraindicated": withClaims(`"ear_status":"affirming","submods"`,
			`"ear_status":"contraindicated","submods"`),
		"no status": withClaims(`"ear_status":"affirming","submods"`, `"submods"`),
		"a submodule is contraindicated": withClaims(`{"tpm2":{"ear_status":"affirming"`,
			`{"tpm2":{"ear_status":"contraindicated"`),
		"no submodules": withClaims(
			`"submods":{"tpm2":{"ear_status":"affirming","ear_trustworthiness_vector":{"executables":2,"hardware":2}}}`,
			`"submods":{}`),
		"no expiry": withClaims(fmt.Sprintf(`"exp":%d,`, noon.Add(30*time.Minute).Unix()), ``),
		"an expiry that is not a whole number": withClaims(fmt.Sprintf(`"exp":%d`, noon.Add(30*time.Minute).Unix()),
			`"exp":1e99`),
		"an expiry before it was issued": withClaims(fmt.Sprintf(`"exp":%d`, noon.Add(30*time.Minute).Unix()),
			fmt.Sprintf(`"exp":%d`, noon.Unix())),
		"it lives a second more than MaxLifetime": withClaims(fmt.Sprintf(`"exp":%d`, noon.Add(30*time.Minute).Unix()),
			fmt.Sprintf(`"exp":%d`, noon.Add(token.MaxLifetime+time.Second).Unix())),
		"the claims have trailing bytes": es256(t, key, header, string(payload)+`{}`),
		"the claims are null":            es256(t, key, header, `null`),
		"claims that are not JSON":       es256(t, key, header, `{`),
		"trailing dot":                   append(bytes.Clone(honest), '.'),
		"trailing line break":            append(bytes.Clone(honest), '\n'),
		"line break inside":              []byte(parts[0] + ".\n" + parts[1] + "." + parts[2]),
		"leading space":                  append([]byte(" "), honest...),
		"padded base64":                  []byte(parts[0] + "." + parts[1] + "." + parts[2] + "=="),
		"base64 with stray bits":         []byte(parts[0] + "." + parts[1] + "." + stray(t, parts[2])),
		"base64 of the other alphabet": []byte(strings.NewReplacer("-", "+", "_", "/").Replace(parts[0]+"."+parts[1]) +
			"." + b64(bytes.Repeat([]byte{0xfb}, 64))),
		"two parts":                       []byte(parts[0] + "." + parts[1]),
		"four parts":                      []byte(parts[0] + "." + parts[1] + "." + parts[2] + "." + parts[2]),
		"five parts, as an encrypted one": []byte(strings.Repeat(parts[0]+".", 4) + parts[0]),
		"the JSON serialization": fmt.Appendf(nil, `{"protected":%q,"payload":%q,"signature":%q}`, parts[0],
			parts[1], parts[2]),
		"it has 4097 bytes": bytes.Repeat([]byte("x"), 4097),
	} {
		t.Run(name, func(t *testing.T) {
			got, err := s.Verify(noon, raw)
			want(t, err, reason.TokenInvalid)
			if got.Pool != "" {
				t.Errorf("claims came back: %+v", got)
			}
		})
	}
}

func hs256(key *ecdsa.PrivateKey, kid string, payload []byte) []byte {
	public, err := key.PublicKey.Bytes()
	if err != nil {
		panic(err)
	}
	in := b64(fmt.Appendf(nil, `{"alg":"HS256","kid":%q,"typ":"eat+jwt"}`, kid)) + "." + b64(payload)
	m := hmac.New(sha256.New, public)
	m.Write([]byte(in))
	return []byte(in + "." + b64(m.Sum(nil)))
}

func es384(t *testing.T, kid string, payload []byte) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	in := b64(fmt.Appendf(nil, `{"alg":"ES384","kid":%q,"typ":"eat+jwt"}`, kid)) + "." + b64(payload)
	sum := sha512.Sum384([]byte(in))
	r, s, err := ecdsa.Sign(rand.Reader, key, sum[:])
	if err != nil {
		t.Fatal(err)
	}
	sig := make([]byte, 96)
	r.FillBytes(sig[:48])
	s.FillBytes(sig[48:])
	return []byte(in + "." + b64(sig))
}

// stray sets an unused bit of the last letter: 64 bytes leave four unused bits.
func stray(t *testing.T, part string) string {
	t.Helper()
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	last := strings.IndexByte(alphabet, part[len(part)-1])
	other := part[:len(part)-1] + string(alphabet[last|1])
	a, _ := base64.RawURLEncoding.DecodeString(part)
	b, err := base64.RawURLEncoding.DecodeString(other)
	if err != nil || other == part || !bytes.Equal(a, b) {
		t.Fatalf("%q and %q should decode alike", part, other)
	}
	return other
}

func TestAttack_T45_ATokenOutsideItsTime(t *testing.T) {
	s, _ := goldenKeys(t)
	raw := golden(t, "token.golden.txt")
	expiry := claims().Expiry
	for _, c := range []struct {
		name string
		now  time.Time
		code reason.Code // 0: the token verifies
	}{
		{"the moment it is issued", noon, 0},
		{"a nanosecond before it expires", expiry.Add(-1), 0},
		{"the moment it expires", expiry, reason.TokenExpired},
		{"a day after it expired", expiry.Add(24 * time.Hour), reason.TokenExpired},
		{"seen by a replica whose clock is the leeway behind", noon.Add(-token.Leeway), 0},
		{"seen by a replica whose clock is further behind: temporary, for the fault is ours",
			noon.Add(-token.Leeway - time.Second), reason.Internal},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := s.Verify(c.now, raw)
			if c.code == 0 {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			want(t, err, c.code)
		})
	}
	if !reason.Internal.Temporary() || reason.TokenExpired.Temporary() {
		t.Error("not yet valid must be temporary, expired final")
	}
}

func TestAttack_T45_TokenThatIsNotValidYet(t *testing.T) {
	s, _ := goldenKeys(t)
	c := claims()
	c.NotBefore = noon.Add(20 * time.Minute)
	raw, err := s.Sign(noon, c)
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Verify(noon, raw.Expose())
	want(t, err, reason.Internal)
	if _, err := s.Verify(c.NotBefore, raw.Expose()); err != nil {
		t.Errorf("at its nbf: %v", err)
	}
}

func TestAttack_T45_UnknownKey(t *testing.T) {
	s, _ := goldenKeys(t)
	raw := golden(t, "token.golden.txt")
	if _, err := s.Verify(noon, raw); err != nil {
		t.Fatal(err)
	}
	other, err := token.KeySet{}.Rotate(noon, rand.Reader, 0)
	if err != nil {
		t.Fatal(err)
	}
	// The key may not have reached this replica yet, so this denial is temporary ...
	_, err = other.Verify(noon, raw)
	want(t, err, reason.TokenKeyUnknown)
	_, err = token.KeySet{}.Verify(noon, raw)
	want(t, err, reason.TokenKeyUnknown)
	// ... unless the token itself states that it has expired.
	_, err = other.Verify(noon.Add(time.Hour), raw)
	want(t, err, reason.TokenExpired)
}

func TestSign_RejectsWhatVerifyWouldDeny(t *testing.T) {
	s, _ := goldenKeys(t)
	for name, change := range map[string]func(*token.Claims){
		"no pool":        func(c *token.Claims) { c.Pool = "" },
		"no submodules":  func(c *token.Claims) { c.Submods = nil },
		"no status":      func(c *token.Claims) { c.Status = "" },
		"lives too long": func(c *token.Claims) { c.Expiry = noon.Add(token.MaxLifetime + 1) },
		"a space":        func(c *token.Claims) { c.Subject = "a b" },
	} {
		c := claims()
		change(&c)
		if _, err := s.Sign(noon, c); err == nil {
			t.Errorf("%s: signed", name)
		}
	}
	if _, err := (token.KeySet{}).Sign(noon, claims()); !errors.Is(err, token.ErrNoKey) {
		t.Errorf("no key: %v", err)
	}
}

func TestChecker_UsesTheCurrentKeys(t *testing.T) {
	s, _ := goldenKeys(t)
	c, raw := token.Checker{Keys: func() token.KeySet { return s }}, golden(t, "token.golden.txt")
	if _, err := c.Verify(noon, raw); err != nil {
		t.Error(err)
	}
	s = token.KeySet{}
	_, err := c.Verify(noon, raw)
	want(t, err, reason.TokenKeyUnknown)
}

func FuzzToken(f *testing.F) {
	s, key := goldenKeys(f)
	honest := golden(f, "token.golden.txt")
	f.Add(honest)
	f.Add([]byte("a.b.c"))
	f.Add([]byte(b64([]byte(`{"alg":"none","typ":"eat+jwt","kid":"x"}`)) + ".e30."))
	f.Add(es256(f, key, `{"alg":"ES256","kid":"x","typ":"eat+jwt"}`, `{"exp":1}`))
	parts := bytes.SplitN(honest, []byte("."), 3)
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, err := s.Verify(noon, raw)
		if err == nil {
			// An attacker cannot create another token. ECDSA only allows a second signature of the
			// same claims (r, n-s).
			if !bytes.HasPrefix(raw, bytes.Join(parts[:2], []byte("."))) || c.Pool != "worker" {
				t.Fatalf("a forgery: %s", raw)
			}
			return
		}
		var d *reason.Denial
		if !errors.As(err, &d) {
			t.Fatalf("not a denial: %v", err)
		}
	})
}
