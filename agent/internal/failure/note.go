// Package failure tells the verifier why a stage of the first boot failed.
//
// "attest" leaves a note: where the verifier is, whom to trust, and the ticket
// that opens nothing but Report. "report" runs as ExecStopPost= of Ignition's
// units and sends the unit, systemd's result and the last lines of Ignition's
// own log, cleaned of everything that could be a secret. A config is never read.
package failure

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/mcs-attest/mcs-attest/agent/internal/delivery"
	"github.com/mcs-attest/mcs-attest/agent/internal/paths"
)

// Note is what a report needs; the file has mode 0600.
type Note struct {
	Origin      string `json:"origin"`
	Authorities string `json:"authorities"` // PEM
	Proxy       string `json:"proxy,omitempty"`
	Ticket      string `json:"ticket,omitempty"`
}

const noteFile = "ticket.json"

// ErrNoNote reports that nothing was attested in this boot, so that no verifier waits for a report.
var ErrNoNote = errors.New("no verifier is known to this boot")

// Encode makes PEM of certificates.
func Encode(certificates []*x509.Certificate) string {
	var out []byte
	for _, c := range certificates {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	return string(out)
}

// Save leaves the note.
func Save(p paths.Paths, n Note) error {
	if err := delivery.Prepare(p); err != nil {
		return err
	}
	raw, err := json.Marshal(n)
	if err != nil {
		return err
	}
	return delivery.WriteFile(p.Own(noteFile), raw)
}

// load reads the note.
func load(p paths.Paths) (n Note, authorities []*x509.Certificate, err error) {
	raw, err := os.ReadFile(p.Own(noteFile))
	if errors.Is(err, fs.ErrNotExist) {
		return n, nil, ErrNoNote
	}
	if err != nil {
		return n, nil, err
	}
	if err := json.Unmarshal(raw, &n); err != nil {
		return n, nil, fmt.Errorf("%s: %w", p.Own(noteFile), err)
	}
	for block, rest := pem.Decode([]byte(n.Authorities)); block != nil; block, rest = pem.Decode(rest) {
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return n, nil, fmt.Errorf("%s: %w", p.Own(noteFile), err)
		}
		authorities = append(authorities, c)
	}
	return n, authorities, nil
}
