package mcscert

import (
	"bytes"
	"crypto/x509"
	"errors"
	"slices"
	"strings"

	"github.com/mcs-attest/mcs-attest/pkg/pointer"
)

// PointerConfig is one pointer config and how it relates to the bundle.
type PointerConfig struct {
	Name string // namespace/name of its Secret, or its file
	// Left states why it stays as it is; "" if it has the bundle.
	Left string
	// Failed: it should have been changed and could not be, or the machine-config-operator makes
	// it without the CA that signs next. Machines would fail with it.
	Failed bool
	// Lacks: a third party keeps it. Machines that trust what is served now because of it would
	// not trust what the next CA signs.
	Lacks bool
}

// WithoutBundle is why a pointer config was left that only was to be inspected.
const WithoutBundle = "it does not have the bundle yet"

// managedSuffix ends the names of the pointer configs that the machine-config-operator makes.
// Before 4.19 it makes them from the installer's CA, whatever is served.
const managedSuffix = "-managed"

// Authorities are the CAs that pointer configs must have.
type Authorities struct {
	Bundle []*x509.Certificate
	// Earlier are CAs in PEM that the bundle replaces.
	Earlier []byte
	// Signer is the CA that signs next; nil if there is none.
	Signer *x509.Certificate
}

// Renew returns the pointer config with the bundle, or nil if it must stay as it is. The
// owner is what the Secret states besides the content.
func (a Authorities) Renew(owner pointer.UserData, have []byte) (next []byte, p PointerConfig) {
	if strings.HasSuffix(owner.Name, managedSuffix) {
		all, err := pointer.Authorities(have)
		switch {
		case errors.Is(err, pointer.ErrEmpty), errors.Is(err, pointer.ErrNotIgnition):
			p.Left = err.Error()
		case a.Signer != nil && !Contains(all, a.Signer):
			p.Left = "the machine-config-operator makes it, without the CA that signs next: before 4.19 it knows the" +
				" installer's CA alone; have the MachineSet name " + strings.TrimSuffix(owner.Name, managedSuffix) +
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

// lacks reports whether a machine with this user data would no longer trust what is served
// once the signer has signed it. User data that does not trust what is served now is not
// counted: its CAs are not in the bundle.
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

// complete reports whether user data has all CAs of the bundle, in any form.
func (a Authorities) complete(userData []byte) bool {
	have, err := pointer.Authorities(userData)
	missing := func(c *x509.Certificate) bool { return !Contains(have, c) }
	return err == nil && !slices.ContainsFunc(a.Bundle, missing)
}
