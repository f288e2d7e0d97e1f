// SPDX-License-Identifier: Apache-2.0

package binaries

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"

	"github.com/mcs-attest/mcs-attest/testvm/buildcache"
)

// Helm returns the path of the program helm of testvm/helm/go.mod. It is built once and kept in the
// build cache.
func Helm(logf buildcache.Logf) (string, error) {
	repo, err := root()
	if err != nil {
		return "", err
	}
	cache, err := buildcache.Dir()
	if err != nil {
		return "", err
	}
	module := filepath.Join(repo, "testvm", "helm")
	compiler, err := run(module, "go", "env", "GOVERSION")
	if err != nil {
		return "", err
	}
	key := sha256.New()
	fmt.Fprintln(key, compiler)
	for _, name := range []string{"go.mod", "go.sum"} {
		raw, err := os.ReadFile(filepath.Join(module, name))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(key, "%s %d\n%s", name, len(raw), raw)
	}
	dir, err := buildcache.Result(cache, "helm", hex.EncodeToString(key.Sum(nil))[:24],
		"Helm from its Go module (some minutes, once)", logf, func(out string) error {
			if err := os.Mkdir(out, 0o755); err != nil {
				return err
			}
			_, err := run(module, "go", append(buildArgs(out+"/"), "tool")...)
			return err
		})
	return filepath.Join(dir, "helm"), err
}

// Charts writes the Helm chart and the OLM bundle of this source tree to a folder, as a version.
func Charts(version, out string) error {
	repo, err := root()
	if err != nil {
		return err
	}
	err = readSources(repo, ".ci/tools/go.mod", ".ci/tools/cmd/charts", ".ci/tools/manifests", "deploy")
	if err != nil {
		return err
	}
	_, err = run(filepath.Join(repo, ".ci", "tools"), "go", "run", "./cmd/charts", "-source", repo,
		"-version", version, "-o", out)
	return err
}
