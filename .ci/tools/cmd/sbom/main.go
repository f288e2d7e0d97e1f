// SPDX-License-Identifier: Apache-2.0

// Command sbom writes what Go programs consist of, as CycloneDX 1.6 JSON: BINARY.cdx.json for each BINARY.
//
//	sbom -version v0.3.0 -source . -o DIR BINARY...
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/mcs-attest/mcs-attest/ci/tools/sbom"
)

func main() {
	dir := flag.String("o", ".", "write BINARY.cdx.json to `DIR`")
	source := flag.String("source", ".", "`DIR` of the main module's source tree")
	version := flag.String("version", "", "`VERSION` of the main module")
	flag.Parse()
	if flag.NArg() == 0 || *version == "" {
		fmt.Fprintln(os.Stderr, "usage: sbom -version VERSION [-source DIR] [-o DIR] BINARY...")
		os.Exit(2)
	}
	if err := run(*source, *version, *dir, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(source, version, dir string, binaries []string) error {
	modules, err := sbom.Read(source, version)
	if err != nil {
		return err
	}
	for _, binary := range binaries {
		file := filepath.Join(dir, filepath.Base(binary)+".cdx.json")
		if err := modules.Write(file, binary); err != nil {
			return fmt.Errorf("%s: %w", binary, err)
		}
		fmt.Println(file)
	}
	return nil
}
