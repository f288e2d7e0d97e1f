// SPDX-License-Identifier: Apache-2.0

package azureattested_test

import (
	"context"
	"crypto/x509"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/azureattested"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/azureattested/attester"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/testvm/cloud/azure"
)

const vmID = "bd8e7443-24a0-41f3-b949-8baf4fd1c573"

// emulated is one cloud for all tests, because creating its keys takes long.
var emulated = sync.OnceValues(azure.New)

// setup is a valid machine with its document, and a verifier that trusts it.
type setup struct {
	t        testing.TB
	cloud    *azure.Cloud
	machine  *azure.Instance
	verifier *azureattested.Verifier
	document evidence.Document
	binding  evidence.Binding
	now      time.Time
	// ARM's answer
	vm    azureattested.VM
	vmErr error
	asked []string
}

func (w *setup) VM(_ context.Context, id string) (azureattested.VM, error) {
	w.asked = append(w.asked, id)
	return w.vm, w.vmErr
}

func newSetup(t testing.TB) *setup {
	t.Helper()
	cloud, err := emulated()
	if err != nil {
		t.Fatal(err)
	}
	w := &setup{t: t, cloud: cloud, now: time.Now(),
		binding: evidence.Binding{Transcript: [32]byte{1, 2, 3, 255, 254}, Origin: "https://mcs.example:22625"}}
	w.machine = &azure.Instance{Name: "ocp-worker-1", ResourceGroup: "ocp-x7k2p-rg", VMID: vmID, Identity: "system"}
	if err := cloud.Add(w.machine); err != nil {
		t.Fatal(err)
	}
	w.vm = azureattested.VM{ResourceID: strings.ToUpper(w.machine.ResourceID()), VMID: strings.ToUpper(vmID),
		Provisioning: "Succeeded", Created: w.now.Add(-time.Minute)}
	roots, intermediates := pool(cloud.Root()), pool(cloud.Intermediate())
	w.verifier = &azureattested.Verifier{
		Roots: func() (*x509.CertPool, *x509.CertPool) { return roots, intermediates },
		Names: []string{"metadata.azure.com"}, Subscriptions: []string{strings.ToUpper(cloud.Subscription)}, Resolve: w,
	}
	w.document = evidence.Document{Kind: evidence.AzureAttested, Raw: w.signed(attester.Nonce(w.binding.Transcript))}
	return w
}

func pool(all ...*x509.Certificate) *x509.CertPool {
	p := x509.NewCertPool()
	for _, c := range all {
		p.AddCert(c)
	}
	return p
}

func (w *setup) signed(nonce string) []byte {
	w.t.Helper()
	raw, err := w.cloud.Document(w.machine, nonce)
	if err != nil {
		w.t.Fatal(err)
	}
	return raw
}

// content signs a changed content with the valid key.
func (w *setup) content(change func(string) string) []byte {
	w.t.Helper()
	leaf, key := w.cloud.Leaf()
	raw, err := azure.Sign([]byte(change(string(w.cloud.Content(w.machine, attester.Nonce(w.binding.Transcript))))),
		key, leaf, leaf.Raw)
	if err != nil {
		w.t.Fatal(err)
	}
	return raw
}

func (w *setup) verify() (evidence.Claim, error) {
	return w.verifier.Verify(w.t.Context(), w.document, w.binding, w.now)
}

func (w *setup) confirm(providerID string) (evidence.Statement, error) {
	w.t.Helper()
	claim, err := w.verify()
	if err != nil {
		return evidence.Statement{}, err
	}
	return claim.Confirm(w.t.Context(), evidence.Candidate{ProviderID: providerID})
}

func (w *setup) passes() evidence.Statement {
	w.t.Helper()
	s, err := w.confirm(w.machine.ProviderID())
	if err != nil {
		w.t.Fatalf("the valid case: %v", err)
	}
	return s
}

// denied fails the test unless err is a denial with the code.
func denied(t testing.TB, err error, want reason.Code) {
	t.Helper()
	var d *reason.Denial
	if !errors.As(err, &d) || d.Code != want {
		t.Fatalf("want %v, got %v", want, err)
	}
}

