// SPDX-License-Identifier: Apache-2.0

// Package support has the command that gathers what explains a problem.
package support

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/pkg/secret"
	"github.com/mcs-attest/mcs-attest/verifier/internal/bundle"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
	"github.com/mcs-attest/mcs-attest/verifier/internal/operator"
)

// source is a backend that a support bundle can be made of.
type source interface {
	// Known are secrets to be looked for, Collect is what goes in.
	Known(context.Context) ([]secret.Bytes, []error)
	Collect(ctx context.Context, since time.Duration, to operator.Collector) error
}

// Command is "support-bundle".
func Command(e *env.Env) *cobra.Command {
	var output string
	var since time.Duration
	var search bool
	cmd := &cobra.Command{
		Use:   "support-bundle",
		Short: "Collect what explains a problem, without secrets",
		Long: `Collect what a support engineer needs to understand a problem. For a cluster that is
the versions, the verifier's conditions, policies, records, claims, Events, Machines
(without their provider's part and user data), pods and their logs, and the
configuration. For a folder it is the manifests, the state, metrics and the
configuration; keys and Ignition configs are listed but not read. Of an object that does
not belong in its folder, the bundle has only the kind and the name.

The bundle contains no Secret. The command removes what looks like a secret (private
keys, JWTs, authorizations, tokens, passwords, also inside base64). It also removes
the values of the verifier's own secrets, which it reads for this if you have the
permission; --search-secrets=false does not read them. contents.txt lists what is in
the bundle, what was removed, and what could not be read. Review the bundle before you
share it.`,
		Example: e.Examples(`  PROGRAM support-bundle
  PROGRAM support-bundle --output bundle/ --since 2h`),
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if since < 0 {
				return env.Usagef("since %v: must not be negative", since)
			}
			b, err := e.Open()
			if err != nil {
				return err
			}
			s, ok := b.(source)
			if !ok {
				return errors.New("there is nothing to collect")
			}
			return gather(cmd, s, e.Version, output, since, search, time.Now())
		},
	}
	e.Where(cmd)
	f := cmd.Flags()
	f.StringVar(&output, "output", "", `the archive, or a folder if it ends in "/" (default: mcs-attest-support-TIME.tar.gz)`)
	f.DurationVar(&since, "since", 24*time.Hour, "age of the oldest log lines; 0 for all")
	f.BoolVar(&search, "search-secrets", true, "read the verifier's secrets, and remove their values from the bundle")
	return cmd
}

func gather(cmd *cobra.Command, s source, version, output string, since time.Duration, search bool,
	now time.Time) (err error) {
	defer env.UntilSignal(cmd)()
	name := "mcs-attest-support-" + now.UTC().Format("20060102T150405Z")
	output = cmp.Or(output, name+".tar.gz")
	var known []secret.Bytes
	var unread []error
	if search {
		known, unread = s.Known(cmd.Context())
	}
	scrub := bundle.NewScrubber(known...)
	var b *bundle.Bundle
	if strings.HasSuffix(output, "/") {
		if b, err = bundle.Folder(output, scrub); err != nil {
			return hint.New(err, "name a folder that does not exist")
		}
	} else {
		var f *os.File
		if f, err = os.OpenFile(output, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
			return hint.New(fmt.Errorf("make bundle: %w", err), "--output names another file")
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		b = bundle.Archive(f, name, now, scrub)
	}
	for _, e := range unread {
		b.Missed("the search for a known secret is incomplete", e)
	}
	err = errors.Join(
		b.Add("version.txt", []byte("mcs-attest-verifier "+version+"\n"+now.UTC().Format(time.RFC3339)+"\n")),
		s.Collect(cmd.Context(), since, b), b.Close())
	if stopped := cmd.Context().Err(); stopped != nil { // each part after that is only noted as missing
		err = errors.Join(fmt.Errorf("interrupted: %w", stopped), err)
	}
	if err != nil {
		if !strings.HasSuffix(output, "/") {
			_ = os.Remove(output) // half a bundle misleads
		}
		return err
	}
	files, removed, missed := b.Summary()
	for _, m := range missed {
		cmd.PrintErrln("not in it:", m)
	}
	cmd.PrintErrf("%d files, %d secrets removed; review the bundle before you share it\n", files, removed)
	cmd.Println("wrote", output)
	return nil
}
