// SPDX-License-Identifier: Apache-2.0

package spelling_test

import (
	"slices"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/spelling"
)

func TestNear(t *testing.T) {
	words := []string{"explain", "enroll", "kubeconfig", "config", "context"}
	for _, c := range []struct {
		word string
		want []string
	}{
		{"explian", []string{"explain"}},
		{"enrol", []string{"enroll"}},
		{"kubconfig", []string{"kubeconfig"}},
		{"con", []string{"config", "context"}},
		{"conifg", []string{"config"}},
		{"x", nil},
		{"", nil},
		{"nonsense", nil},
	} {
		if got := spelling.Near(c.word, words); !slices.Equal(got, c.want) {
			t.Errorf("Near(%q) = %q, want %q", c.word, got, c.want)
		}
	}
}
