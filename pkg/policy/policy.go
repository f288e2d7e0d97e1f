// SPDX-License-Identifier: Apache-2.0

// Package policy decides what the machines of a pool must prove (RFC 9334, 8.5:
// the appraisal policy for evidence). The service evaluates requests with it, and
// 'policy check' reports problems with it.
//
// AttestationPolicies are compiled into an immutable [Set]. A policy that names a
// pool takes precedence over the one for "*". A pool without a policy is denied.
// Two policies for one pool are an error; their order never matters.
//
// A policy lists alternatives, each a set of evidence kinds. The verifier selects
// the first alternative that the node offers in full, or else the first of all.
// The node must then prove every kind of it. Evidence that is missing, or a smaller
// offer, leads to a denial, never to a weaker check than the administrator wrote.
//
// The package is pure, and the zero value of each field has a meaning.
// docs/policy.md lists every field with its default.
package policy

import (
	"crypto/sha256"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/transcript"
)

// Policy is one pool's policy with all defaults filled in. It is read-only.
type Policy struct {
	Name string // of the AttestationPolicy
	Pool string // the requested one, also if the policy is for "*"
	// Wildcard reports that this is the policy for "*", so the caller chose Pool.
	Wildcard bool

	Mode       v1alpha1.Mode
	Unattested v1alpha1.Unattested

	// Alternatives are in order of preference; the kinds of each are ascending.
	Alternatives [][]evidence.Kind
	// ProvisioningTokenAlone reports that the provisioning token suffices by itself.
	ProvisioningTokenAlone bool
	// URLParameter reports that the gate also accepts the provisioning token in the URL.
	URLParameter bool
	// OpenWithoutToken reports that a caller without a token receives the full config
	// while no provisioning token exists. It is omitted if false, so old hashes stay valid.
	OpenWithoutToken bool `json:",omitempty"`

	Binding      v1alpha1.Binding
	FrontEndKeys [][sha256.Size]byte

	// RealRoot reports that a machine may also attest in the real root. It is omitted if
	// false, so old hashes stay valid.
	RealRoot bool `json:",omitempty"`

	Endorsements    []v1alpha1.Endorsement // in the order of evaluation
	Approval        v1alpha1.Approval
	Profile         measuredboot.Profile
	ProfileAction   v1alpha1.ProfileAction
	Banks           []uint16 // TPM_ALG_ID, in order of preference
	ReferenceValues []string // names; empty means all
	// UnreadReferences is a file of reference values that could not be read since the start, or "".
	UnreadReferences string `json:"-"`

	TokenLifetime     time.Duration
	TokenUses         int
	ChallengeLifetime time.Duration
	MaxMachineAge     time.Duration

	hash [sha256.Size]byte // see Hash; zero unless Compile set it
}

// Choose returns the kinds of evidence that a node with the offered kinds must send.
// The offer is untrusted; it only selects among the policy's alternatives.
func (p Policy) Choose(offered []evidence.Kind) []evidence.Kind {
	for _, all := range p.Alternatives {
		if covers(offered, all) {
			return slices.Clone(all)
		}
	}
	return slices.Clone(p.Alternatives[0])
}

// Satisfied checks that the verified evidence suffices. In order:
//
//   - the kinds that the challenge required are still an alternative of this policy:
//     PolicyChanged;
//   - every required kind was verified: EvidenceMissing.
func (p Policy) Satisfied(required, verified []evidence.Kind) error {
	required = slices.Sorted(slices.Values(required))
	if !slices.ContainsFunc(p.Alternatives, func(all []evidence.Kind) bool { return slices.Equal(all, required) }) {
		return reason.Deny(reason.PolicyChanged, "the challenge required %s, which is not an alternative of policy %s",
			kinds(required), p.Name)
	}
	for _, k := range required {
		if !slices.Contains(verified, k) {
			return reason.Deny(reason.EvidenceMissing, "%s is required and missing; policy %s for pool %s requires %s", k,
				p.Name, p.Pool, kinds(required))
		}
	}
	return nil
}

// Kinds returns all kinds that the policy mentions, ascending.
func (p Policy) Kinds() []evidence.Kind {
	all := slices.Concat(p.Alternatives...)
	slices.Sort(all)
	return slices.Compact(all)
}

// Bank returns the PCR bank to quote, among those that the TPM offers.
func (p Policy) Bank(offered []uint16) (uint16, error) {
	for _, b := range p.Banks {
		if slices.Contains(offered, b) {
			return b, nil
		}
	}
	names := make([]string, len(p.Banks))
	for i, b := range p.Banks {
		names[i] = transcript.BankName(b)
	}
	return 0, reason.Deny(reason.PCRSelection, "the policy accepts the banks %s, but the TPM offers %#04x",
		strings.Join(names, ", "), offered[:min(len(offered), 8)])
}

// OnlyProvisioningToken reports whether the provisioning token is the only evidence
// that the policy ever requires.
func (p Policy) OnlyProvisioningToken() bool {
	for _, all := range p.Alternatives {
		if !slices.Equal(all, []evidence.Kind{evidence.ProvisioningToken}) {
			return false
		}
	}
	return len(p.Alternatives) > 0
}

