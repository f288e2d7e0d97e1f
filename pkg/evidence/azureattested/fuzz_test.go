// SPDX-License-Identifier: Apache-2.0

package azureattested

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/azureattested/attester"
	"github.com/mcs-attest/mcs-attest/testvm/cloud/azure"
)

var fuzzed = sync.OnceValues(azure.New)

func fuzzCloud(f *testing.F) (*azure.Cloud, *azure.Instance) {
	f.Helper()
	c, err := fuzzed()
	if err != nil {
		f.Fatal(err)
	}
	i := &azure.Instance{Name: "w", ResourceGroup: "g", VMID: "bd8e7443-24a0-41f3-b949-8baf4fd1c573", Identity: "system"}
	if err := c.Add(i); err != nil {
		f.Fatal(err)
	}
	return c, i
}

// A lenient decoder reads every accepted content in the same way, and finds no second field with
// one of its names.
func FuzzContent(f *testing.F) {
	c, i := fuzzCloud(f)
	honest := string(c.Content(i, "n"))
	f.Add([]byte(honest))
	f.Add([]byte(strings.Replace(honest, "{", `{"VMID":"x",`, 1)))
	f.Add([]byte(strings.Replace(honest, "{", `{"a":[{"b":[1,2,{}]}],`, 1)))
	f.Add([]byte(honest[:len(honest)-1]))
	f.Add([]byte(honest + "{}"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := parseContent(raw)
		if err != nil {
			return
		}
		var lax struct {
			Nonce, VMID, SubscriptionID string
		}
		if err := json.Unmarshal(raw, &lax); err != nil {
			t.Fatalf("accepted, but: %v", err)
		}
		if lax.Nonce != got.nonce || !strings.EqualFold(lax.VMID, got.vmID) ||
			!strings.EqualFold(lax.SubscriptionID, got.subscription) {
			t.Fatalf("%+v and %+v", lax, got)
		}
	})
}

// An accepted resource id has only one form, except for its case.
func FuzzResourceID(f *testing.F) {
	for _, seed := range []string{
		"/subscriptions/0b1f6471-0000-4000-8000-000000000001/resourceGroups/g/providers/Microsoft.Compute/virtualMachines/w",
		"/subscriptions/0b1f6471-0000-4000-8000-000000000001/resourcegroups/g/providers/Microsoft.Compute/virtualMachines/w/",
		"/subscriptions/0b1f6471-0000-4000-8000-000000000001/resourceGroups/../providers/Microsoft.Compute/virtualMachines/%2e",
		"azure:///subscriptions/0b1f6471-0000-4000-8000-000000000001/resourceGroups/g/providers/Microsoft.Compute/virtualMachines/w?x#y",
		"",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, parse := range []func(string) (resource, error){parseResourceID, parseProviderID} {
			r, err := parse(s)
			if err != nil {
				continue
			}
			if !strings.EqualFold(strings.TrimPrefix(s, "azure://"), r.String()) {
				t.Fatalf("%q read as %q", s, r)
			}
			if again, err := parseResourceID(r.String()); err != nil || !again.equal(r) {
				t.Fatalf("%q: %v", r, err)
			}
			if strings.ContainsAny(r.String(), "%?#\\ \x00") || strings.Contains(r.String(), "/..") {
				t.Fatalf("%q", r)
			}
		}
	})
}

// The claims of a token with a verified signature. The tenant's administrator chooses some of them.
func FuzzTokenClaims(f *testing.F) {
	const honest = `{"aud":"api://x","iss":"https://sts.windows.net/t/","tid":"t","nbf":1,"exp":2,"xms_mirid":"/subscriptions/s"}`
	f.Add([]byte(honest))
	f.Add([]byte(strings.Replace(honest, "{", `{"aud":"y",`, 1)))
	f.Add([]byte(strings.Replace(honest, "{", `{"AUD":"y",`, 1)))
	f.Add([]byte(strings.Replace(honest, `"exp":2`, `"exp":2e3`, 1)))
	f.Add([]byte(strings.Replace(honest, `"api://x"`, `["api://x"]`, 1)))
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := parseToken(raw)
		if err != nil {
			return
		}
		var lax struct {
			Iss, Aud, Tid string
			Exp           int64
		}
		if err := json.Unmarshal(raw, &lax); err != nil || lax.Iss != got.issuer || lax.Aud != got.audience ||
			lax.Tid != got.tenant || lax.Exp != got.expires {
			t.Fatalf("%+v and %+v, %v", lax, got, err)
		}
	})
}

// For all inputs, an accepted document is the one that Azure signed.
func FuzzVerify(f *testing.F) {
	c, i := fuzzCloud(f)
	b := evidence.Binding{Transcript: [32]byte{1}}
	honest, err := c.Document(i, attester.Nonce(b.Transcript))
	if err != nil {
		f.Fatal(err)
	}
	token, err := c.IdentityToken(i, "api://x", nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(honest, c.Intermediate().Raw, []byte(token))
	f.Add(honest[:700], []byte{}, []byte{})
	roots, none := x509.NewCertPool(), x509.NewCertPool()
	roots.AddCert(c.Root())
	f.Fuzz(func(t *testing.T, raw, certificate, token []byte) {
		v := &Verifier{
			Roots: func() (*x509.CertPool, *x509.CertPool) { return roots, none }, Names: []string{c.Host},
			Subscriptions: []string{c.Subscription},
			Resolve:       noVM{}, Identity: nil,
		}
		claim, err := v.Verify(t.Context(), evidence.Document{Kind: evidence.AzureAttested, Raw: raw,
			Certificates: [][]byte{certificate}, Token: token}, b, time.Now())
		if err == nil && claim.Statement().InstanceID != "azure:"+i.VMID {
			t.Fatalf("%+v", claim.Statement())
		}
	})
}

type noVM struct{}

func (noVM) VM(context.Context, string) (VM, error) { return VM{}, nil }
