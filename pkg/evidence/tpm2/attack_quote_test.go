// SPDX-License-Identifier: Apache-2.0

package tpm2_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"testing"

	tpm "github.com/google/go-tpm/tpm2"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	"github.com/mcs-attest/mcs-attest/pkg/transcript"
)

func TestAttack_T22_QuoteOverOtherPCRs(t *testing.T) {
	d, c := honest(t, "ecc-p256", agentAK)
	if _, err := c.verify(); err != nil {
		t.Fatalf("the valid case: %v", err)
	}
	sha256Bank, sha384Bank := tpm.TPMAlgSHA256, tpm.TPMAlgSHA384
	two := selected(sha256Bank, quotedPCRs...)
	two.PCRSelections = append(two.PCRSelections, selected(sha384Bank, 0).PCRSelections...)
	long := selected(sha256Bank, quotedPCRs...)
	long.PCRSelections[0].PCRSelect = append(bytes.Clone(long.PCRSelections[0].PCRSelect), 0)

	for name, x := range map[string]struct {
		selection tpm.TPMLPCRSelection
		values    [][]byte
	}{
		"over no bank at all":     {tpm.TPMLPCRSelection{}, nil},
		"over no PCR of the bank": {selected(sha256Bank), nil},
		"over one PCR fewer":      {selected(sha256Bank, quotedPCRs[1:]...), c.evidence.PCRValues[1:]},
		"over one PCR more": {selected(sha256Bank, append([]int{10}, quotedPCRs...)...),
			append(d.pcrs(sha256Bank, 10), c.evidence.PCRValues...)},
		"over another PCR":       {selected(sha256Bank, 0, 1, 2, 3, 4, 5, 6, 7, 12, 13, 16), c.evidence.PCRValues},
		"over another bank":      {selected(sha384Bank, quotedPCRs...), d.pcrs(sha384Bank, quotedPCRs...)},
		"over a second bank too": {two, c.evidence.PCRValues},
		"the same bank twice": {tpm.TPMLPCRSelection{PCRSelections: append(selected(sha256Bank, 0).PCRSelections,
			selected(sha256Bank, quotedPCRs...).PCRSelections...)}, c.evidence.PCRValues},
		"over the resettable ones": {selected(sha256Bank, 16, 23), d.pcrs(sha256Bank, 16, 23)},
	} {
		t.Run(name, func(t *testing.T) {
			attack := c.clone()
			attack.evidence.Quote, attack.evidence.Signature = d.quote(c.ak, c.challenge.Transcript[:], x.selection)
			for _, values := range [][][]byte{x.values, c.evidence.PCRValues} {
				attack.evidence.PCRValues = values
				_, err := attack.verify()
				denied(t, err, reason.PCRSelection)
			}
		})
	}
}

// A TPM quotes an unallocated bank without an error, with an empty selection.
func TestAttack_T22_QuoteOverAnUnallocatedBank(t *testing.T) {
	d := simulate(t)
	for _, bank := range []tpm.TPMAlgID{tpm.TPMAlgSHA256, tpm.TPMAlgSHA384} {
		ek, ak := d.primary(tpm.TPMRHEndorsement, tpm.ECCEKTemplate), d.primary(tpm.TPMRHEndorsement, akTemplates[agentAK])
		if _, err := d.converse(ek, ak, bank, []int{11}, "allocated").verify(); err != nil {
			t.Fatalf("the valid case: %v", err)
		}
		d.deallocate(bank)
		d.reboot()

		ek, ak = d.primary(tpm.TPMRHEndorsement, tpm.ECCEKTemplate), d.primary(tpm.TPMRHEndorsement, akTemplates[agentAK])
		other := tpm.TPMAlgSHA384
		if bank == other {
			other = tpm.TPMAlgSHA256
		}
		hash := transcript.Fields{Nonce: []byte("unallocated")}.Hash()
		attest, signature := d.quote(ak, hash[:], selected(bank, 11))
		for _, values := range [][][]byte{nil,
			{make([]byte, map[tpm.TPMAlgID]int{tpm.TPMAlgSHA256: 32, tpm.TPMAlgSHA384: 48}[bank])}} {
			_, err := tpm2.VerifyQuote(
				tpm2.Challenge{EK: mustEK(t, ek.public), AK: mustAK(t, ak.public), Secret: secret.New(make([]byte, 32)),
					Bank: uint16(bank), PCRs: []int{11}, Transcript: hash},
				tpm2.Evidence{Quote: attest, Signature: signature, Activation: transcript.Activation(make([]byte, 32), hash),
					PCRValues: values},
			)
			denied(t, err, reason.PCRSelection)
		}
		d.another()
	}
}

