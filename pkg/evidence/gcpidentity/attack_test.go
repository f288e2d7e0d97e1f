// SPDX-License-Identifier: Apache-2.0

package gcpidentity_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/gcpidentity"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// Attack T08: trust depends only on the signing key, not on the token's own statements.
func TestAttack_T08_OnlyGooglesOwnKeysSignIdentityTokens(t *testing.T) {
	w := newSetup(t)
	kid, google := w.cloud.SigningKey()
	account, err := rsa.GenerateKey(rand.Reader, 2048) // of a service account, whose owner can sign anything
	if err != nil {
		t.Fatal(err)
	}
	claims := text(t, w.claims())
	jwk := `{"kty":"RSA","kid":"mine","alg":"RS256","e":"AQAB","n":"` +
		base64.RawURLEncoding.EncodeToString(account.N.Bytes()) + `"}`
	b64 := base64.RawURLEncoding.EncodeToString
	hs256 := func(secret []byte) []byte {
		signed := b64([]byte(`{"alg":"HS256","kid":"`+kid+`","typ":"JWT"}`)) + "." + b64([]byte(claims))
		mac := hmac.New(sha256.New, secret)
		mac.Write([]byte(signed))
		return []byte(signed + "." + b64(mac.Sum(nil)))
	}
	spki, err := x509.MarshalPKIXPublicKey(&google.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.verify(t.Context(), sign(t, google, w.header(), claims)); err != nil {
		t.Fatalf("the valid token: %v", err)
	}
	honest := string(sign(t, google, w.header(), claims))
	parts := strings.Split(honest, ".")
	for _, c := range []struct {
		name  string
		token []byte
		want  reason.Code
	}{
		{"a service account's key, with its own kid", sign(t, account, `{"alg":"RS256","kid":"mine","typ":"JWT"}`, claims),
			reason.DocumentUntrusted},
		{"a service account's key, with Google's kid", sign(t, account, w.header(), claims), reason.DocumentInvalid},
		{"a key that the header brings", sign(t, account, `{"alg":"RS256","kid":"`+kid+`","typ":"JWT","jwk":`+jwk+`}`,
			claims), reason.DocumentInvalid},
		{"a key that the header points to", sign(t, account,
			`{"alg":"RS256","kid":"mine","jku":"https://www.googleapis.com/robot/v1/metadata/jwk/a@b.iam.gserviceaccount.com"}`,
			claims), reason.DocumentInvalid},
		{"a certificate that the header points to", sign(t, account,
			`{"alg":"RS256","kid":"mine","x5u":"https://www.googleapis.com/robot/v1/metadata/x509/a@b.iam.gserviceaccount.com"}`,
			claims), reason.DocumentInvalid},
		{"a certificate that the header brings", sign(t, google, `{"alg":"RS256","kid":"`+kid+`","x5c":["AAAA"]}`, claims),
			reason.DocumentInvalid},
		{"a member to be understood", sign(t, google, `{"alg":"RS256","kid":"`+kid+`","crit":["exp"]}`, claims),
			reason.DocumentInvalid},
		{"a payload that is not base64", sign(t, google, `{"alg":"RS256","kid":"`+kid+`","b64":false,"crit":["b64"]}`,
			claims), reason.DocumentInvalid},
		{"jku, though Google signed", sign(t, google, `{"alg":"RS256","kid":"`+kid+`","jku":null}`, claims),
			reason.DocumentInvalid},
		{"no kid", sign(t, google, `{"alg":"RS256","typ":"JWT"}`, claims), reason.DocumentInvalid},
		{"an empty kid", sign(t, google, `{"alg":"RS256","kid":"","typ":"JWT"}`, claims), reason.DocumentInvalid},
		{"a kid that is a number", sign(t, google, `{"alg":"RS256","kid":1,"typ":"JWT"}`, claims), reason.DocumentInvalid},
		{"a kid with a line break", sign(t, google, `{"alg":"RS256","kid":"a\nb","typ":"JWT"}`, claims),
			reason.DocumentInvalid},
		{"two kids", sign(t, google, `{"alg":"RS256","kid":"mine","kid":"`+kid+`"}`, claims), reason.DocumentInvalid},
		{"alg none", sign(t, nil, `{"alg":"none","kid":"`+kid+`","typ":"JWT"}`, claims), reason.DocumentInvalid},
		{"alg none, with a signature", sign(t, google, `{"alg":"none","kid":"`+kid+`","typ":"JWT"}`, claims),
			reason.DocumentInvalid},
		{"RS256 without a signature", sign(t, nil, w.header(), claims), reason.DocumentInvalid},
		{"alg HS256 with the modulus as secret", hs256(google.N.Bytes()), reason.DocumentInvalid},
		{"alg HS256 with the public key in DER as secret", hs256(spki), reason.DocumentInvalid},
		{"alg HS256 with the public key in PEM as secret",
			hs256(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: spki})), reason.DocumentInvalid},
		{"alg rs256", sign(t, google, `{"alg":"rs256","kid":"`+kid+`","typ":"JWT"}`, claims), reason.DocumentInvalid},
		{"alg PS256", sign(t, google, `{"alg":"PS256","kid":"`+kid+`","typ":"JWT"}`, claims), reason.DocumentInvalid},
		{"alg RS512", sign(t, google, `{"alg":"RS512","kid":"`+kid+`","typ":"JWT"}`, claims), reason.DocumentInvalid},
		{"no alg", sign(t, google, `{"kid":"`+kid+`","typ":"JWT"}`, claims), reason.DocumentInvalid},
		{"a second alg", sign(t, google, `{"alg":"none","alg":"RS256","kid":"`+kid+`"}`, claims), reason.DocumentInvalid},
		{"another type of token", sign(t, google, `{"alg":"RS256","kid":"`+kid+`","typ":"at+jwt"}`, claims),
			reason.DocumentInvalid},
		{"a header that is an array", sign(t, google, `["RS256"]`, claims), reason.DocumentInvalid},
		{"a header that is null", sign(t, google, `null`, claims), reason.DocumentInvalid},
		{"the JSON serialization", []byte(`{"payload":"` + parts[1] + `","protected":"` + parts[0] + `","signature":"` +
			parts[2] + `"}`), reason.DocumentInvalid},
		{"two signatures", []byte(honest + "." + parts[2]), reason.DocumentInvalid},
		{"an encrypted token's five parts", []byte(honest + ".AAAA.AAAA"), reason.DocumentInvalid},
		{"padding", []byte(honest + "=="), reason.DocumentInvalid},
		{"a line end", []byte(honest + "\n"), reason.DocumentInvalid},
		{"a space in front", []byte(" " + honest), reason.DocumentInvalid},
		{"a token that is empty", nil, reason.DocumentInvalid},
		{"a token of two dots", []byte(".."), reason.DocumentInvalid},
	} {
		t.Run(c.name, func(t *testing.T) { w.refused(t, c.token, c.want) })
	}
}

