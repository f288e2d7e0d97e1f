// SPDX-License-Identifier: Apache-2.0

package azureattested_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/azureattested"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/azureattested/attester"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/testvm/cloud/azure"
)

func TestParseGUID_EachByte(t *testing.T) {
	const good = "0b1f6471-0000-4000-8000-00000000aAfF"
	for i := range good {
		for c := range 256 {
			s := good[:i] + string([]byte{byte(c)}) + good[i+1:]
			want := good[i] == '-' && c == '-' ||
				good[i] != '-' && strings.Contains("0123456789abcdefABCDEF", string(rune(c)))
			if got, ok := azureattested.ParseGUID(s); ok != want || ok && got != strings.ToLower(s) {
				t.Fatalf("%q: %q, %v", s, got, ok)
			}
		}
	}
	for _, s := range []string{"", good[1:], good + "0"} {
		if _, ok := azureattested.ParseGUID(s); ok {
			t.Errorf("%q", s)
		}
	}
}

func TestParseResourceID_Forms(t *testing.T) {
	const id = "/subscriptions/0b1f6471-0000-4000-8000-000000000001/resourceGroups/GROUP/providers/Microsoft.Compute/" +
		"virtualMachines/NAME"
	of := func(group, name string) string { return strings.NewReplacer("GROUP", group, "NAME", name).Replace(id) }
	a := func(n int) string { return strings.Repeat("a", n) }
	cases := map[string]string{
		of(a(90), a(80)): "", of(a(91), "n"): "resource group", of("g", a(81)): "name of a virtual machine",
		of("g.", "n"): "resource group", of("g", "n."): "", of("", "n"): "resource group", of("g", ""): "name",
		of("-g", "n"): "resource group", of(".g", "n"): "resource group", of("g", ".n"): "name",
		id + a(512-len(id)): "name of a virtual machine", id + a(513-len(id)): "too long",
		strings.Replace(id, "0b1f", "xb1f", 1): "not a GUID", "x" + id: "not the resource id", id + "/x": "not the resource",
	}
	for _, word := range []string{"subscriptions", "resourceGroups", "providers", "Microsoft.Compute", "virtualMachines"} {
		cases[strings.Replace(id, word, strings.ToUpper(word), 1)] = ""
		cases[strings.Replace(id, word, "x"+word, 1)] = "not the resource id"
	}
	const allowed = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_.-"
	for c := range 256 {
		s := "a" + string([]byte{byte(c)}) + "a"
		if c == '/' {
			continue
		}
		cases[of("g", s)], cases[of(s, "n")] = "name of a virtual machine", "resource group"
		if strings.Contains(allowed, string(rune(c))) {
			cases[of("g", s)] = ""
		}
		if strings.Contains(allowed+"()", string(rune(c))) {
			cases[of(s, "n")] = ""
		}
	}
	for s, want := range cases {
		if err := azureattested.ParseResourceID(s); (want == "") != (err == nil) ||
			err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", s, err, want)
		}
	}
}

