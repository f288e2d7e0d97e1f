// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/pkg/appraisal"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
	"github.com/mcs-attest/mcs-attest/verifier/internal/clouds"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/folder"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
	"github.com/mcs-attest/mcs-attest/verifier/internal/operator"
	"github.com/mcs-attest/mcs-attest/verifier/internal/outbound"
	"github.com/mcs-attest/mcs-attest/verifier/internal/trust"
)

func appraiseCommand() *cobra.Command {
	var configPath string
	var second bool
	cmd := &cobra.Command{
		Use:   "appraise FILE",
		Short: "Repeat the appraisal of saved evidence, offline",
		Long: `Repeat the appraisal of saved evidence with the current policy, Machines, anchors and
reference values of the folder. If the configuration sets keepEvidence, the verifier
saves evidence in state/evidence. The command records nothing and creates no token. It
does not call a cloud's API, because the API's answers are saved with the evidence. It
fetches Google's keys unless google-keys has them.

--second-opinion also has google/go-attestation and google/go-tpm-tools verify the TPM's
key, quote and event log, and read the state of Secure Boot. It prints where they agree,
and where they are laxer and why. They do not change the verdict. They have no check of
the endorsement, the Machine, the policy or the reference values.

Exit status 0: accepted; 1: denied, or a failure; 2: wrong command line; 5: denied for
now.`,
		Args: cobra.ExactArgs(1),
	}
	env.ConfigFlag(cmd, &configPath)
	cmd.Flags().BoolVar(&second, "second-opinion", false,
		"also verify the evidence with go-attestation and go-tpm-tools, and compare")
	output := env.OutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := env.LoadConfig(configPath)
		if err != nil {
			return err
		}
		raw, err := env.ReadInput(args[0], cmd.InOrStdin())
		if err != nil {
			return err
		}
		if c.Kubernetes != nil {
			return hint.New(errors.New("this is the configuration of a cluster"),
				"copy its policies and Machines into a folder, and give the configuration of that folder")
		}
		saved, err := appraisal.ParseSaved(raw)
		if err != nil {
			return err
		}
		snapshot, err := folder.Load(c.Data)
		if err != nil {
			return err
		}
		shared, _, err := (&operator.Folder{Config: c}).Provisioning(cmd.Context())
		if err != nil {
			return err
		}
		v, denied, err := appraiseAgain(cmd.Context(), c, saved, snapshot, shared)
		if err != nil {
			return err
		}
		if denied != nil && !second {
			return appraisalFailed(denied)
		}
		var names []string
		doc := map[string]any{}
		if denied != nil {
			doc["denied"] = reason.From(denied).Code.Info().Name
		} else {
			name := "" // the provisioning token names no machine
			if v.Machine != nil {
				name = v.Machine.String()
			}
			names = []string{name}
			doc = map[string]any{
				"machine": name, "identity": v.Identity, "endorsement": v.Endorsement, "evidence": v.Evidence,
				"warnings": v.Warnings,
			}
		}
		var opinion secondOpinion
		if second {
			opinion = askLibraries(saved, denied)
			doc["secondOpinion"] = opinion
		}
		err = output.Print(cmd.OutOrStdout(), doc, names, func(out io.Writer) error {
			if denied != nil {
				return opinion.print(out)
			}
			fmt.Fprintln(out, "accepted")
			if second {
				delete(doc, "secondOpinion")
			}
			if err := env.Encode(out, doc, env.JSON); err != nil || !second {
				return err
			}
			return opinion.print(out)
		})
		if denied != nil {
			return appraisalFailed(denied)
		}
		return err
	}
	return cmd
}

// appraiseAgain returns the verdict or the denial, or the error err if the appraisal cannot be repeated.
func appraiseAgain(ctx context.Context, c *config.Config, saved *appraisal.Saved, s *folder.Snapshot,
	shared provisioning.Tokens) (v *appraisal.Verdict, denied, err error) {
	challenge, ev, err := saved.Replay()
	if err != nil {
		return nil, nil, err
	}
	p, denied := s.Policies.For(challenge.Pool)
	if denied != nil {
		return nil, denied, nil
	}
	// A managed identity's token is not among what was saved.
	without := *c
	if c.Azure != nil {
		plain := *c.Azure
		plain.ManagedIdentity = nil
		without.Azure = &plain
	}
	//nolint:contextcheck // it makes no call
	known, err := clouds.New(&without, func() *trust.Trust { return s.Trust }, outbound.Options{})
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = known.Close() }() // no cloud was asked
	v, denied = appraisal.Appraise(ctx, saved.Answers.Replaying(appraisal.Context{
		Clouds: known.Verifiers,
		// Also one whose grace is over by now: the evidence is of an earlier day.
		ProvisioningTokens: []secret.Bytes{shared.Current, shared.Previous},
		Challenge:          challenge, Policy: p, Machines: s.Machines, References: s.ReferenceValues,
		Endorsers: appraisal.Endorsers(s.Trust.AK, s.Machines,
			tpm2.Roots{Anchors: s.EKRoots.Roots(), Intermediates: s.EKRoots.Intermediates()}),
	}), ev, saved.Time)
	return v, denied, nil
}

func appraisalFailed(err error) error {
	d := reason.From(err)
	i := d.Code.Info()
	code := env.ExitFailed
	if i.Temporary {
		code = env.ExitLater
	}
	text := fmt.Sprintf("denied: %s: %s", i.Name, strings.TrimPrefix(d.Error(), i.Name+": "))
	return &env.ExitError{Err: hint.New(errors.New(text), "%s", i.Hint), Code: code}
}
