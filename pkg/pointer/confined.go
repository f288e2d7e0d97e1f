// SPDX-License-Identifier: Apache-2.0

package pointer

import (
	"crypto/x509"
	"fmt"
	"slices"
)

// ConfinedTo returns an error unless Ignition, when it renders this config, contacts only the given
// https origin and trusts only the given authorities and the system's. It is the condition for a
// secret that the author of the config must not receive: a config from another server or in a data
// source could add an authority before Ignition sends the secret.
func (c *Config) ConfinedTo(origin string, authorities []*x509.Certificate) error {
	left := MaxSize
	for i, r := range c.parsed.Ignition.Security.TLS.CertificateAuthorities {
		where := fmt.Sprintf("ignition.security.tls.certificateAuthorities[%d]", i)
		own, err := authority(r, &left)
		if err != nil {
			return fmt.Errorf("%s: %w", where, err)
		}
		for _, a := range own {
			if !slices.ContainsFunc(authorities, a.Equal) {
				return fmt.Errorf("%s: the certificate authority %q is not one of them", where, a.Subject)
			}
		}
	}
	for _, r := range c.refs {
		switch {
		case r.inner != nil:
			if err := r.inner.ConfinedTo(origin, authorities); err != nil {
				return fmt.Errorf("%s: %w", r.where, err)
			}
		case !r.server || !r.at.Secure || r.at.Origin != origin:
			return fmt.Errorf("%s refers to a server other than %s", r.where, origin)
		}
	}
	return nil
}
