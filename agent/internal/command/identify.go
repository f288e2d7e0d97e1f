package command

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester"
	"github.com/mcs-attest/mcs-attest/pkg/transcript"
)

// identity is what "mcs-attest-verifier enroll --identity" reads.
type identity struct {
	EKSHA256       []string `json:"ekSHA256"`
	EKType         string   `json:"ekType"`
	EKCertificates []string `json:"ekCertificates,omitempty"` // DER in base64
	Banks          []string `json:"banks"`
}

func (a *agent) identify() *cobra.Command {
	var format, key string
	cmd := &cobra.Command{
		Use:   "identify",
		Short: "Print the identity of this machine's TPM, as enroll takes it",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			if format != "yaml" && format != "json" {
				return usageError{fmt.Errorf("output %q is neither yaml nor json", format)}
			}
			tpm, err := a.openTPM(attester.Key(key))
			if err != nil {
				return hinted{err, advice(err)}
			}
			id := newIdentity(tpm.Identity())
			text, err := id.format(format)
			if err := errors.Join(err, tpm.close()); err != nil {
				return err
			}
			_, err = fmt.Fprint(a.out, text)
			return err
		},
	}
	cmd.Flags().StringVarP(&format, "output", "o", "yaml", "yaml or json")
	cmd.Flags().StringVar(&key, "ek", "", "only an endorsement key of this `type`: rsa-2048, ecc-p256 or ecc-p384")
	return cmd
}

func newIdentity(id attester.Identity) identity {
	out := identity{EKSHA256: []string{hex.EncodeToString(id.EKSPKI[:])}, EKType: string(id.EKType)}
	for _, c := range id.EKCertificates {
		out.EKCertificates = append(out.EKCertificates, base64.StdEncoding.EncodeToString(c))
	}
	for _, b := range id.Banks {
		out.Banks = append(out.Banks, transcript.BankName(b))
	}
	return out
}

func (i identity) format(format string) (string, error) {
	if format == "json" {
		raw, err := json.MarshalIndent(i, "", "  ")
		return string(raw) + "\n", err
	}
	// Lists of plain words need no YAML library.
	var b strings.Builder
	list := func(name string, items []string) {
		if len(items) == 0 {
			return
		}
		fmt.Fprintf(&b, "%s:\n", name)
		for _, item := range items {
			fmt.Fprintf(&b, "- %s\n", item)
		}
	}
	list("ekSHA256", i.EKSHA256)
	fmt.Fprintf(&b, "ekType: %s\n", i.EKType)
	list("ekCertificates", i.EKCertificates)
	list("banks", i.Banks)
	return b.String(), nil
}