func TestVerify_AcceptsAnHonestDocument(t *testing.T) {
	w := newSetup(t)
	claim, err := w.verify()
	if err != nil {
		t.Fatal(err)
	}
	if s := claim.Statement(); s.ProviderID != "" || s.InstanceID != "azure:"+vmID || !s.Bound ||
		s.Kind != evidence.AzureAttested {
		t.Fatalf("%+v", s)
	}
	if len(w.asked) != 0 {
		t.Fatal("Verify asked Azure")
	}
	s := w.passes()
	if s.ProviderID != w.machine.ProviderID() || s.InstanceID != "azure:"+vmID || !s.Bound ||
		!s.Created.Equal(w.vm.Created) {
		t.Fatalf("%+v", s)
	}
	if len(w.asked) != 1 || w.asked[0] != w.machine.ResourceID() {
		t.Fatalf("asked %q", w.asked)
	}
	if s.Summary["signer"] != "metadata.azure.com of Emulated Azure RSA TLS Issuing CA 07" ||
		s.Summary["subscriptionId"] != w.cloud.Subscription {
		t.Fatalf("%+v", s.Summary)
	}
}

// The intermediate may come from the bundle, from the document, or with the document.
func TestWhereTheIntermediateComesFrom(t *testing.T) {
	for name, change := range map[string]func(*setup){
		"the bundle": func(*setup) {},
		"the document": func(w *setup) {
			leaf, key := w.cloud.Leaf()
			raw, err := azure.Sign(w.cloud.Content(w.machine, attester.Nonce(w.binding.Transcript)), key,
				leaf, w.cloud.Intermediate().Raw, leaf.Raw)
			if err != nil {
				t.Fatal(err)
			}
			w.document.Raw = raw
		},
		"the agent": func(w *setup) { w.document.Certificates = [][]byte{w.cloud.Intermediate().Raw} },
		"the agent, with the signer's, which is not in the document": func(w *setup) {
			leaf, key := w.cloud.Leaf()
			raw, err := azure.Sign(w.cloud.Content(w.machine, attester.Nonce(w.binding.Transcript)), key, leaf)
			if err != nil {
				t.Fatal(err)
			}
			w.document.Raw, w.document.Certificates = raw, [][]byte{{0x30, 0}, leaf.Raw, w.cloud.Intermediate().Raw}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newSetup(t)
			if name != "the bundle" {
				roots := pool(w.cloud.Root())
				w.verifier.Roots = func() (*x509.CertPool, *x509.CertPool) { return roots, nil }
				_, err := w.verify()
				denied(t, err, reason.DocumentUntrusted)
			}
			change(w)
			w.passes()
		})
	}
}