// Attack T08: tokens that Google's own keys signed, but that are not from the metadata server.
func TestAttack_T08_ClaimsThatAreNotOfAnInstance(t *testing.T) {
	w := newSetup(t)
	set := func(name string, value any) func(map[string]any) {
		return func(c map[string]any) { c[name] = value }
	}
	ofEngine := func(name string, value any) func(map[string]any) {
		return func(c map[string]any) {
			if engine(c)[name] = value; value == nil {
				delete(engine(c), name)
			}
		}
	}
	audience := gcpidentity.Audience(binding.Origin, binding.Transcript)
	for _, c := range []struct {
		name  string
		alter func(map[string]any)
		want  reason.Code
	}{
		{"the issuer without its scheme", set("iss", "accounts.google.com"), reason.DocumentInvalid},
		{"the issuer with a slash", set("iss", "https://accounts.google.com/"), reason.DocumentInvalid},
		{"the issuer in capitals", set("iss", "https://ACCOUNTS.google.com"), reason.DocumentInvalid},
		{"the issuer over http", set("iss", "http://accounts.google.com"), reason.DocumentInvalid},
		{"an issuer that begins like Google", set("iss", "https://accounts.google.com.example"), reason.DocumentInvalid},
		{"a service account as the issuer", set("iss", "a@b.iam.gserviceaccount.com"), reason.DocumentInvalid},
		{"a list of issuers", set("iss", []string{gcpidentity.Issuer}), reason.DocumentInvalid},
		{"no issuer", set("iss", nil), reason.DocumentInvalid},
		{"an empty audience", set("aud", ""), reason.DocumentNotFresh},
		{"no audience", func(c map[string]any) { delete(c, "aud") }, reason.DocumentNotFresh},
		{"the audience in a list", set("aud", []string{audience}), reason.DocumentInvalid},
		{"an audience more", set("aud", []string{audience, "https://other.example"}), reason.DocumentInvalid},
		{"an empty list of audiences", set("aud", []string{}), reason.DocumentInvalid},
		{"an audience that begins right", set("aud", audience+"x"), reason.DocumentNotFresh},
		{"an audience that is cut", set("aud", audience[:len(audience)-1]), reason.DocumentNotFresh},
		{"expired", func(c map[string]any) {
			c["iat"], c["exp"] = today.Add(-2*time.Hour).Unix(), today.Add(-time.Hour).Unix()
		}, reason.Internal},
		{"expired by as much as the leeway", set("exp", today.Unix()-300), reason.DocumentInvalid}, // before iat
		{"issued tomorrow", func(c map[string]any) {
			c["iat"], c["exp"] = today.Add(24*time.Hour).Unix(), today.Add(25*time.Hour).Unix()
		}, reason.Internal},
		{"no end", set("exp", nil), reason.DocumentInvalid},
		{"an end that is a text", set("exp", "1795000000"), reason.DocumentInvalid},
		{"an expiry that is not a whole number", set("exp", 1.8e18), reason.DocumentInvalid},
		{"no beginning", set("iat", nil), reason.DocumentInvalid},
		{"an ID token of the service account, as IAM gives out for any audience",
			func(c map[string]any) { delete(c, "google") }, reason.DocumentInvalid},
		{"one that names the organization", func(c map[string]any) { c["google"] = map[string]any{"organization_number": 1} },
			reason.DocumentInvalid},
		{"claims of the instance at the top", func(c map[string]any) { c["compute_engine"] = engine(c); delete(c, "google") },
			reason.DocumentInvalid},
		{"claims of the instance in another spelling",
			func(c map[string]any) { c["Google"] = c["google"]; delete(c, "google") }, reason.DocumentInvalid},
		{"no project", ofEngine("project_id", nil), reason.DocumentInvalid},
		{"no project number", ofEngine("project_number", nil), reason.DocumentInvalid},
		{"no zone", ofEngine("zone", nil), reason.DocumentInvalid},
		{"no instance id", ofEngine("instance_id", nil), reason.DocumentInvalid},
		{"no instance name", ofEngine("instance_name", nil), reason.DocumentInvalid},
		{"no time of creation", ofEngine("instance_creation_timestamp", nil), reason.DocumentInvalid},
		{"created in the future", ofEngine("instance_creation_timestamp", today.Unix()+3600), reason.DocumentInvalid},
		{"a project with a slash", ofEngine("project_id", "demo-1/europe-west1-b/worker-b"), reason.DocumentInvalid},
		{"a zone with its path", ofEngine("zone", "projects/123456789012/zones/europe-west1-b"), reason.DocumentInvalid},
		{"a name with dots", ofEngine("instance_name", "../worker-b"), reason.DocumentInvalid},
		{"a name in capitals", ofEngine("instance_name", "Worker-A"), reason.DocumentInvalid},
		{"a name of 64 letters", ofEngine("instance_name", strings.Repeat("a", 64)), reason.DocumentInvalid},
		{"an instance id that is a number", ofEngine("instance_id", 2875949485074006138), reason.DocumentInvalid},
		{"an instance id with a zero in front", ofEngine("instance_id", "02875949485074006138"), reason.DocumentInvalid},
		{"an instance id with a sign", ofEngine("instance_id", "+2875949485074006138"), reason.DocumentInvalid},
		{"an instance id above 64 bits", ofEngine("instance_id", "28759494850740061380"), reason.DocumentInvalid},
		{"the instance id zero", ofEngine("instance_id", "0"), reason.DocumentInvalid},
		{"another project", ofEngine("project_id", "demo-2"), reason.AccountNotAllowed},
		{"a project whose name begins like ours", ofEngine("project_id", "demo-11"), reason.AccountNotAllowed},
		{"another zone", ofEngine("zone", "europe-west1-c"), reason.AccountNotAllowed},
	} {
		t.Run(c.name, func(t *testing.T) { w.refused(t, w.with(t, change(w.claims(), c.alter)), c.want) })
	}
}

