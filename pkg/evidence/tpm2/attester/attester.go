// SPDX-License-Identifier: Apache-2.0

package attester

import (
	"bytes"
	"crypto/fips140"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"

	"github.com/google/go-tpm/tpm2"
	"github.com/google/go-tpm/tpm2/transport"

	"github.com/mcs-attest/mcs-attest/pkg/transcript"
)

// Options are the differences between machines. The zero value is right for nearly all.
type Options struct {
	// Key restricts the EK to one type; "" means the order in the package comment.
	Key Key
	// Banks are the PCR banks, if the caller has them from the kernel's sysfs; nil asks the TPM.
	Banks []uint16
}

func (o Options) allows(k Key) bool { return o.Key == "" || o.Key == k }

// Identity is the TPM's own statement about its keys. A verifier does not trust it.
type Identity struct {
	EKPublic       []byte   // TPMT_PUBLIC
	EKCertificates [][]byte // DER; the EK's own first; empty if the TPM has none
	EKSPKI         [32]byte // SHA-256 of the EK's SubjectPublicKeyInfo
	EKType         Key
	EKNote         string // for the administrator: why a certificate of an EK is not used
	AKPublic       []byte // TPMT_PUBLIC
	AKName         []byte
	AKCertificates [][]byte // DER; the AK's own, if the platform certified it
	AKNote         string   // for the administrator: why an AK that the platform certified is not used
	Banks          []uint16 // TPM_ALG_ID, those with PCR 0 to 23
}

// Challenge is the TPM's part of a verifier's challenge.
type Challenge struct {
	CredentialBlob  []byte // TPM2B_ID_OBJECT
	EncryptedSecret []byte // TPM2B_ENCRYPTED_SECRET
	Bank            uint16
	PCRs            []int
}

// Evidence answers a [Challenge].
type Evidence struct {
	Quote      []byte // TPMS_ATTEST
	Signature  []byte // TPMT_SIGNATURE
	Activation []byte // HMAC under the activated secret
	PCRValues  [][]byte
}

// Attester holds the keys of one attestation. The caller must close it.
type Attester struct {
	tpm      transport.TPM
	opts     Options
	ek, ak   key
	identity Identity
}

// Open prepares the keys. After an error the TPM holds no objects of this package.
func Open(t transport.TPM, opts Options) (*Attester, error) {
	a := &Attester{tpm: t, opts: opts}
	if err := a.open(); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return a, nil
}

func (a *Attester) open() (err error) {
	indexes, err := nvIndexes(a.tpm)
	if err != nil {
		return err
	}
	if a.ek, a.identity.EKCertificates, a.identity.EKNote, err = chooseEK(a.tpm, a.opts, indexes); err != nil {
		return err
	}
	if err := usableEK(a.ek.public); err != nil {
		return err
	}
	if a.ak, a.identity.AKCertificates, a.identity.AKNote, err = chooseAK(a.tpm, indexes); err != nil {
		return err
	}
	public, err := publicKey(a.ek.public)
	if err != nil {
		return fmt.Errorf("EK: %w", err)
	}
	spki, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		return fmt.Errorf("EK: %w", err)
	}
	a.identity.EKSPKI = sha256.Sum256(spki)
	a.identity.EKType = keyType(a.ek.public)
	a.identity.EKPublic = a.ek.marshaled()
	a.identity.AKPublic = a.ak.marshaled()
	a.identity.AKName = a.ak.name.Buffer
	a.identity.Banks = a.opts.Banks
	if a.identity.Banks == nil {
		a.identity.Banks, err = Banks(a.tpm)
	}
	return err
}

// Identity returns the content of the Challenge call.
func (a *Attester) Identity() Identity { return a.identity }

// Attest answers ch for the conversation with transcript h.
func (a *Attester) Attest(ch Challenge, h transcript.Hash) (*Evidence, error) {
	if !slices.Contains(a.identity.Banks, ch.Bank) {
		// The TPM would quote no PCR of such a bank and report success.
		return nil, fmt.Errorf("the TPM has no PCR bank %s", transcript.BankName(ch.Bank))
	}
	ev, err := a.quote(ch, h)
	if err != nil {
		return nil, err
	}
	secret, err := a.activate(ch)
	if err != nil {
		return nil, fmt.Errorf("activating the credential: %w", err)
	}
	ev.Activation = transcript.Activation(secret, h)
	return ev, nil
}

// Close flushes the objects that Open loaded. After an error it may be called again.
func (a *Attester) Close() error {
	var errs []error
	for _, k := range []*key{&a.ak, &a.ek} {
		if err := k.flush(a.tpm); err != nil {
			errs = append(errs, err)
			continue
		}
		*k = key{}
	}
	return errors.Join(errs...)
}

// quoteAttempts limits the repetitions if another process extends PCRs.
const quoteAttempts = 5

