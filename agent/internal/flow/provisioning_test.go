// SPDX-License-Identifier: Apache-2.0

package flow_test

import (
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/agent/internal/client"
	"github.com/mcs-attest/mcs-attest/agent/internal/flow"
	"github.com/mcs-attest/mcs-attest/agent/internal/verifiertest"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
)

const (
	sharedToken = "AAAA-bbb_CCCC-ddd_EEEE-fff_GGGG-hhh_IIII-jjj"
	kindTPM     = mcsattestv1.EvidenceKind_EVIDENCE_KIND_TPM2
	kindShared  = mcsattestv1.EvidenceKind_EVIDENCE_KIND_PROVISIONING_TOKEN
)

// runWith attests with a provisioning token. It records the requests of the attestation, which must
// not contain the token.
func (m *machine) runWith(v *verifiertest.Verifier, token string, shown bool) (*flow.Grant, error) {
	m.t.Helper()
	attest := v.AttestFunc
	v.AttestFunc = func(req *mcsattestv1.AttestRequest) (*mcsattestv1.AttestResponse, error) {
		if strings.Contains(fmt.Sprintf("%q", req), sharedToken[:20]) {
			m.t.Error("the token itself is in Attest")
		}
		if attest == nil {
			return nil, nil
		}
		return attest(req)
	}
	v.Start(m.t)
	m.flow.Dialer = client.NewDialer([]*x509.Certificate{v.Authority})
	g, err := m.flow.Run(m.t.Context(), flow.Target{
		Origin: v.Origin, Pool: "worker", URL: v.Origin + "/config/worker", Provisioning: secret.New([]byte(token)),
		Presented: shown,
	})
	if strings.Contains(m.console.String(), sharedToken[:20]) {
		m.t.Errorf("the token is on the console:\n%s", m.console.String())
	}
	return g, err
}

// The machine behaves the same for every policy.
func TestProvisioningTokenIsOfferedBesideTheTPM(t *testing.T) {
	for _, tpm := range []bool{true, false} {
		t.Run(fmt.Sprintf("with a TPM: %t", tpm), func(t *testing.T) {
			m := newMachine(t)
			want := []mcsattestv1.EvidenceKind{kindShared, kindTPM}
			if !tpm {
				m.flow.TPM, want = nil, want[:1]
			}
			v := &verifiertest.Verifier{Required: []mcsattestv1.EvidenceKind{kindShared}, ProvisioningToken: sharedToken}
			if _, err := m.runWith(v, sharedToken, true); !errors.As(err, new(*flow.Unchanged)) {
				t.Error(err)
			}
			if got := v.Offered(); len(got) != 1 || !slices.Equal(got[0], want) {
				t.Errorf("offered %v, want %v", got, want)
			}
		})
	}
}

func TestPointerWithTheProvisioningTokenIsUnchanged(t *testing.T) {
	m := newMachine(t)
	m.flow.TPM = nil
	v := &verifiertest.Verifier{Required: []mcsattestv1.EvidenceKind{kindShared}, ProvisioningToken: sharedToken}
	_, err := m.runWith(v, sharedToken, true)
	var unchanged *flow.Unchanged
	if !errors.As(err, &unchanged) || unchanged.NoVerifier ||
		!strings.Contains(unchanged.Why, "has the provisioning token") ||
		len(v.Tokens()) != 0 {
		t.Errorf("%v, gate %v", err, v.Tokens())
	}
}

// A token from a file of the image, or from the URL, is delivered in the header.
func TestProvisioningTokenMissingFromThePointerIsDelivered(t *testing.T) {
	m := newMachine(t)
	m.flow.TPM = nil
	v := &verifiertest.Verifier{Required: []mcsattestv1.EvidenceKind{kindShared}, ProvisioningToken: sharedToken}
	g, err := m.runWith(v, sharedToken, false)
	ok(t, err)
	if string(g.Token.Expose()) != sharedToken || !slices.Equal(v.Tokens(), []string{"Bearer " + sharedToken}) {
		t.Errorf("the gate saw %v", v.Tokens())
	}
}

func TestProvisioningTokenUnderAuditChangesNothing(t *testing.T) {
	m := newMachine(t)
	v := &verifiertest.Verifier{Required: []mcsattestv1.EvidenceKind{kindShared}, ProvisioningToken: sharedToken,
		Mode: mcsattestv1.Mode_MODE_AUDIT}
	if _, err := m.runWith(v, sharedToken, false); !errors.As(err, new(*flow.Unchanged)) {
		t.Error(err)
	}
}

// The token of the attestation replaces the provisioning token of the pointer config.
func TestTPMAndProvisioningTokenTogether(t *testing.T) {
	for name, required := range map[string][]mcsattestv1.EvidenceKind{
		"the policy requires both": {kindTPM, kindShared}, "the policy requires only the TPM": {kindTPM},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			v := &verifiertest.Verifier{Required: required, ProvisioningToken: sharedToken}
			g, err := m.runWith(v, sharedToken, true)
			ok(t, err)
			if string(g.Token.Expose()) != verifiertest.Token ||
				!slices.Equal(v.Tokens(), []string{"Bearer " + verifiertest.Token}) {
				t.Errorf("not the attestation's token; the gate saw %v", v.Tokens())
			}
		})
	}
}

func TestWrongProvisioningTokenBesideAGoodTPMIsDenied(t *testing.T) {
	m := newMachine(t)
	v := &verifiertest.Verifier{Required: []mcsattestv1.EvidenceKind{kindTPM, kindShared}, ProvisioningToken: sharedToken}
	if _, err := m.runWith(v, sharedToken[1:], true); !denied(classEvidence)(err) {
		t.Errorf("%v", err)
	}
}

func TestMissingProvisioningTokenIsReported(t *testing.T) {
	m := newMachine(t)
	_, err := m.runWith(&verifiertest.Verifier{Required: []mcsattestv1.EvidenceKind{kindShared},
		ProvisioningToken: sharedToken}, "", false)
	var missing *flow.MissingEvidence
	if !errors.As(err, &missing) || !slices.Equal(missing.Kinds, []evidence.Kind{evidence.ProvisioningToken}) ||
		len(m.slept) != 0 {
		t.Errorf("%v after %v", err, m.slept)
	}
}