// Attack T08: one token that two parsers read differently.
func TestAttack_T08_NoClaimHasTwoValues(t *testing.T) {
	w := newSetup(t)
	_, key := w.cloud.SigningKey()
	claims := text(t, w.claims())
	for name, payload := range map[string]string{
		"a second issuer":            `{"iss":"https://x.example",` + claims[1:],
		"a second audience":          `{"aud":"https://x.example",` + claims[1:],
		"a second audience, escaped": `{"\u0061ud":"https://x.example",` + claims[1:],
		"a second google":            `{"google":{},` + claims[1:],
		"a second compute_engine": strings.Replace(claims, `"google":{`,
			`"google":{"compute_engine":{"project_id":"x"},`, 1),
		"a second instance id": strings.Replace(claims, `"compute_engine":{`,
			`"compute_engine":{"instance_id":"1",`, 1),
		"a second claim that means nothing": `{"x":1,"x":2,` + claims[1:],
		"something after the object":        claims + `{}`,
		"a byte after the object":           claims + "\x00",
		"a byte order mark":                 "\ufeff" + claims,
		"an array":                          `[` + claims + `]`,
		"null":                              `null`,
		"half":                              claims[:len(claims)/2],
	} {
		t.Run(name, func(t *testing.T) { w.refused(t, sign(t, key, w.header(), payload), reason.DocumentInvalid) })
	}
}

