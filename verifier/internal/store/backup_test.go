// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
)

// database is the path of a record database that a test opens, copies and replaces.
type database struct {
	t    *testing.T
	path string
}

// use opens the database, makes n changes and closes it. It returns whether the
// database holds attestations.
func (d database) use(n int) (held bool) {
	d.t.Helper()
	s, err := store.Open(d.path)
	if err != nil {
		d.t.Fatal(err)
	}
	held = s.Restored() != nil
	for range n {
		if err := s.Update(context.Background(), "uid1", become("uid1", "a")); err != nil {
			d.t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		d.t.Fatal(err)
	}
	return held
}

func (d database) read(path string) []byte {
	d.t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		d.t.Fatal(err)
	}
	return raw
}

func (d database) put(path string, raw []byte) {
	d.t.Helper()
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		d.t.Fatal(err)
	}
}

func (d database) restore(backup string) {
	d.t.Helper()
	if held, err := store.Restore(d.path, backup); err != nil || !held {
		d.t.Fatalf("restore: held %v, %v", held, err)
	}
}

func (d database) acknowledge() {
	d.t.Helper()
	if held, err := store.Acknowledge(d.path); err != nil || !held {
		d.t.Fatalf("acknowledge: held %v, %v", held, err)
	}
}

// The transactions of two histories cannot be compared: the abandoned one may have more.
func TestAttack_T70_AbandonedDatabaseDoesNotReplaceTheRestoredOne(t *testing.T) {
	for name, back := range map[string]func(d database, backup string){
		"restored by the command": func(d database, backup string) { d.restore(backup) },
		"copied back by hand":     func(d database, backup string) { d.put(d.path, d.read(backup)) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			d, backup := database{t, filepath.Join(dir, "records.db")}, filepath.Join(dir, "backup.db")
			d.use(1)
			d.put(backup, d.read(d.path))
			d.use(5)
			abandoned := d.read(d.path)
			back(d, backup)
			if !d.use(0) {
				t.Fatal("the restored database holds nothing")
			}
			d.acknowledge()
			if d.use(2) {
				t.Fatal("it holds after the acknowledgement")
			}
			d.put(d.path, abandoned)
			if s, err := store.Open(d.path); err == nil {
				t.Errorf("the abandoned database was opened, held %v", s.Restored() != nil)
				_ = s.Close()
			} else if !errors.Is(err, store.ErrForeign) {
				t.Error(err)
			}
			// An administrator may still choose it.
			chosen := filepath.Join(dir, "chosen.db")
			d.put(chosen, abandoned)
			d.restore(chosen)
			if !d.use(0) {
				t.Error("the chosen database holds nothing")
			}
		})
	}
}

func TestRestore_KeepsEveryFormerDatabase(t *testing.T) {
	dir := t.TempDir()
	d, backup := database{t, filepath.Join(dir, "records.db")}, filepath.Join(dir, "backup.db")
	d.use(1)
	d.put(backup, d.read(d.path))
	var former [][]byte
	for range 3 {
		d.use(1)
		former = append(former, d.read(d.path))
		d.restore(backup)
	}
	for i, name := range []string{".old", ".old.1", ".old.2"} {
		if raw, err := os.ReadFile(d.path + name); err != nil || !bytes.Equal(raw, former[i]) {
			t.Errorf("%s is not the database that restore %d replaced: %v", name, i+1, err)
		}
	}
}

// stalled is a client that stops reading after the first bytes.
type stalled struct{ reached, release chan struct{} }

func (w stalled) Write(b []byte) (int, error) {
	select {
	case <-w.reached:
	default:
		close(w.reached)
	}
	<-w.release
	return len(b), nil
}

func TestBackup_StalledClientDoesNotBlockWrites(t *testing.T) {
	s, _ := open(t)
	w := stalled{reached: make(chan struct{}), release: make(chan struct{})}
	backup := make(chan error, 1)
	go func() { backup <- s.Backup(t.Context(), w, func(int64) {}) }()
	<-w.reached
	written := make(chan error, 1)
	go func() {
		// A record that is larger than the memory map: the write maps the file again.
		written <- s.Update(t.Context(), "uid1", func(*v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
			rec := &v1alpha1.MachineAttestation{}
			rec.Annotations = map[string]string{"large": strings.Repeat("x", 1<<20)}
			return rec, nil
		})
	}()
	select {
	case err := <-written:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("a write waits for the client of the backup")
	}
	close(w.release)
	if err := <-backup; err != nil {
		t.Error(err)
	}
}

func TestBackup_ReportsTheSizeOfACompleteCopy(t *testing.T) {
	s, path := open(t)
	if err := s.Update(t.Context(), "uid1", become("uid1", "a")); err != nil {
		t.Fatal(err)
	}
	var copied bytes.Buffer
	size := int64(-1)
	if err := s.Backup(t.Context(), &copied, func(n int64) { size = n }); err != nil {
		t.Fatal(err)
	}
	if int64(copied.Len()) != size {
		t.Errorf("%d bytes, reported %d", copied.Len(), size)
	}
	backup := filepath.Join(t.TempDir(), "backup.db")
	database{t, path}.put(backup, copied.Bytes())
	if err := store.Check(backup); err != nil {
		t.Error(err)
	}
	if err := s.Backup(t.Context(), io.Discard, func(int64) {}); err != nil {
		t.Error(err)
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "records.db") {
			t.Errorf("the backup left %s behind", e.Name())
		}
	}
}
