// SPDX-License-Identifier: Apache-2.0

package azure

import (
	"bytes"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/smallstep/pkcs7"
)

// emulated is one cloud for all tests, because creating its keys takes long.
var emulated = sync.OnceValues(New)

func machine(t *testing.T) (*Cloud, *Instance) {
	t.Helper()
	c, err := emulated()
	if err != nil {
		t.Fatal(err)
	}
	i := &Instance{Name: "worker-1", ResourceGroup: "ocp-rg", VMID: "bd8e7443-24a0-41f3-b949-8baf4fd1c573",
		UserData: []byte(`{"ignition":{}}`), Identity: "system"}
	if err := c.Add(i); err != nil {
		t.Fatal(err)
	}
	return c, i
}

func ask(t *testing.T, h http.Handler, path string, change func(*http.Request)) (int, string) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
	r.Header.Set("Metadata", "true")
	if change != nil {
		change(r)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

func TestMetadataServiceAnswersLikeAzures(t *testing.T) {
	const document = "/metadata/attested/document?api-version=2020-09-01&nonce=n"
	for name, test := range map[string]struct {
		path   string
		change func(*http.Request)
		faults MetadataFaults
		status int
		body   string // a part of the body
	}{
		"an attested document": {path: document, status: 200, body: `"encoding":"pkcs7"`},
		"no header Metadata": {path: document,
			change: func(r *http.Request) { r.Header.Del("Metadata") }, status: 400, body: "metadata header"},
		"a proxy between": {path: document, change: func(r *http.Request) {
			r.Header.Set("X-Forwarded-For", "10.0.0.1")
		}, status: 400, body: "X-Forwarded-For"},
		"no api-version": {path: "/metadata/attested/document", status: 400, body: "newest-versions"},
		"a version before user data": {
			path: "/metadata/instance/compute/userData?format=text&api-version=2020-09-01", status: 400,
		},
		"user data is base64": {
			path: "/metadata/instance/compute/userData?format=text&api-version=2021-01-01", status: 200,
			body: "eyJpZ25pdGlvbiI6e319",
		},
		"user data in another encoding": {
			path:   "/metadata/instance/compute/userData?format=text&api-version=2021-01-01",
			faults: MetadataFaults{WrongBase64: true}, status: 200, body: "%",
		},
		"a nonce that is too long": {path: document + strings.Repeat("n", 32), status: 400, body: "nonce"},
		"the whole instance": {path: "/metadata/instance?api-version=2021-02-01", status: 200,
			body: `"vmId":"bd8e7443-24a0-41f3-b949-8baf4fd1c573"`},
		"a token": {
			path: "/metadata/identity/oauth2/token?api-version=2018-02-01&resource=api://x", status: 200,
			body: `"token_type":"Bearer"`,
		},
		"a token of an identity that it has not": {
			path: "/metadata/identity/oauth2/token?api-version=2018-02-01&resource=x&msi_res_id=/y", status: 400,
			body: "Identity not found",
		},
		"an unknown path":  {path: "/latest/meta-data/", status: 404},
		"an unknown field": {path: "/metadata/instance/compute/zzz?api-version=2021-02-01", status: 404},
		"too many":         {path: document, faults: MetadataFaults{Throttled: 1}, status: 429},
		"gone for a while": {path: document, faults: MetadataFaults{Gone: 1}, status: 410},
		"broken":           {path: document, faults: MetadataFaults{Broken: 1}, status: 500},
		"another method": {path: document, change: func(r *http.Request) { r.Method = http.MethodPost },
			status: 405},
		"nothing there, as on a machine of another": {path: document, faults: MetadataFaults{NotFound: true}, status: 404},
	} {
		t.Run(name, func(t *testing.T) {
			c, i := machine(t)
			i.Metadata = test.faults
			h := c.Metadata(i)
			status, body := ask(t, h, test.path, test.change)
			if status != test.status || !strings.Contains(body, test.body) {
				t.Fatalf("%d %s", status, body)
			}
			if f := test.faults; f.Throttled+f.Gone+f.Broken > 0 {
				if status, body = ask(t, h, test.path, nil); status != 200 {
					t.Fatalf("again: %d %s", status, body)
				}
			}
		})
	}
}

// Another parser of PKCS#7 agrees, after the test corrects the digest algorithm as other clients
// do.
func TestDocumentHasAzuresForm(t *testing.T) {
	c, i := machine(t)
	_, body := ask(t, c.Metadata(i), "/metadata/attested/document?api-version=2020-09-01&nonce="+
		strings.Repeat("a-_9", 8), nil)
	var answer struct{ Signature []byte }
	if err := json.Unmarshal([]byte(body), &answer); err != nil {
		t.Fatal(err)
	}
	p7, err := pkcs7.Parse(answer.Signature)
	if err != nil {
		t.Fatal(err)
	}
	if len(p7.Certificates) != 1 || p7.Certificates[0].Subject.CommonName != "metadata.azure.com" || len(p7.Signers) != 1 {
		t.Fatalf("%d certificates, %d signers", len(p7.Certificates), len(p7.Signers))
	}
	if !p7.Signers[0].DigestAlgorithm.Algorithm.Equal(oidSHA256WithRSA) {
		t.Fatal("the digest algorithm is not Azure's")
	}
	p7.Signers[0].DigestAlgorithm.Algorithm = pkcs7.OIDDigestAlgorithmSHA256
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	roots.AddCert(c.Root())
	between.AddCert(c.Intermediate())
	if err := p7.Verify(); err != nil {
		t.Fatal(err)
	}
	if _, err := p7.Certificates[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between,
		DNSName: "metadata.azure.com"}); err != nil {
		t.Fatal(err)
	}
	var content map[string]any
	if err := json.Unmarshal(p7.Content, &content); err != nil || content["nonce"] != strings.Repeat("a-_9", 8) ||
		content["vmId"] != i.VMID {
		t.Fatalf("%v %s", err, p7.Content)
	}
}

