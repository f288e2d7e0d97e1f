// SPDX-License-Identifier: Apache-2.0

package measuredboot

import (
	"fmt"
	"slices"
)

// Profile defines the requirements for a boot. The zero value is [IdentityOnly].
type Profile string

// The profiles, from weakest to strictest.
const (
	IdentityOnly Profile = "identity-only"
	SecureBoot   Profile = "secure-boot"
	Release      Profile = "release"
	Strict       Profile = "strict"
)

// requirements is one profile. A new profile is one entry here, and its checks.
type requirements struct {
	pcrs   []int // quoted, ascending; always with 11
	log    bool
	checks []check // in order
}

// check is one requirement. Its input is a log that reproduces every quoted PCR.
type check func(*boot) *Finding

// A profile has the checks of the weaker ones.
var (
	secureBootChecks = []check{firmwareMeasured, separators, secureBootPolicy, application, image}
	releaseChecks    = slices.Concat(secureBootChecks, []check{release})
	releasePCRs      = []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14}
)

var profiles = map[Profile]requirements{
	IdentityOnly: {pcrs: []int{11}},
	SecureBoot: {
		pcrs:   []int{0, 1, 2, 3, 4, 5, 6, 7, 11, 12, 13},
		log:    true,
		checks: secureBootChecks,
	},
	Release: {pcrs: releasePCRs, log: true, checks: releaseChecks},
	Strict:  {pcrs: releasePCRs, log: true, checks: slices.Concat(releaseChecks, []check{firmware})},
}

// ParseProfile reads the name of a profile; "" is [IdentityOnly].
func ParseProfile(s string) (Profile, error) {
	p := Profile(s).orDefault()
	if _, ok := profiles[p]; !ok {
		return "", fmt.Errorf("measured boot profile %q is not one of %s, %s, %s, %s", s, IdentityOnly, SecureBoot,
			Release, Strict)
	}
	return p, nil
}

// PCRs returns the PCRs to quote, ascending. The caller owns the slice.
func (p Profile) PCRs() []int { return slices.Clone(profiles[p.orDefault()].pcrs) }

// NeedsEventLog reports whether the profile is appraised with the firmware's event log.
func (p Profile) NeedsEventLog() bool { return profiles[p.orDefault()].log }

func (p Profile) orDefault() Profile {
	if p == "" {
		return IdentityOnly
	}
	return p
}
