// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
)

// The bounds that the CRD's descriptions and docs/policy.md state.
func TestCompile_Bounds(t *testing.T) {
	type spec = v1alpha1.AttestationPolicySpec
	for name, c := range map[string]struct {
		change func(*spec)
		ok     bool
	}{
		"a token of a minute":           {func(s *spec) { s.Token.Lifetime.Duration = time.Minute }, true},
		"a token of less":               {func(s *spec) { s.Token.Lifetime.Duration = time.Minute - 1 }, false},
		"a token of an hour":            {func(s *spec) { s.Token.Lifetime.Duration = time.Hour }, true},
		"a token of more":               {func(s *spec) { s.Token.Lifetime.Duration = time.Hour + 1 }, false},
		"one use":                       {func(s *spec) { s.Token.Uses = 1 }, true},
		"a negative use":                {func(s *spec) { s.Token.Uses = -1 }, false},
		"10 uses":                       {func(s *spec) { s.Token.Uses = 10 }, true},
		"11 uses":                       {func(s *spec) { s.Token.Uses = 11 }, false},
		"a challenge of half a minute":  {func(s *spec) { s.ChallengeLifetime.Duration = 30 * time.Second }, true},
		"a challenge of less":           {func(s *spec) { s.ChallengeLifetime.Duration = 30*time.Second - 1 }, false},
		"a challenge of 10 minutes":     {func(s *spec) { s.ChallengeLifetime.Duration = 10 * time.Minute }, true},
		"a challenge of more":           {func(s *spec) { s.ChallengeLifetime.Duration = 10*time.Minute + 1 }, false},
		"Machines of a minute":          {func(s *spec) { s.MaxMachineAge.Duration = time.Minute }, true},
		"Machines of less":              {func(s *spec) { s.MaxMachineAge.Duration = time.Minute - 1 }, false},
		"Machines of a year":            {func(s *spec) { s.MaxMachineAge.Duration = 8760 * time.Hour }, true},
		"a front end's key":             {frontEnd(64), true},
		"a front end's key, cut short":  {frontEnd(62), false},
		"a front end's key, and a byte": {frontEnd(66), false},
	} {
		p := v1alpha1.AttestationPolicy{}
		p.Name = "default"
		c.change(&p.Spec)
		if _, err := Compile(p); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func frontEnd(digits int) func(*v1alpha1.AttestationPolicySpec) {
	return func(s *v1alpha1.AttestationPolicySpec) {
		s.Binding, s.FrontEndKeys = v1alpha1.BindingTerminated, []string{strings.Repeat("a", digits)}
	}
}
