// SPDX-License-Identifier: Apache-2.0

package tpm2_test

import (
	"bytes"
	"encoding/hex"
	"io"
	"testing"

	tpm "github.com/google/go-tpm/tpm2"
	"github.com/google/go-tpm/tpm2/transport"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	"github.com/mcs-attest/mcs-attest/pkg/transcript"
)

// device is a TPM under test.
type device struct {
	t   testing.TB
	tpm transport.TPM
	sim simulated
}

// simulated is the simulator of go-tpm-tools. It is C code: a build without cgo has none.
type simulated interface {
	io.ReadWriteCloser
	IsClosed() bool
	Reset() error
	ManufactureReset() error
}

// object is a key that is loaded in a device.
type object struct {
	handle tpm.TPMHandle
	name   tpm.TPM2BName
	public []byte // TPMT_PUBLIC
}

// simulate starts the simulator. A process can have only one, so a test starts it once, and the
// tests of this package do not run in parallel.
func simulate(t testing.TB) *device {
	t.Helper()
	sim, err := startSimulator()
	if err != nil {
		t.Fatal(err)
	}
	d := &device{t, transport.FromReadWriter(sim), sim}
	t.Cleanup(d.stop)
	return d
}

// stop turns the simulator off before the end of the test.
func (d *device) stop() {
	if d.sim.IsClosed() {
		return
	}
	if err := d.sim.Close(); err != nil {
		d.t.Error(err)
	}
}

// reboot resets the TPM like a reboot.
func (d *device) reboot() {
	d.t.Helper()
	if err := d.sim.Reset(); err != nil {
		d.t.Fatal(err)
	}
}

// another turns it into another TPM, with other seeds.
func (d *device) another() {
	d.t.Helper()
	if err := d.sim.ManufactureReset(); err != nil {
		d.t.Fatal(err)
	}
}

// primary creates a primary key in the hierarchy.
func (d *device) primary(hierarchy tpm.TPMHandle, template tpm.TPMTPublic) *object {
	d.t.Helper()
	o, err := d.tryPrimary(hierarchy, template)
	if err != nil {
		d.t.Fatal(err)
	}
	return o
}

func (d *device) tryPrimary(hierarchy tpm.TPMHandle, template tpm.TPMTPublic) (*object, error) {
	rsp, err := tpm.CreatePrimary{PrimaryHandle: hierarchy, InPublic: tpm.New2B(template)}.Execute(d.tpm)
	if err != nil {
		return nil, err
	}
	return &object{rsp.ObjectHandle, rsp.Name, rsp.OutPublic.Bytes()}, nil
}

func (d *device) flush(o *object) {
	d.t.Helper()
	if _, err := (tpm.FlushContext{FlushHandle: o.handle}).Execute(d.tpm); err != nil {
		d.t.Fatal(err)
	}
}

// selected returns a selection in the TPM's form.
func selected(bank tpm.TPMAlgID, pcrs ...int) tpm.TPMLPCRSelection {
	u := make([]uint, len(pcrs))
	for i, p := range pcrs {
		u[i] = uint(p)
	}
	bits := tpm.PCClientCompatible.PCRs(u...)
	return tpm.TPMLPCRSelection{PCRSelections: []tpm.TPMSPCRSelection{{Hash: bank, PCRSelect: bits}}}
}

// quote returns TPMS_ATTEST and TPMT_SIGNATURE.
func (d *device) quote(ak *object, extra []byte, selection tpm.TPMLPCRSelection) (attest, signature []byte) {
	d.t.Helper()
	rsp, err := tpm.Quote{
		SignHandle:     tpm.AuthHandle{Handle: ak.handle, Name: ak.name, Auth: tpm.PasswordAuth(nil)},
		QualifyingData: tpm.TPM2BData{Buffer: extra},
		InScheme:       tpm.TPMTSigScheme{Scheme: tpm.TPMAlgNull},
		PCRSelect:      selection,
	}.Execute(d.tpm)
	if err != nil {
		d.t.Fatal(err)
	}
	return rsp.Quoted.Bytes(), tpm.Marshal(rsp.Signature)
}

