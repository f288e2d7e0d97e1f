// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto"
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-attestation/attest"
	"github.com/google/go-eventlog/testdata"
	attestpb "github.com/google/go-tpm-tools/proto/attest"
	tpmpb "github.com/google/go-tpm-tools/proto/tpm"
	tpmtools "github.com/google/go-tpm-tools/server"
	tpm "github.com/google/go-tpm/tpm2"
	"golang.org/x/crypto/chacha20poly1305"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/appraisal"
	"github.com/mcs-attest/mcs-attest/pkg/eventlog"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester/swtpmtest"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot"
	"github.com/mcs-attest/mcs-attest/pkg/policy"
	"github.com/mcs-attest/mcs-attest/pkg/seal"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	"github.com/mcs-attest/mcs-attest/pkg/token"
	"github.com/mcs-attest/mcs-attest/pkg/transcript"
	"github.com/mcs-attest/mcs-attest/verifier/internal/service"
)

// conversation is all of one attestation but the network and the disk: what
// the verifier computes in Challenge and in Attest, and a TPM's real answer.
type conversation struct {
	ring     seal.Ring
	keys     token.KeySet
	policy   policy.Policy
	machines appraisal.Machines
	conn     appraisal.Connection
	now      time.Time

	id        attester.Identity
	challenge seal.Challenge
	sealed    []byte
	evidence  appraisal.Evidence
	hash      transcript.Hash
}

// converse has a TPM measure the events of log, and attests it.
func converse(tb testing.TB, key attester.Key, log []byte) *conversation {
	tb.Helper()
	must := func(err error) {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
	}
	dev := swtpmtest.Start(tb, "sha256")
	conn := dev.Dial()
	measure(tb, conn, log)
	a, err := attester.Open(conn, attester.Options{Key: key})
	must(err)
	tb.Cleanup(func() { _ = a.Close() })

	c := &conversation{now: time.Now(), id: a.Identity()}
	c.ring, err = seal.Ring{}.Rotate(rand.Reader, c.now, 0, time.Hour)
	must(err)
	c.keys, err = token.KeySet{}.Rotate(c.now, rand.Reader, 0)
	must(err)
	manifests, problems := machine.Parse("m1.yaml", []byte(enrolment("m1", "  pool: worker\n", c.id.EKSPKI)), c.now)
	if len(problems) > 0 {
		tb.Fatal(problems)
	}
	c.machines, _ = machine.NewIndex(manifests, nil)
	p := v1alpha1.AttestationPolicy{Spec: v1alpha1.AttestationPolicySpec{
		Pools: []string{"worker"}, TPM2: v1alpha1.TPM2Policy{Profile: string(measuredboot.SecureBoot)},
	}}
	p.Name = "default"
	set, err := policy.Compile(p)
	must(err)
	c.policy, err = set.For("worker")
	must(err)
	exporter := make([]byte, transcript.ExporterSize)
	c.conn = appraisal.Connection{
		Exporter: exporter, Served: func([]byte) bool { return true }, Origin: func(o string) bool { return o == testOrigin },
	}

	blob, encrypted := c.ask(tb)
	spki := sha256.Sum256([]byte("serving key"))
	f := transcript.Fields{
		Sealed: c.sealed, Nonce: c.challenge.Nonce, Binding: c.challenge.Binding, Exporter: exporter, ServerSPKI: spki[:],
		Origin: testOrigin, Pool: "worker",
		Required: transcript.Required(c.challenge.Required, c.challenge.Bank, c.challenge.PCRs),
		EKSPKI:   c.id.EKSPKI[:], AKName: c.id.AKName, Claims: []byte(`{"hostname":"test"}`),
	}
	c.hash = f.Hash()
	ev, err := a.Attest(attester.Challenge{
		CredentialBlob: blob, EncryptedSecret: encrypted, Bank: c.challenge.Bank, PCRs: c.challenge.PCRs,
	}, c.hash)
	must(err)
	c.evidence = appraisal.Evidence{
		Sealed: c.sealed, ServerSPKI: spki[:], Claims: f.Claims, EventLog: log,
		TPM2: &tpm2.Evidence{Quote: ev.Quote, Signature: ev.Signature, Activation: ev.Activation, PCRValues: ev.PCRValues},
	}
	return c
}

// measure extends the events of a log into a TPM, as the firmware and the boot loader did.
func measure(tb testing.TB, conn *swtpmtest.Conn, log []byte) {
	tb.Helper()
	parsed, err := eventlog.Parse(log, eventlog.SHA256)
	if err != nil {
		tb.Fatal(err)
	}
	for _, e := range parsed.Events {
		if !e.Extends() {
			continue
		}
		_, err := tpm.PCRExtend{
			PCRHandle: tpm.AuthHandle{Handle: tpm.TPMHandle(e.PCR), Auth: tpm.PasswordAuth(nil)},
			Digests:   tpm.TPMLDigestValues{Digests: []tpm.TPMTHA{{HashAlg: tpm.TPMAlgSHA256, Digest: e.Digest}}},
		}.Execute(conn)
		if err != nil {
			tb.Fatal(err)
		}
	}
}

