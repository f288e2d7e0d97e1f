// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/pkg/appraisal"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
)

func firmwareCommand() *cobra.Command {
	var log, evidence, name string
	cmd := &cobra.Command{
		Use:   "firmware (--evidence FILE | --log FILE) --name NAME",
		Short: "Compute the firmware set of a machine, for the profile strict",
		Long: `Compute the set of what a machine's firmware measured into PCRs 0-3, 5 and 6, without
what differs between machines: boot options, partition tables, and the attempts to
leave the firmware. Review the set, name it after the model and the firmware's version,
and put it into reference-values/. The profile strict then accepts this firmware.

A set is only as good as the machine that it comes from. Use a machine whose firmware
you installed, and compare the sets of several machines of the model.

--evidence reads evidence that the verifier saved (keepEvidence) from a machine whose
policy has the profile secure-boot or a stricter one. The command verifies the quote,
and the set has the bank of the quote.

--log reads an event log from /sys/kernel/security/tpm0/binary_bios_measurements. No
quote confirms it, so it must come from a machine that you trust. The set has each bank
of the log.`,
		Example: `  mcs-attest-verifier refvals firmware --evidence state/evidence/20261122T101500.000Z-3f2a9c01d4e5b6a7.json \
    --name r750-bios-2.3.5 > r750-bios-2.3.5.new
  mv r750-bios-2.3.5.new reference-values/r750-bios-2.3.5.yaml`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringVar(&evidence, "evidence", "", "saved evidence to read, - for standard input")
	cmd.Flags().StringVar(&log, "log", "", "event log to read, - for standard input")
	cmd.Flags().StringVar(&name, "name", "", "name of the set, by which a policy can select it")
	cmd.MarkFlagsOneRequired("evidence", "log")
	cmd.MarkFlagsMutuallyExclusive("evidence", "log")
	if err := cmd.MarkFlagRequired("name"); err != nil {
		panic(err) // a programming mistake: the flag is defined above
	}
	output := env.OutputOf(cmd, env.YAML, env.JSON, env.Name)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		file := log
		file = cmp.Or(file, evidence)
		raw, err := env.ReadInput(file, cmd.InOrStdin())
		if err != nil {
			return err
		}
		var quoted map[uint16]map[int][]byte
		if evidence != "" {
			saved, err := appraisal.ParseSaved(raw)
			if err != nil {
				return err
			}
			quote, eventLog, err := saved.Quote()
			if err != nil {
				return appraisalFailed(err)
			}
			raw, quoted = eventLog, map[uint16]map[int][]byte{quote.Bank: quote.PCRs}
		}
		set, err := measuredboot.FromFirmwareLog(name, raw, quoted)
		if err != nil {
			return err
		}
		return output.Print(cmd.OutOrStdout(), set, []string{set.Metadata.Name}, nil)
	}
	return cmd
}
