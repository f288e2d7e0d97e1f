// SPDX-License-Identifier: Apache-2.0

// Command gendocs writes the manual pages of the verifier and of its plug-in, and the verifier's shell completions.
// A release puts them into the packages:
//
//	gendocs -version v0.3.0 DIR
//
// The date of the pages is SOURCE_DATE_EPOCH. It is no part of the verifier, which would be larger.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra/doc"

	"github.com/mcs-attest/mcs-attest/verifier/internal/cli"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
)

func main() {
	version := flag.String("version", "", "the version that the pages name")
	flag.Parse()
	if err := write(flag.Arg(0), *version); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// write writes man1/*.1 and the completions for bash, zsh and fish to dir.
func write(dir, version string) error {
	if err := os.Unsetenv("MCS_ATTEST_CONFIG"); err != nil { // the default of a flag
		return err
	}
	pages := filepath.Join(dir, "man1")
	if err := os.MkdirAll(pages, 0o755); err != nil {
		return err
	}
	for _, program := range []string{env.Verifier, "kubectl-attest"} {
		e, _ := env.Of(program, nil)
		root := cli.Root(e)
		root.DisableAutoGenTag = true
		header := &doc.GenManHeader{Source: "mcs-attest " + version, Manual: "mcs-attest"}
		if err := doc.GenManTree(root, header, pages); err != nil {
			return err
		}
	}
	e, _ := env.Of(env.Verifier, nil)
	root, file := cli.Root(e), filepath.Join(dir, env.Verifier)
	return errors.Join(root.GenBashCompletionFileV2(file+".bash", true), root.GenZshCompletionFile(file+".zsh"),
		root.GenFishCompletionFile(file+".fish", true))
}
