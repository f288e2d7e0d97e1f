// SPDX-License-Identifier: Apache-2.0

package swtpmtest

import (
	"os"
	"path/filepath"
)

// Roots returns the root and the issuing certificate of the authority that certified the TPM's
// endorsement keys, in PEM.
func (s *TPM) Roots() []byte {
	s.t.Helper()
	var all []byte
	for _, name := range []string{"swtpm-localca-rootca-cert.pem", "issuercert.pem"} {
		raw, err := os.ReadFile(filepath.Join(s.authority, name))
		fatal(s.t, err)
		all = append(all, raw...)
	}
	return all
}
