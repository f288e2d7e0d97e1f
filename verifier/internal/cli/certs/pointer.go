// SPDX-License-Identifier: Apache-2.0

package certs

import (
	"crypto/x509"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/pkg/mcscert"
	"github.com/mcs-attest/mcs-attest/pkg/pointer"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"

	"github.com/mcs-attest/mcs-attest/verifier/internal/wholefile"
)

func pointerCommand(e *env.Env) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "pointer FILE...",
		Short: "Put the CA bundle into pointer configs that are files",
		Long: `Put the CA bundle into pointer configs that are files, in place of the CA that is
there, and change nothing else in them: for user data that an administrator hands
out. Those in a cluster's Secrets follow by themselves.

A file whose CA is none of the bundle's stays as it is: it may be that of another
server, which hands the pointer config out. --force replaces it all the same.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, files []string) error {
			k, err := openKeeper(cmd.Context(), e, nil)
			if err != nil {
				return err
			}
			s, err := k.Inspect(cmd.Context())
			if len(s.Bundle) == 0 {
				return errors.Join(err, errors.New("there is no CA bundle"))
			}
			for _, file := range files {
				if err := renewPointer(cmd, file, s.Bundle, force); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "also in place of a CA that is none of the bundle's")
	e.Where(cmd)
	return cmd
}

func renewPointer(cmd *cobra.Command, file string, bundle []*x509.Certificate, force bool) error {
	info, err := os.Stat(file)
	if err != nil {
		return fmt.Errorf("read pointer config: %w", err)
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read pointer config: %w", err)
	}
	var next []byte
	if force {
		next, err = pointer.ForceAuthorities(raw, mcscert.Encode(bundle...))
	} else {
		next, err = pointer.SetAuthorities(raw, mcscert.Encode(bundle...))
	}
	if err != nil {
		return hint.New(fmt.Errorf("%s: %w", file, err), "if its one CA is, or was, the Machine Config Server's, add --force")
	}
	if string(next) == string(raw) {
		cmd.Println("unchanged", file)
		return nil
	}
	if err := wholefile.Write(file, info.Mode().Perm(), next); err != nil {
		return err
	}
	cmd.Println("wrote", file)
	return nil
}
