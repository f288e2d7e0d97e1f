package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/pkg/seal"
	"github.com/mcs-attest/mcs-attest/pkg/token"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
)

// keepSealed is how long a replaced sealing key must still open: the longest
// challenge, a report ticket, and the clocks' difference.
const keepSealed = 2*time.Hour + 15*time.Minute

// keepTokens is how long a replaced signing key must still verify: the longest
// token and the replicas' leeway.
const keepTokens = time.Hour + 5*time.Minute

func newTokenCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "The keys that sign tokens and seal challenges",
	}
	cmd.AddCommand(newTokenStatusCommand(), newTokenRotateCommand(), newTokenBreakGlassCommand())
	return cmd
}

func newTokenStatusCommand() *cobra.Command {
	var configPath string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "List the keys and since when they are used",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := loadConfig(configPath)
			if err != nil {
				return err
			}
			set, ring, err := readKeys(c)
			if err != nil {
				return err
			}
			now := time.Now()
			current, _ := set.Current(now)
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 8, 2, ' ', 0)
			fmt.Fprintln(w, "KEY\tID\tUSED FROM\tUSED UNTIL")
			for _, k := range set.Keys {
				name := "token"
				if k.ID == current.ID {
					name = "token (current)"
				}
				until := "-"
				if !k.NotAfter.IsZero() {
					until = k.NotAfter.Format(time.RFC3339)
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", name, k.ID, k.NotBefore.Format(time.RFC3339), until)
			}
			for _, k := range ring.Keys {
				fmt.Fprintf(w, "seal\t%x\t%s\t-\n", k.ID, k.NotBefore.Format(time.RFC3339))
			}
			return w.Flush()
		},
	}
	configFlag(cmd, &configPath)
	return cmd
}

func newTokenRotateCommand() *cobra.Command {
	var configPath string
	var now bool
	cmd := &cobra.Command{
		Use:   "rotate",
		Short: "Add a new key of each kind; the old ones go once nothing needs them",
		Long: `Add a new key of each kind. It is published at once and used after
keyPublishDelay (10 minutes by default), when every verifier has read it; the old
keys verify what they signed until that has expired. No machine notices.

With --now the new keys are used at once and all old ones are dropped: every
token, challenge and report ticket that is out there becomes worthless. Use it
when a key may have been stolen; machines that boot at that moment begin anew.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := loadConfig(configPath)
			if err != nil {
				return err
			}
			if err := rotateKeys(c, now, time.Now()); err != nil {
				return err
			}
			if now {
				cmd.Println("new keys are in force; everything signed before is void")
			} else {
				cmd.Printf("new keys are published; they will be used in %v\n", time.Duration(c.KeyPublishDelay))
			}
			return nil
		},
	}
	configFlag(cmd, &configPath)
	cmd.Flags().BoolVar(&now, "now", false, "drop the old keys at once")
	return cmd
}

func readKeys(c *config.Config) (token.KeySet, seal.Ring, error) {
	rawTokens, err := os.ReadFile(c.Path("keys", "token.json"))
	if err != nil {
		return token.KeySet{}, seal.Ring{}, fmt.Errorf("read token keys: %w", err)
	}
	set, err := token.ParseKeySet(rawTokens)
	if err != nil {
		return token.KeySet{}, seal.Ring{}, err
	}
	rawSeal, err := os.ReadFile(c.Path("keys", "seal.json"))
	if err != nil {
		return token.KeySet{}, seal.Ring{}, fmt.Errorf("read sealing keys: %w", err)
	}
	ring, err := seal.ParseRing(rawSeal)
	return set, ring, err
}

func rotateKeys(c *config.Config, drop bool, now time.Time) error {
	set, ring, err := readKeys(c)
	if err != nil {
		return err
	}
	publish := time.Duration(c.KeyPublishDelay)
	if drop {
		set, ring, publish = token.KeySet{}, seal.Ring{}, 0
	}
	set, err = set.Prune(now, keepTokens).Rotate(now, rand.Reader, publish)
	if errors.Is(err, token.ErrRotating) {
		return hint(err, "wait for it to finish ('token status' tells when), or add --now if a key was stolen")
	}
	if err != nil {
		return err
	}
	ring, err = ring.Rotate(rand.Reader, now, publish, keepSealed)
	if err != nil {
		return err
	}
	tokens, err := set.EncodeSecret()
	if err != nil {
		return err
	}
	seals, err := ring.EncodeSecret()
	if err != nil {
		return err
	}
	return errors.Join(
		writeFile(c.Path("keys", "token.json"), 0o600, tokens.Expose()),
		writeFile(c.Path("keys", "seal.json"), 0o600, seals.Expose()),
	)
}
