// SPDX-License-Identifier: Apache-2.0

package records

import (
	"encoding/json"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/credential"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/record"
	"github.com/mcs-attest/mcs-attest/pkg/token"
)

// Those that a version before bootstrap credentials does not know.
var newInStatus = []string{"credentials", "csrKeySHA256", "certificate"}

// writes makes a version's step in what the API has. An older one neither reads nor
// writes the new fields.
func writes(t *testing.T, api map[string]any, older bool,
	step func(*v1alpha1.MachineAttestation) *v1alpha1.MachineAttestation) map[string]any {
	t.Helper()
	understood := func(s v1alpha1.MachineAttestationStatus) map[string]any {
		m, err := content(s)
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range newInStatus {
			if older {
				delete(m, key)
			}
		}
		return m
	}
	read := statusOf(t, api)
	if older {
		read.Credentials, read.CSRKeySHA256, read.Certificate = nil, "", nil
	}
	rec := &v1alpha1.MachineAttestation{Status: read}
	next := step(rec.DeepCopy())
	if next == nil {
		t.Fatal("nothing to write")
	}
	return carry(api, understood(read), understood(next.Status)).(map[string]any)
}

func statusOf(t *testing.T, api map[string]any) (s v1alpha1.MachineAttestationStatus) {
	t.Helper()
	raw, err := json.Marshal(api)
	if err == nil {
		err = json.Unmarshal(raw, &s)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// F9: in the middle of an upgrade, and after going back, an older replica writes records
// that have credentials and a certificate. They stay, so that the newer one approves
// the machine's request, and only its own.
func TestOlderVersion_KeepsCredentialsAndCertificateOfARecord(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	claims := token.Claims{ID: "t1", Subject: "m/worker-0", MachineUID: "u-0", Pool: "worker"}
	m := &machine.Machine{Namespace: "m", Name: "worker-0", UID: "u-0"}
	api, err := content(v1alpha1.MachineAttestationStatus{
		MachineUID: "u-0", Phase: v1alpha1.PhaseAttested, CSRKeySHA256: "kubelets-key", LastAttested: &metav1.Time{Time: now},
		Token: &v1alpha1.TokenStatus{ID: "t1", Pool: "worker", Expiry: metav1.NewTime(now.Add(time.Hour)), MaxUses: 3},
	})
	if err != nil {
		t.Fatal(err)
	}
	redeem := func(own *credential.Credential) func(*v1alpha1.MachineAttestation) *v1alpha1.MachineAttestation {
		return func(rec *v1alpha1.MachineAttestation) *v1alpha1.MachineAttestation {
			next, err := record.Redeem(rec, claims, own, now)
			if err != nil {
				t.Fatal(err)
			}
			return next
		}
	}
	own := credential.Credential{ID: "JTI=1", Issued: now, Expiry: now.Add(4 * time.Hour), Secret: "ns/s",
		SecretUID: "s-1"}
	api = writes(t, api, false, func(rec *v1alpha1.MachineAttestation) *v1alpha1.MachineAttestation {
		next, err := record.AddCredential(rec, claims.ID, own, now)
		if err != nil {
			t.Fatal(err)
		}
		return next
	})
	api = writes(t, api, false, redeem(&own))
	api = writes(t, api, true, redeem(nil)) // the machine asks again, at a replica that was not upgraded yet
	s := statusOf(t, api)
	if s.Token.Uses != 2 || len(s.Credentials) != 1 || s.Credentials[0].ID != own.ID || s.CSRKeySHA256 != "kubelets-key" {
		t.Fatalf("after a fetch at an older replica: %+v", s)
	}

	request := v1alpha1.CertificateStatus{Node: "node-0", PublicKeySHA256: "kubelets-key", CredentialID: own.ID}
	approve := func(rec *v1alpha1.MachineAttestation) *v1alpha1.MachineAttestation {
		next, err := record.Approve(rec, request, now)
		if err != nil {
			t.Fatal(err)
		}
		return next
	}
	api = writes(t, api, false, approve)
	for _, quarantined := range []bool{true, false} {
		api = writes(t, api, true, func(rec *v1alpha1.MachineAttestation) *v1alpha1.MachineAttestation {
			return record.Quarantine(rec, m, quarantined, now)
		})
	}
	s = statusOf(t, api)
	if s.Phase != v1alpha1.PhaseJoined || s.Certificate == nil || s.Certificate.Node != "node-0" ||
		len(s.Credentials) != 1 {
		t.Fatalf("after an older replica's quarantine: %+v", s)
	}
	rec := &v1alpha1.MachineAttestation{Status: s}
	if next, err := record.Approve(rec, request, now); next != nil || err != nil {
		t.Errorf("the same request again: %v %v", next, err)
	}
	request.PublicKeySHA256 = "a-thiefs-key"
	if _, err := record.Approve(rec, request, now); err == nil {
		t.Error("another key is approved")
	}
}
