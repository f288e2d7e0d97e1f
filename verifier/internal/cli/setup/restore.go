// SPDX-License-Identifier: Apache-2.0

package setup

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/verifier/internal/admin"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
	"github.com/mcs-attest/mcs-attest/verifier/internal/wholefile"
)

func restoreCommand() *cobra.Command {
	var path string
	var force, acknowledge bool
	cmd := &cobra.Command{
		Use:   "restore FILE | --acknowledge",
		Short: "Restore a backup of the records, and acknowledge the restore",
		Long: `Restore a backup of the records while no verifier serves the folder. --force replaces
an existing database, and keeps it as records.db.old, records.db.old.1 and so on.

A backup lacks what happened after it: joins, claims of identities, used grants. So
the verifier admits no machine by restored records. Machines wait until you have
reviewed the records and run 'restore --acknowledge', which also works while the
verifier serves. A verifier that finds an older database than before waits likewise.

Before you acknowledge the restore, run 'token rotate --now', and quarantine or
complete the machines that joined since the backup. docs/operating.md describes how to
find them.`,
		Example: `  mcs-attest-verifier restore --config /var/lib/mcs-attest/mcs-attest.yaml --force /backup/records.db
  mcs-attest-verifier restore --config /var/lib/mcs-attest/mcs-attest.yaml --acknowledge`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := env.FolderConfig(path)
			if err != nil {
				return err
			}
			switch {
			case acknowledge && len(args) == 0:
				return acknowledgeRestore(cmd, c)
			case acknowledge:
				return env.Usagef("--acknowledge does not accept a FILE")
			case len(args) == 0:
				return env.Usage(hint.New(errors.New("no FILE given"),
					"name the backup, or add --acknowledge to end the hold of an earlier restore"))
			}
			return restore(cmd, c, args[0], force)
		},
	}
	env.ConfigFlag(cmd, &path)
	cmd.Flags().BoolVar(&force, "force", false, "replace the record database if it exists")
	cmd.Flags().BoolVar(&acknowledge, "acknowledge", false, "admit machines by the restored records")
	return cmd
}

func restore(cmd *cobra.Command, c *config.Config, file string, force bool) error {
	target := c.Path("state", "records.db")
	const stop = "stop the verifier first"
	defer env.UntilSignal(cmd)()
	if _, err := admin.Ask(cmd.Context(), c.Path("state", "admin.sock")); !errors.Is(err, admin.ErrNotServing) {
		return hint.New(errors.New("a verifier serves this folder"), stop)
	}
	if err := env.MayReplace(target, force); err != nil {
		return err
	}
	if err := wholefile.MkdirAll(filepath.Dir(target), 0o700); err != nil {
		return err
	}
	held, err := store.Restore(target, file)
	if errors.Is(err, store.ErrLocked) {
		return hint.New(err, stop)
	}
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	cmd.Println("wrote", target)
	if held {
		cmd.Println("valid again: grants that were used since the backup, earlier tokens with their uses, and " +
			"the right of " +
			"machines that joined since to attest")
		cmd.Println("no machine is admitted by these records until 'mcs-attest-verifier restore --acknowledge'; before that:")
		cmd.Println("  mcs-attest-verifier token rotate --now")
		cmd.Println("  quarantine, or complete, the machines that joined since the backup; 'status' lists all")
	}
	return nil
}

func acknowledgeRestore(cmd *cobra.Command, c *config.Config) error {
	held, err := store.Acknowledge(c.Path("state", "records.db"))
	if err != nil {
		return err
	}
	if !held {
		cmd.Println("there is no restore to acknowledge")
		return nil
	}
	cmd.Println("acknowledged: machines are admitted by the restored records")
	return nil
}
