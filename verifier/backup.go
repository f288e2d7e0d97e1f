package main

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
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
)

func newBackupCommand() *cobra.Command {
	var path string
	var force bool
	cmd := &cobra.Command{
		Use:   "backup FILE",
		Short: "Copy the records of a folder, also while its verifier serves",
		Long: `Copy the record database of a folder to FILE, as it is at one moment. The verifier
may serve meanwhile. The copy is checked before FILE has its name.

FILE holds no key and no token, but names, addresses and the identities of machines.
The rest of the folder is files of your own; docs/operating.md lists what to copy.
In a cluster the records are objects of the API: back up etcd.`,
		Example: `  mcs-attest-verifier backup --config /var/lib/mcs-attest/mcs-attest.yaml /backup/records.db`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := folderConfig(path)
			if err != nil {
				return err
			}
			if err := mayWrite(args[0], force); err != nil {
				return err
			}
			if err := backup(cmd.Context(), c, args[0]); err != nil {
				return err
			}
			cmd.Println("wrote", args[0])
			return nil
		},
	}
	configFlag(cmd, &path)
	cmd.Flags().BoolVar(&force, "force", false, "replace FILE if it exists")
	return cmd
}

// folderConfig is the configuration of a verifier that has a folder.
func folderConfig(path string) (*config.Config, error) {
	c, err := loadConfig(path)
	if err != nil {
		return nil, err
	}
	if c.Kubernetes != nil {
		return nil, hint(errors.New("the records of a cluster are objects of its API"), "back up and restore etcd")
	}
	return c, nil
}

func mayWrite(file string, force bool) error {
	_, err := os.Lstat(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !force:
		return hint(fmt.Errorf("%s exists", file), "add --force to replace it")
	}
	return nil
}

// backup copies the records into a file that appears whole.
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
	return nil
}

func copyRecords(ctx context.Context, c *config.Config, to io.Writer) error {
	err := admin.Backup(ctx, c.Path("state", "admin.sock"), to)
	if !errors.Is(err, admin.ErrNotServing) {
		return err
	}
	records, err := store.OpenReadOnly(c.Path("state", "records.db"))
	if errors.Is(err, fs.ErrNotExist) {
		return hint(errors.New("there are no records yet"), "the verifier makes them when it serves for the first time")
	}
	if err != nil {
		return recordsHint(err, c)
	}
	return errors.Join(records.Backup(ctx, to, func(int64) {}), records.Close())
}

func newRestoreCommand() *cobra.Command {
	var path string
	var force, acknowledge bool
	cmd := &cobra.Command{
		Use:   "restore FILE | --acknowledge",
		Short: "Put a backup of the records back, and acknowledge it",
		Long: `Put a backup of the records back, while no verifier serves the folder. With --force
it replaces a database that exists, which stays beside it as records.db.old, or
records.db.old.1 and so on.

A backup lacks what happened after it: joins, claims of identities, used grants. So
the verifier lets no machine in by restored records. Machines wait, until you have
reviewed them and run 'restore --acknowledge', also while it serves. A verifier that
finds an older database than before holds in the same way.

Before you acknowledge, run 'token rotate --now', and quarantine or complete the
machines that joined since; docs/operating.md says how to find them.`,
		Example: `  mcs-attest-verifier restore --config /var/lib/mcs-attest/mcs-attest.yaml --force /backup/records.db
  mcs-attest-verifier restore --config /var/lib/mcs-attest/mcs-attest.yaml --acknowledge`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := folderConfig(path)
			if err != nil {
				return err
			}
			switch {
			case acknowledge && len(args) == 0:
				return acknowledgeRestore(cmd, c)
			case acknowledge:
				return errors.New("--acknowledge takes no FILE")
			case len(args) == 0:
				return hint(errors.New("no FILE given"), "name the backup, or add --acknowledge to end the hold of an earlier restore")
			}
			return restore(cmd, c, args[0], force)
		},
	}
	configFlag(cmd, &path)
	cmd.Flags().BoolVar(&force, "force", false, "replace the record database if it exists")
	cmd.Flags().BoolVar(&acknowledge, "acknowledge", false, "let machines in by the restored records")
	return cmd
}

func restore(cmd *cobra.Command, c *config.Config, file string, force bool) error {
	target := c.Path("state", "records.db")
	const stop = "stop the verifier first"
	if _, err := admin.Ask(cmd.Context(), c.Path("state", "admin.sock")); !errors.Is(err, admin.ErrNotServing) {
		return hint(errors.New("a verifier serves this folder"), stop)
	}
	if err := mayWrite(target, force); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o700); err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	held, err := store.Restore(target, file)
	if errors.Is(err, store.ErrLocked) {
		return hint(err, stop)
	}
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	cmd.Println("wrote", target)
	if held {
		cmd.Println("no machine is let in by these records until 'mcs-attest-verifier restore --acknowledge'; before that:")
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
	cmd.Println("acknowledged: machines are let in by the restored records")
	return nil
}
