// Package rig boots virtual machines: a real kernel, a real dracut initramfs
// with the agent in it, real Ignition, a software TPM, and a real verifier
// process on the host's loopback, which the guest reaches at 10.0.2.2, or,
// where it has a cloud's metadata service, at 169.254.169.2.
//
// One scenario is a folder below testvm/scenarios with a test in it. A test asks
// the rig for a verifier, a TPM and a machine, and then says what the node saw
// (its console, its journal, its disk) and what the verifier recorded:
//
//	r := rig.New(t)
//	v := r.Verifier(rig.VerifierConfig{})
//	tpm := r.NewTPM()
//	v.Enroll("worker-0", "worker", tpm)
//	node := r.Boot(rig.VM{TPM: tpm, Pointer: v.Pointer("worker")})
//	node.WantProvisioned()
//
// What takes time to build (initramfs, root disk, unified kernel images, a newer
// Ignition) is kept under ${XDG_CACHE_HOME:-~/.cache}/mcs-attest, named by a hash
// of everything that went into it. Nothing is installed into the system, nothing
// needs root, and nothing outside the cache and the artifacts folder is written.
//
// A failed test leaves its machines' serial logs, their journals, the verifier's
// log under artifacts/<test>.
//
// Machines run under emulation (TCG): a host whose /dev/kvm opens may still not
// run a guest. Deadlines are generous, because a loaded host stretches a boot of
// twelve seconds to thirty.
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

	"github.com/mcs-attest/mcs-attest/testvm/buildcache"
)

// TB is what the rig needs of a test; *testing.T has it, and so has the demo.
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

// New makes a rig for one test. It waits until the host has a free place for
// a machine (takeSlot), and prints the scenario's seconds at the end.
func New(t TB) *Rig {
	t.Helper()
	r := &Rig{t: t, dir: shortTempDir(t)}
	r.repo = findRepo(t)
	cache, err := buildcache.Dir()
	r.fatal(err, "cache folder")
	r.cache = cache
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

// progress tells a person who waits what is going on.
func (r *Rig) progress(format string, a ...any) {
	r.t.Logf("rig: "+format, a...)
}

// fatal ends the test when err is not nil.
func (r *Rig) fatal(err error, format string, a ...any) {
	if err != nil {
		r.t.Helper()
		r.t.Fatalf("%s: %v", fmt.Sprintf(format, a...), err)
	}
}

// run runs a tool to its end and returns what it printed.
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

// tools lists every program the rig runs, with the package that brings it in
// Debian 12 (.ci/packages.txt holds the same packages).
var tools = map[string]string{
	"qemu-system-x86_64": "qemu-system-x86",
	"qemu-img":           "qemu-utils",
	"swtpm":              "swtpm",
	"swtpm_setup":        "swtpm-tools",
	"dracut":             "dracut",
	"busybox":            "busybox-static",
	"mkfs.ext4":          "e2fsprogs",
	"debugfs":            "e2fsprogs",
	"mkfs.vfat":          "dosfstools",
	"mcopy":              "mtools",
	"objcopy":            "binutils",
	"sbsign":             "sbsigntool",
	"cpio":               "cpio",
	"zstd":               "zstd",
	"openssl":            "openssl",
	"genisoimage":        "genisoimage",
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

// findRepo returns the root of the source tree that holds the working folder.
func findRepo(t TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatalf("working folder: %v", err)
	}
	for d := dir; d != "/"; d = filepath.Dir(d) {
		if _, err := os.Stat(filepath.Join(d, "dracut", "90mcs-attest")); err == nil {
			return d
		}
	}
	t.Fatalf("%s is not inside the source tree", dir)
	return ""
}

// shortTempDir is a folder for sockets, whose paths may have 107 bytes at most.
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

// keep names a file to copy to the artifacts folder when the test fails.
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
