// SPDX-License-Identifier: Apache-2.0

package tpm2_test

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"slices"
	"testing"

	tpm "github.com/google/go-tpm/tpm2"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	"github.com/mcs-attest/mcs-attest/pkg/transcript"
)

// directory is a provider's API in memory.
type directory struct {
	keys  map[string]tpm2.ProviderKeys
	err   error
	asked []string
}

func (d *directory) EndorsementKeys(_ context.Context, providerID string, _ *tpm2.EK) (tpm2.ProviderKeys, error) {
	d.asked = append(d.asked, providerID)
	return d.keys[providerID], d.err
}

func spki(t testing.TB, ek *tpm2.EK) []byte {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(ek.PublicKey())
	if err != nil {
		t.Fatal(err)
	}
	return der
}

const (
	workerA = "aws:///eu-central-1a/i-0123456789abcdef0"
	workerB = "aws:///eu-central-1b/i-0fedcba9876543210"
)

func TestProviderEndorser(t *testing.T) {
	ek, other := mustEK(t, capture(t, "ek-p256.pub")), mustEK(t, capture(t, "ek-rsa2048.pub"))
	mine, theirs := spki(t, ek), spki(t, other)
	unavailable := reason.Deny(reason.ProviderUnavailable, "down")
	for _, c := range []struct {
		name  string
		keys  [][]byte
		err   error
		want  reason.Code
		other error // not a denial
	}{
		{"the EK is the instance's", [][]byte{mine}, nil, 0, nil},
		{"it is one of two", [][]byte{theirs, mine}, nil, 0, nil},
		{"it is the last that counts", append(slices.Repeat([][]byte{theirs}, 7), mine), nil, 0, nil},
		{"it comes after too many", append(slices.Repeat([][]byte{theirs}, 8), mine), nil, reason.EKUntrusted, nil},
		{"the instance has another EK", [][]byte{theirs}, nil, reason.EKUntrusted, nil},
		{"the provider names no key", nil, nil, reason.EKUntrusted, nil},
		{"the provider names an empty key", [][]byte{nil, {}}, nil, reason.EKUntrusted, nil},
		{"the key has a byte too many", [][]byte{append(slices.Clone(mine), 0)}, nil, reason.EKUntrusted, nil},
		{"the key has a byte too few", [][]byte{mine[:len(mine)-1]}, nil, reason.EKUntrusted, nil},
		{"the provider names the hash and not the key", [][]byte{hashOf(mine)}, nil, reason.EKUntrusted, nil},
		{"an error with the right key", [][]byte{mine}, unavailable, reason.ProviderUnavailable, nil},
		{"the instance is another provider's", nil, tpm2.ErrNotMine, 0, tpm2.ErrNotMine},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := &directory{keys: map[string]tpm2.ProviderKeys{workerA: {InstanceID: "aws:i-0123456789abcdef0", SPKI: c.keys}},
				err: c.err}
			e, err := tpm2.ProviderEndorser{Directory: d, ProviderID: workerA}.Endorse(t.Context(), tpm2.Identity{EK: ek}, today)
			if len(d.asked) != 1 {
				t.Errorf("asked for %v", d.asked)
			}
			switch {
			case c.want != 0:
				denied(t, err, c.want)
				return
			case c.other != nil:
				if !errors.Is(err, c.other) {
					t.Errorf("%v, want %v", err, c.other)
				}
				return
			case err != nil:
				t.Fatal(err)
			}
			if want := (tpm2.Endorsement{Kind: tpm2.Provider, ProviderID: workerA, InstanceID: "aws:i-0123456789abcdef0",
				EKSHA256: ek.SPKIHash()}); *e != want {
				t.Errorf("%+v, want %+v", *e, want)
			}
		})
	}
	t.Run("without a provider or an instance there is no request", func(t *testing.T) {
		d := &directory{}
		for _, e := range []tpm2.ProviderEndorser{{ProviderID: workerA}, {Directory: d}} {
			if _, err := e.Endorse(t.Context(), tpm2.Identity{EK: ek}, today); !errors.Is(err, tpm2.ErrNotMine) {
				t.Error(err)
			}
		}
		if d.asked != nil {
			t.Errorf("asked for %v", d.asked)
		}
	})
}

func hashOf(b []byte) []byte {
	sum := sha256.Sum256(b)
	return sum[:]
}

