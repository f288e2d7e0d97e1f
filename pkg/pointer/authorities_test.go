// SPDX-License-Identifier: Apache-2.0

package pointer_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"strings"
	"testing"

	"github.com/vincent-petithory/dataurl"

	"github.com/mcs-attest/mcs-attest/pkg/pointer"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
)

// written returns the form of the machine-config-operator.
func written(pem string) string {
	return dataurl.New([]byte(pem), "text/plain", "charset", "utf-8").String()
}

func entry(pem string) string { return `{"source":"` + written(pem) + `"}` }

func gzipped(t *testing.T, text string) string {
	t.Helper()
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	_, err := w.Write([]byte(text))
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return zipped.String()
}

// authorityCases returns pointer configs with one authority, in each form that clusters have.
func authorityCases(entry string) map[string]string {
	const source = `{"source":"https://api-int.example.com:22623/config/worker"}`
	cases := map[string]string{
		"specification 2.2": `{"ignition":{"config":{"append":[` + source +
			`]},"security":{"tls":{"certificateAuthorities":[` + entry +
			`]}},"timeouts":{},"version":"2.2.0"},"networkd":{},"passwd":{},"storage":{},"systemd":{}}`,
		"unknown keys": `{"x":1,"ignition":{"version":"3.2.0","new":{"a":[1,2,{"b":null}]},"security":{"tls":{"certificateAuthorities":[ ` + entry + ` ],"z":0}},"config":{"merge":[` + source + `]}}}`,
		"white space and its order": "\n{ \"storage\" : {},\n\t\"ignition\" : { \"security\" : { \"tls\" : { " +
			"\"certificateAuthorities\" : [\n" + entry + "\n] } } ,\r\n \"version\" : \"3.1.0\" , \"config\":{\"merge\":[" +
			source + "]} } }\n\n",
		"a specification to come": `{"ignition":{"version":"3.9.0","config":{"merge":[` + source +
			`]},"security":{"tls":{"certificateAuthorities":[` + entry + `]}}}}`,
		"a provisioning token in it": `{"ignition":{"version":"3.4.0","config":{"merge":[{"source":"https://api-int.example.com:22623/config/worker","httpHeaders":[{"name":"Authorization","value":"Bearer abc"}]}]},"security":{"tls":{"certificateAuthorities":[` + entry + `]}}}}`,
	}
	for _, v := range []string{"3.0.0", "3.1.0", "3.2.0", "3.3.0", "3.4.0", "3.5.0", "3.6.0"} {
		cases["specification "+v] = `{"ignition":{"version":"` + v + `","config":{"merge":[` + source +
			`]},"security":{"tls":{"certificateAuthorities":[` + entry + `]}}}}`
	}
	return cases
}

func TestSetAuthorities_ChangesOnlyTheAuthority(t *testing.T) {
	one, two := ca(t, "one"), ca(t, "two")
	before, after := authorityCases(entry(one)), authorityCases(entry(two+one))
	for name, raw := range before {
		t.Run(name, func(t *testing.T) {
			got, err := pointer.SetAuthorities([]byte(raw), []byte(two+one))
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != after[name] {
				t.Errorf("have %s\nwant %s", got, after[name])
			}
			again, err := pointer.SetAuthorities(got, []byte(two+one))
			if err != nil || string(again) != string(got) {
				t.Errorf("once more: %v, changed %t", err, string(again) != string(got))
			}
			back, err := pointer.SetAuthorities(got, []byte(one))
			if err != nil || string(back) != raw {
				t.Errorf("and back: %v, %s", err, back)
			}
		})
	}
}

