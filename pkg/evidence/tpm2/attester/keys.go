// SPDX-License-Identifier: Apache-2.0

package attester

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/rsa"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/go-tpm/tpm2"
	"github.com/google/go-tpm/tpm2/transport"
)

// ErrEndorsementOwned reports that the endorsement hierarchy has an authorization value. A retry does
// not help, but does no harm: this error does not count towards the TPM's lockout.
var ErrEndorsementOwned = errors.New("the TPM's endorsement hierarchy has a password from an earlier owner")

// key is one object in the TPM.
type key struct {
	handle    tpm2.TPMHandle
	name      tpm2.TPM2BName
	public    tpm2.TPMTPublic
	qualified []byte // of a persistent key
	transient bool   // flushed on Close
}

func (k key) flush(t transport.TPM) error {
	if !k.transient {
		return nil
	}
	if _, err := (tpm2.FlushContext{FlushHandle: k.handle}).Execute(t); err != nil {
		return fmt.Errorf("flushing object 0x%08x: %w", uint32(k.handle), err)
	}
	return nil
}

// marshaled returns the key's TPMT_PUBLIC.
func (k key) marshaled() []byte { return tpm2.Marshal(k.public) }

func createPrimary(t transport.TPM, template tpm2.TPMTPublic) (key, error) {
	rsp, err := tpm2.CreatePrimary{
		PrimaryHandle: tpm2.AuthHandle{Handle: tpm2.TPMRHEndorsement, Auth: tpm2.PasswordAuth(nil)},
		InPublic:      tpm2.New2B(template),
	}.Execute(t)
	if errors.Is(err, tpm2.TPMRCBadAuth) || errors.Is(err, tpm2.TPMRCAuthFail) {
		return key{}, ErrEndorsementOwned
	}
	if err != nil {
		return key{}, err
	}
	k := key{handle: rsp.ObjectHandle, name: rsp.Name, transient: true}
	public, err := rsp.OutPublic.Contents()
	if err != nil {
		return key{}, errors.Join(err, k.flush(t))
	}
	k.public = *public
	return k, nil
}

// readKey returns the key at a persistent handle, and false if there is none.
func readKey(t transport.TPM, handle uint32) (k key, ok bool, err error) {
	rsp, err := tpm2.ReadPublic{ObjectHandle: tpm2.TPMHandle(handle)}.Execute(t)
	if errors.Is(err, tpm2.TPMRCHandle) || errors.Is(err, tpm2.TPMRCValue) {
		return key{}, false, nil
	}
	if err != nil {
		return key{}, false, fmt.Errorf("reading the key at 0x%08x: %w", handle, err)
	}
	public, err := rsp.OutPublic.Contents()
	if err != nil {
		return key{}, false, fmt.Errorf("reading the key at 0x%08x: %w", handle, err)
	}
	return key{handle: tpm2.TPMHandle(handle), name: rsp.Name, public: *public, qualified: rsp.QualifiedName.Buffer}, true,
		nil
}

// chooseEK follows the order in the package comment. If there is a certificate that cannot be used, note is the reason.
// That is not an error, because the policy may not require a certificate.
func chooseEK(t transport.TPM, opts Options, indexes []uint32) (ek key, certificates [][]byte, note string, err error) {
	var notes []error
	for _, s := range slots {
		if !opts.allows(s.key) || !slices.Contains(indexes, s.certificate) {
			continue
		}
		certificate, public, err := readCertificate(t, s.certificate)
		if err == nil {
			ek, err = findEK(t, s, indexes, public)
		}
		if err != nil && !Permanent(err) {
			return key{}, nil, "", err
		}
		if err != nil {
			notes = append(notes, err)
			continue
		}
		intermediates, err := chain(t, indexes, maxCertificates-1)
		if err != nil && !Permanent(err) {
			return key{}, nil, "", errors.Join(err, ek.flush(t))
		}
		if err != nil {
			notes = append(notes, err)
		}
		return ek, append([][]byte{certificate}, intermediates...), joined(notes), nil
	}
	ek, err = defaultEK(t, opts, indexes)
	if err != nil {
		return key{}, nil, "", errors.Join(append(notes, err)...)
	}
	return ek, nil, joined(notes), nil
}

// joined returns errors as one line, or "".
func joined(errs []error) string {
	texts := make([]string, 0, len(errs))
	for _, err := range errs {
		texts = append(texts, err.Error())
	}
	return strings.Join(texts, "; ")
}

// unfit marks content of the TPM that cannot be used, on this and every boot.
type unfit struct{ error }

func (u unfit) Unwrap() error { return u.error }

// Permanent reports whether err will be the same on every boot. Only then may the next EK in the
// order be used. After a temporary failure, another EK would make this machine appear as a
// different one.
func Permanent(err error) bool {
	if _, ok := errors.AsType[unfit](err); ok {
		return true
	}
	var rc tpm2.TPMRC
	if !errors.As(err, &rc) || errors.Is(err, ErrEndorsementOwned) || errors.Is(err, tpm2.TPMRCFailure) ||
		errors.Is(err, tpm2.TPMRCInitialize) {
		return false
	}
	// Warnings are temporary: memory, lockout, self test (Part 2, 6.6.2).
	const format1, warning = 1 << 7, 1<<11 | 1<<8
	return rc&format1 != 0 || rc&warning != warning
}