type keysFunc func(kid string) (crypto.PublicKey, error)

func (f keysFunc) Key(_ context.Context, kid string) (crypto.PublicKey, error) { return f(kid) }

func TestAttack_T08_KeysThatGoogleDoesNotUse(t *testing.T) {
	w := newSetup(t)
	small, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	curve, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		key  crypto.PublicKey
		err  error
		want reason.Code
	}{
		{"RSA of 1024 bits", &small.PublicKey, nil, reason.DocumentUntrusted},
		{"a curve", &curve.PublicKey, nil, reason.DocumentUntrusted},
		{"a secret", []byte("secret"), nil, reason.DocumentUntrusted},
		{"nothing", nil, nil, reason.DocumentUntrusted},
		{"keys that cannot be had", nil, reason.Deny(reason.ProviderUnavailable, "down"), reason.ProviderUnavailable},
		{"a fault of ours", nil, errors.New("disk"), reason.Internal},
	} {
		t.Run(c.name, func(t *testing.T) {
			w.verifier.Keys = keysFunc(func(string) (crypto.PublicKey, error) { return c.key, c.err })
			w.refused(t, w.honest(t), c.want)
		})
	}
	w.verifier.Keys = nil
	w.refused(t, w.honest(t), reason.DocumentUntrusted)
}