// The provider names the EK of instance A; instance B answers.
func TestAttack_T21_ProviderNamesTheEKOfAnotherTPM(t *testing.T) {
	d := simulate(t)
	ekA, akA := d.primary(tpm.TPMRHEndorsement, tpm.ECCEKTemplate), d.primary(tpm.TPMRHEndorsement, akTemplates[agentAK])
	honest := d.converse(ekA, akA, tpm.TPMAlgSHA256, []int{11}, "A")
	a := mustEK(t, ekA.public)
	cloud := &directory{keys: map[string]tpm2.ProviderKeys{workerA: {SPKI: [][]byte{spki(t, a)}}}}
	endorser := tpm2.ProviderEndorser{Directory: cloud, ProviderID: workerA}
	if _, err := honest.verify(); err != nil {
		t.Fatalf("the valid case: %v", err)
	}
	if _, err := endorser.Endorse(t.Context(), tpm2.Identity{EK: a, AK: mustAK(t, akA.public)}, today); err != nil {
		t.Fatalf("the valid case: %v", err)
	}

	d.another()
	ekB, akB := d.primary(tpm.TPMRHEndorsement, tpm.ECCEKTemplate), d.primary(tpm.TPMRHEndorsement, akTemplates[agentAK])
	t.Run("B presents its own EK", func(t *testing.T) {
		c := d.converse(ekB, akB, tpm.TPMAlgSHA256, []int{11}, "B")
		if _, err := c.verify(); err != nil {
			t.Fatalf("B is a genuine TPM: %v", err)
		}
		_, err := endorser.Endorse(t.Context(), tpm2.Identity{EK: c.challenge.EK, AK: c.challenge.AK}, today)
		denied(t, err, reason.EKUntrusted)
	})
	t.Run("B hints at its own Machine, where the provider names no TPM", func(t *testing.T) {
		e := tpm2.ProviderEndorser{Directory: cloud, ProviderID: workerB}
		_, err := e.Endorse(t.Context(), tpm2.Identity{EK: mustEK(t, ekB.public)}, today)
		denied(t, err, reason.EKUntrusted)
	})
	t.Run("B presents A's EK", func(t *testing.T) {
		blob, encrypted, err := tpm2.MakeCredential(nil, a, mustAK(t, akB.public).Name(), make([]byte, 32))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.activate(ekB, akB, blob, encrypted); err == nil {
			t.Error("B's TPM released a secret for A's EK")
		}
	})
	t.Run("B presents A's keys in Challenge and answers Attest with its own", func(t *testing.T) {
		attest, signature := d.quote(akB, honest.challenge.Transcript[:], selected(tpm.TPMAlgSHA256, 11))
		swapped := honest.clone()
		swapped.evidence.Quote, swapped.evidence.Signature, swapped.evidence.PCRValues = attest, signature,
			d.pcrs(tpm.TPMAlgSHA256, 11)
		swapped.evidence.Activation = transcript.Activation(make([]byte, 32), honest.challenge.Transcript)
		_, err := swapped.verify()
		denied(t, err, reason.ActivationInvalid)
		swapped.evidence.Activation = honest.evidence.Activation // even if A activated for B
		_, err = swapped.verify()
		denied(t, err, reason.QuoteInvalid)
	})
	t.Run("B presents its keys in Challenge and is appraised with A's", func(t *testing.T) {
		c := d.converse(ekB, akB, tpm.TPMAlgSHA256, []int{11}, "B2")
		c.challenge.EK, c.challenge.AK = a, honest.challenge.AK
		_, err := c.verify()
		denied(t, err, reason.QuoteInvalid)
	})
}

