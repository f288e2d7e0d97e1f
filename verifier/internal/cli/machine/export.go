// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/pkg/appraisal"
	"github.com/mcs-attest/mcs-attest/verifier/internal/admin"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
	"github.com/mcs-attest/mcs-attest/verifier/internal/operator"
	"github.com/mcs-attest/mcs-attest/verifier/internal/secondopinion"
	"github.com/mcs-attest/mcs-attest/verifier/internal/wholefile"
)

// exportOptions are the file to write, and whether to replace it.
type exportOptions struct {
	file  string
	force bool
}

// export writes the latest kept evidence of a machine in the form of go-tpm-tools.
func export(cmd *cobra.Command, b any, s *admin.State, name string, to exportOptions, output *env.Output) error {
	folder, ok := b.(*operator.Folder)
	if !ok {
		return hint.New(errors.New("a cluster keeps no evidence"), "use --config for the folder of a standalone verifier")
	}
	var ids []string // of attestations, the latest first
	switch {
	case len(s.Machines) > 1:
		return operator.Ambiguous(s.Machines, name)
	case len(s.Machines) == 1 && s.Machines[0].Record != nil:
		history := s.Machines[0].Record.History
		for i := len(history) - 1; i >= 0; i-- {
			ids = append(ids, history[i].CorrelationID)
		}
	default:
		ids = []string{name}
	}
	raw, err := folder.KeptEvidence(ids...)
	if err != nil {
		return err
	}
	saved, err := appraisal.ParseSaved(raw)
	if err != nil {
		return err
	}
	attestation, nonce, err := secondopinion.Export(saved)
	if err != nil {
		return fmt.Errorf("export the evidence: %w", err)
	}
	file := to.file
	if err := env.MayReplace(file, to.force); err != nil {
		return err
	}
	if err := wholefile.Write(file, 0o600, attestation); err != nil {
		return err
	}
	doc := map[string]string{
		"file": file, "nonce": fmt.Sprintf("%x", nonce), "correlationID": saved.CorrelationID,
		"time": saved.Time.UTC().Format("2006-01-02T15:04:05Z"),
	}
	return output.Print(cmd.OutOrStdout(), doc, []string{file}, func(out io.Writer) error {
		_, err := fmt.Fprintf(out, "wrote %s: the attestation of %s, correlation id %s\nnonce: %s\n"+
			"to verify it: gotpm verify debug --format binarypb --input %s --nonce %s\n",
			file, doc["time"], doc["correlationID"], doc["nonce"], file, doc["nonce"])
		return err
	})
}