// quotedForAll is more than the profile needs: the other libraries replay every
// event, those of GRUB in PCR 8 and 9 and of the shim in PCR 14 too.
var quotedForAll = []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14}

// ask is the Challenge call: both keys parsed, a credential made, all of it sealed.
func (c *conversation) ask(tb testing.TB) (blob, encrypted []byte) {
	random := make([]byte, 64)
	_, _ = rand.Read(random)
	policyHash := c.policy.Hash()
	c.challenge = seal.Challenge{
		Issued: c.now.Truncate(time.Millisecond), Nonce: random[:32], Secret: secret.New(random[32:]), Origin: testOrigin,
		Pool:       "worker",
		PolicyHash: policyHash[:], Required: c.policy.Choose([]evidence.Kind{evidence.TPM2}), Bank: eventlog.SHA256,
		PCRs: quotedForAll, EKPublic: c.id.EKPublic, AKPublic: c.id.AKPublic, EKCertificates: c.id.EKCertificates,
		Binding: appraisal.BindingExporter, Exporter: c.conn.Exporter,
	}
	ek, err := tpm2.ParseEK(c.id.EKPublic)
	if err != nil {
		tb.Fatal(err)
	}
	ak, err := tpm2.ParseAK(c.id.AKPublic)
	if err != nil {
		tb.Fatal(err)
	}
	if blob, encrypted, err = tpm2.MakeCredential(rand.Reader, ek, ak.Name(), random[32:]); err != nil {
		tb.Fatal(err)
	}
	if c.sealed, err = c.ring.Seal(rand.Reader, c.now, c.challenge); err != nil {
		tb.Fatal(err)
	}
	return blob, encrypted
}

// appraise is the Attest call but for the token.
func (c *conversation) appraise(tb testing.TB) *appraisal.Verdict {
	opened, err := c.ring.Open(c.evidence.Sealed)
	if err != nil {
		tb.Fatal(err)
	}
	if err := appraisal.Bind(opened, c.policy, c.conn, c.evidence, c.now); err != nil {
		tb.Fatal(err)
	}
	verdict, err := appraisal.Appraise(tb.Context(), appraisal.Context{
		Challenge: opened, Policy: c.policy, Machines: c.machines,
		Endorsers: map[v1alpha1.Endorsement]tpm2.Endorser{
			v1alpha1.EndorsementEnrolled: appraisal.EnrolledEndorser{Machines: c.machines}},
		Recorded: func(v1alpha1.RecordedIdentity) (string, error) { return "", nil },
	}, c.evidence, c.now)
	if err != nil {
		tb.Fatal(err)
	}
	return verdict
}

func (c *conversation) sign(tb testing.TB, v *appraisal.Verdict) {
	_, err := c.keys.Sign(c.now, token.Claims{
		Issuer: testOrigin, Audience: token.Audience, Subject: v.Machine.String(), MachineUID: v.Machine.UID, Pool: "worker",
		ID:       "0123456789abcdef",
		IssuedAt: c.now, NotBefore: c.now, Expiry: c.now.Add(10 * time.Minute), Nonce: appraisal.NonceText(c.challenge.Nonce),
		Verifier: token.VerifierID{Developer: service.Developer, Build: version}, Status: token.Affirming,
		Submods: map[string]token.Appraisal{"tpm2": {Status: token.Affirming}},
	})
	if err != nil {
		tb.Fatal(err)
	}
}

// goTPMTools is server.VerifyAttestation on the same evidence. It knows neither
// credentials nor Machines: the AK is trusted beforehand.
func (c *conversation) goTPMTools(ak crypto.PublicKey) error {
	pcrs := map[uint32][]byte{}
	for i, p := range c.challenge.PCRs {
		pcrs[uint32(p)] = c.evidence.TPM2.PCRValues[i]
	}
	_, err := tpmtools.VerifyAttestation(&attestpb.Attestation{
		AkPub: c.id.AKPublic, EventLog: c.evidence.EventLog,
		Quotes: []*tpmpb.Quote{{
			Quote: c.evidence.TPM2.Quote, RawSig: c.evidence.TPM2.Signature,
			Pcrs: &tpmpb.PCRs{Hash: tpmpb.HashAlgo_SHA256, Pcrs: pcrs},
		}},
	}, tpmtools.VerifyOpts{Nonce: c.hash[:], TrustedAKs: []crypto.PublicKey{ak}})
	return err
}

