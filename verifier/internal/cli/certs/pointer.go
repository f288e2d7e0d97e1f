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
		Long: `Replace the CA in pointer configs that are files with the CA bundle, and change
no other field. Use it for user data that an administrator distributes. The verifier
updates pointer configs in a cluster's Secrets.

A file whose CA is not in the bundle does not change, because the CA may be that of
another server that distributes the pointer config. --force replaces it anyway. After
such a file the command continues with the others, and exits with 1.`,
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
			var failed []error
			for _, file := range files {
				failed = append(failed, renewPointer(cmd, file, s.Bundle, force))
			}
			return errors.Join(failed...)
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "replace even a CA that is not in the bundle")
	e.Where(cmd)
	return cmd
}

func renewPointer(cmd *cobra.Command, file string, bundle []*x509.Certificate, force bool) error {
	info, err := os.Lstat(file)
	if err != nil {
		return fmt.Errorf("read pointer config: %w", err)
	}
	if !info.Mode().IsRegular() {
		return hint.New(fmt.Errorf("%s is not a regular file, and this command does not replace it", file),
			"if it is a link, give the file that it refers to")
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
