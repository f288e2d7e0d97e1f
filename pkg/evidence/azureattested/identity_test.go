// SPDX-License-Identifier: Apache-2.0

package azureattested_test

import (
	"context"
	"crypto"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"math/big"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/azureattested"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/testvm/cloud/azure"
)

// keys are the keys of a tenant. They are unavailable if it is nil.
type keys map[string]crypto.PublicKey

func (k keys) Key(_ context.Context, kid string) (crypto.PublicKey, error) {
	if key, ok := k[kid]; ok {
		return key, nil
	}
	if k == nil {
		return nil, reason.Deny(reason.ProviderUnavailable, "the keys of the tenant")
	}
	return nil, reason.Deny(reason.DocumentUntrusted, "no key %.64q", kid)
}

func tenantKeys(t testing.TB, c *azure.Cloud) keys {
	t.Helper()
	var set struct{ Keys []struct{ Kid, N string } }
	if err := json.Unmarshal(c.KeysJSON(), &set); err != nil {
		t.Fatal(err)
	}
	all := keys{}
	for _, k := range set.Keys {
		n, err := base64.RawURLEncoding.DecodeString(k.N)
		if err != nil {
			t.Fatal(err)
		}
		all[k.Kid] = &rsa.PublicKey{N: new(big.Int).SetBytes(n), E: 65537}
	}
	return all
}

const audience = "api://mcs-attest"

func (w *setup) withIdentity() {
	w.t.Helper()
	public, _ := azureattested.CloudNamed("Public")
	w.verifier.Identity = &azureattested.Identity{Keys: tenantKeys(w.t, w.cloud), Issuers: public.Issuers(w.cloud.Tenant),
		Tenant: w.cloud.Tenant, Resource: audience}
	w.document.Token = w.token(nil)
}

func (w *setup) token(change func(map[string]any)) []byte {
	w.t.Helper()
	token, err := w.cloud.IdentityToken(w.machine, audience, change)
	if err != nil {
		w.t.Fatal(err)
	}
	return []byte(token)
}

