// SPDX-License-Identifier: Apache-2.0

package server

import (
	"cmp"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/appraisal"
	"github.com/mcs-attest/mcs-attest/verifier/internal/wholefile"
)

// fileTime is the format of the time in a file's name. It sorts by time.
const fileTime = "20060102T150405.000Z"

// evidenceKeeper stores the latest Attest calls whose quote verified, for the command "appraise".
type evidenceKeeper struct {
	dir string
	max int
	log *slog.Logger
	mu  sync.Mutex
	// waiting are the calls that write, or wait for that. Machines wait for their token meanwhile.
	waiting atomic.Int32
}

// maxWaiting is how many calls wait for a slow disk. The evidence of further ones is not kept.
const maxWaiting = 4

func newEvidenceKeeper(dir string, limit int, log *slog.Logger) (*evidenceKeeper, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create the folder for evidence: %w", err)
	}
	return &evidenceKeeper{dir: dir, max: limit, log: log}, nil
}

// Keep writes s, and removes the oldest ones above max.
func (k *evidenceKeeper) Keep(s *appraisal.Saved) {
	defer k.waiting.Add(-1)
	if k.waiting.Add(1) > maxWaiting {
		k.log.Warn("evidence not kept: the disk is too slow", "correlation_id", s.CorrelationID)
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	raw, err := s.Encode()
	if err == nil {
		name := s.Time.Format(fileTime) + "-" + s.CorrelationID + ".json"
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
	// ReadDir sorts by name, and the name begins with the time. If the clock was ahead, those files go first.
	later := s.Time.Add(time.Hour).Format(fileTime)
	byName := func(e os.DirEntry, t string) int { return cmp.Compare(e.Name(), t) }
	ahead, _ := slices.BinarySearchFunc(entries, later, byName)
	entries = slices.Concat(entries[ahead:], entries[:ahead])
	for i := 0; i < len(entries)-k.max; i++ {
		if err := os.Remove(filepath.Join(k.dir, entries[i].Name())); err != nil {
			k.log.Error("old evidence not removed", "error", err)
		}
	}
}
