package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/appraisal"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/manifest"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot"
	"github.com/mcs-attest/mcs-attest/pkg/policy"
	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/folder"
	"github.com/mcs-attest/mcs-attest/verifier/internal/operator"
	"github.com/mcs-attest/mcs-attest/verifier/internal/outbound"
	"github.com/mcs-attest/mcs-attest/verifier/internal/trust"
)

func newPolicyCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "policy", Short: "What machines must prove"}
	cmd.AddCommand(&cobra.Command{
		Use:   "check FILE...",
		Short: "Check AttestationPolicies before they are used",
		Long: `Check AttestationPolicies before they are used: each file by itself, and all of
them together. Says the file, the line, what is wrong and what would be right.
Exit status 1 if something is.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var files []policy.File
			for _, name := range args {
				raw, err := os.ReadFile(name)
				if err != nil {
					return fmt.Errorf("read policy: %w", err)
				}
				files = append(files, policy.File{Name: name, Raw: raw})
			}
			problems := policy.Check(files...)
			for _, p := range problems {
				cmd.Println(p.Error())
			}
			if manifest.Failed(problems) {
				return errors.New("the policies cannot be used as they are")
			}
			cmd.Printf("%d file(s) are fine\n", len(files))
			return nil
		},
	})
	return cmd
}

func newRefvalsCommand() *cobra.Command {
	var uki, name string
	cmd := &cobra.Command{
		Use:   "refvals --uki FILE --name NAME",
		Short: "Compute reference values from an OS image",
		Long: `Compute reference values from a unified kernel image: what systemd-stub will
measure of it into PCR 11, and its Authenticode digest. Put the output into
reference-values/; a policy with the profile secure-boot then accepts this image
and no other. Images that boot with GRUB need none for secure-boot: there PCR 11
stays zero.`,
		Example: `  mcs-attest-verifier refvals --uki fedora-coreos-43.efi --name fcos-43 > reference-values/fcos-43.yaml`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f, err := os.Open(uki)
			if err != nil {
				return fmt.Errorf("read image: %w", err)
			}
			defer f.Close()
			info, err := f.Stat()
			if err != nil {
				return fmt.Errorf("read image: %w", err)
			}
			values, err := measuredboot.FromUKI(name, f, info.Size())
			if err != nil {
				return fmt.Errorf("%s: %w", uki, err)
			}
			raw, err := yaml.Marshal(values)
			if err != nil {
				return fmt.Errorf("encode reference values: %w", err)
			}
			_, err = cmd.OutOrStdout().Write(raw)
			return err
		},
	}
	cmd.Flags().StringVar(&uki, "uki", "", "the unified kernel image")
	cmd.Flags().StringVar(&name, "name", "", "name of the document, by which a policy can select it")
	for _, f := range []string{"uki", "name"} {
		if err := cmd.MarkFlagRequired(f); err != nil {
			panic(err) // a programming mistake: the flag is defined above
		}
	}
	return cmd
}

func newAppraiseCommand() *cobra.Command {
	var configPath string
	cmd := &cobra.Command{
		Use:   "appraise FILE",
		Short: "Run the whole appraisal again on saved evidence, offline",
		Long: `Run the whole appraisal again on saved evidence, with today's policy, Machines,
anchors and reference values of the folder. Evidence is saved when keepEvidence
is set in the configuration; it lies in state/evidence. Nothing is recorded and
no token is made. A cloud's API is not asked: what it answered at the time is
saved, too. Keys of Google are fetched, unless google-keys has them. Exit status 0: accepted, 1: refused, 2: refused for now.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := loadConfig(configPath)
			if err != nil {
				return err
			}
			raw, err := readInput(args[0], cmd.InOrStdin())
			if err != nil {
				return err
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
			v, err := appraiseAgain(cmd.Context(), c, saved, snapshot, shared)
			if err != nil {
				return appraisalFailed(err)
			}
			name := "" // the provisioning token alone names none
			if v.Machine != nil {
				name = v.Machine.String()
			}
			out, err := json.MarshalIndent(map[string]any{
				"machine": name, "identity": v.Identity, "endorsement": v.Endorsement, "evidence": v.Evidence, "warnings": v.Warnings,
			}, "", "  ")
			if err != nil {
				return err
			}
			cmd.Printf("accepted\n%s\n", out)
			return nil
		},
	}
	configFlag(cmd, &configPath)
	return cmd
}

func appraiseAgain(ctx context.Context, c *config.Config, saved *appraisal.Saved, s *folder.Snapshot, shared provisioning.Tokens) (*appraisal.Verdict, error) {
	challenge, ev, err := saved.Replay()
	if err != nil {
		return nil, err
	}
	p, err := s.Policies.For(challenge.Pool)
	if err != nil {
		return nil, err
	}
	// A managed identity's token is not among what was saved.
	without := *c
	if c.Azure != nil {
		plain := *c.Azure
		plain.ManagedIdentity = nil
		without.Azure = &plain
	}
	known, err := newClouds(&without, func() *trust.Trust { return s.Trust }, outbound.Options{})
	if err != nil {
		return nil, err
	}
	defer func() { _ = known.Close() }() // nobody was asked
	return appraisal.Appraise(ctx, saved.Answers.Replaying(appraisal.Context{
		Clouds: known.verifiers,
		// Also one whose grace is over by now: the evidence is of an earlier day.
		ProvisioningTokens: []secret.Bytes{shared.Current, shared.Previous},
		Challenge:          challenge, Policy: p, Machines: s.Machines, References: s.ReferenceValues,
		Endorsers: map[v1alpha1.Endorsement]tpm2.Endorser{
			v1alpha1.EndorsementAKCertificate: s.Trust.AK,
			v1alpha1.EndorsementEnrolled:      appraisal.EnrolledEndorser{Machines: s.Machines},
			v1alpha1.EndorsementManufacturer:  tpm2.ManufacturerEndorser{Roots: tpm2.Roots{Anchors: s.EKRoots.Roots(), Intermediates: s.EKRoots.Intermediates()}},
		},
		Recorded: func(v1alpha1.RecordedIdentity) (string, error) { return "", nil },
	}), ev, saved.Time)
}

func appraisalFailed(err error) error {
	d := reason.From(err)
	i := d.Code.Info()
	code := 1
	if i.Temporary {
		code = 2
	}
	text := fmt.Sprintf("refused: %s: %s", i.Name, strings.TrimPrefix(d.Error(), i.Name+": "))
	return &exitCode{hint(errors.New(text), "%s", i.Hint), code}
}
