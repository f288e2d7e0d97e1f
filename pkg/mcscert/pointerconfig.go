// SPDX-License-Identifier: Apache-2.0

package mcscert

import (
	"bytes"
	"crypto/x509"
	"errors"
	"slices"
	"strings"

	"github.com/mcs-attest/mcs-attest/pkg/pointer"
)

// PointerConfig is a pointer config and its relation to the bundle.
type PointerConfig struct {
	Name string // namespace/name of its Secret, or its file
	// Left is why it was not changed, or "" if it has the bundle.
	Left string
	// Failed reports that machines would fail with it: it could not be changed, or the
	// machine-config-operator creates it without the next signer's CA.
	Failed bool
	// Lacks reports that a third party manages it without the next signer's CA. Its machines
	// trust the current certificate, but would not trust the next one.
	Lacks bool
}

// WithoutBundle is the value of Left after an inspection without changes.
const WithoutBundle = "it does not have the bundle yet"

// managedSuffix is the suffix of pointer configs that the machine-config-operator creates.
// Before 4.19 it always uses the installer's CA.
const managedSuffix = "-managed"

// Authorities are the CAs that pointer configs must have.
type Authorities struct {
	Bundle []*x509.Certificate
	// Earlier are the CAs in PEM that the bundle replaces.
	Earlier []byte
	// Signer is the CA that signs next, or nil.
	Signer *x509.Certificate
}

// Renew returns the pointer config with the bundle, or nil if it must not change. owner has
// the Secret's metadata.
func (a Authorities) Renew(owner pointer.UserData, have []byte) (next []byte, p PointerConfig) {
	if strings.HasSuffix(owner.Name, managedSuffix) {
		all, err := pointer.Authorities(have)
		switch {
		case errors.Is(err, pointer.ErrEmpty), errors.Is(err, pointer.ErrNotIgnition):
			p.Left = err.Error()
		case a.Signer != nil && !Contains(all, a.Signer):
			p.Left = "the machine-config-operator creates it without the CA that signs next, because before 4.19 it only" +
				" uses the installer's CA; change the MachineSet to use " + strings.TrimSuffix(owner.Name, managedSuffix) +
				" instead, or upgrade"
			p.Failed = true
		}
		return nil, p
	}
	next, err := pointer.SetAuthorities(have, Encode(a.Bundle...), a.Earlier)
	var left *pointer.Unchanged
	switch {
	case errors.As(err, &left):
		p.Left, p.Lacks = left.Why, a.lacks(have)
	case err != nil:
		p.Left, p.Failed = err.Error(), true
	case bytes.Equal(next, have):
	case owner.Managed() != "":
		if !a.complete(have) {
			p.Left, p.Lacks = owner.Managed(), a.lacks(have)
		}
	default:
		return next, p
	}
	return nil, p
}

// lacks reports whether a machine with this user data would no longer trust the server after
// the signer signed the next certificate. User data that does not trust the current
// certificate is ignored: its CAs are not in the bundle.
func (a Authorities) lacks(userData []byte) bool {
	have, err := pointer.Authorities(userData)
	switch {
	case a.Signer == nil, errors.Is(err, pointer.ErrEmpty), errors.Is(err, pointer.ErrNotIgnition):
		return false
	case err != nil:
		return true // unknown
	}
	known := func(c *x509.Certificate) bool { return Contains(a.Bundle, c) }
	return !Contains(have, a.Signer) && slices.ContainsFunc(have, known)
}

// complete reports whether user data has all CAs of the bundle, in any encoding.
func (a Authorities) complete(userData []byte) bool {
	have, err := pointer.Authorities(userData)
	missing := func(c *x509.Certificate) bool { return !Contains(have, c) }
	return err == nil && !slices.ContainsFunc(a.Bundle, missing)
}
