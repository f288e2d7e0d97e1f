// SPDX-License-Identifier: Apache-2.0

package evidence

import (
	"strings"
	"testing"
)

// The texts are in policies and metrics, and the numbers in the contract.
func TestKinds(t *testing.T) {
	all := []string{"tpm2", "aws-iid", "aws-sts", "gcp-identity", "azure-attested", "provisioning-token"}
	for i, text := range all {
		k, err := ParseKind(text)
		if err != nil || k != Kind(i+1) || !k.Valid() || k.String() != text {
			t.Errorf("%s: %d, %v", text, k, err)
		}
	}
	for k, text := range map[Kind]string{-1: "kind--1", 0: "kind-0", 7: "kind-7"} {
		if k.Valid() || k.String() != text {
			t.Errorf("%d: %s", k, k)
		}
	}
	for _, text := range []string{"", "TPM2", "kind-1"} {
		k, err := ParseKind(text)
		if k != 0 || err == nil || !strings.Contains(err.Error(), "not one of [tpm2 aws-iid") {
			t.Errorf("%q: %d, %v", text, k, err)
		}
	}
}
