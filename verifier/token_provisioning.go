package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/pointer"
	"github.com/mcs-attest/mcs-attest/pkg/policy"
	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	"github.com/mcs-attest/mcs-attest/verifier/internal/operator"
)

func (c *cli) provisioningCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "provisioning",
		Short: "The provisioning token: the secret that machines share where they have nothing better",
		Long: `The provisioning token opens the pools whose policy has it as an alternative, to
whoever knows it. It names no machine. docs/provisioning-token.md says how weak
that is, and how to use it all the same.`,
	}
	cmd.AddCommand(c.provisioningCreate(), c.provisioningRotate(), c.provisioningStatus(), c.provisioningShow(), c.provisioningPointer())
	return cmd
}

// provisioner is a backend that keeps the provisioning token.
type provisioner interface {
	Provisioning(context.Context) (tokens provisioning.Tokens, exists bool, err error)
	ChangeProvisioning(context.Context, operator.ChangeProvisioning) error
	ProvisioningSettings(context.Context) (operator.ProvisioningSettings, error)
	Policies(context.Context) (*policy.Set, error)
}

// openProvisioner opens the backend and reads what the commands need of it.
func (c *cli) openProvisioner(cmd *cobra.Command) (provisioner, operator.ProvisioningSettings, error) {
	b, err := c.open()
	if err != nil {
		return nil, operator.ProvisioningSettings{}, err
	}
	p, ok := b.(provisioner)
	if !ok {
		return nil, operator.ProvisioningSettings{}, errors.New("there is no provisioning token here")
	}
	s, err := p.ProvisioningSettings(cmd.Context())
	return p, s, err
}

func noProvisioningToken(where string) error {
	return hint(fmt.Errorf("there is no provisioning token (%s)", where), "'token provisioning create' makes one; without it, pools that it alone would open are served to everyone")
}

// current is the token, or why there is none.
func current(cmd *cobra.Command, p provisioner, s operator.ProvisioningSettings) (provisioning.Tokens, error) {
	tokens, exists, err := p.Provisioning(cmd.Context())
	if err == nil && !exists {
		err = noProvisioningToken(s.Where)
	}
	return tokens, err
}

func (c *cli) provisioningCreate() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Make the token, 32 random bytes",
		Long: `Make the token, 32 random bytes, where there is none yet. Pools whose policy is in
mode Enforce and asks for nothing else refuse machines without it from then on:
put it into the pointer configs first, or set mode Audit.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, s, err := c.openProvisioner(cmd)
			if err != nil {
				return err
			}
			err = p.ChangeProvisioning(cmd.Context(), func(_ provisioning.Tokens, exists bool) (provisioning.Tokens, error) {
				if exists {
					return provisioning.Tokens{}, hint(fmt.Errorf("there is a provisioning token (%s)", s.Where), "'token provisioning rotate' makes a new one and keeps the old one for a while")
				}
				return provisioning.New(time.Now(), rand.Reader)
			})
			if err != nil {
				return err
			}
			cmd.Println("wrote", s.Where)
			cmd.Println("'token provisioning pointer FILE' puts it into a pointer config, 'token provisioning show --reveal' prints it")
			return nil
		},
	}
	c.where(cmd)
	return cmd
}

func (c *cli) provisioningRotate() *cobra.Command {
	var now bool
	var grace time.Duration
	cmd := &cobra.Command{
		Use:   "rotate",
		Short: "Make a new token; the old one stays valid for the grace",
		Long: `Make a new token; the old one stays valid for the grace (provisioningToken.grace of
the configuration, an hour by default), so that machines under way come in. In
that time, put the new one into the pointer configs.

It does not rotate twice within one grace: the machines that carry the older token
would be locked out. With --now every older token is void at once; use it when one
was stolen.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, s, err := c.openProvisioner(cmd)
			if err != nil {
				return err
			}
			if grace != 0 {
				s.Grace = grace
			}
			var next provisioning.Tokens
			err = p.ChangeProvisioning(cmd.Context(), func(tokens provisioning.Tokens, exists bool) (provisioning.Tokens, error) {
				if !exists {
					return tokens, noProvisioningToken(s.Where)
				}
				var err error
				if now {
					next, err = tokens.Replace(time.Now(), rand.Reader)
					return next, err
				}
				next, err = tokens.Rotate(time.Now(), rand.Reader, s.Grace)
				if errors.Is(err, provisioning.ErrRotating) {
					return next, hint(err, "wait until then, or add --now if a token was stolen")
				}
				return next, err
			})
			if err != nil {
				return err
			}
			if now {
				cmd.Println("a new token is in force; every older one is void")
			} else {
				cmd.Printf("a new token is in force; the old one is valid until %s\n", next.PreviousExpires.Format(time.RFC3339))
			}
			return nil
		},
	}
	c.where(cmd)
	cmd.Flags().BoolVar(&now, "now", false, "void every older token at once")
	cmd.Flags().DurationVar(&grace, "grace", 0, "how long the old token stays valid, at most 168h (default: the configuration's)")
	cmd.MarkFlagsMutuallyExclusive("now", "grace")
	return cmd
}