func TestIdentity_Limits(t *testing.T) {
	key := attacker(t)
	w := newSetup(t)
	now := time.Unix(1795000000, 0)
	b64 := base64.RawURLEncoding.EncodeToString
	sign := func(kid, space string, change func(map[string]any)) []byte {
		claims := map[string]any{"aud": audience, "iss": "issuer", "tid": w.cloud.Tenant, "nbf": now.Unix(),
			"exp": now.Unix(), "xms_mirid": w.machine.ResourceID()}
		if change != nil {
			change(claims)
		}
		payload, err := json.Marshal(claims)
		if err != nil {
			t.Fatal(err)
		}
		signed := b64([]byte(`{"alg":"RS256","kid":"`+kid+`"}`)) + "." + b64(append(payload, space...))
		digest := sha256.Sum256([]byte(signed))
		signature, err := rsa.SignPKCS1v15(nil, key, crypto.SHA256, digest[:])
		if err != nil {
			t.Fatal(err)
		}
		return []byte(signed + "." + b64(signature))
	}
	set := func(name string, to any) []byte { return sign("k", "", func(c map[string]any) { c[name] = to }) }
	sized := func(size int) []byte {
		for n := range 12 { // base64 has no text of some lengths
			kid := strings.Repeat("k", 1+n)
			for spaces := size*3/4 - 900; spaces < size; spaces++ {
				if len(b64(make([]byte, spaces))) > size {
					break
				}
				if token := sign(kid, strings.Repeat(" ", spaces), nil); len(token) == size {
					return token
				} else if len(token) > size {
					break
				}
			}
		}
		t.Fatalf("no token of %d bytes", size)
		return nil
	}
	ofBits := func(bits int) crypto.PublicKey {
		return &rsa.PublicKey{N: new(big.Int).SetBit(big.NewInt(1), bits-1, 1), E: 65537}
	}
	onP256 := &ecdsa.PublicKey{Curve: elliptic.P256()}
	for name, c := range map[string]struct {
		token []byte
		key   crypto.PublicKey // nil: the right one
		want  string
	}{
		"valid":               {set("x", 1), nil, ""},
		"8192 bytes":          {sized(8192), nil, ""},
		"8193 bytes":          {sized(8193), nil, "a token of 8193 bytes; at most 8192"},
		"a kid of 128":        {sign(strings.Repeat("k", 128), "", nil), nil, ""},
		"a kid of 129":        {sign(strings.Repeat("k", 129), "", nil), nil, "a key id of 129 characters"},
		"no kid":              {sign("", "", nil), nil, "a key id of 0 characters"},
		"RSA-2047":            {set("x", 1), ofBits(2047), "is not RSA of 2048 to 4096 bits"},
		"RSA-2048, another":   {set("x", 1), ofBits(2048), "the token: "},
		"RSA-4096, another":   {set("x", 1), ofBits(4096), "error in cryptographic primitive"},
		"RSA-4097":            {set("x", 1), ofBits(4097), "is not RSA of 2048 to 4096 bits"},
		"not RSA":             {set("x", 1), onP256, "is not RSA of 2048 to 4096 bits"},
		"begins in 5 minutes": {set("nbf", now.Unix()+300), nil, ""},
		"begins in 301 s":     {set("nbf", now.Unix()+301), nil, "this clock differs"},
		"ended 299 s ago":     {set("exp", now.Unix()-299), nil, ""},
		"ended 300 s ago":     {set("exp", now.Unix()-300), nil, "expired"},
		"an end of null":      {set("exp", nil), nil, `the field "exp" is of another type`},
		"no text":             {set("iss", 1), nil, `the field "iss" is of another type`},
		"no machine":          {set("xms_mirid", "x"), nil, "names no virtual machine"},
	} {
		if c.key == nil {
			c.key = &key.PublicKey
		}
		all := keys{}
		for n := range 130 {
			all[strings.Repeat("k", n)] = c.key
		}
		i := &azureattested.Identity{Keys: all, Issuers: []string{"issuer"}, Tenant: w.cloud.Tenant, Resource: audience}
		if err := i.Verify(t.Context(), c.token, now); (c.want == "") != (err == nil) ||
			err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		i.Resource = ""
		if err := i.Verify(t.Context(), set("aud", ""), now); c.want == "" && (err == nil ||
			reason.From(err).Code != reason.DocumentNotFresh) {
			t.Errorf("without a resource: %v", err)
		}
	}
}

