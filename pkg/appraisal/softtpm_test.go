// SPDX-License-Identifier: Apache-2.0

package appraisal_test

import (
	"encoding/hex"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/appraisal"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/softtpmtest"
	"github.com/mcs-attest/mcs-attest/pkg/seal"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	"github.com/mcs-attest/mcs-attest/pkg/transcript"
)

func newSoftTPM(t *testing.T) *softtpmtest.TPM {
	t.Helper()
	k, err := softtpmtest.New()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// answer completes a challenge for the TPM with all of its PCRs, and adds its evidence.
func (tr *trial) answer(t *testing.T, c *seal.Challenge, ev *appraisal.Evidence) {
	t.Helper()
	k := make([]byte, 32)
	c.EKPublic, c.AKPublic, c.Secret = tr.tpm.EKPublic, tr.tpm.AKPublic, secret.New(k)
	c.Bank, c.PCRs = tpm2.BankSHA256, slices.Sorted(maps.Keys(tr.tpm.PCRs))
	said := transcript.Fields{Rehearsal: tr.rehearses, Origin: c.Origin, Pool: c.Pool,
		Required: transcript.Required(c.Required, c.Bank, c.PCRs), EKSPKI: tr.tpm.EKSPKI[:], AKName: tr.tpm.AKName,
		CSRSPKI: ev.CSRSPKI, Claims: ev.Claims}.Hash()
	tr.said = said
	quote, signature, values, err := tr.tpm.Quote(said, c.PCRs)
	if err != nil {
		t.Fatal(err)
	}
	ev.TPM2 = &tpm2.Evidence{Quote: quote, Signature: signature, PCRValues: values,
		Activation: transcript.Activation(k, said)}
}

// newTPMTrial returns a trial that passes and requires a TPM, whose EK is enrolled for Machine a, and
// documents of these kinds.
func newTPMTrial(t *testing.T, documents ...evidence.Kind) *trial {
	t.Helper()
	tr := newTrial(documents...)
	tr.tpm = newSoftTPM(t)
	tr.required = append([]evidence.Kind{evidence.TPM2}, documents...)
	all := &tr.spec.Evidence[0].All
	*all = append([]string{evidence.TPM2.String()}, *all...)
	tr.enroll()
	return tr
}

// enroll enrolls the TPM's EK for Machine a, which must be the first of the manifests.
func (tr *trial) enroll() {
	tr.manifests = strings.Replace(machineA, "name: a,",
		"name: a, annotations: {"+v1alpha1.AnnotationEKSHA256+": \""+hex.EncodeToString(tr.tpm.EKSPKI[:])+"\"},", 1)
}