func (c *cli) provisioningStatus() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "List the tokens without showing them, and until when each is valid",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, s, err := c.openProvisioner(cmd)
			if err != nil {
				return err
			}
			tokens, err := current(cmd, p, s)
			if err != nil {
				return err
			}
			cmd.Println(s.Where)
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 8, 2, ' ', 0)
			fmt.Fprintln(w, "TOKEN\tID\tVALID UNTIL")
			fmt.Fprintf(w, "current\t%s\t-\n", provisioning.ID(tokens.Current))
			if !tokens.Previous.Empty() {
				until := tokens.PreviousExpires.Format(time.RFC3339)
				if !time.Now().Before(tokens.PreviousExpires) {
					until += " (over)"
				}
				fmt.Fprintf(w, "previous\t%s\t%s\n", provisioning.ID(tokens.Previous), until)
			}
			return w.Flush()
		},
	}
	c.where(cmd)
	return cmd
}

func (c *cli) provisioningShow() *cobra.Command {
	var reveal bool
	cmd := &cobra.Command{
		Use:   "show --reveal",
		Short: "Print the current token",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, s, err := c.openProvisioner(cmd)
			if err != nil {
				return err
			}
			tokens, err := current(cmd, p, s)
			if err != nil {
				return err
			}
			if !reveal {
				return hint(errors.New("the token would be on the screen, and in whatever records it"), "add --reveal; 'token provisioning status' names the token without showing it")
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), string(tokens.Current.Expose()))
			return err
		},
	}
	c.where(cmd)
	cmd.Flags().BoolVar(&reveal, "reveal", false, "print the secret")
	return cmd
}

func (c *cli) provisioningPointer() *cobra.Command {
	var urlParameter, force bool
	var origins []string
	cmd := &cobra.Command{
		Use:   "pointer FILE",
		Short: "Print a pointer config with the current token in it",
		Long: `Print a pointer config ("-" is standard input) with the current token on every
source that leads to this verifier and whose pool's policy lists the token, and
with nothing else changed. Doing it again changes nothing. The output holds the
token: keep it where only the machines and you can read it.

A source that shows another bearer token than the current or the previous
provisioning token is somebody else's, and the config is left alone. With --force
it is replaced, as after 'rotate --now', and pools do not matter.

Specification 3.1 and later carry it as a header. Older ones have no headers;
--url-parameter puts it into the URL, where Ignition logs it. The pool's policy has
to allow that (spec.provisioningToken.urlParameter).`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, s, err := c.openProvisioner(cmd)
			if err != nil {
				return err
			}
			raw, err := readInput(args[0], cmd.InOrStdin())
			if err != nil {
				return err
			}
			tokens, err := current(cmd, p, s)
			if err != nil {
				return err
			}
			if len(origins) == 0 {
				origins = s.Origins
			}
			policies := &policy.Set{}
			if !force {
				if policies, err = p.Policies(cmd.Context()); err != nil {
					return hint(err, "mend the policy, or add --force to put the token into any pool's pointer config")
				}
			}
			out, err := pointer.Provision(raw, pointer.Provisioning{
				Token: tokens.Current, Origins: origins,
				Pool: func(pool string) (takes, inURL bool) {
					of, err := policies.For(pool)
					return force || err == nil && slices.Contains(of.Kinds(), evidence.ProvisioningToken), urlParameter
				},
				Ours: func(token secret.Bytes) bool {
					return force || tokens.Check(time.Now(), token.Expose()) != provisioning.None
				},
			})
			var left *pointer.LeftAlone
			if errors.As(err, &left) {
				return hint(fmt.Errorf("%s: %s", args[0], left.Why), "the verifier's origins are %v; --origin names another, --url-parameter is for specifications without headers, --force is for any pool and over any bearer token", origins)
			}
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(out)
			return err
		},
	}
	c.where(cmd)
	f := cmd.Flags()
	f.BoolVar(&urlParameter, "url-parameter", false, "put the token into the URL where the specification has no headers")
	f.BoolVar(&force, "force", false, "for any pool, and in place of any bearer token")
	f.StringSliceVar(&origins, "origin", nil, "https://HOST:PORT of the sources (repeatable; default: the verifier's own origins)")
	return cmd
}
