// Package policy decides what the machines of a pool must prove (RFC 9334, 8.5:
// the appraisal policy for evidence).
//
// AttestationPolicies are compiled once into a [Set], which never changes. For a
// pool, the policy that names it wins over the one that says "*"; a pool that no
// policy covers is refused. Two policies for one pool are an error, never a
// matter of order.
//
// A policy lists alternatives, each a set of evidence kinds. The verifier
// chooses, not the node: the first alternative that the node says it can
// produce, else the first of all. What was chosen must then be proven whole, so
// leaving a kind out, or offering less, leads to a denial and never to a weaker
// check that the administrator did not write down.
//
// Everything here is pure and has a meaning at its zero value; docs/policy.md
// has every field with its default.
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

// Policy is one pool's policy with every default filled in. It is read only.
type Policy struct {
	Name string // of the AttestationPolicy
	Pool string // as asked for, also under "*"
	// Wildcard: Pool is the caller's word, and this is the policy of "*".
	Wildcard bool

	Mode       v1alpha1.Mode
	Unattested v1alpha1.Unattested

	// Alternatives, best first; the kinds of each ascending.
	Alternatives [][]evidence.Kind
	// ProvisioningTokenAlone: the provisioning token by itself is an alternative.
	ProvisioningTokenAlone bool
	// URLParameter: the gate takes it in the URL, too.
	URLParameter bool
	// OpenWithoutToken: while there is no provisioning token, a caller that presents
	// nothing receives the full config. Its zero value leaves the hash as it was.
	OpenWithoutToken bool `json:",omitempty"`

	Binding      v1alpha1.Binding
	FrontEndKeys [][sha256.Size]byte

	Endorsements    []v1alpha1.Endorsement // in the order in which they are tried
	Approval        v1alpha1.Approval
	Profile         measuredboot.Profile
	ProfileAction   v1alpha1.ProfileAction
	Banks           []uint16 // TPM_ALG_ID, the preferred first
	ReferenceValues []string // names; empty is all

	TokenLifetime     time.Duration
	TokenUses         int
	ChallengeLifetime time.Duration
	MaxMachineAge     time.Duration

	hash [sha256.Size]byte // see Hash; zero where Compile did not make it
}

// Choose says which kinds of evidence a node must send that could produce those offered.
// What is offered is untrusted; it only selects among the policy's alternatives.
func (p Policy) Choose(offered []evidence.Kind) []evidence.Kind {
	for _, all := range p.Alternatives {
		if covers(offered, all) {
			return slices.Clone(all)
		}
	}
	return slices.Clone(p.Alternatives[0])
}

// Satisfied decides whether verified evidence is enough. In order:
//
//   - what the challenge required is an alternative of this policy (the policy
//     may have changed since);
//   - every required kind was verified.
func (p Policy) Satisfied(required, verified []evidence.Kind) error {
	required = slices.Sorted(slices.Values(required))
	if !slices.ContainsFunc(p.Alternatives, func(all []evidence.Kind) bool { return slices.Equal(all, required) }) {
		return reason.Deny(reason.PolicyChanged, "the challenge required %s, which is no alternative of policy %s",
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

// Kinds are all kinds that the policy mentions, ascending.
func (p Policy) Kinds() []evidence.Kind {
	all := slices.Concat(p.Alternatives...)
	slices.Sort(all)
	return slices.Compact(all)
}

// Bank chooses the PCR bank to quote among those that the TPM offers.
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
	return 0, reason.Deny(reason.PCRSelection, "the TPM has none of the banks %s; it offers %#04x",
		strings.Join(names, ", "), offered[:min(len(offered), 8)])
}

// OnlyProvisioningToken reports whether nothing but the provisioning token is
// asked of any machine.
func (p Policy) OnlyProvisioningToken() bool {
	for _, all := range p.Alternatives {
		if !slices.Equal(all, []evidence.Kind{evidence.ProvisioningToken}) {
			return false
		}
	}
	return len(p.Alternatives) > 0
}

// WithoutProvisioningToken describes what the absence of the provisioning token
// does to the pools of this set; "" if no pool needs the token.
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
		texts = append(texts, "the policy of pool "+strings.Join(wait, ", ")+" lists it, so machines that need it wait")
	}
	if len(open) > 0 {
		texts = append(texts, "the policy of pool "+strings.Join(open, ", ")+
			" says whenAbsent: Open, so every caller receives the full config")
	}
	if len(texts) == 0 {
		return ""
	}
	return "there is no provisioning token; " + strings.Join(texts, "; ")
}

// Endorses reports whether the policy accepts an endorsement.
func (p Policy) Endorses(e v1alpha1.Endorsement) bool { return slices.Contains(p.Endorsements, e) }

// Hash identifies the policy's content for the seal: challenge and answer are
// judged by the same policy. The name does not count.
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

// Set is every policy. The zero value covers no pool. It is read only.
type Set struct {
	pools     map[string]Policy
	any       *Policy
	suspended string
}

// For is the policy of a pool, taken from the request as it is.
func (s *Set) For(pool string) (Policy, error) {
	if p, ok := s.pools[pool]; ok {
		return p, nil
	}
	if s.suspended != "" {
		return Policy{}, reason.Deny(reason.PoolUnknown, "%s cannot be read, and it may be the policy of pool %.64q",
			s.suspended, pool)
	}
	if s.any == nil || !validPool(pool) {
		return Policy{}, reason.Deny(reason.PoolUnknown, "no policy covers pool %.64q", pool)
	}
	p := *s.any
	p.Pool, p.Wildcard, p.hash = pool, true, [sha256.Size]byte{}
	return p, nil
}

// Suspended is the same set without its "*" policy. A verifier that starts while
// a policy file is broken uses it: the file might be the policy of any pool, and
// falling back to "*" could be falling back to less.
func (s *Set) Suspended(because string) *Set {
	return &Set{pools: s.pools, any: nil, suspended: because}
}

// Pools are the pools that policies name, sorted; "*" is last.
func (s *Set) Pools() []string {
	pools := slices.Sorted(maps.Keys(s.pools))
	if s.any != nil {
		pools = append(pools, "*")
	}
	return pools
}

// All are the policies by pool, as Pools has them.
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