func TestMetadata_KeepsATokenUntilItsEndNears(t *testing.T) {
	c, i := machine(t)
	const path = "/metadata/identity/oauth2/token?api-version=2018-02-01&resource=api://x"
	_, one := ask(t, c.Metadata(i), path, nil)
	if _, two := ask(t, c.Metadata(i), path, nil); one != two && !strings.Contains(two, one[20:200]) {
		t.Fatal("IMDS keeps a token until its end nears")
	}
	var answer struct {
		Token string `json:"access_token"`
	}
	if err := json.Unmarshal([]byte(one), &answer); err != nil {
		t.Fatal(err)
	}
	claims, err := base64.RawURLEncoding.DecodeString(strings.Split(answer.Token, ".")[1])
	if err != nil || !bytes.Contains(claims, []byte("/resourcegroups/ocp-rg/")) {
		t.Fatalf("%v %s", err, claims)
	}
}

func TestServe_AnswersOverHTTPS(t *testing.T) {
	c, i := machine(t)
	before := c.Calls("vm")
	s, err := c.Serve()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(s.CA)
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig.RootCAs = roots
	client := &http.Client{Transport: transport}
	get := func(path, token string) (int, string) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		b, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(b)
	}
	resp, err := client.PostForm(s.URL+"/"+c.Tenant+"/oauth2/v2.0/token",
		url.Values{"grant_type": {"client_credentials"}, "client_id": {c.ClientID}, "client_secret": {c.ClientSecret}})
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Fatal(resp.Status)
	}
	if status, body := get(i.ResourceID()+"?api-version=2024-11-01", bearer); status != 200 ||
		!strings.Contains(body, i.VMID) {
		t.Fatal(status, body)
	}
	if status, _ := get(i.ResourceID()+"?api-version=2024-11-01", "another"); status != 401 {
		t.Fatal(status)
	}
	c.Remove(i)
	if status, _ := get(i.ResourceID()+"?api-version=2024-11-01", bearer); status != 404 {
		t.Fatal(status)
	}
	if status, body := get("/"+c.Tenant+"/discovery/v2.0/keys", ""); status != 200 ||
		!strings.Contains(body, `"kty":"RSA"`) {
		t.Fatal(status, body)
	}
	if n := c.Calls("vm") - before; n != 3 {
		t.Fatal(n)
	}
}