func TestAttack_T23_StatementOfAnotherType(t *testing.T) {
	d, c := honest(t, "ecc-p256", agentAK)
	if _, err := c.verify(); err != nil {
		t.Fatalf("the valid case: %v", err)
	}
	signer := tpm.AuthHandle{Handle: c.ak.handle, Name: c.ak.name, Auth: tpm.PasswordAuth(nil)}
	extra := tpm.TPM2BData{Buffer: c.challenge.Transcript[:]}
	scheme := tpm.TPMTSigScheme{Scheme: tpm.TPMAlgNull}

	t.Run("a certification of the AK by itself", func(t *testing.T) {
		rsp, err := tpm.Certify{ObjectHandle: signer, SignHandle: signer, QualifyingData: extra,
			InScheme: scheme}.Execute(d.tpm)
		if err != nil {
			t.Fatal(err)
		}
		attack := c.clone()
		attack.evidence.Quote, attack.evidence.Signature = rsp.CertifyInfo.Bytes(), tpm.Marshal(rsp.Signature)
		_, err = attack.verify()
		denied(t, err, reason.QuoteInvalid)
	})
	t.Run("the time", func(t *testing.T) {
		rsp, err := tpm.GetTime{
			PrivacyAdminHandle: tpm.TPMRHEndorsement,
			SignHandle:         signer, QualifyingData: extra, InScheme: scheme,
		}.Execute(d.tpm)
		if err != nil {
			t.Fatal(err)
		}
		attack := c.clone()
		attack.evidence.Quote, attack.evidence.Signature = rsp.TimeInfo.Bytes(), tpm.Marshal(rsp.Signature)
		_, err = attack.verify()
		denied(t, err, reason.QuoteInvalid)
	})
}

