// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"crypto/x509"
	"fmt"

	"github.com/mcs-attest/mcs-attest/pkg/manifest"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/sources"
)

func (s *Secrets) putCA(at **authorities, name string) func(*sources.Object) []manifest.Problem {
	return func(o *sources.Object) []manifest.Problem {
		m, _ := o.Value.(configMap)
		next := &authorities{roots: x509.NewCertPool(), pem: []byte(m.data[name]), of: o.String()}
		if !next.roots.AppendCertsFromPEM(next.pem) {
			return problem(fmt.Errorf("data.%s has no certificate", name))
		}
		s.mu.Lock()
		*at = next
		s.mu.Unlock()
		s.o.Changed()
		return nil
	}
}

// dropCA handles a ConfigMap that does not exist. The CAs that this process has read stay in force, as serving
// certificates and keys do. The ConfigMap may be deleted by mistake, and without its CAs no replica could serve.
func (s *Secrets) dropCA(at **authorities) func() {
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if a := *at; a != nil && !a.deleted {
			a.deleted = true
			s.o.Log.Warn("a ConfigMap of CAs was deleted; its last CAs stay in force until this process ends",
				"configmap", a.of)
		}
	}
}

// UpstreamCAs returns the CAs for the upstream's certificate, or nil if there are none.
func (s *Secrets) UpstreamCAs() *x509.CertPool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a := cmp.Or(s.ca, s.legacyCA); a != nil {
		return a.roots
	}
	return nil
}

// Authorities returns the CAs that pointer configs name, in PEM.
func (s *Secrets) Authorities() ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a := cmp.Or(s.ca, s.legacyCA); a != nil {
		return a.pem, nil
	}
	return nil, fmt.Errorf("ConfigMap %s was not read yet, or does not exist", s.o.Config.CAConfigMap)
}

// authorities are the CAs of a ConfigMap.
type authorities struct {
	roots   *x509.CertPool
	pem     []byte
	of      string // the ConfigMap
	deleted bool   // the ConfigMap no longer exists
}