// A provider vouches only for an EK. The properties of an AK, and that it is in the EK's TPM, are
// checked for every endorser.
func TestAttack_T20_SoftwareAKBesideAnEKThatTheProviderNames(t *testing.T) {
	d := simulate(t)
	ek, ak := d.primary(tpm.TPMRHEndorsement, tpm.ECCEKTemplate), d.primary(tpm.TPMRHEndorsement, akTemplates[agentAK])
	parsed := mustEK(t, ek.public)
	endorser := tpm2.ProviderEndorser{
		Directory:  &directory{keys: map[string]tpm2.ProviderKeys{workerA: {SPKI: [][]byte{spki(t, parsed)}}}},
		ProviderID: workerA,
	}
	if _, err := d.converse(ek, ak, tpm.TPMAlgSHA256, []int{11}, "honest").verify(); err != nil {
		t.Fatalf("the valid case: %v", err)
	}
	f := newForger(t)
	forged := f.forgery(t, nil)
	if _, err := endorser.Endorse(t.Context(), tpm2.Identity{EK: parsed, AK: forged.challenge.AK}, today); err != nil {
		t.Fatalf("the provider has no AKs: %v", err)
	}
	blob, encrypted, err := tpm2.MakeCredential(nil, parsed, forged.challenge.AK.Name(), make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.activate(ek, ak, blob, encrypted); !errors.Is(err, tpm.TPMRCIntegrity) {
		t.Errorf("%v, want TPM_RC_INTEGRITY", err)
	}
	forged.evidence.Activation = make([]byte, 32)
	_, err = forged.verify()
	denied(t, err, reason.ActivationInvalid)

	for name, change := range map[string]func(*tpm.TPMAObject){
		"not restricted":          func(a *tpm.TPMAObject) { a.Restricted = false },
		"not fixed to its TPM":    func(a *tpm.TPMAObject) { a.FixedTPM = false },
		"not created in its TPM":  func(a *tpm.TPMAObject) { a.SensitiveDataOrigin = false },
		"decrypts, as the EK may": func(a *tpm.TPMAObject) { a.Decrypt = true },
	} {
		t.Run(name, func(t *testing.T) {
			public := softwareAK(&f.key.PublicKey)
			change(&public.ObjectAttributes)
			_, err := tpm2.ParseAK(tpm.Marshal(public))
			denied(t, err, reason.AKUnacceptable)
		})
	}
}

// A certificate and the public area of a certified AK are public. An attacker who copies both from
// another machine has another EK and no matching AK.
func TestAttack_T20_CertifiedAKOfAnotherTPM(t *testing.T) {
	d := simulate(t)
	p := newPlatform(t)
	certify := func(ak *object) (tpm2.Identity, *tpm2.AK) {
		parsed := mustAK(t, ak.public)
		cert, err := x509.ParseCertificate(p.issue(t, nil)[0])
		if err != nil {
			t.Fatal(err)
		}
		cert.ExtraExtensions = cert.Extensions
		return tpm2.Identity{AK: parsed, AKCertificates: [][]byte{sign(t, cert, p.intermediate, parsed.PublicKey()).Raw,
			p.intermediate.cert.Raw}}, parsed
	}
	ek, ak := d.primary(tpm.TPMRHEndorsement, tpm.RSAEKTemplate),
		d.primary(tpm.TPMRHEndorsement, akTemplates["RSA-2048 RSASSA SHA-256"])
	honest := d.converse(ek, ak, tpm.TPMAlgSHA256, []int{11}, "honest")
	id, certified := certify(ak)
	if _, err := honest.verify(); err != nil {
		t.Fatalf("the valid case: %v", err)
	}
	e, err := p.endorser(t, true).Endorse(t.Context(), id, today)
	if err != nil || e.ProviderID == "" || e.EKSHA256 != ([32]byte{}) {
		t.Fatalf("the valid case: %+v, %v", e, err)
	}

	d.another()
	own, ownAK := d.primary(tpm.TPMRHEndorsement, tpm.RSAEKTemplate),
		d.primary(tpm.TPMRHEndorsement, akTemplates["RSA-2048 RSASSA SHA-256"])
	k := make([]byte, 32)
	blob, encrypted, err := tpm2.MakeCredential(nil, mustEK(t, own.public), certified.Name(), k)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.activate(own, ownAK, blob, encrypted); !errors.Is(err, tpm.TPMRCIntegrity) {
		t.Errorf("%v, want TPM_RC_INTEGRITY", err)
	}
	// Even with the secret, the quote is that of the attacker's own TPM.
	stolen := honest.clone()
	stolen.challenge.EK, stolen.challenge.Secret = mustEK(t, own.public), secret.New(k)
	stolen.evidence.Activation = transcript.Activation(k, honest.challenge.Transcript)
	stolen.evidence.Quote, stolen.evidence.Signature = d.quote(ownAK, honest.challenge.Transcript[:],
		selected(tpm.TPMAlgSHA256, 11))
	_, err = stolen.verify()
	denied(t, err, reason.QuoteInvalid)
}
