// SPDX-License-Identifier: Apache-2.0

package setup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/verifier/internal/admin"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
	"github.com/mcs-attest/mcs-attest/verifier/internal/standalone"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
)

func backupCommand() *cobra.Command {
	var path string
	var force bool
	cmd := &cobra.Command{
		Use:   "backup FILE",
		Short: "Back up the records of a folder, even while its verifier serves",
		Long: `Write a consistent copy of a folder's record database to FILE. The verifier may serve
at the same time. The command checks the copy before it renames it to FILE.

FILE contains no key and no token, but names, addresses and the identities of machines.
It contains only the records; docs/operating.md lists the other files to copy. In a
cluster the records are objects of the API: back up etcd.`,
		Example: `  mcs-attest-verifier backup --config /var/lib/mcs-attest/mcs-attest.yaml /backup/records.db`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := env.FolderConfig(path)
			if err != nil {
				return err
			}
			if err := env.MayReplace(args[0], force); err != nil {
				return err
			}
			if err := notOwn(c, args[0]); err != nil {
				return err
			}
			defer env.UntilSignal(cmd)()
			if err := backup(cmd.Context(), c, args[0]); err != nil {
				return err
			}
			cmd.Println("wrote", args[0])
			return nil
		},
	}
	env.ConfigFlag(cmd, &path)
	cmd.Flags().BoolVar(&force, "force", false, "replace FILE if it exists")
	return cmd
}

// notOwn rejects a backup over the records themselves: a verifier that serves would write on into the replaced file.
func notOwn(c *config.Config, file string) error {
	own, err := os.Stat(c.Path("state", "records.db"))
	if err != nil {
		return nil // copyRecords reports it
	}
	if to, err := os.Stat(file); err == nil && os.SameFile(own, to) {
		return env.Usage(fmt.Errorf("%s is the record database itself", file))
	}
	return nil
}

// backup copies the records into a file that appears whole. A power failure after that leaves the file.
func backup(ctx context.Context, c *config.Config, file string) (err error) {
	tmp, err := os.CreateTemp(filepath.Dir(file), ".backup-*")
	if err != nil {
		return fmt.Errorf("write the backup: %w", err)
	}
	defer os.Remove(tmp.Name()) //nolint:errcheck // it has its name when all went well
	err = copyRecords(ctx, c, tmp)
	if err := errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	if err := store.Check(tmp.Name()); err != nil {
		return fmt.Errorf("check the backup: %w", err)
	}
	if err := os.Rename(tmp.Name(), file); err != nil {
		return fmt.Errorf("write the backup: %w", err)
	}
	dir, err := os.Open(filepath.Dir(file))
	if err != nil {
		return fmt.Errorf("write the backup: %w", err)
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func copyRecords(ctx context.Context, c *config.Config, to io.Writer) error {
	err := admin.Backup(ctx, c.Path("state", "admin.sock"), to)
	if !errors.Is(err, admin.ErrNotServing) {
		return err
	}
	records, err := store.OpenReadOnly(c.Path("state", "records.db"))
	if errors.Is(err, fs.ErrNotExist) {
		return hint.New(errors.New("there are no records yet"), "the verifier creates them when it first serves")
	}
	if err != nil {
		return standalone.RecordsHint(err, c)
	}
	return errors.Join(records.Backup(ctx, to, func(int64) {}), records.Close())
}
