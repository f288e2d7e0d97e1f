// SPDX-License-Identifier: Apache-2.0

package credential_test

import (
	"context"
	"errors"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/token"
	"github.com/mcs-attest/mcs-attest/verifier/internal/credential"
)

// A machine that lacks one thing of its certificate does not get a config without a credential.
func TestReader_ReturnsTheKeyOfACertifiedMachine(t *testing.T) {
	now := time.Now()
	for name, c := range map[string]struct {
		change func(*v1alpha1.MachineAttestationStatus)
		want   string
	}{
		"certified":  {func(*v1alpha1.MachineAttestationStatus) {}, "k1"},
		"not issued": {func(s *v1alpha1.MachineAttestationStatus) { s.Certificate.Issued = nil }, ""},
		"not asked": {func(s *v1alpha1.MachineAttestationStatus) {
			s.CSRKeySHA256, s.Certificate = "", nil
		}, ""},
		"another key":               {func(s *v1alpha1.MachineAttestationStatus) { s.CSRKeySHA256 = "k2" }, ""},
		"of an earlier attestation": {func(s *v1alpha1.MachineAttestationStatus) { s.Token.ID = "t2" }, ""},
		"an expired token": {func(s *v1alpha1.MachineAttestationStatus) {
			s.Token.Expiry = metav1.NewTime(now)
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			rec := &v1alpha1.MachineAttestation{}
			rec.Status = v1alpha1.MachineAttestationStatus{
				MachineUID: "u1", Phase: v1alpha1.PhaseAttested, CSRKeySHA256: "k1",
				Token:       &v1alpha1.TokenStatus{ID: "t1", Expiry: metav1.NewTime(now.Add(time.Hour)), MaxUses: 3},
				Certificate: &v1alpha1.CertificateStatus{Node: "n", PublicKeySHA256: "k1", Issued: []byte("chain")},
			}
			c.change(&rec.Status)
			r := credential.NewReader(credential.ReaderOptions{
				Client: fake.NewClientset(), Namespace: "published", Timeout: 20 * time.Millisecond,
				Now: func() time.Time { return now },
				Record: func(context.Context, string) (*v1alpha1.MachineAttestation, error) {
					return rec, nil
				},
			})
			got, err := r.Get(t.Context(), token.Claims{ID: "t1", MachineUID: "u1"})
			if c.want != "" {
				if err != nil || got.Key != c.want || !got.Token.Empty() || got.ID != "" {
					t.Errorf("%+v, %v", got, err)
				}
				return
			}
			if d := reason.From(err); got != nil || d == nil || d.Code != reason.CredentialUnavailable {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
	unread := errors.New("unread")
	r := credential.NewReader(credential.ReaderOptions{Client: fake.NewClientset(),
		Record: func(context.Context, string) (*v1alpha1.MachineAttestation, error) { return nil, unread }})
	if _, err := r.Get(t.Context(), token.Claims{ID: "t1", MachineUID: "u1"}); !errors.Is(err, unread) {
		t.Errorf("%v", err)
	}
}
