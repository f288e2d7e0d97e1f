// SPDX-License-Identifier: Apache-2.0

// Package binaries builds programs for tests: the product's, in the same way as `make build`, and
// those of others from the modules in testvm. All tests of a source tree share one copy in the build
// cache. The go command links a program of the product again only if its sources have changed.
package binaries

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sync"

	"github.com/mcs-attest/mcs-attest/testvm/buildcache"
)

// Verifier returns the path of mcs-attest-verifier.
func Verifier() (string, error) { return verifier() }

// Agent returns the path of mcs-attest-agent, in the same folder.
func Agent() (string, error) { return agent() }

var (
	verifier = sync.OnceValues(func() (string, error) { return build("verifier", "mcs-attest-verifier") })
	// The flags are the same as in the Makefile.
	agent = sync.OnceValues(func() (string, error) {
		return build("agent", "mcs-attest-agent", "-tags=nethttpomithttp2", "-gcflags=all=-l")
	})
)

func build(folder, name string, flags ...string) (string, error) {
	repo, err := Root()
	if err != nil {
		return "", err
	}
	if err := readSources(repo, "go.mod", "agent", "verifier", "pkg", "proto"); err != nil {
		return "", err
	}
	cache, err := buildcache.Dir()
	if err != nil {
		return "", err
	}
	// Another source tree may be tested at the same time.
	dir := filepath.Join(cache, "bin", fmt.Sprintf("%x", sha256.Sum256([]byte(repo)))[:8])
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	unlock, err := buildcache.Lock(filepath.Join(dir, ".lock"), func(string, ...any) {})
	if err != nil {
		return "", err
	}
	defer unlock()
	out := filepath.Join(dir, name)
	args := append(buildArgs(out), flags...)
	cmd := exec.Command("go", append(args, "./"+folder)...)
	cmd.Dir = repo
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", name, err, text)
	}
	return out, nil
}

// Charts writes the Helm chart and the OLM bundle of this source tree to a folder, as a version.
func Charts(version, out string) error {
	repo, err := Root()
	if err != nil {
		return err
	}
	err = readSources(repo, ".ci/tools/go.mod", ".ci/tools/cmd/charts", ".ci/tools/manifests", "deploy")
	if err != nil {
		return err
	}
	_, err = Run(filepath.Join(repo, ".ci", "tools"), "go", "run", "./cmd/charts", "-source", repo,
		"-version", version, "-o", out)
	return err
}

// buildDate is a constant, so that a commit that changes nothing else causes no new images.
const buildDate = "1767225600" // 2026-01-01

func buildArgs(out string) []string {
	return []string{"build", "-trimpath", "-buildvcs=false",
		"-ldflags=-s -w -X github.com/mcs-attest/mcs-attest/pkg/version.date=" + buildDate, "-o", out}
}

// readSources reads every file of the given files and folders. `go test` uses a cached result
// while the files that the test read are unchanged, but it does not see the files that a go command
// of the test reads.
func readSources(repo string, names ...string) error {
	for _, name := range names {
		err := filepath.WalkDir(filepath.Join(repo, name), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			_, err = os.Stat(path)
			return err
		})
		if err != nil {
			return fmt.Errorf("sources: %w", err)
		}
	}
	return nil
}

// Root returns the root of the source tree that contains the working folder.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for d := dir; d != "/"; d = filepath.Dir(d) {
		if _, err := os.Stat(filepath.Join(d, "dracut", "90mcs-attest")); err == nil {
			return d, nil
		}
	}
	return "", fmt.Errorf("%s is not inside the source tree", dir)
}
