// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/appraisal"
)

func TestKeep_RemovesTheOldestFirst(t *testing.T) {
	for name, test := range map[string]struct {
		at   []time.Time
		kept string
	}{
		"in order": {[]time.Time{noon, noon.Add(1), noon.Add(time.Second), noon.Add(time.Minute)}, "123"},
		"the clock was ahead": {[]time.Time{noon.AddDate(1, 0, 0), noon.AddDate(2, 0, 0), noon.AddDate(3, 0, 0), noon},
			"312"},
	} {
		dir := t.TempDir()
		k, err := newEvidenceKeeper(dir, 3, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		for i, at := range test.at {
			k.Keep(&appraisal.Saved{Time: at, CorrelationID: string(rune('0' + i))})
		}
		entries, err := os.ReadDir(dir)
		kept := ""
		for _, e := range entries {
			kept += strings.TrimSuffix(e.Name(), ".json")[len(fileTime)+1:]
		}
		if err != nil || kept != test.kept {
			t.Errorf("%s: kept %s, want %s, %v", name, kept, test.kept, err)
		}
	}
}

// Machines that attest do not wait for a disk that hangs.
func TestAttack_T61_KeptEvidenceDelaysFewMachines(t *testing.T) {
	var log bytes.Buffer
	k, err := newEvidenceKeeper(t.TempDir(), 100, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	k.mu.Lock() // the disk
	var calls sync.WaitGroup
	left := make(chan struct{}, 10)
	for range cap(left) {
		calls.Go(func() {
			k.Keep(&appraisal.Saved{Time: noon, CorrelationID: "c"})
			left <- struct{}{}
		})
	}
	for range cap(left) - maxWaiting {
		<-left
	}
	k.mu.Unlock()
	calls.Wait()
	if n := strings.Count(log.String(), "evidence not kept"); n != cap(left)-maxWaiting {
		t.Errorf("%d calls are reported:\n%s", n, &log)
	}
}