// quote reads the PCRs and quotes them until both agree.
func (a *Attester) quote(ch Challenge, h transcript.Hash) (*Evidence, error) {
	selection, err := pcrSelection(ch.Bank, ch.PCRs)
	if err != nil {
		return nil, err
	}
	for range quoteAttempts {
		values, err := readPCRs(a.tpm, ch.Bank, ch.PCRs)
		if err != nil {
			return nil, err
		}
		rsp, err := tpm2.Quote{
			SignHandle:     tpm2.AuthHandle{Handle: a.ak.handle, Name: a.ak.name, Auth: tpm2.PasswordAuth(nil)},
			QualifyingData: tpm2.TPM2BData{Buffer: h[:]},
			InScheme:       tpm2.TPMTSigScheme{Scheme: tpm2.TPMAlgNull},
			PCRSelect:      selection,
		}.Execute(a.tpm)
		if err != nil {
			return nil, fmt.Errorf("quoting: %w", err)
		}
		attest, err := rsp.Quoted.Contents()
		if err != nil {
			return nil, fmt.Errorf("quoting: %w", err)
		}
		info, err := attest.Attested.Quote()
		if err != nil {
			return nil, fmt.Errorf("quoting: %w", err)
		}
		if !equalSelection(info.PCRSelect, selection) {
			return nil, errors.New("the TPM quoted PCRs other than the requested ones")
		}
		// The AK's hash is SHA-256 for every bank (Part 3, 18.4).
		digest := sha256.Sum256(slices.Concat(values...))
		if bytes.Equal(digest[:], info.PCRDigest.Buffer) {
			return &Evidence{Quote: rsp.Quoted.Bytes(), Signature: tpm2.Marshal(rsp.Signature), PCRValues: values}, nil
		}
	}
	return nil, fmt.Errorf("the PCRs changed during each of %d quotes", quoteAttempts)
}

// activate returns the secret of the credential.
//
// The session is salted to the EK, so the secret does not cross the TPM's bus in clear text. An
// attacker on the bus who replaces the EK gains nothing, because the verifier encrypts only to the
// endorsed EK.
func (a *Attester) activate(ch Challenge) ([]byte, error) {
	blob, err := tpm2.Unmarshal[tpm2.TPM2BIDObject](ch.CredentialBlob)
	if err != nil {
		return nil, fmt.Errorf("credential: %w", err)
	}
	encrypted, err := tpm2.Unmarshal[tpm2.TPM2BEncryptedSecret](ch.EncryptedSecret)
	if err != nil {
		return nil, fmt.Errorf("encrypted secret: %w", err)
	}
	or, policy, err := needsOr(a.ek.public)
	if err != nil {
		return nil, err
	}
	// This uses the EK's policy, not the empty password of the high range: that password has
	// dictionary attack protection, which counts power cuts.
	var opened tpm2.TPMISHPolicy
	authorize := func(t transport.TPM, session tpm2.TPMISHPolicy, nonce tpm2.TPM2BNonce) error {
		opened = session
		_, err := tpm2.PolicySecret{
			AuthHandle:    tpm2.AuthHandle{Handle: tpm2.TPMRHEndorsement, Auth: tpm2.PasswordAuth(nil)},
			PolicySession: session,
			NonceTPM:      nonce,
		}.Execute(t)
		if err == nil && or {
			_, err = tpm2.PolicyOr{
				PolicySession: session,
				PHashList:     tpm2.TPMLDigest{Digests: []tpm2.TPM2BDigest{{Buffer: policy.a}, {Buffer: policy.c}}},
			}.Execute(t)
		}
		return err
	}
	session := tpm2.Policy(a.ek.public.NameAlg, 16, authorize,
		tpm2.Salted(a.ek.handle, a.ek.public), tpm2.AESEncryption(128, tpm2.EncryptOut))
	var rsp *tpm2.ActivateCredentialResponse
	// The TPM encrypts the answer with CFB, which Go's cryptographic module does not have.
	fips140.WithoutEnforcement(func() {
		rsp, err = tpm2.ActivateCredential{
			ActivateHandle: tpm2.AuthHandle{Handle: a.ak.handle, Name: a.ak.name, Auth: tpm2.PasswordAuth(nil)},
			KeyHandle:      tpm2.AuthHandle{Handle: a.ek.handle, Name: a.ek.name, Auth: session},
			CredentialBlob: *blob,
			Secret:         *encrypted,
		}.Execute(a.tpm)
	})
	if err != nil {
		// A successful command ends the session in the TPM. Otherwise go-tpm usually ends it. If it
		// did, this flush fails, and the error is ignored.
		if opened != 0 {
			_, _ = tpm2.FlushContext{FlushHandle: opened}.Execute(a.tpm)
		}
		return nil, err
	}
	return rsp.CertInfo.Buffer, nil
}
