// SPDX-License-Identifier: Apache-2.0

package appraisal

import (
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	"github.com/mcs-attest/mcs-attest/pkg/transcript"
)

func TestProvisioningTokenProof(t *testing.T) {
	now, before := secret.New([]byte("the current token")), secret.New([]byte("the previous token"))
	h, other := transcript.Hash{1}, transcript.Hash{2}
	for _, c := range []struct {
		name   string
		tokens []secret.Bytes
		proof  []byte
		which  string // "": denied
	}{
		{"the current one", []secret.Bytes{now, before}, transcript.ProvisioningToken(now.Expose(), h), "current"},
		{"the previous one", []secret.Bytes{now, before}, transcript.ProvisioningToken(before.Expose(), h), "previous"},
		{"another", []secret.Bytes{now}, transcript.ProvisioningToken(before.Expose(), h), ""},
		{"of another conversation", []secret.Bytes{now}, transcript.ProvisioningToken(now.Expose(), other), ""},
		{"an activation's", []secret.Bytes{now}, transcript.Activation(now.Expose(), h), ""},
		{"the token itself", []secret.Bytes{now}, now.Expose(), ""},
		{"cut short", []secret.Bytes{now}, transcript.ProvisioningToken(now.Expose(), h)[:16], ""},
		{"of no key, where there is no token", nil, transcript.ProvisioningToken(nil, h), ""},
		{"of no key, where a token is empty", []secret.Bytes{{}, {}}, transcript.ProvisioningToken(nil, h), ""},
	} {
		a := &appraisal{Context: Context{ProvisioningTokens: c.tokens}, ev: Evidence{ProvisioningToken: c.proof},
			transcript: h}
		err := a.provisioningToken()
		switch {
		case c.which == "" && (err == nil || reason.From(err).Code != reason.ProvisioningTokenInvalid ||
			len(a.verified) != 0):
			t.Errorf("%s: %v", c.name, err)
		case c.which != "" && (err != nil || a.summaries[0].Summary["token"] != c.which):
			t.Errorf("%s: %v %+v", c.name, err, a.summaries)
		}
	}
}
