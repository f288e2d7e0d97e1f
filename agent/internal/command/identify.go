// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/mcs-attest/mcs-attest/agent/internal/platform"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester"
	"github.com/mcs-attest/mcs-attest/pkg/transcript"
)

// identity is the document that "mcs-attest-verifier enroll --identity" reads.
type identity struct {
	EKSHA256       []string `json:"ekSHA256,omitempty"`
	EKType         string   `json:"ekType,omitempty"`
	EKCertificates []string `json:"ekCertificates,omitempty"` // DER in base64
	Banks          []string `json:"banks,omitempty"`
	TPMProblem     string   `json:"tpmProblem,omitempty"`
	// The metadata service's answers, for the administrator. The enroll command ignores them.
	ProviderID    string   `json:"providerID,omitempty"`
	CloudEvidence []string `json:"cloudEvidence,omitempty"`
	CloudProblem  string   `json:"cloudProblem,omitempty"`
}

func (a *agent) identify() command {
	var format, key string
	return command{
		name:  "identify",
		short: "print the identity of this machine's TPM, as enroll reads it",
		long: `identify prints what "mcs-attest-verifier enroll --identity" reads: the hash of the
endorsement key that identifies this machine, the key's type and certificates, and
the TPM's PCR banks. On a cloud it also prints the machine's provider id and the
kinds of evidence that the agent may offer there. Without a TPM it prints only the
cloud's part, and the exit status is 1. The output contains no secret.`,
		flags: func(f *flag.FlagSet) {
			f.StringVar(&format, "o", "yaml", "print as `FORMAT`: yaml or json")
			f.StringVar(&format, "output", "yaml", "the same as -o `FORMAT`")
			f.StringVar(&key, "ek", "", "use only an endorsement key of `TYPE` rsa-2048, ecc-p256 or ecc-p384")
		},
		run: func(ctx context.Context, _ []string) error { return a.runIdentify(ctx, format, key) },
	}
}

func (a *agent) runIdentify(ctx context.Context, format, key string) error {
	if format != "yaml" && format != "json" {
		return usageError{fmt.Errorf("output %q is neither yaml nor json", format)}
	}
	if err := checkEKType(key); err != nil {
		return usageError{fmt.Errorf("ek %w", err)}
	}
	// Without a kernel command line the platform is unknown.
	machine, _ := platform.New(a.paths, os.Getenv("PLATFORM_ID"))
	var id identity
	tpm, noTPM := a.openTPM(ekType(key, machine.ID))
	if noTPM == nil {
		id = newIdentity(tpm.Identity())
		if err := tpm.close(); err != nil {
			return err
		}
	} else {
		id.TPMProblem = noTPM.Error()
	}
	// A machine without a TPM can still have a cloud identity, which the administrator may need.
	if inCloud := a.identifyCloud(ctx, &id); noTPM == nil || inCloud {
		text, err := id.format(format)
		if err != nil {
			return err
		}
		if _, err := io.WriteString(a.out, text); err != nil {
			return err
		}
	}
	if noTPM != nil {
		return hinted{noTPM, advice(noTPM)}
	}
	return nil
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
	// The lists contain only plain words, so no YAML library is needed.
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
	if i.EKType != "" {
		fmt.Fprintf(&b, "ekType: %s\n", i.EKType)
	}
	list("ekCertificates", i.EKCertificates)
	list("banks", i.Banks)
	if i.TPMProblem != "" {
		fmt.Fprintf(&b, "tpmProblem: %q\n", i.TPMProblem)
	}
	if i.ProviderID != "" {
		fmt.Fprintf(&b, "providerID: %s\n", i.ProviderID)
	}
	list("cloudEvidence", i.CloudEvidence)
	if i.CloudProblem != "" {
		fmt.Fprintf(&b, "cloudProblem: %q\n", i.CloudProblem)
	}
	return b.String(), nil
}