// pcrs reads PCRs, of which the TPM returns eight at a time.
func (d *device) pcrs(bank tpm.TPMAlgID, pcrs ...int) [][]byte {
	d.t.Helper()
	var out [][]byte
	for _, p := range pcrs {
		rsp, err := tpm.PCRRead{PCRSelectionIn: selected(bank, p)}.Execute(d.tpm)
		if err != nil {
			d.t.Fatal(err)
		}
		if len(rsp.PCRValues.Digests) != 1 {
			d.t.Fatalf("PCR %d: %d values", p, len(rsp.PCRValues.Digests))
		}
		out = append(out, rsp.PCRValues.Digests[0].Buffer)
	}
	return out
}

// extend gives a PCR a value other than zero, in both banks.
func (d *device) extend(pcr int) {
	d.t.Helper()
	_, err := tpm.PCREvent{
		PCRHandle: tpm.AuthHandle{Handle: tpm.TPMHandle(pcr), Auth: tpm.PasswordAuth(nil)},
		EventData: tpm.TPM2BEvent{Buffer: []byte{byte(pcr)}},
	}.Execute(d.tpm)
	if err != nil {
		d.t.Fatal(err)
	}
}

// deallocate calls TPM2_PCR_Allocate (Part 3, 22.5), which go-tpm does not have. It removes a bank
// at the next reboot.
func (d *device) deallocate(bank tpm.TPMAlgID) {
	d.t.Helper()
	command := []byte{
		0x80, 0x02, 0, 0, 0, 0x25, 0, 0, 0x01, 0x2B, // sessions, size, command code
		0x40, 0, 0, 0x0C, // TPM_RH_PLATFORM
		0, 0, 0, 9, 0x40, 0, 0, 9, 0, 0, 0, 0, 0, // password session
		0, 0, 0, 1, byte(bank >> 8), byte(bank), 3, 0, 0, 0, // one selection, of nothing
	}
	response, err := d.tpm.Send(command)
	if err != nil || len(response) < 15 || response[9] != 0 || response[14] != 1 {
		d.t.Fatalf("TPM2_PCR_Allocate: %x, %v", response, err)
	}
}

// activate calls TPM2_ActivateCredential with both results of MakeCredential.
func (d *device) activate(ek, ak *object, blob, encrypted []byte) ([]byte, error) {
	d.t.Helper()
	id, err := tpm.Unmarshal[tpm.TPM2BIDObject](blob)
	if err != nil {
		d.t.Fatal(err)
	}
	sec, err := tpm.Unmarshal[tpm.TPM2BEncryptedSecret](encrypted)
	if err != nil {
		d.t.Fatal(err)
	}
	rsp, err := tpm.ActivateCredential{
		ActivateHandle: tpm.AuthHandle{Handle: ak.handle, Name: ak.name, Auth: tpm.PasswordAuth(nil)},
		KeyHandle:      tpm.AuthHandle{Handle: ek.handle, Name: ek.name, Auth: ekAuth(ek)},
		CredentialBlob: *id,
		Secret:         *sec,
	}.Execute(d.tpm)
	if err != nil {
		return nil, err
	}
	return rsp.CertInfo.Buffer, nil
}

// ekAuth authorizes the EK as its template requires: the low range by its policy, the high range by
// its empty password.
func ekAuth(ek *object) tpm.Session {
	if bytes.Contains(ek.public, tpm.RSAEKTemplate.AuthPolicy.Buffer) {
		return tpm.Policy(tpm.TPMAlgSHA256, 16, func(t transport.TPM, session tpm.TPMISHPolicy, nonce tpm.TPM2BNonce) error {
			_, err := tpm.PolicySecret{
				AuthHandle:    tpm.AuthHandle{Handle: tpm.TPMRHEndorsement, Auth: tpm.PasswordAuth(nil)},
				PolicySession: session,
				NonceTPM:      nonce,
			}.Execute(t)
			return err
		})
	}
	return tpm.PasswordAuth(nil)
}

