// SPDX-License-Identifier: Apache-2.0

package server

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/mcs-attest/mcs-attest/pkg/appraisal"
	"github.com/mcs-attest/mcs-attest/verifier/internal/wholefile"
)

// evidenceKeeper stores the latest Attest calls whose quote verified, for the command "appraise".
type evidenceKeeper struct {
	dir string
	max int
	log *slog.Logger
	mu  sync.Mutex
}

func newEvidenceKeeper(dir string, limit int, log *slog.Logger) (*evidenceKeeper, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create the folder for evidence: %w", err)
	}
	return &evidenceKeeper{dir: dir, max: limit, log: log}, nil
}

// Keep writes s, and removes the oldest ones above max.
func (k *evidenceKeeper) Keep(s *appraisal.Saved) {
	k.mu.Lock()
	defer k.mu.Unlock()
	raw, err := s.Encode()
	if err == nil {
		name := s.Time.Format("20060102T150405.000Z") + "-" + s.CorrelationID + ".json"
		err = wholefile.Write(filepath.Join(k.dir, name), 0o600, raw)
	}
	if err != nil {
		k.log.Error("evidence not kept", "error", err)
		return
	}
	entries, err := os.ReadDir(k.dir)
	if err != nil {
		return
	}
	entries = slices.DeleteFunc(entries, func(e os.DirEntry) bool { return !strings.HasSuffix(e.Name(), ".json") })
	for i := 0; i < len(entries)-k.max; i++ { // ReadDir sorts by name, and the name begins with the time
		if err := os.Remove(filepath.Join(k.dir, entries[i].Name())); err != nil {
			k.log.Error("old evidence not removed", "error", err)
		}
	}
}