// Each case has a valid signature by the challenged AK.
func TestAttack_T23_StatementWithOneWrongField(t *testing.T) {
	f := newForger(t)
	if _, err := f.forgery(t, nil).verify(); err != nil {
		t.Fatalf("the valid case: %v", err)
	}
	ownName := mustAK(t, f.akPublic).Name()
	for name, x := range map[string]struct {
		change func(*statement)
		want   reason.Code
	}{
		"not created by a TPM (magic)":      {func(s *statement) { s.magic = 0xFF544346 }, reason.QuoteInvalid},
		"certify":                           {func(s *statement) { s.typ = 0x8017 }, reason.QuoteInvalid},
		"time":                              {func(s *statement) { s.typ = 0x8019 }, reason.QuoteInvalid},
		"creation":                          {func(s *statement) { s.typ = 0x801A }, reason.QuoteInvalid},
		"NV":                                {func(s *statement) { s.typ = 0x8014 }, reason.QuoteInvalid},
		"trailing byte":                     {func(s *statement) { s.tail = []byte{0} }, reason.QuoteInvalid},
		"a flag that is neither yes nor no": {func(s *statement) { s.safe = 2 }, reason.QuoteInvalid},
		"no extra data":                     {func(s *statement) { s.extraData = nil }, reason.QuoteNotFresh},
		"extra data that only begins well": {func(s *statement) { s.extraData = append(bytes.Clone(s.extraData), 0) },
			reason.QuoteNotFresh},
		"extra data cut short": {func(s *statement) { s.extraData = s.extraData[:31] },
			reason.QuoteNotFresh},
		"extra data of another conversation": {func(s *statement) { s.extraData = make([]byte, 32) },
			reason.QuoteNotFresh},
		"no qualified signer": {func(s *statement) { s.qualifiedSigner = nil },
			reason.QuoteInvalid},
		"the AK's plain name as qualified signer": {func(s *statement) { s.qualifiedSigner = ownName }, reason.QuoteInvalid},
		"no selection":                 {func(s *statement) { s.banks, s.selections = 0, nil }, reason.PCRSelection},
		"a selection more than it has": {func(s *statement) { s.banks = 2 }, reason.QuoteInvalid},
		"selection of one byte, PCR 11 not in it": {func(s *statement) { s.selections = []byte{0, 0x0B, 1, 8} },
			reason.PCRSelection},
		"selection of two bytes": {func(s *statement) { s.selections = []byte{0, 0x0B, 2, 0, 8} }, reason.PCRSelection},
		"selection with PCR 24 as well": {func(s *statement) { s.selections = []byte{0, 0x0B, 4, 0, 8, 0, 1} },
			reason.PCRSelection},
		"SHA-1 bank":          {func(s *statement) { s.selections[1] = 0x04 }, reason.PCRSelection},
		"no digest":           {func(s *statement) { s.pcrDigest = nil }, reason.PCRDigest},
		"digest over nothing": {func(s *statement) { d := sha256.Sum256(nil); s.pcrDigest = d[:] }, reason.PCRDigest},
		"digest cut short":    {func(s *statement) { s.pcrDigest = s.pcrDigest[:20] }, reason.PCRDigest},
		"16 selections of which the first would be one": {func(s *statement) {
			s.banks = 16
			s.selections = bytes.Repeat(s.selections, 16)
		}, reason.PCRSelection},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := f.forgery(t, x.change).verify()
			denied(t, err, x.want)
		})
	}
	t.Run("signature of another key", func(t *testing.T) {
		c := f.forgery(t, nil)
		c.evidence.Signature = newForger(t).sign(t, c.evidence.Quote)
		_, err := c.verify()
		denied(t, err, reason.QuoteInvalid)
	})
}

func TestAttack_T23_EveryBitFlipped(t *testing.T) {
	for akKind := range akTemplates {
		t.Run(akKind, func(t *testing.T) {
			_, c := honest(t, "ecc-p256", akKind)
			if _, err := c.verify(); err != nil {
				t.Fatalf("the valid case: %v", err)
			}
			parts := map[string]func(*conversation) []byte{
				"quote":      func(c *conversation) []byte { return c.evidence.Quote },
				"signature":  func(c *conversation) []byte { return c.evidence.Signature },
				"activation": func(c *conversation) []byte { return c.evidence.Activation },
				"transcript": func(c *conversation) []byte { return c.challenge.Transcript[:] },
			}
			for i := range c.evidence.PCRValues {
				parts[fmt.Sprintf("value %d", i)] = func(c *conversation) []byte { return c.evidence.PCRValues[i] }
			}
			for name, part := range parts {
				for bit := range 8 * len(part(c)) {
					attack := c.clone()
					part(attack)[bit/8] ^= 1 << (bit % 8)
					q, err := attack.verify()
					if err == nil || q != nil {
						t.Fatalf("accepted with bit %d of the %s flipped", bit, name)
					}
					if d := new(reason.Denial); !errors.As(err, &d) {
						t.Fatalf("bit %d of the %s: no denial: %v", bit, name, err)
					}
				}
			}
			for bit := range 8 * len(c.ak.public) {
				public := bytes.Clone(c.ak.public)
				public[bit/8] ^= 1 << (bit % 8)
				ak, err := tpm2.ParseAK(public)
				if err != nil {
					denied(t, err, reason.AKUnacceptable)
					continue
				}
				if bytes.Equal(ak.Name(), c.challenge.AK.Name()) {
					t.Fatalf("bit %d of the AK's public area does not change its Name", bit)
				}
				attack := c.clone()
				attack.challenge.AK = ak
				_, err = attack.verify()
				denied(t, err, reason.QuoteInvalid)
			}
		})
	}
}

