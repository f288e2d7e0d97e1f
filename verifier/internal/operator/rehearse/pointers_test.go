// SPDX-License-Identifier: Apache-2.0

package rehearse

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/pki"
	"github.com/mcs-attest/mcs-attest/pkg/pointer"
	"github.com/mcs-attest/mcs-attest/pkg/policy"
	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
)

// A pointer config that a machine can boot with, and that changes in one place.
func TestCheck_ReportsWhatAMachineCouldNotBootWith(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	ca, err := pki.NewCA("ca", now)
	if err != nil {
		t.Fatal(err)
	}
	former, err := provisioning.New(now.Add(-time.Hour), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tokens, err := former.Rotate(now, rand.Reader, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	requires := func(alternatives ...v1alpha1.EvidenceAlternative) *policy.Set {
		t.Helper()
		set, err := policy.Compile(v1alpha1.AttestationPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p"},
			Spec: v1alpha1.AttestationPolicySpec{Pools: []string{"worker"}, Evidence: alternatives}})
		if err != nil {
			t.Fatal(err)
		}
		return set
	}
	both := v1alpha1.EvidenceAlternative{All: []string{"tpm2", "provisioning-token"}}
	onlyTPM := v1alpha1.EvidenceAlternative{All: []string{"tpm2"}}
	valid := fmt.Sprintf(`{"ignition":{"version":"3.4.0","config":{"merge":[{"source":`+
		`"https://api-int.test:22623/config/worker","httpHeaders":[{"name":"Authorization","value":"Bearer %s"}]}]},`+
		`"security":{"tls":{"certificateAuthorities":[{"source":"data:text/plain;base64,%s"}]}}}}`,
		tokens.Current.Expose(), base64.StdEncoding.EncodeToString(ca.Certificate))
	edited := func(old, new string) string {
		t.Helper()
		if !strings.Contains(valid, old) {
			t.Fatalf("no %q in the config", old)
		}
		return strings.Replace(valid, old, new, 1)
	}
	noToken := edited("Bearer "+string(tokens.Current.Expose()), "Basic bm9uZQ==")
	end := now.Add(pki.Validity)
	for _, c := range []struct {
		name     string
		config   string
		meta     pointer.UserData
		now      time.Time
		policies *policy.Set // nil: the token is required
		code     reason.Code
		text     []string // of the denial, or of each warning
	}{
		{name: "as it should be", config: valid},
		{name: "cloud-config", config: "#cloud-config", code: reason.Malformed,
			text: []string{"is not an Ignition config"}},
		{name: "another server", config: edited("api-int.test", "elsewhere.test"), code: reason.OriginUnknown,
			text: []string{"refers to https://elsewhere.test:22623, and the verifier serves https://api-int.test:22623"}},
		{name: "no source", config: edited("/config/worker", "/else"), code: reason.OriginUnknown,
			text: []string{"refers to no Machine Config Server"}},
		{name: "without TLS", config: edited("https://api-int.test:22623", "http://api-int.test:22624"),
			code: reason.Plaintext, text: []string{"refers to http://api-int.test:22624, without TLS"}},
		{name: "the CA ends soon", config: valid, now: end.Add(-29 * 24 * time.Hour),
			text: []string{"a CA of the pointer config expires on"}},
		{name: "the CA expired", config: valid, now: end.Add(time.Second),
			text: []string{"a CA of the pointer config expired on"}},
		{name: "a CA behind a URL", config: edited("data:text/plain;base64,", "https://ca.test/"),
			text: []string{"the CA of the pointer config was not checked"}},
		{name: "the previous token", config: edited(string(tokens.Current.Expose()), string(tokens.Previous.Expose())),
			text: []string{"has the previous provisioning token"}},
		{name: "no token", config: noToken,
			code: reason.ProvisioningTokenInvalid,
			text: []string{"has no provisioning token, and the policy of pool worker lists it"}},
		{name: "no token, and the policy has an alternative", config: noToken,
			policies: requires(both, onlyTPM),
			text:     []string{"has no provisioning token, and the policy of pool worker lists it; 'token"}},
		{name: "another token in a Secret that another program writes",
			config: edited(string(tokens.Current.Expose()), "abcdefghijklmnopqrstuvwxyz"),
			meta:   pointer.UserData{Name: "worker-user-data-managed"}, code: reason.ProvisioningTokenInvalid,
			text: []string{"the Secret worker-user-data-managed has another provisioning token than the cluster's, and the " +
				"policy of pool worker lists it; the verifier does not add the token to that Secret: the machine-config-operator"}},
		{name: "no token, and no policy lists one", config: noToken,
			policies: requires(onlyTPM)},
	} {
		p := &pointers{origins: []string{"https://api-int.test:22623"}, policies: requires(both), tokens: tokens,
			hasToken: true, now: now}
		if !c.now.IsZero() {
			p.now = c.now
			p.tokens = provisioning.Tokens{Current: secret.New(slices.Clone(tokens.Current.Expose()))}
		}
		if c.policies != nil {
			p.policies = c.policies
		}
		denied, got := p.check([]byte(c.config), c.meta)
		if denied != nil {
			if denied.code != c.code || denied.fix == "" {
				t.Errorf("%s: %+v", c.name, denied)
			}
			got = append(got, denied.message)
		} else if c.code != 0 {
			t.Errorf("%s: no denial", c.name)
		}
		if len(got) != len(c.text) {
			t.Errorf("%s: %q", c.name, got)
			continue
		}
		for i, want := range c.text {
			if !strings.Contains(got[i], want) {
				t.Errorf("%s: %q", c.name, got[i])
			}
		}
		// The config for the node has no token, whichever it had.
		clean, err := p.withoutTokens(secret.New([]byte(c.config)))
		if err != nil && c.code != reason.Malformed || bytes.Contains(clean.Expose(), []byte("Authorization")) {
			t.Errorf("%s: %v, %s", c.name, err, clean.Expose())
		}
		for _, token := range []secret.Bytes{tokens.Current, tokens.Previous} {
			if bytes.Contains(clean.Expose(), token.Expose()) {
				t.Errorf("%s: a token is in %s", c.name, clean.Expose())
			}
			if strings.Contains(strings.Join(got, ""), string(token.Expose())) {
				t.Errorf("%s: a token is in %q", c.name, got)
			}
		}
	}
}