func readCertificate(t transport.TPM, index uint32) ([]byte, crypto.PublicKey, error) {
	data, err := nvRead(t, index)
	if err != nil {
		return nil, nil, err
	}
	certificates := splitDER(data, 1)
	if len(certificates) == 0 {
		return nil, nil, unfit{fmt.Errorf("NV index 0x%08x contains no certificate", index)}
	}
	public, err := certificateKey(certificates[0])
	if err != nil {
		return nil, nil, unfit{fmt.Errorf("certificate in NV index 0x%08x: %w", index, err)}
	}
	return certificates[0], public, nil
}

// findEK loads or creates the key of a certificate.
func findEK(t transport.TPM, s slot, indexes []uint32, want crypto.PublicKey) (key, error) {
	if k, ok, err := readKey(t, s.persistent); err != nil {
		return key{}, err
	} else if ok && sameKey(k.public, want) {
		return k, nil
	}
	k, err := createEK(t, s, indexes)
	if err != nil {
		return key{}, fmt.Errorf("creating the EK (%s): %w", s.key, err)
	}
	if !sameKey(k.public, want) {
		if err := k.flush(t); err != nil {
			return key{}, err
		}
		return key{}, unfit{fmt.Errorf("the TPM's EK (%s) is not the key of the certificate in NV index 0x%08x", s.key,
			s.certificate)}
	}
	return k, nil
}

func createEK(t transport.TPM, s slot, indexes []uint32) (key, error) {
	template := s.public()
	if s.template != 0 && slices.Contains(indexes, s.template) {
		data, err := nvRead(t, s.template)
		if err != nil {
			return key{}, err
		}
		public, err := tpm2.Unmarshal[tpm2.TPMTPublic](data)
		if err != nil {
			return key{}, unfit{fmt.Errorf("EK template in NV index 0x%08x: %w", s.template, err)}
		}
		template = *public
	}
	if s.nonce != 0 && slices.Contains(indexes, s.nonce) {
		nonce, err := nvRead(t, s.nonce)
		if err != nil {
			return key{}, err
		}
		if template, err = withNonce(template, nonce); err != nil {
			return key{}, err
		}
	}
	return createPrimary(t, template)
}

// defaultEK is used if no certificate fits.
func defaultEK(t transport.TPM, opts Options, indexes []uint32) (key, error) {
	var notes []error
	// The high-range variants of a type give another key, so only the first is tried.
	tried := map[Key]bool{}
	for _, k := range []Key{ECCP256, RSA2048, ECCP384} {
		for _, s := range slots {
			if s.key != k || tried[k] || !opts.allows(k) {
				continue
			}
			tried[k] = true
			ek, err := createEK(t, s, indexes)
			if err == nil || !Permanent(err) {
				return ek, err
			}
			notes = append(notes, fmt.Errorf("creating the default EK (%s): %w", k, err))
		}
	}
	return key{}, errors.Join(append(notes, errors.New("the TPM has no EK of a supported type"))...)
}

func createAK(t transport.TPM) (key, error) {
	ak, err := createPrimary(t, akECC())
	for _, rc := range []tpm2.TPMRC{tpm2.TPMRCCurve, tpm2.TPMRCType, tpm2.TPMRCAsymmetric, tpm2.TPMRCScheme,
		tpm2.TPMRCValue} {
		if errors.Is(err, rc) {
			// The TPM supports only RSA.
			ak, err = createPrimary(t, akRSA())
			break
		}
	}
	if err != nil {
		return key{}, fmt.Errorf("creating the AK: %w", err)
	}
	return ak, nil
}

// publicKey returns the crypto form of a TPM's public area.
func publicKey(p tpm2.TPMTPublic) (crypto.PublicKey, error) {
	return tpm2.Pub(p)
}

func sameKey(p tpm2.TPMTPublic, want crypto.PublicKey) bool {
	have, err := publicKey(p)
	if err != nil {
		return false
	}
	switch have := have.(type) {
	case *rsa.PublicKey:
		return have.Equal(want)
	case *ecdsa.PublicKey:
		return have.Equal(want)
	}
	return false
}

func keyType(p tpm2.TPMTPublic) Key {
	switch p.Type {
	case tpm2.TPMAlgRSA:
		if parms, err := p.Parameters.RSADetail(); err == nil {
			return Key(fmt.Sprintf("rsa-%d", parms.KeyBits))
		}
	case tpm2.TPMAlgECC:
		if parms, err := p.Parameters.ECCDetail(); err == nil {
			switch parms.CurveID {
			case tpm2.TPMECCNistP256:
				return ECCP256
			case tpm2.TPMECCNistP384:
				return ECCP384
			}
			return Key(fmt.Sprintf("ecc-curve-0x%04x", uint16(parms.CurveID)))
		}
	}
	return Key(fmt.Sprintf("type-0x%04x", uint16(p.Type)))
}

// usableEK rejects keys that the verifier would reject, so that the node can report the reason.
func usableEK(p tpm2.TPMTPublic) error {
	a := p.ObjectAttributes
	if !a.FixedTPM || !a.FixedParent || !a.Restricted || !a.Decrypt {
		return errors.New("the key is not an endorsement key")
	}
	_, _, err := needsOr(p)
	return err
}

func equalSelection(a, b tpm2.TPMLPCRSelection) bool {
	return bytes.Equal(tpm2.Marshal(a), tpm2.Marshal(b))
}