func TestAttack_T24_OldQuoteWithAFreshActivation(t *testing.T) {
	d, old := honest(t, "ecc-p256", agentAK)
	if _, err := old.verify(); err != nil {
		t.Fatalf("the valid case: %v", err)
	}
	fresh := d.converse(old.ek, old.ak, tpm.TPMAlgSHA256, quotedPCRs, "fresh")
	if _, err := fresh.verify(); err != nil {
		t.Fatalf("the valid case: %v", err)
	}
	replay := fresh.clone()
	replay.evidence.Quote, replay.evidence.Signature = old.evidence.Quote, old.evidence.Signature
	_, err := replay.verify()
	denied(t, err, reason.QuoteNotFresh)

	t.Run("fresh quote with an old activation", func(t *testing.T) {
		replay := fresh.clone()
		replay.evidence.Activation = old.evidence.Activation
		_, err := replay.verify()
		denied(t, err, reason.ActivationInvalid)
	})
	t.Run("all of it old", func(t *testing.T) {
		replay := fresh.clone()
		replay.evidence = old.evidence
		_, err := replay.verify()
		denied(t, err, reason.ActivationInvalid)
	})
}

// The relay's node follows the protocol, but for the connection that it sees.
func TestAttack_T25_RelayFromAnotherConnection(t *testing.T) {
	_, c := honest(t, "ecc-p256", agentAK)
	if _, err := c.verify(); err != nil {
		t.Fatalf("the valid case: %v", err)
	}
	name := c.challenge.AK.Name()
	spki := c.challenge.EK.SPKIHash()
	here := transcript.Fields{Nonce: []byte("honest"), Exporter: bytes.Repeat([]byte{1}, 32), EKSPKI: spki[:],
		AKName: name}.Hash()
	relayed := c.clone()
	relayed.challenge.Transcript = here
	_, err := relayed.verify()
	denied(t, err, reason.ActivationInvalid)

	// Even if the relay had the secret, the quote belongs to the other connection.
	relayed.evidence.Activation = transcript.Activation(c.challenge.Secret.Expose(), here)
	_, err = relayed.verify()
	denied(t, err, reason.QuoteNotFresh)
}

func TestAttack_T30_SHA1Bank(t *testing.T) {
	d := simulate(t)
	ek, ak := d.primary(tpm.TPMRHEndorsement, tpm.ECCEKTemplate), d.primary(tpm.TPMRHEndorsement, akTemplates[agentAK])
	c := d.converse(ek, ak, tpm.TPMAlgSHA256, []int{0, 11}, "sha256")
	if _, err := c.verify(); err != nil {
		t.Fatalf("the valid case: %v", err)
	}
	weak := d.converse(ek, ak, tpm.TPMAlgSHA1, []int{0, 11}, "sha1")
	_, err := weak.verify()
	denied(t, err, reason.PCRSelection)
	if err != nil && !strings.Contains(err.Error(), "bank sha1 is not accepted") {
		t.Error(err)
	}

	t.Run("offered when SHA-256 was requested", func(t *testing.T) {
		weak.challenge.Bank = tpm2.BankSHA256
		_, err := weak.verify()
		denied(t, err, reason.PCRSelection)
	})
	t.Run("PCRs without measurements are zero, which the profile denies", func(t *testing.T) {
		q, err := c.verify()
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(q.PCRs[0], make([]byte, 32)) {
			t.Errorf("PCR 0 is %x", q.PCRs[0])
		}
	})
}

