// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/verifier/internal/admin"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
)

// folderWith returns a verifier's folder with these files.
func folderWith(t *testing.T, files map[string]string) *Folder {
	t.Helper()
	f := &Folder{Config: &config.Config{Data: t.TempDir()}, Now: time.Now}
	for name, content := range files {
		path := f.Config.Path(name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

func enrollmentOf(name string) string {
	return "apiVersion: mcs-attest.dev/v1alpha1\nkind: MachineAttestation\nmetadata: {name: " + name + "}\n" +
		"spec: {pool: worker, ekSHA256: [" + strings.Repeat("a", 64) + "]}\n"
}

// The verifier tolerates such files, too.
func TestFolder_AnUnreadableFileDoesNotBlockOtherMachines(t *testing.T) {
	for name, c := range map[string]struct {
		create func(path string) error
		// hides means that the file may have an object that cannot be read now.
		hides bool
	}{
		"a dangling link": {func(path string) error { return os.Symlink("nowhere", path) }, true},
		"a folder":        {func(path string) error { return os.Mkdir(path, 0o700) }, false},
		"a FIFO":          {func(path string) error { return syscall.Mkfifo(path, 0o600) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := folderWith(t, map[string]string{"attestations/worker-1.yaml": enrollmentOf("worker-1")})
			path := f.Config.Path("attestations", "aa.yaml")
			if err := c.create(path); err != nil {
				t.Fatal(err)
			}
			done, err := f.Quarantine(t.Context(), "worker-1", true, Write{})
			if err != nil || len(done) != 1 || done[0].Done != "changed" {
				t.Errorf("quarantine: %+v, %v", done, err)
			}
			m := &v1alpha1.MachineAttestation{}
			m.Name, m.Spec.Pool, m.Spec.EKSHA256 = "worker-2", "worker", []string{strings.Repeat("b", 64)}
			_, err = f.Enroll(t.Context(), m, Write{})
			if (err != nil) != c.hides || err != nil && !strings.Contains(err.Error(), path) {
				t.Errorf("an enrollment of a new name: %v", err)
			}
		})
	}
}

// A machine of the same name in another namespace keeps its record.
func TestForgetFormer_OfAFolderReadsTheNamespaceOfTheFile(t *testing.T) {
	f := folderWith(t, map[string]string{"attestations/worker-1.yaml": enrollmentOf("worker-1")})
	recorded := func(name string) admin.Machine {
		r := &v1alpha1.MachineAttestationStatus{}
		r.Identity.EKSHA256 = strings.Repeat("a", 64)
		return admin.Machine{Name: name, UID: name, Record: r}
	}
	var machines []admin.Machine
	f.Offline = func(*config.Config, time.Time) (*admin.State, error) { return &admin.State{Machines: machines}, nil }
	m := &v1alpha1.MachineAttestation{}
	m.Name, m.Spec.Pool, m.Spec.EKSHA256 = "worker-1", "worker", []string{strings.Repeat("b", 64)}
	tried, err := f.Enroll(t.Context(), m, Write{Replace: true, DryRun: DryRunServer})
	if err != nil {
		t.Fatal(err)
	}
	for of, want := range map[string]bool{"default/worker-1": true, "another/worker-1": false} {
		machines = []admin.Machine{recorded(of)}
		if forgot, err := f.ForgetFormer(t.Context(), tried.Object); err != nil || forgot != want {
			t.Errorf("%s: %v, %v", of, forgot, err)
		}
	}
}