// goAttestation is what a user of go-attestation does with the same evidence.
func (c *conversation) goAttestation() error {
	ak, err := attest.ParseAKPublic(c.id.AKPublic)
	if err != nil {
		return err
	}
	var pcrs []attest.PCR
	for i, p := range c.challenge.PCRs {
		pcrs = append(pcrs, attest.PCR{Index: p, Digest: c.evidence.TPM2.PCRValues[i], DigestAlg: crypto.SHA256})
	}
	if err := ak.VerifyAll([]attest.Quote{{Quote: c.evidence.TPM2.Quote, Signature: c.evidence.TPM2.Signature}}, pcrs,
		c.hash[:]); err != nil {
		return err
	}
	log, err := attest.ParseEventLog(c.evidence.EventLog)
	if err != nil {
		return err
	}
	events, err := log.Verify(pcrs)
	if err != nil {
		return err
	}
	_, err = attest.ParseSecurebootState(events)
	return err
}

// floor is the cryptography that no implementation of the protocol can leave out, done
// with Go's own packages. Of the appraisal:
//
//   - the sealed challenge decrypted
//   - the AK's key decoded, and one signature verified
//   - the hash of transcript, quote, PCR values and both public areas, and the proof of
//     activation
//   - one hash for each event, and one for the data of each event that the profile
//     judges by its data (PCR 4 and 7)
//
// Of the whole conversation also:
//
//   - the EK's key decoded, where it is a point, and a seed sent to it
//   - the credential: two derived keys, 34 bytes encrypted, and one HMAC
//   - the AK's Name hashed, and the challenge encrypted
//   - the token hashed and signed
func (c *conversation) floor(tb testing.TB) (appraise, whole func()) {
	digest := sha256.Sum256(c.evidence.TPM2.Quote)
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	fatalIf(tb, err)
	// Another signature by another key costs the same, and is in DER already.
	point, err := own.PublicKey.Bytes()
	fatalIf(tb, err)
	der, err := ecdsa.SignASN1(rand.Reader, own, digest[:])
	fatalIf(tb, err)
	aead, err := chacha20poly1305.NewX(digest[:])
	fatalIf(tb, err)
	nonce := make([]byte, aead.NonceSize())
	box := aead.Seal(nil, nonce, c.sealed, nil)
	log, err := eventlog.Parse(c.evidence.EventLog, eventlog.SHA256)
	fatalIf(tb, err)
	seed := c.seed(tb)
	mac := func(content []byte) []byte {
		h := hmac.New(sha256.New, digest[:])
		h.Write(content)
		return h.Sum(nil)
	}
	appraise = func() {
		_, err := aead.Open(nil, nonce, box, nil)
		fatalIf(tb, err)
		key, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), point)
		fatalIf(tb, err)
		for _, content := range [][]byte{c.sealed, c.evidence.TPM2.Quote, c.id.EKPublic, c.id.AKPublic} {
			sha256.Sum256(content)
		}
		if !ecdsa.VerifyASN1(key, digest[:], der) {
			tb.Fatal("the floor's signature does not verify")
		}
		h := sha256.New()
		for _, v := range c.evidence.TPM2.PCRValues {
			h.Write(v)
		}
		h.Sum(nil)
		mac(digest[:])
		block := make([]byte, 64)
		for _, e := range log.Events {
			sum := sha256.Sum256(block)
			copy(block, sum[:])
			if e.PCR == 4 || e.PCR == 7 {
				sum = sha256.Sum256(e.Data)
				copy(block[32:], sum[:])
			}
		}
	}
	jwt := make([]byte, 900)
	whole = func() {
		seed()
		block, err := aes.NewCipher(mac(c.id.AKName)[:16])
		fatalIf(tb, err)
		identity := make([]byte, 34)
		//nolint:staticcheck // SA1019: the format (Part 1, 11.4.8) is CFB
		cipher.NewCFBEncrypter(block, make([]byte, aes.BlockSize)).XORKeyStream(identity, identity)
		mac(mac(identity))
		sha256.Sum256(c.id.AKPublic)
		aead.Seal(nil, nonce, c.sealed, nil)
		appraise()
		sum := sha256.Sum256(jwt)
		_, err = ecdsa.SignASN1(rand.Reader, own, sum[:])
		fatalIf(tb, err)
	}
	return appraise, whole
}

func (c *conversation) seed(tb testing.TB) func() {
	ek, err := tpm2.ParseEK(c.id.EKPublic)
	fatalIf(tb, err)
	if key, ok := ek.PublicKey().(*rsa.PublicKey); ok {
		return func() {
			_, err := rsa.EncryptOAEP(sha256.New(), rand.Reader, key, make([]byte, 32), []byte("IDENTITY\x00"))
			fatalIf(tb, err)
		}
	}
	known, err := ek.PublicKey().(*ecdsa.PublicKey).ECDH()
	fatalIf(tb, err)
	point := known.Bytes()
	return func() {
		peer, err := known.Curve().NewPublicKey(point)
		fatalIf(tb, err)
		own, err := known.Curve().GenerateKey(rand.Reader)
		fatalIf(tb, err)
		_, err = own.ECDH(peer)
		fatalIf(tb, err)
	}
}

