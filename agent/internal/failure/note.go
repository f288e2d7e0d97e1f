// SPDX-License-Identifier: Apache-2.0

// Package failure reports to the verifier why a stage of the first boot failed.
//
// The "attest" command saves a note with the verifier's origin, its authorities, and a ticket that
// authorizes only the Report call. The "report" command runs as ExecStopPost= of Ignition's units.
// It sends the unit, systemd's result and the last lines of Ignition's own log, with everything
// removed that could be a secret. It never reads a config.
package failure

import (
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/mcs-attest/mcs-attest/agent/internal/delivery"
	"github.com/mcs-attest/mcs-attest/agent/internal/paths"
	"github.com/mcs-attest/mcs-attest/pkg/pointer"
)

// Note is what a report needs. The file has mode 0600.
type Note struct {
	Origin      string `json:"origin"`
	Authorities string `json:"authorities"` // PEM
	Proxy       string `json:"proxy,omitempty"`
	Ticket      string `json:"ticket"`
}

const noteFile = "ticket.json"

// ErrNoNote reports that no verifier issued a ticket in this boot, so there is none to report to.
var ErrNoNote = errors.New("no verifier issued a ticket in this boot")

// Save writes the note.
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
	if authorities, err = pointer.ParseCertificates([]byte(n.Authorities)); err != nil {
		return n, nil, fmt.Errorf("%s: %w", p.Own(noteFile), err)
	}
	return n, authorities, nil
}
