// SPDX-License-Identifier: Apache-2.0

package mcscert

import (
	"crypto/x509"
	"slices"
	"strings"
	"time"
)

const (
	year = 365 * 24 * time.Hour
	// Validity is the validity of a CA, as in the machine-config-operator.
	Validity = 10 * year
	// Refresh is the age at which a CA is replaced, as in the machine-config-operator.
	Refresh = 8 * year
	// Publish is the minimum age of a CA that signs a new serving certificate. It applies when
	// an administrator requests it, and in the last month. Machines that boot now have finished
	// by then. A machine whose clock is a day behind accepts the CA: a CA is not backdated.
	Publish = 25 * time.Hour
	// LastMonth is the remaining validity from which a young CA no longer delays the replacement.
	LastMonth = 30 * 24 * time.Hour
	// Backdate tolerates machines whose clocks are behind.
	Backdate = 24 * time.Hour
)

// Serving is the input of [Serving.Due].
type Serving struct {
	Now    time.Time
	Leaf   *x509.Certificate // or nil
	Hosts  []string          // of the configuration
	Signer *x509.Certificate // of the next serving certificate
	Bundle []*x509.Certificate
	// PointerConfigs are those that machines may use.
	PointerConfigs []PointerConfig
	// Incomplete reports that not all pointer configs could be listed.
	Incomplete bool
	// Force is set if an administrator requests the replacement.
	Force bool
}

// Due returns why the serving certificate must be replaced now, or "":
//
//   - It does not exist, has expired, or no CA of the bundle issued it: immediately.
//   - An administrator requests it: immediately.
//   - It lacks a host name, or is past its renewal: if the same CA signs the next one, or if
//     the new CA is old enough (see [Follows]) and published. In the last month this waits only
//     for pointer configs that the verifier writes.
func (s Serving) Due() string {
	switch {
	case s.Leaf == nil:
		return "it does not exist"
	case !s.Now.Before(s.Leaf.NotAfter):
		return "it has expired"
	case IssuerOf(s.Leaf, s.Bundle) == nil:
		return "no CA of the bundle issued it"
	case s.Force:
		return "an administrator requested it"
	}
	why := "it is past its renewal on " + Day(Renewal(s.Leaf))
	if missing := Missing(s.Leaf, s.Hosts); len(missing) > 0 {
		why = "it is not valid for " + strings.Join(missing, ", ")
	}
	failed := func(p PointerConfig) bool { return p.Failed }
	lacks := func(p PointerConfig) bool { return p.Lacks }
	switch {
	case s.Now.Before(Follows(s.Leaf, s.Signer, s.Hosts)):
		return ""
	case s.Leaf.CheckSignatureFrom(s.Signer) == nil:
		return why
	case s.Incomplete, slices.ContainsFunc(s.PointerConfigs, failed),
		slices.ContainsFunc(s.PointerConfigs, lacks) && s.Leaf.NotAfter.Sub(s.Now) >= LastMonth:
		return ""
	}
	return why
}

// Follows returns when the signer may sign the next serving certificate. That is at the
// renewal of the leaf, or earlier if the leaf lacks a host name. If the signer is another CA
// than the leaf's, it must also be a tenth of [Refresh] old, or in the last month [Publish].
func Follows(leaf, signer *x509.Certificate, hosts []string) time.Time {
	at := Renewal(leaf)
	if len(Missing(leaf, hosts)) > 0 {
		at = leaf.NotBefore
	}
	if leaf.CheckSignatureFrom(signer) == nil {
		return at
	}
	known := signer.NotBefore.Add(Refresh / 10)
	last := leaf.NotAfter.Add(-LastMonth)
	if published := signer.NotBefore.Add(Publish); last.Before(published) {
		last = published
	}
	if last.Before(known) {
		known = last
	}
	if at.Before(known) {
		return known
	}
	return at
}

// Matures reports whether a CA that is made now reaches the age of [Follows] before the last month of the leaf.
func Matures(leaf *x509.Certificate, now time.Time) bool {
	return !leaf.NotAfter.Add(-LastMonth).Before(now.Add(Refresh / 10))
}

// Missing returns the hosts that a certificate is not valid for.
func Missing(c *x509.Certificate, hosts []string) []string {
	have := Hosts(c)
	return slices.DeleteFunc(CanonicalHosts(hosts), func(h string) bool { return slices.Contains(have, h) })
}

// Renewal returns when a certificate must be replaced.
func Renewal(c *x509.Certificate) time.Time {
	fourFifths := c.NotAfter.Add(-c.NotAfter.Sub(c.NotBefore) / 5)
	if refresh := c.NotBefore.Add(Refresh); refresh.Before(fourFifths) {
		return refresh
	}
	return fourFifths
}

// Day formats a date.
func Day(t time.Time) string { return t.UTC().Format(time.DateOnly) }
