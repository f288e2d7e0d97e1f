// SPDX-License-Identifier: Apache-2.0

package pointer

import (
	"encoding/json"
	"fmt"
)

// New returns a pointer config like those that the machine-config-operator and openshift-install
// write. The argument ca is in PEM.
func New(origin, pool string, ca []byte) ([]byte, error) {
	type source struct {
		Source string `json:"source"`
	}
	var p struct {
		Ignition struct {
			Version string `json:"version"`
			Config  struct {
				Merge []source `json:"merge"`
			} `json:"config"`
			Security struct {
				TLS struct {
					CertificateAuthorities []source `json:"certificateAuthorities"`
				} `json:"tls"`
			} `json:"security"`
		} `json:"ignition"`
	}
	p.Ignition.Version = "3.2.0"
	p.Ignition.Config.Merge = []source{{origin + "/config/" + pool}}
	p.Ignition.Security.TLS.CertificateAuthorities = []source{{authorityURL(ca)}}
	raw, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode pointer config: %w", err)
	}
	return append(raw, '\n'), nil
}