// WithoutProvisioningToken describes how the missing provisioning token affects the
// pools of this set. It is "" if no pool needs the token.
func (s *Set) WithoutProvisioningToken() string {
	var wait, open []string
	for _, p := range s.All() {
		switch {
		case p.Mode == v1alpha1.ModeOff || !slices.Contains(p.Kinds(), evidence.ProvisioningToken):
		case p.OpenWithoutToken:
			open = append(open, p.Pool)
		default:
			wait = append(wait, p.Pool)
		}
	}
	var texts []string
	if len(wait) > 0 {
		texts = append(texts, "the policy of pool "+strings.Join(wait, ", ")+" requires it, so machines that need it wait")
	}
	if len(open) > 0 {
		texts = append(texts, "the policy of pool "+strings.Join(open, ", ")+
			" has whenAbsent: Open, so every caller receives the full config")
	}
	if len(texts) == 0 {
		return ""
	}
	return "there is no provisioning token; " + strings.Join(texts, "; ")
}

// WithoutAgents describes how it affects the pools of this set that the gate serves no agents. It is ""
// if no pool needs them.
func (s *Set) WithoutAgents() string {
	var pools []string
	for _, p := range s.All() {
		if p.RealRoot && p.Unattested == v1alpha1.UnattestedPreApproved && p.Mode == v1alpha1.ModeEnforce {
			pools = append(pools, p.Pool)
		}
	}
	if len(pools) == 0 {
		return ""
	}
	return "the policy of pool " + strings.Join(pools, ", ") + " has stage: RealRoot, but the configuration has no " +
		"agents. So the pre-approved config carries no agent: a machine whose initramfs has none does not attest, " +
		"nothing caps its PCR 11, and its kubelet may start"
}

// Endorses reports whether the policy accepts the endorsement.
func (p Policy) Endorses(e v1alpha1.Endorsement) bool { return slices.Contains(p.Endorsements, e) }

// Hash identifies the policy's content, without its name. The seal stores it, so that
// the same policy evaluates challenge and evidence.
func (p Policy) Hash() [sha256.Size]byte {
	if p.hash != ([sha256.Size]byte{}) {
		return p.hash
	}
	p.Name = ""
	canonical, err := json.Marshal(p) // struct fields in order, no maps: one form
	if err != nil {
		panic("policy: a Policy has no JSON form: " + err.Error()) // impossible: no field can fail
	}
	return sha256.Sum256(append([]byte("mcs-attest/policy/v1\x00"), canonical...))
}

// Set contains all policies. The zero value covers no pool. It is read-only.
type Set struct {
	pools     map[string]Policy
	any       *Policy
	suspended string
	unread    string // see Policy.UnreadReferences
}

// For returns the policy of a pool. The name comes from the request and is untrusted.
func (s *Set) For(pool string) (Policy, error) {
	if p, ok := s.pools[pool]; ok {
		p.UnreadReferences = s.unread
		return p, nil
	}
	if s.suspended != "" {
		return Policy{}, reason.Deny(reason.PoolUnknown, "%s cannot be read, and it could contain the policy of pool %.64q",
			s.suspended, pool)
	}
	if s.any == nil || !validPool(pool) {
		return Policy{}, reason.Deny(reason.PoolUnknown, "no policy covers pool %.64q", pool)
	}
	p := *s.any
	p.Pool, p.Wildcard, p.hash, p.UnreadReferences = pool, true, [sha256.Size]byte{}, s.unread
	return p, nil
}

// Suspended returns the set without its policy for "*". A verifier that starts with
// an unreadable policy file uses it: the file could contain a stricter policy of any
// pool.
func (s *Set) Suspended(because string) *Set {
	next := *s
	next.any, next.suspended = nil, because
	return &next
}

// WithUnreadReferences returns the set for a verifier that started with this unreadable file of reference values, or
// with none ("").
func (s *Set) WithUnreadReferences(file string) *Set {
	next := *s
	next.unread = file
	return &next
}

// Pools returns the pools that policies name, sorted; "*" is last.
func (s *Set) Pools() []string {
	pools := slices.Sorted(maps.Keys(s.pools))
	if s.any != nil {
		pools = append(pools, "*")
	}
	return pools
}

// All returns the policies by pool, in the order of Pools.
func (s *Set) All() []Policy {
	var all []Policy
	for _, pool := range slices.Sorted(maps.Keys(s.pools)) {
		all = append(all, s.pools[pool])
	}
	if s.any != nil {
		all = append(all, *s.any)
	}
	return all
}

func covers(have, want []evidence.Kind) bool {
	for _, k := range want {
		if !slices.Contains(have, k) {
			return false
		}
	}
	return true
}

func kinds(list []evidence.Kind) string {
	if len(list) == 0 {
		return "nothing"
	}
	names := make([]string, len(list))
	for i, k := range list {
		names[i] = k.String()
	}
	return strings.Join(names, "+")
}