func TestVerify_SizesOfADocument(t *testing.T) {
	newSetup(t).passes()
	of := func(n int) [][]byte { return slices.Repeat([][]byte{{0x30, 0}}, n) }
	padded := func(size int) func(string) string {
		return func(s string) string { return strings.Replace(s, "aro_420", strings.Repeat("a", 7+size-len(s)), 1) }
	}
	// A signer's certificate with an unknown extension, so that it has this size.
	certificate := func(w *setup, size int) {
		of := func(n int) *x509.Certificate {
			leaf, err := w.cloud.Issue(attacker(t), func(c *x509.Certificate) {
				c.ExtraExtensions = []pkix.Extension{{Id: []int{1, 2, 3, 4}, Value: make([]byte, n)}}
			})
			if err != nil {
				t.Fatal(err)
			}
			return leaf
		}
		leaf := of(7000 + size - len(of(7000).Raw))
		if len(leaf.Raw) != size {
			t.Fatalf("%d bytes", len(leaf.Raw))
		}
		raw, err := azure.Sign(w.cloud.Content(w.machine, attester.Nonce(w.binding.Transcript)), attacker(t), leaf, leaf.Raw)
		if err != nil {
			t.Fatal(err)
		}
		w.document.Raw = raw
	}
	for name, c := range map[string]struct {
		change func(*setup)
		want   string
	}{
		"32 KiB":                  {func(w *setup) { w.document.Raw = make([]byte, 32768) }, "the attested document"},
		"more than 32 KiB":        {func(w *setup) { w.document.Raw = make([]byte, 32769) }, "at most 32768"},
		"8 certificates":          {func(w *setup) { w.document.Certificates = of(8) }, ""},
		"9 certificates":          {func(w *setup) { w.document.Certificates = of(9) }, "at most 8"},
		"another kind":            {func(w *setup) { w.document.Kind++ }, "a document of kind"},
		"a content of 4096":       {func(w *setup) { w.document.Raw = w.content(padded(4096)) }, ""},
		"a content of 4097":       {func(w *setup) { w.document.Raw = w.content(padded(4097)) }, "a content of 4097 bytes"},
		"a certificate of 8192":   {func(w *setup) { certificate(w, 8192) }, ""},
		"a certificate of 8193":   {func(w *setup) { certificate(w, 8193) }, "of 1 certificates, 1 cannot be parsed"},
		"no function for anchors": {func(w *setup) { w.verifier.Roots = nil }, "no anchors"},
		"no anchors": {func(w *setup) {
			w.verifier.Roots = func() (*x509.CertPool, *x509.CertPool) { return nil, nil }
		}, "no anchors"},
		"a time stamp that is a text": {func(w *setup) {
			w.document.Raw = w.content(func(s string) string { return strings.Replace(s, `{"createdOn`, `"x","y":{"createdOn`, 1) })
		}, `the field "timeStamp" is of another type`},
		"an end in another form": {func(w *setup) {
			w.document.Raw = w.content(func(s string) string { return strings.Replace(s, `sOn":"`, `sOn":"x`, 1) })
		}, `expiresOn "x`},
		"nine certificates of no authority": {func(w *setup) {
			leaf, key := w.cloud.Leaf()
			bag := [][]byte{leaf.Raw}
			for i := range 9 {
				bag = append(bag, forge(t, &attacker(t).PublicKey, nil,
					func(c *x509.Certificate) { c.SerialNumber = big.NewInt(int64(100 + i)) }).Raw)
			}
			raw, err := azure.Sign(w.cloud.Content(w.machine, attester.Nonce(w.binding.Transcript)), key, leaf, bag...)
			if err != nil {
				t.Fatal(err)
			}
			w.document.Raw = raw
		}, ""},
		"a signer on P-256": {func(w *setup) {
			onP256, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
			if err != nil {
				t.Fatal(err)
			}
			_, leaves := maze(t, w, elliptic.P256(), 0, &onP256.PublicKey)
			leaf, key := w.cloud.Leaf()
			w.document.Raw, err = azure.Sign(w.cloud.Content(w.machine, attester.Nonce(w.binding.Transcript)), key, leaf,
				leaves...)
			if err != nil {
				t.Fatal(err)
			}
		}, "the certificate of the signer: a key that is not RSA"},
		"a signer with RSA-1024": {func(w *setup) {
			small, err := rsa.GenerateKey(rand.Reader, 1024)
			if err != nil {
				t.Fatal(err)
			}
			leaf, err := w.cloud.Issue(small, nil)
			if err != nil {
				t.Fatal(err)
			}
			raw, err := azure.Sign(w.cloud.Content(w.machine, attester.Nonce(w.binding.Transcript)), small, leaf, leaf.Raw)
			if err != nil {
				t.Fatal(err)
			}
			w.document.Raw = raw
		}, "the certificate of the signer: an RSA key"},
		"Azure returns no resource ID":      {func(w *setup) { w.vm.ResourceID = "" }, ""},
		"Azure returns another resource ID": {func(w *setup) { w.vm.ResourceID = "x" }, "Azure answered about"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newSetup(t)
			c.change(w)
			if _, err := w.confirm(w.machine.ProviderID()); (c.want == "") != (err == nil) ||
				err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

func TestStatement_OptionalParts(t *testing.T) {
	w := newSetup(t)
	s := w.passes().Summary
	if _, ok := s["managedIdentity"]; ok || s["sku"] != "aro_420" {
		t.Errorf("%v", s)
	}
	w.document.Raw = w.content(func(s string) string { return strings.Replace(s, `"sku":"aro_420",`, "", 1) })
	if sku, ok := w.passes().Summary["sku"]; ok {
		t.Errorf("%q", sku)
	}
}