// BenchmarkWholeAppraisal is one attestation as the verifier computes it, profile
// secure-boot, on a TPM that measured a real log: RHEL 8 on GCE from go-eventlog's
// test data (82 events, 34 KB). "appraise" is the part that compares with
// go-tpm-tools and go-attestation on the same evidence; it does more than either,
// since it also opens the challenge and finds the Machine. "whole" adds the
// credential, the seal and the token. Each tells how many times the time of its
// unavoidable cryptography it takes ("x-floor"), and the other two libraries how
// many times ours ("x-ours"). For these ratios both run in turn.
func BenchmarkWholeAppraisal(b *testing.B) {
	for _, key := range []attester.Key{attester.ECCP384, attester.RSA2048} {
		c := converse(b, key, testdata.Rhel8EventLog)
		ak, err := tpm2.ParseAK(c.id.AKPublic)
		if err != nil {
			b.Fatal(err)
		}
		floor, wholeFloor := c.floor(b)
		verdict := c.appraise(b)
		appraise := func() { c.appraise(b) }
		whole := func() { c.ask(b); c.sign(b, c.appraise(b)) }
		for _, step := range []struct {
			name      string
			run, base func()
			unit      string
		}{
			{"floor-appraise", floor, nil, ""},
			{"floor-whole", wholeFloor, nil, ""},
			{"appraise", appraise, floor, "x-floor"},
			{"whole", whole, wholeFloor, "x-floor"},
			{"go-tpm-tools", func() { fatalIf(b, c.goTPMTools(ak.PublicKey())) }, appraise, "x-ours"},
			{"go-attestation", func() { fatalIf(b, c.goAttestation()) }, appraise, "x-ours"},
			{"part-challenge", func() { c.ask(b) }, nil, ""},
			{"part-token", func() { c.sign(b, verdict) }, nil, ""},
		} {
			b.Run(fmt.Sprintf("EK=%s/%s", key, step.name), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					step.run()
				}
				b.StopTimer()
				if step.base != nil {
					b.ReportMetric(ratio(step.run, step.base), step.unit)
				}
			})
		}
	}
}

// ratio is how many times as long as base run takes: the median of rounds in which
// both run in turn, so that other work of the computer slows both.
func ratio(run, base func()) float64 {
	took := func(f func()) float64 {
		start := time.Now()
		for range 32 {
			f()
		}
		return float64(time.Since(start))
	}
	var rounds []float64
	for range 51 {
		rounds = append(rounds, took(run)/took(base))
	}
	slices.Sort(rounds)
	return rounds[len(rounds)/2]
}

func fatalIf(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// TestBenchmark_LibrariesAgreeOnTheEvidence holds that the benchmark compares like with
// like: all three accept the evidence, and all three refuse it with one event of
// the log changed.
func TestBenchmark_LibrariesAgreeOnTheEvidence(t *testing.T) {
	c := converse(t, attester.ECCP384, testdata.Rhel8EventLog)
	ak, err := tpm2.ParseAK(c.id.AKPublic)
	fatalIf(t, err)
	if v := c.appraise(t); v.Machine.String() != "default/m1" {
		t.Errorf("matched %s", v.Machine)
	}
	fatalIf(t, c.goTPMTools(ak.PublicKey()))
	fatalIf(t, c.goAttestation())
	log, err := eventlog.Parse(testdata.Rhel8EventLog, eventlog.SHA256)
	fatalIf(t, err)
	changed := append([]byte(nil), testdata.Rhel8EventLog...)
	digest := log.Events[len(log.Events)/2].Digest
	for i := range len(changed) - len(digest) {
		if string(changed[i:i+len(digest)]) == string(digest) {
			changed[i]++
			break
		}
	}
	c.evidence.EventLog = changed
	if c.goTPMTools(ak.PublicKey()) == nil || c.goAttestation() == nil {
		t.Error("one of the libraries accepts a log that was changed")
	}
	if _, err := measuredboot.Appraise(measuredboot.SecureBoot, eventlog.SHA256, quotedValues(c), changed,
		nil); err == nil {
		t.Error("a log that was changed is accepted")
	}
}

func quotedValues(c *conversation) map[int][]byte {
	values := map[int][]byte{}
	for i, p := range c.challenge.PCRs {
		values[p] = c.evidence.TPM2.PCRValues[i]
	}
	return values
}