// policyBSHA384 is PolicyB of the TCG EK Credential Profile 2.6, B.6.3.
var policyBSHA384, _ = hex.DecodeString(
	"b26e7d28d11a50bc53d882bcf5fd3a1a074148bb35d3b4e4cb1c0ad9bde419cacb47ba09699646150f9fc000f3f80e12")

func p384EKTemplate() tpm.TPMTPublic {
	return tpm.TPMTPublic{
		Type:    tpm.TPMAlgECC,
		NameAlg: tpm.TPMAlgSHA384,
		ObjectAttributes: tpm.TPMAObject{
			FixedTPM: true, FixedParent: true, SensitiveDataOrigin: true, UserWithAuth: true, AdminWithPolicy: true,
			Restricted: true, Decrypt: true,
		},
		AuthPolicy: tpm.TPM2BDigest{Buffer: policyBSHA384},
		Parameters: tpm.NewTPMUPublicParms(tpm.TPMAlgECC, &tpm.TPMSECCParms{
			Symmetric: tpm.TPMTSymDefObject{
				Algorithm: tpm.TPMAlgAES,
				KeyBits:   tpm.NewTPMUSymKeyBits(tpm.TPMAlgAES, tpm.TPMKeyBits(256)),
				Mode:      tpm.NewTPMUSymMode(tpm.TPMAlgAES, tpm.TPMAlgCFB),
			},
			CurveID: tpm.TPMECCNistP384,
		}),
	}
}

// ekTemplates are the EKs that a TPM may have, by EK.Describe.
var ekTemplates = map[string]tpm.TPMTPublic{
	"rsa-2048": tpm.RSAEKTemplate,
	"ecc-p256": tpm.ECCEKTemplate,
	"ecc-p384": p384EKTemplate(),
}

func akAttributes() tpm.TPMAObject {
	return tpm.TPMAObject{
		FixedTPM: true, FixedParent: true, SensitiveDataOrigin: true, UserWithAuth: true, NoDA: true,
		Restricted: true, SignEncrypt: true,
	}
}

// eccAK is the agent's template, on any curve.
func eccAK(curve tpm.TPMECCCurve, hash tpm.TPMAlgID) tpm.TPMTPublic {
	return tpm.TPMTPublic{
		Type:             tpm.TPMAlgECC,
		NameAlg:          tpm.TPMAlgSHA256,
		ObjectAttributes: akAttributes(),
		Parameters: tpm.NewTPMUPublicParms(tpm.TPMAlgECC, &tpm.TPMSECCParms{
			Scheme: tpm.TPMTECCScheme{Scheme: tpm.TPMAlgECDSA,
				Details: tpm.NewTPMUAsymScheme(tpm.TPMAlgECDSA, &tpm.TPMSSigSchemeECDSA{HashAlg: hash})},
			CurveID: curve,
		}),
	}
}

// rsaAK is an RSA-2048 attestation key.
func rsaAK(scheme tpm.TPMAlgID) tpm.TPMTPublic {
	details := tpm.NewTPMUAsymScheme(tpm.TPMAlgRSASSA, &tpm.TPMSSigSchemeRSASSA{HashAlg: tpm.TPMAlgSHA256})
	if scheme == tpm.TPMAlgRSAPSS {
		details = tpm.NewTPMUAsymScheme(tpm.TPMAlgRSAPSS, &tpm.TPMSSigSchemeRSAPSS{HashAlg: tpm.TPMAlgSHA256})
	}
	return tpm.TPMTPublic{
		Type:             tpm.TPMAlgRSA,
		NameAlg:          tpm.TPMAlgSHA256,
		ObjectAttributes: akAttributes(),
		Parameters: tpm.NewTPMUPublicParms(tpm.TPMAlgRSA, &tpm.TPMSRSAParms{
			Scheme: tpm.TPMTRSAScheme{Scheme: scheme, Details: details}, KeyBits: 2048,
		}),
	}
}

