// SPDX-License-Identifier: Apache-2.0

package binaries

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/mcs-attest/mcs-attest/testvm/buildcache"
)

// before is the commit of the version from which an upgrade starts. A release sets it to its own
// commit, right after the tag. Until there are releases, a change to what two versions share
// (records, keys, the Lease, roles) sets it to the last commit without the change.
const before = "df9cdb6c80d9c86d268a1d552633bb4eabf2c611"

// Release is a version of the product that was built from the history of this repository.
type Release struct {
	// Verifier is the path of mcs-attest-verifier.
	Verifier string
	// Source is the source tree, with the manifests in deploy.
	Source string
}

// Before returns the version from which an upgrade starts. It is built once and kept in the build
// cache.
func Before(logf buildcache.Logf) (Release, error) {
	repo, err := Root()
	if err != nil {
		return Release{}, err
	}
	cache, err := buildcache.Dir()
	if err != nil {
		return Release{}, err
	}
	compiler, err := Run(repo, "go", "env", "GOVERSION")
	if err != nil {
		return Release{}, err
	}
	sum := before[:12] + "-" + compiler
	dir, err := buildcache.Result(cache, "release", sum, "the version before, "+before[:12]+" (once)", logf,
		func(out string) error { return buildRelease(repo, before, out) })
	return Release{Verifier: filepath.Join(dir, "mcs-attest-verifier"), Source: filepath.Join(dir, "source")}, err
}

func buildRelease(repo, commit, out string) error {
	source := filepath.Join(out, "source")
	if err := os.MkdirAll(source, 0o755); err != nil {
		return err
	}
	archive := filepath.Join(out, "source.tar")
	if _, err := Run(repo, "git", "cat-file", "-e", commit+"^{commit}"); err != nil {
		// A shallow clone does not have it.
		if _, err := Run(repo, "git", "fetch", "--quiet", "--depth=1", "origin", commit); err != nil {
			return fmt.Errorf("%w\nhint: this needs a git clone with the commit %s, or the remote \"origin\" that has it",
				err, commit)
		}
	}
	if _, err := Run(repo, "git", "archive", "--output", archive, commit); err != nil {
		return err
	}
	if _, err := Run(source, "tar", "-xf", archive); err != nil {
		return err
	}
	if err := os.Remove(archive); err != nil {
		return err
	}
	args := append(buildArgs(filepath.Join(out, "mcs-attest-verifier")), "./verifier")
	_, err := Run(source, "go", args...)
	return err
}

// Run runs a command outside of any workspace and returns its standard output, trimmed.
func Run(dir, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return "", fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, exit.Stderr)
	}
	return strings.TrimSpace(string(out)), err
}
