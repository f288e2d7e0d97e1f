// SPDX-License-Identifier: Apache-2.0

package metadata

import (
	"bytes"
	"strings"
	"testing"
)

func services(t testing.TB) (*AWS, *GCP, *Azure) {
	a, err := NewAWS("http://127.0.0.1:1", Quick)
	if err != nil {
		t.Fatal(err)
	}
	g, err := NewGCP("http://127.0.0.1:1", Quick)
	if err != nil {
		t.Fatal(err)
	}
	z, err := NewAzure("http://127.0.0.1:1", Quick)
	if err != nil {
		t.Fatal(err)
	}
	return a, g, z
}

const (
	awsInstanceSeed    = `{"accountId":"123456789012","availabilityZone":"eu-central-1a","region":"eu-central-1","instanceId":"i-0123456789abcdef0","pendingTime":"2026-01-02T03:04:05Z"}`
	awsCredentialsSeed = `{"Code":"Success","Type":"AWS-HMAC","AccessKeyId":"ASIA0123456789ABCDEF","SecretAccessKey":"c2VjcmV0","Token":"dG9rZW4=","Expiration":"2026-01-02T09:04:05Z"}`
	azureComputeSeed   = `{"resourceId":"/subscriptions/0b1f6471-0000-4000-8000-000000000001/resourceGroups/demo-rg/providers/Microsoft.Compute/virtualMachines/worker-a","vmId":"02aab8a4-74ef-476e-8182-f6d2ba4166a6"}`
	azureAttestedSeed  = `{"encoding":"pkcs7","signature":"MIIBAgMEBQ=="}`
	azureTokenSeed     = `{"access_token":"eyJ0.eyJ1.c2ln","expires_in":"86399","token_type":"Bearer"}`
)

// seeds adds a document, parts of it, and the document with another value.
func seeds(f *testing.F, document string) {
	f.Add([]byte(document))
	for _, n := range []int{0, 1, len(document) / 2, len(document) - 1} {
		f.Add([]byte(document[:n]))
	}
	f.Add([]byte(strings.ToUpper(document)))
	f.Add([]byte(document + document))
	f.Add([]byte(strings.ReplaceAll(document, "e", "\\u0065")))
	f.Add([]byte(strings.ReplaceAll(document, ":\"", ":[\"")))
	f.Add([]byte("null"))
	f.Add([]byte("<html>"))
}

// harmless checks that id is exactly one provider id.
func harmless(t *testing.T, id, prefix string) {
	t.Helper()
	if !strings.HasPrefix(id, prefix) || len(id) > 512 || strings.Contains(id, "/../") ||
		strings.ContainsAny(id, "\x00\n\r\t \"'<>?#%\\") {
		t.Errorf("provider id %q", id)
	}
}

func FuzzAWSInstance(f *testing.F) {
	seeds(f, awsInstanceSeed)
	a, _, _ := services(f)
	f.Fuzz(func(t *testing.T, raw []byte) {
		if i, err := a.parseInstance(raw); err == nil {
			harmless(t, i.ProviderID(), "aws:///")
			if strings.Count(i.ProviderID(), "/") != 4 {
				t.Errorf("provider id %q", i.ProviderID())
			}
		}
	})
}

func FuzzAWSCredentials(f *testing.F) {
	seeds(f, awsCredentialsSeed)
	a, _, _ := services(f)
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, err := a.parseCredentials(raw)
		if err == nil && (!isToken(c.AccessKeyID) || !isToken(c.SecretAccessKey) || !isToken(c.SessionToken)) {
			t.Errorf("credentials %q %q %q", c.AccessKeyID, c.SecretAccessKey, c.SessionToken)
		}
	})
}

func FuzzAzureCompute(f *testing.F) {
	seeds(f, azureComputeSeed)
	_, _, z := services(f)
	f.Fuzz(func(t *testing.T, raw []byte) {
		if id, err := z.parseCompute(raw); err == nil {
			harmless(t, id, "azure:///")
			if strings.Count(id, "/") != 10 {
				t.Errorf("provider id %q", id)
			}
		}
	})
}

func FuzzAzureAttested(f *testing.F) {
	seeds(f, azureAttestedSeed)
	_, _, z := services(f)
	f.Fuzz(func(t *testing.T, raw []byte) {
		if der, err := z.parseAttested(raw); err == nil && (len(der) == 0 || der[0] != 0x30 || len(der) > len(raw)) {
			t.Errorf("document %x", der)
		}
	})
}

func FuzzAzureToken(f *testing.F) {
	seeds(f, azureTokenSeed)
	_, _, z := services(f)
	f.Fuzz(func(t *testing.T, raw []byte) {
		if token, err := z.parseToken(raw); err == nil && !isToken(string(token)) {
			t.Errorf("token %q", token)
		}
	})
}

func FuzzSigned(f *testing.F) {
	for _, s := range []string{"MIIBAgMEBQ==", "MIIB\nAgME\r\nBQ==\n", "MIIBAgMEBQ", " MIIB", "308006", "%", ""} {
		f.Add([]byte(s))
	}
	a, _, _ := services(f)
	f.Fuzz(func(t *testing.T, raw []byte) {
		if der, err := a.pkcs7(awsSigned, raw); err == nil && (len(der) == 0 || der[0] != 0x30) {
			t.Errorf("document %x", der)
		}
	})
}

// The unmodified documents parse. A missing or changed byte leads at most to another name or token,
// never to a panic.
func TestMutatedDocuments(t *testing.T) {
	a, _, z := services(t)
	i, err := a.parseInstance([]byte(awsInstanceSeed))
	if err != nil || i.ProviderID() != "aws:///eu-central-1a/i-0123456789abcdef0" {
		t.Fatalf("%+v, %v", i, err)
	}
	if _, err := a.parseCredentials([]byte(awsCredentialsSeed)); err != nil {
		t.Fatal(err)
	}
	if id, err := z.parseCompute([]byte(azureComputeSeed)); err != nil ||
		!strings.HasSuffix(id, "/virtualMachines/worker-a") {
		t.Fatal(id, err)
	}
	if _, err := z.parseAttested([]byte(azureAttestedSeed)); err != nil {
		t.Fatal(err)
	}
	if _, err := z.parseToken([]byte(azureTokenSeed)); err != nil {
		t.Fatal(err)
	}
	for _, seed := range []string{awsInstanceSeed, awsCredentialsSeed, azureComputeSeed, azureAttestedSeed,
		azureTokenSeed} {
		for n := range len(seed) {
			mutants := [][]byte{[]byte(seed[:n]), []byte(seed[n:])}
			for _, b := range []byte{0x00, '"', '/', '\\', 0x80, seed[n] ^ 0x20} {
				m := bytes.Clone([]byte(seed))
				m[n] = b
				mutants = append(mutants, m)
			}
			for _, m := range mutants {
				if i, err := a.parseInstance(m); err == nil {
					harmless(t, i.ProviderID(), "aws:///")
				}
				if c, err := a.parseCredentials(m); err == nil && !isToken(c.SessionToken) {
					t.Errorf("session token %q", c.SessionToken)
				}
				if id, err := z.parseCompute(m); err == nil {
					harmless(t, id, "azure:///")
				}
				if der, err := z.parseAttested(m); err == nil && der[0] != 0x30 {
					t.Errorf("document %x", der)
				}
				if token, err := z.parseToken(m); err == nil && !isToken(string(token)) {
					t.Errorf("token %q", token)
				}
			}
		}
	}
}
