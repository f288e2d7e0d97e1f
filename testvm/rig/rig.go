// SPDX-License-Identifier: Apache-2.0

// Package rig boots virtual machines: a real kernel, a real dracut initramfs with the agent, real
// Ignition, a software TPM, and a real verifier process on the host's loopback interface. The guest
// reaches the host at 10.0.2.2, or at 169.254.169.2 if it has a cloud's metadata service.
//
// One scenario is a folder below testvm/scenarios with a test. A test asks the rig for a verifier,
// a TPM and a machine. Then it checks the node (its console, its journal, its disk) and the
// verifier's records:
//
//	r := rig.New(t)
//	v := r.Verifier(rig.VerifierConfig{})
//	tpm := r.NewTPM()
//	v.Enroll("worker-0", "worker", tpm)
//	node := r.Boot(rig.VM{TPM: tpm, Pointer: v.Pointer("worker")})
//	node.WantProvisioned()
//
// Results of slow builds (initramfs, root disk, unified kernel images, a newer Ignition, a root file
// system of Debian 13) are stored in ${XDG_CACHE_HOME:-~/.cache}/mcs-attest, named by a hash of all
// inputs. Nothing is installed into the system, and nothing is written outside of the cache and the
// artifacts folder. Only Debian 13, which mmdebstrap builds, and a name server of [Network] need root.
//
// A failed test keeps its machines' serial logs, their journals and the verifier's log under
// artifacts/<test>.
//
// Machines run under emulation (TCG), because a host whose /dev/kvm opens may still be unable to
// run a guest. Deadlines are generous, because a boot of twelve seconds takes thirty on a busy
// host.
package rig

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/mcs-attest/mcs-attest/testvm/binaries"
	"github.com/mcs-attest/mcs-attest/testvm/buildcache"
)

// TB is the part of *testing.T that the rig uses. The demo implements it, too.
type TB interface {
	Helper()
	Name() string
	Logf(format string, a ...any)
	Fatalf(format string, a ...any)
	Cleanup(func())
	Failed() bool
}

// Rig builds and runs what one test needs.
type Rig struct {
	t       TB
	repo    string
	cache   string
	dir     string
	Started time.Time

	mu        sync.Mutex
	artifacts []string // files to keep when the test fails
	machines  int
	verifiers int
}

// New returns a rig for one test. It waits until the host has a free slot for a machine (takeSlot),
// and logs the scenario's duration at the end.
func New(t TB) *Rig {
	t.Helper()
	r := &Rig{t: t, dir: shortTempDir(t)}
	var err error
	r.repo, err = binaries.Root()
	r.fatal(err, "source tree")
	r.cache, err = buildcache.Dir()
	r.fatal(err, "cache folder")
	r.needTools()
	r.fatal(os.RemoveAll(r.artifactsDir()), "artifacts of an earlier run")
	r.takeSlot()
	r.Started = time.Now()
	t.Cleanup(func() {
		r.keepArtifacts()
		r.progress("%s: %.1f s", t.Name(), time.Since(r.Started).Seconds())
	})
	return r
}

// progress reports progress.
func (r *Rig) progress(format string, a ...any) {
	r.t.Logf("rig: "+format, a...)
}

// fatal ends the test if err is not nil.
func (r *Rig) fatal(err error, format string, a ...any) {
	if err != nil {
		r.t.Helper()
		r.t.Fatalf("%s: %v", fmt.Sprintf(format, a...), err)
	}
}

// run runs a tool to its end and returns its output.
func (r *Rig) run(dir string, env []string, name string, args ...string) string {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		r.t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// tools lists every program that the rig runs, with its package in Debian 12 (.ci/packages.txt has
// the same packages).
var tools = map[string]string{
	"qemu-system-x86_64": "qemu-system-x86",
	"qemu-img":           "qemu-utils",
	"swtpm":              "swtpm",
	"swtpm_setup":        "swtpm-tools",
	"dracut":             "dracut",
	"busybox":            "busybox-static",
	"mkfs.ext4":          "e2fsprogs",
	"debugfs":            "e2fsprogs",
	"e2fsck":             "e2fsprogs",
	"sfdisk":             "fdisk",
	"ostree":             "ostree",
	"mkfs.vfat":          "dosfstools",
	"mcopy":              "mtools",
	"objcopy":            "binutils",
	"sbsign":             "sbsigntool",
	"cpio":               "cpio",
	"zstd":               "zstd",
	"openssl":            "openssl",
	"genisoimage":        "genisoimage",
	"mmdebstrap":         "mmdebstrap",
}

func (r *Rig) needTools() {
	r.t.Helper()
	var missing []string
	for tool, pkg := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			missing = append(missing, fmt.Sprintf("%s (package %s)", tool, pkg))
		}
	}
	if _, err := os.Stat(ignitionModule); err != nil {
		missing = append(missing, ignitionModule+" (package ignition)")
	}
	if len(missing) > 0 {
		r.t.Fatalf("not installed: %s\nhint: make deps", strings.Join(missing, ", "))
	}
}

// shortTempDir returns a folder for sockets, whose paths may have at most 107 bytes.
func shortTempDir(t TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "rig-")
	if err != nil {
		t.Fatalf("temporary folder: %v", err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Logf("rig: removing %s: %v", dir, err)
		}
	})
	return dir
}

// Source reads a file of the source tree.
func (r *Rig) Source(path string) []byte {
	r.t.Helper()
	b, err := os.ReadFile(filepath.Join(r.repo, path))
	r.fatal(err, "source tree")
	return b
}

// keep registers a file that is copied to the artifacts folder if the test fails.
func (r *Rig) keep(path string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.artifacts = append(r.artifacts, path)
}

func (r *Rig) artifactsDir() string {
	return filepath.Join(r.repo, "artifacts", strings.ReplaceAll(r.t.Name(), "/", "_"))
}

func (r *Rig) keepArtifacts() {
	if !r.t.Failed() {
		return
	}
	dir := r.artifactsDir()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		r.t.Logf("rig: %v", err)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, path := range r.artifacts {
		b, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, filepath.Base(path)), b, 0o644)
		}
		if err != nil {
			r.t.Logf("rig: keeping %s: %v", path, err)
		}
	}
	r.t.Logf("rig: logs are in %s", dir)
}
