// SPDX-License-Identifier: Apache-2.0

package approver

import (
	"bytes"
	"testing"
)

func TestParse_LimitsOfARequest(t *testing.T) {
	names := func(n int) []byte {
		template := honest().template
		template.DNSNames, template.IPAddresses = nil, nil
		for range n {
			template.DNSNames = append(template.DNSNames, "x")
		}
		return requestPEM(&template, ecKey())
	}
	padded := func(n int) []byte {
		valid := requestPEM(&honest().template, ecKey())
		return append(append(bytes.Repeat([]byte("a"), n-len(valid)-1), '\n'), valid...)
	}
	for name, c := range map[string]struct {
		raw []byte
		ok  bool
	}{
		"100 names":   {names(100), true},
		"101 names":   {names(101), false},
		"16384 bytes": {padded(16384), true},
		"16385 bytes": {padded(16385), false},
	} {
		if _, err := parse(c.raw); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}