func TestSetAuthorities_OtherForms(t *testing.T) {
	one, two, three := ca(t, "one"), ca(t, "two"), ca(t, "three")
	config := func(entry string) string {
		return `{"ignition":{"version":"3.4.0","security":{"tls":{"certificateAuthorities":[` + entry + `]}}}}`
	}
	for _, c := range []struct{ name, entry, bundle, want string }{
		{"the same in another encoding stays", `{"source":"` + dataURL(one) + `"}`, one, `{"source":"` + dataURL(one) + `"}`},
		{"a hash of the old one goes", `{"source":"` + dataURL(one) + `","verification":{"hash":"sha512-00"}}`, two + one,
			`{"source":"` + written(two+one) + `","verification":null}`},
		{"a compression goes", `{"compression":"gzip","source":"` + dataURL(gzipped(t, one)) + `"}`, two + one,
			`{"compression":null,"source":"` + written(two+one) + `"}`},
		{"one of several is the bundle's", `{"source":"` + dataURL(three+one) + `"}`, two + one,
			`{"source":"` + written(two+one) + `"}`},
		{"an earlier one, which the bundle does not have", entry(three), two + one, entry(two + one)},
		{"a null beside it stays", `{"source":"` + dataURL(one) + `","verification":null}`, two + one,
			`{"source":"` + written(two+one) + `","verification":null}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := pointer.SetAuthorities([]byte(config(c.entry)), []byte(c.bundle), []byte("x"), []byte(three))
			if err != nil || string(got) != config(c.want) {
				t.Errorf("%v\nhave %s\nwant %s", err, got, config(c.want))
			}
		})
	}
}

func TestSetAuthorities_Unchanged(t *testing.T) {
	one, two := ca(t, "one"), ca(t, "two")
	config := func(list string) string {
		return `{"ignition":{"version":"3.2.0","security":{"tls":{"certificateAuthorities":` + list + `}}}}`
	}
	for _, c := range []struct{ name, raw, why string }{
		{"nothing", " ", "empty"},
		{"a shell script", "#!/bin/sh\necho", "not an Ignition config"},
		{"cloud-config", "#cloud-config\n{}", "not an Ignition config"},
		{"an array", "[]", "not an Ignition config"},
		{"a string", `"ignition"`, "not an Ignition config"},
		{"JSON with something behind it", config("["+entry(one)+"]") + "#!/bin/sh", "not an Ignition config"},
		{"another JSON", `{"users":[]}`, "not an Ignition config"},
		{"no version", `{"ignition":{"security":{"tls":{"certificateAuthorities":[` + entry(one) + `]}}}}`,
			"neither 2.x nor 3.x"},
		{"specification 1", `{"ignitionVersion":1}`, "not an Ignition config"},
		{"a version that is a number", `{"ignition":{"version":3}}`, "neither 2.x nor 3.x"},
		{"no authority", `{"ignition":{"version":"3.2.0"}}`, "no certificate authority"},
		{"an empty list", config("[]"), "no certificate authority"},
		{"a list that is not a list", config(`{"0":` + entry(one) + `}`), "no certificate authority"},
		{"a null list", config("null"), "no certificate authority"},
		{"two authorities", config("[" + entry(one) + "," + entry(one) + "]"), "names 2 certificate authorities"},
		{"an entry that is a string", config(`["data:,x"]`), "no source"},
		{"an entry without a source", config(`[{}]`), "no source"},
		{"an authority behind a URL", config(`[{"source":"https://pki.example.com/ca.pem"}]`), "behind a URL"},
		{"two lists", `{"ignition":{"version":"3.2.0","security":{"tls":{"certificateAuthorities":[` + entry(one) +
			`],"CertificateAuthorities":[]}}}}`, "occurs twice"},
		{"two sources", config(`[{"source":"data:,x","SOURCE":"data:,y"}]`), "occurs twice"},
		{"two hashes", config(`[{"source":"` + written(two) + `","verification":null,"Verification":{}}]`), "occurs twice"},
		{"data that is not a certificate", config(`[{"source":"data:,x"}]`), "cannot be read"},
		{"another server's authority", config("[" + entry(one) + "]"), "(one) is not in the bundle"},
		{"two ignitions", `{"ignition":{"version":"3.2.0"},"Ignition":{}}`, "occurs twice"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := pointer.SetAuthorities([]byte(c.raw), []byte(two))
			var left *pointer.Unchanged
			if !errors.As(err, &left) || !strings.Contains(left.Why, c.why) || got != nil {
				t.Errorf("%v, want it unchanged: %s", err, c.why)
			}
		})
	}
}

func TestSetAuthorities_AcceptsOnlyCertificates(t *testing.T) {
	one := ca(t, "one")
	raw := []byte(`{"ignition":{"version":"3.2.0","security":{"tls":{"certificateAuthorities":[` + entry(one) + `]}}}}`)
	const broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
	for name, c := range map[string]struct{ bundle, want string }{
		"nothing":           {"", "no certificate"},
		"text":              {"hello", "no certificate"},
		"a key":             {one + "-----BEGIN EC PRIVATE KEY-----\nAAAA\n-----END EC PRIVATE KEY-----\n", "EC PRIVATE KEY"},
		"a broken one":      {broken, "malformed"},
		"a broken one last": {one + broken, "malformed"},
	} {
		var left *pointer.Unchanged
		out, err := pointer.SetAuthorities(raw, []byte(c.bundle))
		if err == nil || errors.As(err, &left) || out != nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// ForceAuthorities replaces any single authority and changes only its entry.
func TestForceAuthorities(t *testing.T) {
	one, two := ca(t, "one"), ca(t, "two")
	config := func(list string) []byte {
		return []byte(`{"ignition":{"version":"3.2.0","security":{"tls":{"certificateAuthorities":[` + list + `]}}}}`)
	}
	for _, old := range []string{entry(one), `{"source":"data:,x"}`} {
		if got, err := pointer.ForceAuthorities(config(old), []byte(two)); err != nil ||
			string(got) != string(config(entry(two))) {
			t.Errorf("%v\n%s", err, got)
		}
	}
	var left *pointer.Unchanged
	if _, err := pointer.ForceAuthorities(config(entry(one)+","+entry(one)), []byte(two)); !errors.As(err, &left) {
		t.Errorf("one of two: %v", err)
	}
}

// Authorities reads the trusted certificates of every specification, or returns an error.
func TestAuthorities(t *testing.T) {
	one, two := ca(t, "one"), ca(t, "two")
	for name, raw := range authorityCases(entry(one+two) + "," + `{"source":"` + dataURL(one) + `"}`) {
		if all, err := pointer.Authorities([]byte(raw)); err != nil || len(all) != 3 || all[1].Subject.CommonName != "two" {
			t.Errorf("%s: %v, %d", name, err, len(all))
		}
	}
	for _, version := range []string{"2.2.0", "3.2.0"} {
		config := func(list string) []byte {
			return []byte(`{"ignition":{"version":"` + version + `","security":{"tls":{"certificateAuthorities":[` +
				list + `]}}}}`)
		}
		if all, err := pointer.Authorities(config("")); err != nil || len(all) != 0 {
			t.Errorf("none: %v, %v", err, all)
		}
		for _, list := range []string{`{"source":"https://pki.example.com/ca.pem"}`, `{"source":"data:,x"}`,
			entry(one) + `,{"source":"data:,x"}`, `{}`} {
			if all, err := pointer.Authorities(config(list)); err == nil || errors.Is(err, pointer.ErrNotIgnition) ||
				all != nil {
				t.Errorf("%s: %v, %v", list, err, all)
			}
		}
	}
	for raw, want := range map[string]error{"": pointer.ErrEmpty, "<powershell>": pointer.ErrNotIgnition} {
		if _, err := pointer.Authorities([]byte(raw)); !errors.Is(err, want) {
			t.Errorf("%q: %v", raw, err)
		}
	}
}

// Different programs change the token and the authority of a pointer config, in any order.
func TestTokenAndAuthorityDoNotAffectEachOther(t *testing.T) {
	one, two := ca(t, "one"), ca(t, "two")
	p := pointer.Provisioning{Token: secret.New([]byte("token-of-thirty-two-characters--")),
		Origins: []string{"https://api-int.example.com:22623"}}
	for _, v := range []string{"3.1.0", "3.2.0", "3.5.0"} {
		raw := []byte(authorityCases(entry(one))["specification "+v])
		tokenFirst, err := pointer.Provision(raw, p)
		if err != nil {
			t.Fatal(err)
		}
		if tokenFirst, err = pointer.SetAuthorities(tokenFirst, []byte(two), []byte(one)); err != nil {
			t.Fatal(err)
		}
		authorityFirst, err := pointer.SetAuthorities(raw, []byte(two), []byte(one))
		if err != nil {
			t.Fatal(err)
		}
		if authorityFirst, err = pointer.Provision(authorityFirst, p); err != nil {
			t.Fatal(err)
		}
		if string(tokenFirst) != string(authorityFirst) || !strings.Contains(string(tokenFirst), "token-of-thirty") ||
			!strings.Contains(string(tokenFirst), written(two)) {
			t.Errorf("%s: %s\n%s", v, tokenFirst, authorityFirst)
		}
	}
}

// For all user data: the result parses as intended, only the entry changes, and the operation is
// idempotent.
func FuzzSetAuthorities(f *testing.F) {
	for _, raw := range authorityCases(`{"source":"data:,x"}`) {
		f.Add([]byte(raw))
	}
	for _, raw := range []string{"", "{}", "[", `{"ignition":{"version":"3.2.0","security":{"tls":{"certificateAuthorities":[{"source":"data:,x","verification":{"hash":"x"}}]}}}}`} {
		f.Add([]byte(raw))
	}
	bundle := []byte(fuzzBundle)
	f.Fuzz(func(t *testing.T, raw []byte) {
		_, _ = pointer.Authorities(raw)
		_, _ = pointer.SetAuthorities(raw, bundle)
		out, err := pointer.ForceAuthorities(raw, bundle)
		if err != nil {
			return
		}
		again, err := pointer.SetAuthorities(out, bundle)
		if err != nil || string(again) != string(out) {
			t.Fatalf("once more: %v", err)
		}
		if grown := len(out) - len(raw); grown > 2*len(bundle)+64 {
			t.Fatalf("it grew by %d", grown)
		}
	})
}

// fuzzBundle is a certificate without an owner.
const fuzzBundle = `-----BEGIN CERTIFICATE-----
MIIBPzCB56ADAgECAgEBMAoGCCqGSM49BAMCMA8xDTALBgNVBAMTBGZ1enowIBcN
NzAwMTAxMDAwMDAwWhgPMjI0MjAzMTYxMjU2MzJaMA8xDTALBgNVBAMTBGZ1enow
WTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAAT9htWTtCXUF77xN+iDag30pyhiblGJ
wi0Lx8raupdoFPs81WOzbHyBIOLjvBRLJyf5rGbTEo82fc03jUuzqR1ZozIwMDAP
BgNVHRMBAf8EBTADAQH/MB0GA1UdDgQWBBQBTmDTFCBGOK1WD7u4GSK5X/qbSjAK
BggqhkjOPQQDAgNHADBEAiBQnceNLguyqDwpL21EmawRgC8NrPe6wiZHxeczdbGh
UgIgPahwRRj5TgQ/qMC6+wllRn1EhENZvBAcic9jXdy+ucY=
-----END CERTIFICATE-----
`