func TestActivationIsCheckedFirst(t *testing.T) {
	f := newForger(t)
	for name, activation := range map[string][]byte{
		"none": nil, "empty": {}, "short": make([]byte, 31), "zero": make([]byte, 32), "long": make([]byte, 64),
	} {
		t.Run(name, func(t *testing.T) {
			c := f.forgery(t, nil)
			// If anything else were checked first, the reason would differ.
			c.evidence = tpm2.Evidence{Activation: activation, Quote: []byte("x"), Signature: []byte("y")}
			_, err := c.verify()
			denied(t, err, reason.ActivationInvalid)
		})
	}
}

func TestPCRValuesMustMatchTheQuote(t *testing.T) {
	_, c := honest(t, "ecc-p256", agentAK)
	for name, values := range map[string][][]byte{
		"none":        c.evidence.PCRValues[:0],
		"one fewer":   c.evidence.PCRValues[1:],
		"one more":    append(bytesOf(c.evidence.PCRValues), make([]byte, 32)),
		"two swapped": append([][]byte{c.evidence.PCRValues[1], c.evidence.PCRValues[0]}, c.evidence.PCRValues[2:]...),
		"split differently": append([][]byte{c.evidence.PCRValues[0][:31],
			append(c.evidence.PCRValues[0][31:32:32], c.evidence.PCRValues[1]...)}, c.evidence.PCRValues[2:]...),
		"an empty one":        append([][]byte{{}}, c.evidence.PCRValues[1:]...),
		"values of SHA-384":   append([][]byte{make([]byte, 48)}, c.evidence.PCRValues[1:]...),
		"all of them in one":  {bytes.Join(c.evidence.PCRValues, nil)},
		"nil":                 nil,
		"the digest in place": {c.evidence.Quote[len(c.evidence.Quote)-32:]},
	} {
		t.Run(name, func(t *testing.T) {
			attack := c.clone()
			attack.evidence.PCRValues = values
			_, err := attack.verify()
			denied(t, err, reason.PCRDigest)
		})
	}
}

// A malformed challenge is the verifier's own error, never the caller's.
func TestMalformedChallengesAreNotDenials(t *testing.T) {
	f := newForger(t)
	for name, change := range map[string]func(*tpm2.Challenge){
		"no EK":                 func(c *tpm2.Challenge) { c.EK = nil },
		"no AK":                 func(c *tpm2.Challenge) { c.AK = nil },
		"no secret":             func(c *tpm2.Challenge) { c.Secret = secret.Bytes{} },
		"short secret":          func(c *tpm2.Challenge) { c.Secret = secret.New(make([]byte, 15)) },
		"no PCR":                func(c *tpm2.Challenge) { c.PCRs = nil },
		"PCR 24":                func(c *tpm2.Challenge) { c.PCRs = []int{24} },
		"a negative PCR":        func(c *tpm2.Challenge) { c.PCRs = []int{-1} },
		"PCRs not ascending":    func(c *tpm2.Challenge) { c.PCRs = []int{11, 7} },
		"the same PCR repeated": func(c *tpm2.Challenge) { c.PCRs = []int{11, 11} },
	} {
		t.Run(name, func(t *testing.T) {
			c := f.forgery(t, nil)
			change(&c.challenge)
			q, err := c.verify()
			if q != nil || err == nil || reason.From(err).Code != reason.Internal {
				t.Errorf("%v, %v", q, err)
			}
		})
	}
	t.Run("a secret of 16 bytes is long enough", func(t *testing.T) {
		c := f.forgery(t, nil)
		k := bytes.Repeat([]byte{1}, 16)
		c.challenge.Secret, c.evidence.Activation = secret.New(k), transcript.Activation(k, c.challenge.Transcript)
		if _, err := c.verify(); err != nil {
			t.Error(err)
		}
	})
}

func bytesOf(in [][]byte) [][]byte { return append([][]byte(nil), in...) }

func mustEK(t testing.TB, public []byte) *tpm2.EK {
	t.Helper()
	ek, err := tpm2.ParseEK(public)
	if err != nil {
		t.Fatal(err)
	}
	return ek
}
