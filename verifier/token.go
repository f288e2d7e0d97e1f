package main

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/pkg/record"
	"github.com/mcs-attest/mcs-attest/pkg/token"
	"github.com/mcs-attest/mcs-attest/verifier/internal/operator"
	"github.com/mcs-attest/mcs-attest/verifier/internal/service"
)

func (c *cli) tokenCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "The keys that sign tokens and seal challenges; the provisioning token",
	}
	cmd.AddCommand(c.tokenStatusCommand(), c.tokenRotateCommand(), c.tokenBreakGlassCommand(), c.provisioningCommand())
	return cmd
}

func (c *cli) tokenStatusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "List the keys and since when they are used",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b, err := c.open()
			if err != nil {
				return err
			}
			keys, err := b.Keys(cmd.Context())
			if err != nil {
				return err
			}
			set, ring, now := keys.Tokens, keys.Seals, time.Now()
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
	c.where(cmd)
	return cmd
}

func (c *cli) tokenRotateCommand() *cobra.Command {
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
			b, err := c.open()
			if err != nil {
				return err
			}
			publish, err := b.PublishDelay(cmd.Context())
			if err != nil && !now {
				return err
			}
			err = b.ChangeKeys(cmd.Context(), func(k operator.Keys) (operator.Keys, error) { return operator.Rotate(k, time.Now(), publish, now) })
			if err != nil {
				return err
			}
			if now {
				cmd.Println("new keys are in force; everything signed before is void")
			} else {
				cmd.Printf("new keys are published; they will be used in %v\n", publish)
			}
			return nil
		},
	}
	c.where(cmd)
	cmd.Flags().BoolVar(&now, "now", false, "drop the old keys at once")
	return cmd
}

func (c *cli) tokenBreakGlassCommand() *cobra.Command {
	var pool, name string
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
			if lifetime <= 0 || lifetime > record.MaxBreakGlass {
				return fmt.Errorf("lifetime %v: at most %v", lifetime, record.MaxBreakGlass)
			}
			if !operator.DNSName.MatchString(name) || !operator.DNSName.MatchString(pool) {
				return hint(errors.New("--name and --pool must be given"), "the name is for the audit log: a ticket number, or who asked; lower-case letters, digits, '-' and '.'")
			}
			b, err := c.open()
			if err != nil {
				return err
			}
			keys, err := b.Keys(cmd.Context())
			if err != nil {
				return err
			}
			issuer, err := b.Issuer(cmd.Context())
			if err != nil {
				return err
			}
			now := time.Now()
			var id [12]byte
			_, _ = rand.Read(id[:]) // crypto/rand.Read never fails
			tokenID := hex.EncodeToString(id[:])
			signed, err := keys.Tokens.Sign(now, token.Claims{
				Issuer: issuer, Audience: service.Audience, Subject: record.BreakGlassNamespace + "/" + name,
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
	c.where(cmd)
	f := cmd.Flags()
	f.StringVar(&pool, "pool", "", "the pool whose config it opens")
	f.StringVar(&name, "name", "", "for the audit log: a ticket, or who asked for it")
	f.DurationVar(&lifetime, "lifetime", 15*time.Minute, "how long it is valid, at most 1h")
	return cmd
}
