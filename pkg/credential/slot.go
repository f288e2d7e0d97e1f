package credential

import "github.com/mcs-attest/mcs-attest/pkg/secret"

// Slot is where in a config the token of the kubeconfig stands.
type Slot struct{}

// Find looks for the kubeconfig in a config. nil: the config has none.
func Find(config []byte) (*Slot, error) { return nil, nil }

// With is the config that Find looked at with another token: in parts, of which the
// first and the last are the config's own bytes.
func (s *Slot) With(config []byte, token secret.Bytes) ([][]byte, error) {
	return [][]byte{config}, nil
}