// akTemplates are the accepted AKs.
var akTemplates = map[string]tpm.TPMTPublic{
	"P-256 ECDSA SHA-256":     eccAK(tpm.TPMECCNistP256, tpm.TPMAlgSHA256),
	"P-384 ECDSA SHA-384":     eccAK(tpm.TPMECCNistP384, tpm.TPMAlgSHA384),
	"RSA-2048 RSASSA SHA-256": rsaAK(tpm.TPMAlgRSASSA),
	"RSA-2048 RSAPSS SHA-256": rsaAK(tpm.TPMAlgRSAPSS),
}

const agentAK = "P-256 ECDSA SHA-256"

var quotedPCRs = []int{0, 1, 2, 3, 4, 5, 6, 7, 11, 12, 13}

// conversation is one challenge with its valid answer.
type conversation struct {
	challenge tpm2.Challenge
	evidence  tpm2.Evidence
	ek, ak    *object // nil if no TPM takes part
}

// clone returns a copy in which a case can change one thing.
func (c *conversation) clone() *conversation {
	out := *c
	out.evidence.Quote = bytes.Clone(c.evidence.Quote)
	out.evidence.Signature = bytes.Clone(c.evidence.Signature)
	out.evidence.Activation = bytes.Clone(c.evidence.Activation)
	out.evidence.PCRValues = nil
	for _, v := range c.evidence.PCRValues {
		out.evidence.PCRValues = append(out.evidence.PCRValues, bytes.Clone(v))
	}
	return &out
}

func (c *conversation) verify() (*tpm2.Quote, error) {
	return tpm2.VerifyQuote(c.challenge, c.evidence)
}

// converse runs the whole conversation between the package and the device: parse, create a
// credential, activate it, quote.
func (d *device) converse(ek, ak *object, bank tpm.TPMAlgID, pcrs []int, label string) *conversation {
	d.t.Helper()
	parsedEK, err := tpm2.ParseEK(ek.public)
	if err != nil {
		d.t.Fatal(err)
	}
	parsedAK, err := tpm2.ParseAK(ak.public)
	if err != nil {
		d.t.Fatal(err)
	}
	k := bytes.Repeat([]byte(label[:1]), 32)
	blob, encrypted, err := tpm2.MakeCredential(nil, parsedEK, parsedAK.Name(), k)
	if err != nil {
		d.t.Fatal(err)
	}
	spki := parsedEK.SPKIHash()
	hash := transcript.Fields{Nonce: []byte(label), EKSPKI: spki[:], AKName: parsedAK.Name()}.Hash()
	released, err := d.activate(ek, ak, blob, encrypted)
	if err != nil {
		d.t.Fatal(err)
	}
	attest, signature := d.quote(ak, hash[:], selected(bank, pcrs...))
	return &conversation{
		challenge: tpm2.Challenge{EK: parsedEK, AK: parsedAK, Secret: secret.New(k), Bank: uint16(bank), PCRs: pcrs,
			Transcript: hash},
		evidence: tpm2.Evidence{
			Quote: attest, Signature: signature, Activation: transcript.Activation(released, hash),
			PCRValues: d.pcrs(bank, pcrs...),
		},
		ek: ek, ak: ak,
	}
}

// honest returns one conversation with a simulator that has measured something.
func honest(t testing.TB, ekKind, akKind string) (*device, *conversation) {
	t.Helper()
	d := simulate(t)
	for p := range 8 {
		d.extend(p)
	}
	ek := d.primary(tpm.TPMRHEndorsement, ekTemplates[ekKind])
	ak := d.primary(tpm.TPMRHEndorsement, akTemplates[akKind])
	return d, d.converse(ek, ak, tpm.TPMAlgSHA256, quotedPCRs, "honest")
}