func TestAttack_T08_EmptyProjectListDeniesAll(t *testing.T) {
	w := newSetup(t)
	w.verifier.Projects = nil
	w.refused(t, w.honest(t), reason.AccountNotAllowed)
	w = newSetup(t)
	w.verifier.Zones = nil
	if _, err := w.verify(t.Context(), w.honest(t)); err != nil {
		t.Errorf("no zone is every zone of the projects: %v", err)
	}
}

// Attack T09: a token belongs to one cluster and one connection.
func TestAttack_T09_ATokenForAnotherClusterOrConnection(t *testing.T) {
	w := newSetup(t)
	other := sha256.Sum256([]byte("another conversation"))
	var zero [32]byte
	for name, audience := range map[string]string{
		"another cluster":      gcpidentity.Audience("https://api-int.other.example:22623", binding.Transcript),
		"another port":         gcpidentity.Audience("https://api-int.demo.example:22624", binding.Transcript),
		"another conversation": gcpidentity.Audience(binding.Origin, other),
		"no conversation":      binding.Origin + "/mcs-attest/v1/",
		"zeroes":               gcpidentity.Audience(binding.Origin, zero),
		"only the origin":      binding.Origin,
		"the transcript in hexadecimal": binding.Origin + "/mcs-attest/v1/" +
			strings.ToLower(base64.StdEncoding.EncodeToString(binding.Transcript[:])),
		"the transcript with its pad": binding.Origin + "/mcs-attest/v1/" +
			base64.URLEncoding.EncodeToString(binding.Transcript[:]),
		"another tool's audience": "https://vault/role",
		"half of the transcript": gcpidentity.Audience(binding.Origin,
			binding.Transcript)[:len(binding.Origin)+len("/mcs-attest/v1/")+22],
		"a query after it": gcpidentity.Audience(binding.Origin, binding.Transcript) + "?x",
		"the origin in capitals": strings.ToUpper(binding.Origin) + strings.TrimPrefix(
			gcpidentity.Audience(binding.Origin, binding.Transcript), binding.Origin),
		"the next version of the format": strings.Replace(gcpidentity.Audience(binding.Origin, binding.Transcript), "/v1/",
			"/v2/", 1),
	} {
		t.Run(name, func(t *testing.T) {
			token, err := w.cloud.IdentityToken(w.instance.ID, audience)
			if err != nil {
				t.Fatal(err)
			}
			w.refused(t, []byte(token), reason.DocumentNotFresh)
		})
	}
	// The reverse: a token of this conversation in another one.
	token := w.honest(t)
	for name, b := range map[string]evidence.Binding{
		"in another conversation": {Transcript: other, Origin: binding.Origin},
		"at another cluster":      {Transcript: binding.Transcript, Origin: "https://api-int.other.example:22623"},
	} {
		if _, err := w.verifier.Verify(t.Context(), evidence.Document{Raw: token},
			b, today); reason.From(err).Code != reason.DocumentNotFresh {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Attack T10: an instance was deleted, and another one has its name. Both are genuine, and their
// provider ids are equal; the statement distinguishes them.
func TestAttack_T10_AReusedNameIsAnotherInstance(t *testing.T) {
	w := newFreshSetup(t)
	first, err := w.verify(t.Context(), w.honest(t))
	if err != nil {
		t.Fatal(err)
	}
	w.cloud.Remove(w.instance.ID)
	successor := w.instance
	successor.ID, successor.Created = 0, today.Add(-10*time.Second)
	w.instance, _ = w.cloud.Instance(w.cloud.Add(successor))
	second, err := w.verify(t.Context(), w.honest(t))
	if err != nil {
		t.Fatal(err)
	}
	a, b := first.Statement(), second.Statement()
	if a.ProviderID != b.ProviderID {
		t.Fatalf("%s and %s; the names should be the same", a.ProviderID, b.ProviderID)
	}
	if a.InstanceID == b.InstanceID || !a.Created.Before(b.Created) || !a.Created.Equal(created) {
		t.Errorf("the statement does not distinguish them: %+v, %+v", a, b)
	}
	if _, err := w.cloud.IdentityToken(2875949485074006138, "x"); err == nil {
		t.Error("the deleted instance still gets tokens")
	}
}

// Attack T16: a token costs no work before its size is checked.
func TestAttack_T16_LargeAndDeepTokens(t *testing.T) {
	w := newSetup(t)
	_, key := w.cloud.SigningKey()
	claims := text(t, w.claims())
	asked := 0
	keys := w.verifier.Keys
	w.verifier.Keys = keysFunc(func(kid string) (crypto.PublicKey, error) {
		asked++
		return keys.Key(t.Context(), kid)
	})
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	for _, c := range []struct {
		name  string
		token []byte
	}{
		{"64 MiB of letters", []byte(strings.Repeat("A", 64<<20))},
		{"64 MiB of dots", []byte(strings.Repeat(".", 64<<20))},
		{"a genuine token above the limit",
			sign(t, key, w.header(), `{"x":"`+strings.Repeat("a", gcpidentity.MaxSize)+`",`+claims[1:])},
		{"a deep header above the limit", sign(t, key, `{"x":`+deep(2000)+`,`+w.header()[1:], claims)},
		{"a deep header without alg", sign(t, key, `{"x":`+deep(500)+`}`, claims)},
		{"a kid of 129 bytes", sign(t, key, `{"alg":"RS256","kid":"`+strings.Repeat("a", 129)+`"}`, claims)},
	} {
		t.Run(c.name, func(t *testing.T) { w.refused(t, c.token, reason.DocumentInvalid) })
	}
	if asked != 0 {
		t.Errorf("for %d of them the verifier looked up a key", asked)
	}
	// Within the limit, depth costs little, and such a token is denied.
	stranger, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	w.refused(t, sign(t, stranger, `{"x":`+deep(500)+`,`+w.header()[1:], claims), reason.DocumentInvalid)
	w.refused(t, sign(t, key, w.header(), deep(1000)), reason.DocumentInvalid)
}

func TestDocumentHasOnlyItsToken(t *testing.T) {
	w := newSetup(t)
	for name, d := range map[string]evidence.Document{
		"a certificate":  {Raw: w.honest(t), Certificates: [][]byte{{1}}},
		"a second token": {Raw: w.honest(t), Token: []byte("x")},
	} {
		if _, err := w.verifier.Verify(t.Context(), d, binding, today); reason.From(err) == nil ||
			reason.From(err).Code != reason.DocumentInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Every bit of a token is signed: none can be flipped, removed or repeated.
func TestAnyChangeOfATokenIsDenied(t *testing.T) {
	w := newSetup(t)
	token := w.honest(t)
	if _, err := w.verify(t.Context(), token); err != nil {
		t.Fatal(err)
	}
	try := func(what string, altered []byte) {
		if string(altered) == string(token) {
			return
		}
		if claim, err := w.verify(t.Context(), altered); err == nil {
			t.Fatalf("%s: accepted: %+v", what, claim.Statement())
		}
	}
	for i := range token {
		for _, bit := range []int{0, 3, 5, 7} {
			altered := []byte(string(token))
			altered[i] ^= 1 << bit
			try("a flipped bit", altered)
		}
	}
	for i := range token {
		for _, n := range []int{1, 4, 64, 333} {
			end := min(i+n, len(token))
			try("a cut", append([]byte(string(token[:i])), token[end:]...))
			try("a repetition", []byte(string(token[:end])+string(token[i:])))
		}
		try("a byte more", []byte(string(token[:i])+"A"+string(token[i:])))
		try("another beginning", token[i:])
		try("another end", token[:i])
	}
	// Parts of two valid tokens.
	other, err := w.cloud.IdentityToken(w.instance.ID, "https://x.example")
	if err != nil {
		t.Fatal(err)
	}
	a, b := strings.Split(string(token), "."), strings.Split(other, ".")
	try("the signature of another", []byte(a[0]+"."+a[1]+"."+b[2]))
	try("the claims of another", []byte(a[0]+"."+b[1]+"."+a[2]))
}