func TestConfirm_ChecksTheManagedIdentitysToken(t *testing.T) {
	const user = "/subscriptions/0b1f6471-0000-4000-8000-000000000001/resourcegroups/g/providers/Microsoft.ManagedIdentity/userAssignedIdentities/workers"
	set := func(name string, to any) func(map[string]any) {
		return func(c map[string]any) {
			if c[name] = to; to == nil {
				delete(c, name)
			}
		}
	}
	now := time.Now()
	for name, test := range map[string]struct {
		claims   func(map[string]any)
		change   func(*setup)
		want     reason.Code
		confirms reason.Code
	}{
		"of the machine itself": {},
		"of a user's identity":  {change: func(w *setup) { w.machine.Identity = user; w.document.Token = w.token(nil) }},
		"in version 2.0": {claims: set("iss",
			"https://login.microsoftonline.com/72f988bf-0000-4000-8000-2d7cd011db47/v2.0")},
		"of a user's identity, on another machine": {change: func(w *setup) {
			w.machine.Identity = user
			w.document.Token = w.token(set("xms_az_rid", "/subscriptions/0b1f6471-0000-4000-8000-000000000001/resourcegroups/g/providers/Microsoft.Compute/virtualMachines/x"))
		}, confirms: reason.EvidenceDisagrees},
		"of a user's identity, which names no machine": {change: func(w *setup) {
			w.machine.Identity = user
			w.document.Token = w.token(set("xms_az_rid", nil))
		}, want: reason.DocumentInvalid},
		"of another machine": {claims: set("xms_mirid", "/subscriptions/0b1f6471-0000-4000-8000-000000000001/resourcegroups/g/providers/Microsoft.Compute/virtualMachines/x"), confirms: reason.EvidenceDisagrees},
		"of a scale set":     {claims: set("xms_mirid", "/subscriptions/0b1f6471-0000-4000-8000-000000000001/resourcegroups/g/providers/Microsoft.Compute/virtualMachineScaleSets/x"), want: reason.DocumentInvalid},
		"without a machine":  {claims: set("xms_mirid", nil), want: reason.DocumentInvalid},
		"not there":          {change: func(w *setup) { w.document.Token = nil }, want: reason.EvidenceMissing},
		"too long": {change: func(w *setup) { w.document.Token = make([]byte, 9000) },
			want: reason.DocumentInvalid},
		"for another audience": {claims: set("aud", "https://management.azure.com/"), want: reason.DocumentNotFresh},
		"for two audiences":    {claims: set("aud", []string{audience, "x"}), want: reason.DocumentInvalid},
		"without an audience":  {claims: set("aud", ""), want: reason.DocumentNotFresh},
		"of another tenant": {claims: set("iss", "https://sts.windows.net/72f988bf-0000-4000-8000-2d7cd011db48/"),
			want: reason.AccountNotAllowed},
		"of a tenant that is other": {claims: set("tid", "72f988bf-0000-4000-8000-2d7cd011db48"),
			want: reason.AccountNotAllowed},
		"expired":                  {claims: set("exp", now.Add(-6*time.Minute).Unix()), want: reason.DocumentNotFresh},
		"not valid yet":            {claims: set("nbf", now.Add(6*time.Minute).Unix()), want: reason.Internal},
		"without an end":           {claims: set("exp", nil), want: reason.DocumentInvalid},
		"with an end that is text": {claims: set("exp", "9999999999"), want: reason.DocumentInvalid},
		"signed by an unknown key": {change: func(w *setup) { w.verifier.Identity.Keys = keys{} },
			want: reason.DocumentUntrusted},
		"without an answer about its key": {change: func(w *setup) { w.verifier.Identity.Keys = keys(nil) },
			want: reason.ProviderUnavailable},
		"with alg none": {change: func(w *setup) {
			parts := strings.Split(string(w.document.Token), ".")
			w.document.Token = []byte(base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`)) + "." + parts[1] + ".")
		}, want: reason.DocumentInvalid},
		"with alg HS256": {change: func(w *setup) {
			parts := strings.Split(string(w.document.Token), ".")
			w.document.Token = []byte(base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"HS256","kid":"x"}`)) +
				"." + parts[1] + "." + parts[2])
		}, want: reason.DocumentInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			w := newSetup(t)
			w.now = now
			w.withIdentity()
			if test.claims != nil {
				w.document.Token = w.token(test.claims)
			}
			if test.change != nil {
				test.change(w)
			}
			s, err := w.confirm(w.machine.ProviderID())
			switch {
			case test.want != 0:
				denied(t, err, test.want)
			case test.confirms != 0:
				denied(t, err, test.confirms)
				if len(w.asked) != 0 {
					t.Fatal("Azure was asked about a machine that the token contradicts")
				}
			case err != nil:
				t.Fatal(err)
			case !strings.EqualFold(s.Summary["managedIdentity"], w.machine.ResourceID()):
				t.Fatalf("%+v", s.Summary)
			}
		})
	}
	// An application determines the version of its tokens. In version 2.0 the audience is its
	// client id, whatever resource was requested.
	t.Run("the client id as the resource", func(t *testing.T) {
		const client = "5f1d7a52-0000-4000-8000-3d8f2a6b9c10"
		w := newSetup(t)
		w.withIdentity()
		two := func(c map[string]any) {
			c["aud"], c["iss"], c["ver"] = client, "https://login.microsoftonline.com/"+w.cloud.Tenant+"/v2.0", "2.0"
		}
		w.passes()
		w.document.Token = w.token(two)
		_, err := w.verify()
		denied(t, err, reason.DocumentNotFresh)
		if !strings.Contains(err.Error(), "version 2.0") {
			t.Fatal(err)
		}
		w.verifier.Identity.Resource = client
		w.passes()
		w.document.Token = w.token(set("aud", client)) // version 1.0, requested by the id
		w.passes()
		w.document.Token = w.token(nil)
		_, err = w.verify()
		denied(t, err, reason.DocumentNotFresh)
	})
	t.Run("it is not required", func(t *testing.T) {
		w := newSetup(t)
		want := w.passes()
		w.document.Token = []byte("anything")
		if got := w.passes(); !reflect.DeepEqual(got, want) {
			t.Fatalf("%+v", got)
		}
	})
}
