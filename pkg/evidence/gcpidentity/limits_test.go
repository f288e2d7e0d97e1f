// SPDX-License-Identifier: Apache-2.0

package gcpidentity_test

import (
	"crypto"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/gcpidentity"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

const lastSecond = 253402300799 // of the year 9999

func TestVerify_FormsOfClaims(t *testing.T) {
	w := newSetup(t)
	set := func(pairs ...any) func(c, e map[string]any) {
		return func(c, e map[string]any) {
			for ; len(pairs) > 0; pairs = pairs[2:] {
				if _, ok := e[pairs[0].(string)]; ok {
					e[pairs[0].(string)] = pairs[1]
				} else {
					c[pairs[0].(string)] = pairs[1]
				}
			}
		}
	}
	one, iat, made := json.Number("1"), today.Unix(), "instance_creation_timestamp"
	domain := strings.Repeat(strings.Repeat("a", 49)+".", 5) + "com" // 253 bytes
	for name, c := range map[string]struct {
		alter func(c, e map[string]any)
		want  string // "" if it is accepted
	}{
		"the smallest numbers":       {set("iat", one, made, one, "project_number", one, "instance_id", "1"), ""},
		"issued at 0":                {set("iat", 0, made, one), "iat is not a time"},
		"created at 0":               {set(made, 0), "instance_creation_timestamp 0"},
		"project number 0":           {set("project_number", 0), "project_number 0"},
		"expires when it was issued": {set("iat", iat, "exp", iat), "not after iat"},
		"expires a second later":     {set("iat", iat, "exp", iat+1), ""},
		"expires in the year 9999":   {set("exp", lastSecond), ""},
		"expires in the year 10000":  {set("exp", lastSecond+1), "exp is not a time"},
		"issued in the year 10000":   {set("iat", lastSecond+1, "exp", lastSecond+2), "exp is not a time"},
		"created 5 minutes later":    {set("iat", iat, made, iat+300), ""},
		"created 301 seconds later":  {set("iat", iat, made, iat+301), "instance_creation_timestamp"},
		"a claim without a name":     {set("", 1), ""},
		"an e-mail that is a number": {set("email", 1), `claims: the field "email" is of another type`},
		"verified, as a text": {set("email_verified", "true"),
			`claims: the field "email_verified" is of another type`},
		"confidential, as a text": {func(_, e map[string]any) { e["instance_confidentiality"] = "1" },
			`claims: the field "instance_confidentiality" is of another type`},
		"a google of no object":      {set("google", 1), `claims: the field "google" is of another type`},
		"no e-mail":                  {func(c, _ map[string]any) { delete(c, "email"); delete(c, "email_verified") }, ""},
		"not confidential":           {func(_, e map[string]any) { delete(e, "instance_confidentiality") }, ""},
		"a google without instance":  {set("google", map[string]any{}), "no google.compute_engine"},
		"no zone":                    {func(_, e map[string]any) { delete(e, "zone") }, `claims: no field "zone"`},
		"no instance":                {func(c, _ map[string]any) { delete(c, "google") }, "no google.compute_engine"},
		"the largest name":           {set("instance_name", strings.Repeat("z", 63)), ""},
		"a name of all characters":   {set("instance_name", "az-09"), ""},
		"no name":                    {set("instance_name", ""), `instance_name ""`},
		"a name with a hyphen last":  {set("instance_name", "a-"), `instance_name "a-"`},
		"a name with a digit first":  {set("instance_name", "0a"), `instance_name "0a"`},
		"a name below a":             {set("instance_name", "a`"), "instance_name"},
		"a name above z":             {set("instance_name", "{a"), "instance_name"},
		"a name below 0":             {set("instance_name", "a/a"), "instance_name"},
		"a name above 9":             {set("instance_name", "a:a"), "instance_name"},
		"a domain with digits":       {set("project_id", "1e.example.com:demo-1"), ""},
		"a domain of 253 bytes":      {set("project_id", domain+":demo-1"), ""},
		"a domain of 254 bytes":      {set("project_id", domain+"m:demo-1"), "project_id"},
		"a domain of no bytes":       {set("project_id", ":demo-1"), "project_id"},
		"a domain with two dots":     {set("project_id", "example..com:demo-1"), "project_id"},
		"a domain in capitals":       {set("project_id", "Example.com:demo-1"), "project_id"},
		"a domain without a project": {set("project_id", "example.com:"), "project_id"},
	} {
		t.Run(name, func(t *testing.T) {
			claims := w.claims()
			e := engine(claims)
			c.alter(claims, e)
			w.verifier.Projects = []string{e["project_id"].(string)}
			_, err := w.verify(t.Context(), w.with(t, claims))
			switch d := reason.From(err); {
			case c.want == "" && err != nil:
				t.Error(err)
			case c.want != "" && (d == nil || d.Code != reason.DocumentInvalid || !strings.Contains(err.Error(), c.want)):
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

func TestVerify_LeewayOfClocks(t *testing.T) {
	w := newSetup(t)
	token := w.with(t, change(w.claims(), func(c map[string]any) { c["iat"], c["exp"] = today.Unix(), today.Unix()+60 }))
	for after, want := range map[time.Duration]reason.Code{
		-gcpidentity.Leeway - 1: reason.Internal, -gcpidentity.Leeway: 0,
		time.Minute + gcpidentity.Leeway - 1: 0, time.Minute + gcpidentity.Leeway: reason.Internal,
	} {
		if _, err := w.verifierAt(t, token, today.Add(after)); (want == 0) != (err == nil) ||
			err != nil && reason.From(err).Code != want {
			t.Errorf("after %s: %v", after, err)
		}
	}
	if gcpidentity.Leeway != 5*time.Minute {
		t.Error(gcpidentity.Leeway)
	}
}

// What the summary has, and what it does not have without a signed value.
func TestVerify_SummaryOfOptionalClaims(t *testing.T) {
	w := newSetup(t)
	for name, c := range map[string]struct {
		alter         func(map[string]any)
		account, conf string
	}{
		"all": {func(c map[string]any) {
			c["email"], engine(c)["instance_confidentiality"] = "a@b", 1
		}, "a@b", "true"},
		"an e-mail that is not verified": {func(c map[string]any) { c["email_verified"] = false }, "", ""},
		"no e-mail":                      {func(c map[string]any) { delete(c, "email") }, "", ""},
		"no confidentiality": {func(c map[string]any) {
			c["email"], engine(c)["instance_confidentiality"] = "a@b", 0
		}, "a@b", ""},
	} {
		claim, err := w.verify(t.Context(), w.with(t, change(w.claims(), c.alter)))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		s := claim.Statement().Summary
		_, account := s["serviceAccount"]
		if s["serviceAccount"] != c.account || account != (c.account != "") || s["confidential"] != c.conf {
			t.Errorf("%s: %v", name, s)
		}
	}
}

func TestVerify_SizesOfATokenAndItsKey(t *testing.T) {
	w := newSetup(t)
	_, key := w.cloud.SigningKey()
	claims := text(t, w.claims())
	headerOf := func(kid string) string { return `{"alg":"RS256","kid":"` + kid + `"}` }
	var sized [2][]byte // of MaxSize bytes, and of one byte more
	for n := range 8192 {
		head := `{"x5t":"` + strings.Repeat("A", n%3) + `",` + w.header()[1:]
		token := sign(t, nil, head, `{"x":"`+strings.Repeat("a", n/3)+`",`+claims[1:])
		if over := len(token) + 342 - 4096; over >= 0 && over < 2 && sized[over] == nil {
			sized[over] = sign(t, key, head, `{"x":"`+strings.Repeat("a", n/3)+`",`+claims[1:])
		}
	}
	// What the strict decoder rejects is rejected, even if Google signed it, and even without effect on the claims.
	b64 := base64.RawURLEncoding.EncodeToString
	padded := b64([]byte(w.header())) + "." + b64([]byte(claims+strings.Repeat(" ", 3-len(claims)%3))) + "="
	digest := sha256.Sum256([]byte(padded))
	signature, err := rsa.SignPKCS1v15(nil, key, crypto.SHA256, digest[:])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.verify(t.Context(), []byte("a.b")); err == nil || !strings.Contains(err.Error(), "2 parts, want 3") {
		t.Error(err)
	}
	real := w.verifier.Keys
	ofBits := func(bits int) keysFunc {
		return func(string) (crypto.PublicKey, error) {
			return &rsa.PublicKey{N: new(big.Int).SetBit(big.NewInt(1), bits-1, 1), E: 65537}, nil
		}
	}
	anyKid := keysFunc(func(string) (crypto.PublicKey, error) { return &key.PublicKey, nil })
	for name, c := range map[string]struct {
		keys  gcpidentity.Keys
		token []byte
		want  reason.Code
	}{
		"4096 bytes":          {real, sized[0], 0},
		"padding":             {real, []byte(padded + "." + b64(signature)), reason.DocumentInvalid},
		"4097 bytes":          {real, sized[1], reason.DocumentInvalid},
		"a kid of 128 bytes":  {anyKid, sign(t, key, headerOf(strings.Repeat("~", 128)), claims), 0},
		"a kid of 129 bytes":  {anyKid, sign(t, key, headerOf(strings.Repeat("~", 129)), claims), reason.DocumentInvalid},
		"a kid of one byte":   {anyKid, sign(t, key, headerOf("!"), claims), 0},
		"a space and a kid":   {anyKid, sign(t, key, headerOf(" a"), claims), reason.DocumentInvalid},
		"a kid with a space":  {anyKid, sign(t, key, headerOf("a b"), claims), reason.DocumentInvalid},
		"a kid with DEL":      {anyKid, sign(t, key, headerOf("a\u007f"), claims), reason.DocumentInvalid},
		"typ null":            {anyKid, sign(t, key, `{"alg":"RS256","kid":"a","typ":null}`, claims), reason.DocumentInvalid},
		"no payload":          {anyKid, sign(t, key, headerOf("a"), ""), reason.DocumentInvalid},
		"an RSA key of 2047":  {ofBits(2047), w.honest(t), reason.DocumentUntrusted},
		"an RSA key of 4096":  {ofBits(4096), w.honest(t), reason.DocumentInvalid}, // its signature
		"an RSA key of 4097":  {ofBits(4097), w.honest(t), reason.DocumentUntrusted},
		"a header of no JSON": {anyKid, sign(t, key, "", claims), reason.DocumentInvalid},
	} {
		w.verifier.Keys = c.keys
		if _, err := w.verify(t.Context(), c.token); (c.want == 0) != (err == nil) ||
			err != nil && reason.From(err).Code != c.want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestParseKeySet_Limits(t *testing.T) {
	b64 := base64.RawURLEncoding.EncodeToString
	rsaKey := func(bits int, odd int64) string {
		n := new(big.Int).SetBit(big.NewInt(odd), bits-1, 1)
		return strings.Replace(jwk("a", ""), modulus(2048), b64(n.Bytes()), 1)
	}
	spaces := func(n int) string { return jwk("a", strings.Repeat(" ", n-len(`{"keys":[]}`)-len(jwk("a", "")))) }
	keys := make([]string, 32)
	for i := range keys {
		keys[i] = jwk(string(rune('0'+i)), "")
	}
	for name, c := range map[string]struct {
		keys string
		good bool
	}{
		"2047 bits":                   {rsaKey(2047, 1), false},
		"2048 bits":                   {rsaKey(2048, 1), true},
		"4096 bits":                   {rsaKey(4096, 1), true},
		"4097 bits":                   {rsaKey(4097, 1), false},
		"an even modulus":             {rsaKey(2048, 0), false},
		"a modulus with a wrong end":  {strings.Replace(jwk("a", ""), modulus(2048), modulus(2064)+"!", 1), false},
		"a use that is a number":      {strings.Replace(jwk("a", ""), `"sig"`, "5", 1), false},
		"no use":                      {strings.Replace(jwk("a", ""), `"use":"sig",`, "", 1), true},
		"no alg":                      {strings.Replace(jwk("a", ""), `"alg":"RS256",`, "", 1), true},
		"32 keys":                     {strings.Join(keys, ","), true},
		"64 KiB":                      {spaces(64 << 10), true},
		"64 KiB and a byte":           {spaces(64<<10 + 1), false},
		"a secret of no type":         {jwk("a", "") + `,{"k":"AAAA"}`, false},
		"a private key of another id": {jwk("a", "") + `,{"kty":"EC","d":"AAAA"}`, false},
	} {
		set, err := gcpidentity.ParseKeySet([]byte(`{"keys":[` + c.keys + `]}`))
		if (err == nil) != c.good {
			t.Errorf("%s: %d keys, %v", name, len(set), err)
		}
	}
	for raw, want := range map[string]string{`{"keys":1}`: "not an array", `{"keys":{}}`: "not an array",
		`{"keys":[],"Keys":1}`:     "twice",
		strings.Repeat(" ", 65537): "65537 bytes, want at most 65536"} {
		if _, err := gcpidentity.ParseKeySet([]byte(raw)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