func TestContentRules(t *testing.T) {
	replace := func(from, to string) func(string) string {
		return func(s string) string {
			if !strings.Contains(s, from) {
				t.Fatalf("no %q in %s", from, s)
			}
			return strings.Replace(s, from, to, 1)
		}
	}
	deep := func(n int) string { return `"a":` + strings.Repeat("[", n) + strings.Repeat("]", n) + `,` }
	stamp := func(at time.Time) string { return at.UTC().Format("01/02/06 15:04:05") + " -0000" }
	now := time.Now().Truncate(time.Second)
	times := func(created, expires time.Time) func(string) string {
		return func(s string) string {
			begin, end := strings.Index(s, `"timeStamp"`), strings.Index(s, `,"vmId"`)
			return s[:begin] + `"timeStamp":{"createdOn":"` + stamp(created) + `","expiresOn":"` + stamp(expires) +
				`"}` + s[end:]
		}
	}
	for name, test := range map[string]struct {
		change func(string) string
		want   reason.Code // zero: passes
	}{
		"as it is":                               {func(s string) string { return s }, 0},
		"a field that is new":                    {replace(`{`, `{"hibernated":[{"a":null}],`), 0},
		"no sku":                                 {replace(`"sku":"aro_420",`, ``), 0},
		"a vmId in capitals":                     {replace(vmID, strings.ToUpper(vmID)), 0},
		"another subscription":                   {replace("0b1f6471-", "0b1f6472-"), reason.AccountNotAllowed},
		"a subscription that is not a GUID":      {replace("0b1f6471-", "0b1f6471x"), reason.DocumentInvalid},
		"no vmId":                                {replace(`"vmId"`, `"vmid2"`), reason.DocumentInvalid},
		"a vmId that is not a GUID":              {replace(vmID, "worker-1"), reason.DocumentInvalid},
		"a sku that is an object":                {replace(`"aro_420"`, `{}`), reason.DocumentInvalid},
		"sku in another case":                    {replace(`"sku"`, `"SKU"`), reason.DocumentInvalid},
		"a vmId that is a number":                {replace(`"`+vmID+`"`, `7`), reason.DocumentInvalid},
		"vmId twice":                             {replace(`{`, `{"vmId":"`+vmID+`",`), reason.DocumentInvalid},
		"vmId once more in another case":         {replace(`{`, `{"VMID":"`+vmID+`",`), reason.DocumentInvalid},
		"vmId once more, with a sign that folds": {replace(`{`, `{"ſubscriptionId":"`+vmID+`",`), reason.DocumentInvalid},
		"nonce twice":                            {replace(`{`, `{"nonce":"x",`), reason.DocumentInvalid},
		"a time twice": {replace(`"createdOn"`, `"createdOn":"x","createdOn"`),
			reason.DocumentInvalid},
		"an unknown field twice": {replace(`{`, `{"a":1,"a":1,`), reason.DocumentInvalid},
		"too deep":               {replace(`{`, `{`+deep(50)), reason.DocumentInvalid},
		"deep in the times":      {replace(`"createdOn"`, deep(6)+`"createdOn"`), 0},
		"too deep in the times":  {replace(`"createdOn"`, deep(7)+`"createdOn"`), reason.DocumentInvalid},
		"bytes after it":         {func(s string) string { return s + " {}" }, reason.DocumentInvalid},
		"bytes before it":        {func(s string) string { return "x" + s }, reason.DocumentInvalid},
		"an array":               {func(s string) string { return "[" + s + "]" }, reason.DocumentInvalid},
		"not UTF-8":              {replace("aro_420", "\xff"), reason.DocumentInvalid},
		"too long":               {replace("aro_420", strings.Repeat("a", 5000)), reason.DocumentInvalid},
		"nothing":                {func(string) string { return "" }, reason.DocumentNotFresh},
		"only the nonce":         {func(string) string { return "AQID__4AAAAAAAAAAAAAAAAAAAAAAAAA" }, reason.DocumentInvalid},
		"the nonce in another field": {replace(`"nonce":"AQID__4AAAAAAAAAAAAAAAAAAAAAAAAA"`,
			`"nonce":"x","AQID__4AAAAAAAAAAAAAAAAAAAAAAAAA":1`), reason.DocumentNotFresh},
		"no times":                       {replace(`"timeStamp"`, `"stamp"`), reason.DocumentInvalid},
		"a time in another form":         {replace(" -0000", "Z"), reason.DocumentInvalid},
		"created slightly in the future": {times(now.Add(5*time.Minute), now.Add(time.Hour)), 0},
		"created in the future":          {times(now.Add(301*time.Second), now.Add(time.Hour)), reason.Internal},
		"expired a little by our clock":  {times(now.Add(-time.Hour), now.Add(-299*time.Second)), 0},
		"expired":                        {times(now.Add(-time.Hour), now.Add(-5*time.Minute)), reason.Internal},
		"expires when it was created":    {times(now, now), reason.DocumentInvalid},
		"expires before it was created":  {times(now, now.Add(-time.Second)), reason.DocumentInvalid},
		"no nonce": {replace(`"nonce":"AQID__4AAAAAAAAAAAAAAAAAAAAAAAAA"`, `"nonce":""`),
			reason.DocumentNotFresh},
		"a nonce that is longer": {replace(`"nonce":"AQID__4AAAAAAAAAAAAAAAAAAAAAAAAA"`,
			`"nonce":"AQID__4AAAAAAAAAAAAAAAAAAAAAAAAAA"`), reason.DocumentNotFresh},
		"a nonce that is shorter": {replace(`"nonce":"AQID__4AAAAAAAAAAAAAAAAAAAAAAAAA"`,
			`"nonce":"AQID__4AAAAAAAAAAAAAAAAAAAAAAAA"`), reason.DocumentNotFresh},
		"the nonce of another conversation": {replace("AQID", "AQIE"), reason.DocumentNotFresh},
		"IMDS's own nonce, because none was requested": {replace("AQID__4AAAAAAAAAAAAAAAAAAAAAAAAA", "20261121-113000"),
			reason.DocumentNotFresh},
	} {
		t.Run(name, func(t *testing.T) {
			w := newSetup(t)
			w.now = now
			w.document.Raw = w.content(test.change)
			_, err := w.verify()
			if test.want == 0 {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			denied(t, err, test.want)
		})
	}
}

// A document for this conversation was created now. If the verifier's clock differs, it is wrong,
// and the node waits until an administrator sets it.
func TestWrongClockIsTemporary(t *testing.T) {
	w := newSetup(t)
	w.withIdentity()
	honest := w.document
	w.passes()
	for name, test := range map[string]struct {
		off    time.Duration
		want   reason.Code // zero: passes
		change func()
	}{
		"4 minutes behind": {off: -4 * time.Minute},
		"6 minutes behind": {off: -6 * time.Minute, want: reason.Internal},
		"6 hours ahead":    {off: 6 * time.Hour},
		"7 hours ahead":    {off: 7 * time.Hour, want: reason.Internal},
		"6 minutes behind, an older document": {off: -6 * time.Minute, want: reason.DocumentNotFresh,
			change: func() { w.document.Raw = w.signed("of-another-conversation-of-before") }},
		"7 hours ahead, an older document": {off: 7 * time.Hour, want: reason.DocumentNotFresh,
			change: func() { w.document.Raw = w.signed("of-another-conversation-of-before") }},
		"right, and behind the token's": {want: reason.Internal, change: func() {
			w.document.Token = w.token(func(c map[string]any) { c["nbf"] = time.Now().Add(6 * time.Minute).Unix() })
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w.document, w.now = honest, time.Now().Add(test.off)
			if test.change != nil {
				test.change()
			}
			_, err := w.verify()
			if test.want == 0 {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			denied(t, err, test.want)
			if temporary := reason.From(err).Code.Info().Temporary; temporary != (test.want == reason.Internal) {
				t.Fatalf("temporary: %v", temporary)
			}
		})
	}
}

func TestConfirm_AcceptsOnlyTheMachineOfTheDocument(t *testing.T) {
	other := "/subscriptions/0b1f6471-0000-4000-8000-000000000001/resourceGroups/ocp-x7k2p-rg/providers/Microsoft.Compute/virtualMachines/ocp-worker-2"
	for name, test := range map[string]struct {
		provider string // instead of the machine's
		change   func(*setup)
		want     reason.Code
		text     string // in the error
		calls    int
	}{
		"as it is": {calls: 1},
		"written in another case": {
			provider: "azure:///subscriptions/0B1F6471-0000-4000-8000-000000000001/resourcegroups/OCP-x7k2p-rg/providers/microsoft.compute/virtualmachines/ocp-WORKER-1", calls: 1,
		},
		"a resource group that is ours": {change: func(w *setup) { w.verifier.ResourceGroups = []string{"OCP-X7K2P-RG"} },
			calls: 1},
		"a resource group that is not": {change: func(w *setup) { w.verifier.ResourceGroups = []string{"other"} },
			want: reason.AccountNotAllowed},
		"of another cloud": {provider: "aws:///eu-central-1a/i-0123456789abcdef0", want: reason.EvidenceDisagrees,
			text: "the Machine is not a virtual machine of Azure"},
		"without azure:// before its name": {provider: other, want: reason.EvidenceDisagrees},
		"of a scale set": {
			provider: "azure:///subscriptions/0b1f6471-0000-4000-8000-000000000001/resourceGroups/g/providers/Microsoft.Compute/virtualMachineScaleSets/s/virtualMachines/0", want: reason.EvidenceDisagrees,
		},
		"with a step up in its name": {
			provider: "azure:///subscriptions/0b1f6471-0000-4000-8000-000000000001/resourceGroups/../providers/Microsoft.Compute/virtualMachines/x", want: reason.EvidenceDisagrees,
		},
		"with a query behind its name": {
			provider: "azure:///subscriptions/0b1f6471-0000-4000-8000-000000000001/resourceGroups/g/providers/Microsoft.Compute/virtualMachines/x?y", want: reason.EvidenceDisagrees,
		},
		"in another subscription of ours": {
			provider: "azure:///subscriptions/0b1f6472-0000-4000-8000-000000000001/resourceGroups/g/providers/Microsoft.Compute/virtualMachines/x", want: reason.EvidenceDisagrees,
		},
		"another machine, which has another vmId": {provider: "azure://" + other, change: func(w *setup) {
			w.vm = azureattested.VM{ResourceID: other, VMID: "11111111-24a0-41f3-b949-8baf4fd1c573"}
		}, want: reason.EvidenceDisagrees, calls: 1},
		"Azure answers about another": {change: func(w *setup) { w.vm.ResourceID = other }, want: reason.ProviderUnavailable,
			calls: 1},
		"Azure answers about its name in another subscription": {change: func(w *setup) {
			w.vm.ResourceID = strings.Replace(w.machine.ResourceID(), "0b1f6471", "0b1f6472", 1)
		}, want: reason.ProviderUnavailable, calls: 1},
		"Azure answers about its name in another resource group": {change: func(w *setup) {
			w.vm.ResourceID = strings.Replace(w.machine.ResourceID(), "ocp-x7k2p-rg", "other", 1)
		}, want: reason.ProviderUnavailable, calls: 1},
		"Azure returns no vmId": {change: func(w *setup) { w.vm.VMID = "" }, want: reason.ProviderUnavailable, calls: 1},
		"Azure does not have it": {change: func(w *setup) {
			w.vmErr = reason.Deny(reason.InstanceNotFound, "no")
		}, want: reason.InstanceNotFound, calls: 1},
		"it is being deleted": {change: func(w *setup) { w.vm.Provisioning = "Deleting" }, want: reason.InstanceUnacceptable,
			calls: 1},
		"no resolver": {change: func(w *setup) { w.verifier.Resolve = nil }, want: reason.ProviderUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			w := newSetup(t)
			if test.change != nil {
				test.change(w)
			}
			if test.provider == "" {
				test.provider = w.machine.ProviderID()
			}
			s, err := w.confirm(test.provider)
			if test.want == 0 {
				if err != nil || s.ProviderID != test.provider {
					t.Fatalf("%+v %v", s, err)
				}
			} else if denied(t, err, test.want); !strings.Contains(err.Error(), test.text) {
				t.Fatalf("%v, want %q", err, test.text)
			}
			if len(w.asked) != test.calls {
				t.Fatalf("%d calls, not %d", len(w.asked), test.calls)
			}
		})
	}
}

// Without the time, a machine that reuses the name of an old one cannot be distinguished from it.
func TestUnknownCreationTimeHasAWarning(t *testing.T) {
	w := newSetup(t)
	if s := w.passes(); len(s.Warnings) != 0 || s.Created.IsZero() {
		t.Errorf("%+v", s)
	}
	w.vm.Created = time.Time{}
	s := w.passes()
	if len(s.Warnings) != 1 || !strings.Contains(s.Warnings[0], "a reused name cannot be detected") {
		t.Errorf("%q", s.Warnings)
	}
}
