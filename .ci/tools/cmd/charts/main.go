// SPDX-License-Identifier: Apache-2.0

// Command charts writes the Helm chart and the OLM bundle of a source tree, for tests and to look at.
// Command release ships the same files.
//
//	charts [-source DIR] [-version v0.0.0] [-digest DIGEST] -o DIR
//
// It writes DIR/mcs-attest, which is the chart, DIR/bundle, DIR/olm-namespace.yaml and
// DIR/olm-remainder.yaml.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/mcs-attest/mcs-attest/ci/tools/manifests"
)

func main() {
	source := flag.String("source", ".", "`DIR` of the source tree")
	version := flag.String("version", "v0.0.0", "`VERSION` of the chart and the bundle")
	digest := flag.String("digest", "sha256:"+fmt.Sprintf("%064d", 0), "`DIGEST` of the verifier's image in the bundle")
	out := flag.String("o", "", "write to `DIR`")
	flag.Parse()
	if err := run(*source, *version, *digest, *out); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(source, version, digest, out string) error {
	chart, err := manifests.Chart(source, version)
	if err != nil {
		return err
	}
	bundle, err := manifests.MakeBundle(source, version, manifests.Digests{Verifier: digest})
	if err != nil {
		return err
	}
	if err := write(filepath.Join(out, manifests.Name), chart); err != nil {
		return err
	}
	if err := write(filepath.Join(out, "bundle"), bundle.Files); err != nil {
		return err
	}
	return write(out, map[string][]byte{"olm-namespace.yaml": bundle.Namespace, "olm-remainder.yaml": bundle.Remainder})
}

func write(dir string, files map[string][]byte) error {
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, content, 0o644); err != nil {
			return err
		}
	}
	return nil
}
