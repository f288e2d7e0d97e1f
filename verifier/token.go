package main

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/pkg/record"
	"github.com/mcs-attest/mcs-attest/pkg/seal"
	"github.com/mcs-attest/mcs-attest/pkg/token"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/service"
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

func newTokenBreakGlassCommand() *cobra.Command {
	var configPath, pool, name string
	var lifetime time.Duration
	cmd := &cobra.Command{
		Use:   "break-glass --pool POOL --name WHO",
		Short: "Make a token by hand, for a machine that cannot attest",
		Long: `Make a token by hand, for a machine that cannot attest. It opens the full config
of one pool, three times, for at most an hour, to whoever holds it; put it as
"Authorization: Bearer" on the merge source of that one machine's pointer config.

The gate writes an audit line for each use, and 'status' shows it. To revoke it
early, 'token rotate --now'. The token is printed on standard output alone.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := loadConfig(configPath)
			if err != nil {
				return err
			}
			if lifetime <= 0 || lifetime > record.MaxBreakGlass {
				return fmt.Errorf("lifetime %v: at most %v", lifetime, record.MaxBreakGlass)
			}
			if !dnsName.MatchString(name) || !dnsName.MatchString(pool) {
				return hint(errors.New("--name and --pool must be given"), "the name is for the audit log: a ticket number, or who asked; lower-case letters, digits, '-' and '.'")
			}
			set, _, err := readKeys(c)
			if err != nil {
				return err
			}
			now := time.Now()
			var id [12]byte
			_, _ = rand.Read(id[:]) // crypto/rand.Read never fails
			tokenID := hex.EncodeToString(id[:])
			signed, err := set.Sign(now, token.Claims{
				Issuer: c.Issuer(), Audience: service.Audience, Subject: record.BreakGlassNamespace + "/" + name,
				MachineUID: record.BreakGlassUID(tokenID), Pool: pool, ID: tokenID, IssuedAt: now, NotBefore: now, Expiry: now.Add(lifetime),
				Verifier: token.VerifierID{Developer: service.Developer, Build: version},
				Status:   token.Warning,
				Submods:  map[string]token.Appraisal{record.BreakGlassNamespace: {Status: token.Warning}},
			})
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "break-glass token %s for pool %s, until %s; keep it out of tickets and chats\n", tokenID, pool, now.Add(lifetime).Format(time.RFC3339))
			_, err = fmt.Fprintln(cmd.OutOrStdout(), string(signed.Expose()))
			return err
		},
	}
	configFlag(cmd, &configPath)
	f := cmd.Flags()
	f.StringVar(&pool, "pool", "", "the pool whose config it opens")
	f.StringVar(&name, "name", "", "for the audit log: a ticket, or who asked for it")
	f.DurationVar(&lifetime, "lifetime", 15*time.Minute, "how long it is valid, at most 1h")
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
