// SPDX-License-Identifier: Apache-2.0

package seal

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
)

var noon = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

func newRing(t *testing.T) Ring {
	t.Helper()
	r, err := Ring{}.Rotate(rand.Reader, noon, 0, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Nothing is sealed with a nonce or a key that is not random, or with a key that is not whole.
func TestSeal_FailsWithoutRandomBytesOrAKey(t *testing.T) {
	r := newRing(t)
	half := Ring{Keys: []Key{{ID: r.Keys[0].ID, Secret: secret.New(make([]byte, 16))}}}
	dry := func() io.Reader { return strings.NewReader("short") }
	for name, c := range map[string]struct {
		ring Ring
		rand io.Reader
		want error // nil: any error
	}{
		"no key": {Ring{}, rand.Reader, ErrNoKey}, "half a key": {half, rand.Reader, nil},
		"a source that ran dry": {r, nil, io.ErrUnexpectedEOF},
	} {
		source := func() io.Reader {
			if c.rand == nil {
				return dry()
			}
			return c.rand
		}
		sealed, challengeErr := c.ring.Seal(source(), noon, Challenge{})
		report, reportErr := c.ring.SealTicket(source(), noon, Ticket{})
		certify, certifyErr := c.ring.SealCertifyTicket(source(), noon, CertifyTicket{})
		if len(sealed)+len(report)+len(certify) > 0 {
			t.Errorf("%s: something was sealed", name)
		}
		for what, err := range map[string]error{"a challenge": challengeErr, "a report ticket": reportErr,
			"a certify ticket": certifyErr} {
			if err == nil || c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("%s, %s: %v", name, what, err)
			}
		}
	}
	if same, err := r.Rotate(dry(), noon.Add(time.Hour), 0, 0); err == nil || !reflect.DeepEqual(same, r) {
		t.Errorf("a key from a source that ran dry: %v", err)
	}
	sealed, err := r.Seal(rand.Reader, noon, Challenge{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := half.Open(sealed); reason.From(err).Code != reason.ChallengeKeyUnknown {
		t.Errorf("half a key opens: %v", err)
	}
}

func TestSeal_SizesOfAChallenge(t *testing.T) {
	r := newRing(t)
	empty, err := r.Seal(rand.Reader, noon, Challenge{})
	if err != nil {
		t.Fatal(err)
	}
	for size, ok := range map[int]bool{64 << 10: true, 64<<10 + 1: false} {
		sealed, err := r.Seal(rand.Reader, noon, Challenge{Origin: strings.Repeat("o", size-len(empty))})
		if (err == nil) != ok || ok && len(sealed) != size || !ok && reason.From(err).Code != reason.TooLarge {
			t.Errorf("%d bytes: %d, %v", size, len(sealed), err)
		}
	}
	const least = 1 + 8 + 24 + 16 // algorithm, key, nonce and tag
	for size, want := range map[int]reason.Code{least - 1: reason.Malformed, least: reason.ChallengeInvalid} {
		if _, err := r.Open(empty[:size]); reason.From(err).Code != want {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
}

// A version with other fields may have sealed it: no part of a challenge is taken for the whole.
func TestChallenge_ReadsOnlyTheWholeEncoding(t *testing.T) {
	c := Challenge{Issued: noon, Nonce: []byte{1}, Secret: secret.New([]byte{2}), Origin: "o", Pool: "p",
		PolicyHash: []byte{3}, Required: nil, PCRs: []int{11}, EKPublic: []byte{4}, AKPublic: []byte{5},
		EKCertificates: [][]byte{{6}}, AKCertificates: [][]byte{{7}, {8}}, Binding: "b", Exporter: []byte{9}}
	plain, err := c.marshal()
	if err != nil {
		t.Fatal(err)
	}
	var got Challenge
	if err := got.unmarshal(plain); err != nil || len(got.AKCertificates) != 2 || !bytes.Equal(got.Exporter, c.Exporter) {
		t.Fatalf("%+v, %v", got, err)
	}
	for n := range plain {
		if err := new(Challenge).unmarshal(plain[:n]); err == nil {
			t.Errorf("%d of %d bytes are a challenge", n, len(plain))
		}
	}
	if err := new(Challenge).unmarshal(append(bytes.Clone(plain), 0)); err == nil {
		t.Error("a challenge with a byte more")
	}
	// A field that is longer than the rest is not skipped: the other fields do not make up for it.
	for name, without := range map[string]func(*Challenge){
		"nonce": func(c *Challenge) { c.Nonce = nil }, "pool": func(c *Challenge) { c.Pool = "" },
		"policy": func(c *Challenge) { c.PolicyHash = nil }, "PCRs": func(c *Challenge) { c.PCRs = nil },
		"AK": func(c *Challenge) { c.AKPublic = nil }, "exporter": func(c *Challenge) { c.Exporter = nil },
	} {
		less := c
		without(&less)
		short, err := less.marshal()
		if err != nil {
			t.Fatal(err)
		}
		at := 0 // where the field's length is
		for short[at] == plain[at] {
			at++
		}
		copy(short[at-3:], []byte{0xff, 0xff, 0xff, 0xff})
		if err := new(Challenge).unmarshal(short); err == nil {
			t.Errorf("a challenge without its %s", name)
		}
	}
}

func TestFresh_Boundaries(t *testing.T) {
	for age, want := range map[time.Duration]bool{-5*time.Minute - 1: false, -5 * time.Minute: true, 0: true,
		time.Minute: true, time.Minute + 1: false} {
		err := Challenge{Issued: noon}.Fresh(noon.Add(age), time.Minute)
		if (err == nil) != want || err != nil && reason.From(err).Code != reason.ChallengeExpired {
			t.Errorf("%v old: %v", age, err)
		}
	}
}

func TestTickets_AreValidUntilTheirEnd(t *testing.T) {
	r := newRing(t)
	report, err := r.SealTicket(rand.Reader, noon, Ticket{ID: "t", Expiry: noon})
	if err != nil {
		t.Fatal(err)
	}
	certify, err := r.SealCertifyTicket(rand.Reader, noon, CertifyTicket{TokenID: "t", Expiry: noon})
	if err != nil {
		t.Fatal(err)
	}
	for _, now := range []time.Time{noon, noon.Add(1)} {
		_, reportErr := r.OpenTicket(now, report)
		_, certifyErr := r.OpenCertifyTicket(now, certify)
		for what, err := range map[string]error{"report": reportErr, "certify": certifyErr} {
			if over := now.After(noon); over != (err != nil) || over && !strings.Contains(err.Error(),
				"expired at 2026-11-01T12:00:00Z") {
				t.Errorf("%s, at %s: %v", what, now, err)
			}
		}
	}
}

// A key stays for as long as challenges under it may be in flight.
func TestRotate_KeepsAKeyWhileItsChallengesLive(t *testing.T) {
	first := newRing(t)
	second, err := first.Rotate(rand.Reader, noon, time.Minute, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for after, want := range map[time.Duration]int{0: 3, time.Minute + time.Hour: 3, time.Minute + time.Hour + 1: 2} {
		next, err := second.Rotate(rand.Reader, noon.Add(after), time.Minute, time.Hour)
		if err != nil || len(next.Keys) != want || len(second.Keys) != 2 {
			t.Errorf("after %v: %d keys, %v", after, len(next.Keys), err)
		}
		if newest := next.Keys[len(next.Keys)-1]; !newest.NotBefore.Equal(noon.Add(after + time.Minute)) {
			t.Errorf("after %v: the newest is used from %s on", after, newest.NotBefore)
		}
	}
	if k, ok := second.Current(noon.Add(time.Minute)); !ok || k.ID != second.Keys[1].ID {
		t.Error("the newest key in use does not seal")
	}
	if _, ok := (Ring{}).Current(noon); ok {
		t.Error("an empty ring has a key")
	}
	// A proof under the older key is still one.
	proof, err := first.Prove(noon, []byte("m"))
	if err != nil || second.CheckProof(proof, []byte("m")) != nil {
		t.Errorf("a proof of a replica that has not read the new key: %v", err)
	}
}

func TestParseRing_ReportsTheFault(t *testing.T) {
	const id, key = `"0011223344556677"`, `"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="`
	entry := func(id, key string) string { return `{"keys":[{"id":` + id + `,"key":` + key + `}]}` }
	if r, err := ParseRing([]byte(entry(id, key))); err != nil || len(r.Keys) != 1 {
		t.Fatalf("%+v, %v", r, err)
	}
	for text, want := range map[string]string{
		"{": "sealing keys: unexpected end", `{"keys":[]}`: "the ring is empty",
		entry(`"00112233445566"`, key):     "key 0: id must be 8 bytes",
		entry(`"001122334455667788"`, key): "key 0: id must be 8 bytes",
		entry(`"001122334455667x"`, key):   "key 0: id must be 8 bytes",
		entry(`"0011223344556677zz"`, key): "key 0: id must be 8 bytes",
		entry(id, `"AAAA"`):                "key 0: must be 32 bytes, is 3",
	} {
		if r, err := ParseRing([]byte(text)); err == nil || len(r.Keys) > 0 || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// box returns what a replica seals with an algorithm that this test chooses.
func (r Ring) box(t *testing.T, first byte, plain []byte) []byte {
	t.Helper()
	aead, err := r.Keys[0].aead(first & 0x0F)
	if err != nil {
		t.Fatal(err)
	}
	out := append([]byte{first}, r.Keys[0].ID[:]...)
	out = append(out, bytes.Repeat([]byte{7}, 24)...)
	return aead.Seal(out, out[9:], plain, out[:9])
}

// Replicas of other versions and in strict FIPS 140 mode read and write these first bytes.
func TestSealed_FirstBytes(t *testing.T) {
	r := newRing(t)
	c := Challenge{Issued: noon, Pool: "worker"}
	challenge, err := r.Seal(rand.Reader, noon, c)
	if err != nil {
		t.Fatal(err)
	}
	rehearsed, err := r.SealRehearsal(rand.Reader, noon, Rehearsal{Challenge: c, MachineUID: "u"})
	if err != nil {
		t.Fatal(err)
	}
	report, err := r.SealTicket(rand.Reader, noon, Ticket{ID: "t", Expiry: noon})
	if err != nil {
		t.Fatal(err)
	}
	certify, err := r.SealCertifyTicket(rand.Reader, noon, CertifyTicket{TokenID: "t", Expiry: noon})
	if err != nil {
		t.Fatal(err)
	}
	decode := func(text string) []byte {
		raw, err := base64.RawURLEncoding.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	open := map[string]func([]byte) error{
		"challenge": func(b []byte) error { _, err := r.Open(b); return err },
		"rehearsal": func(b []byte) error { _, err := r.OpenRehearsal(b); return err },
		"report": func(b []byte) error {
			_, err := r.OpenTicket(noon, base64.RawURLEncoding.EncodeToString(b))
			return err
		},
		"certify": func(b []byte) error {
			_, err := r.OpenCertifyTicket(noon, base64.RawURLEncoding.EncodeToString(b))
			return err
		},
	}
	for name, sealed := range map[string][]byte{"challenge": challenge, "rehearsal": rehearsed, "report": decode(report),
		"certify": decode(certify)} {
		kind := map[string]byte{"challenge": 0, "rehearsal": 0x20, "certify": 0x40, "report": 0x80}[name]
		if sealed[0] != kind+1 || !bytes.Equal(sealed[1:9], r.Keys[0].ID[:]) {
			t.Errorf("%s: it begins with %x", name, sealed[:9])
		}
		if err := open[name](sealed); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		aead, err := r.Keys[0].aead(xchacha)
		if err != nil {
			t.Fatal(err)
		}
		plain, err := aead.Open(nil, sealed[9:33], sealed[33:], sealed[:9])
		if err != nil {
			t.Fatal(err)
		}
		if err := open[name](r.box(t, kind+2, plain)); err != nil {
			t.Errorf("%s of a replica in strict FIPS 140 mode: %v", name, err)
		}
		if err := open[name](r.box(t, kind+2, plain[:len(plain)-1])); err == nil {
			t.Errorf("%s with a part of its content", name)
		}
	}
	for alg, want := range map[byte]int{1: 16, 2: 28} { // tag, and for GCM a nonce of its own
		if aead, err := r.Keys[0].aead(alg); err != nil || aead.Overhead() != want {
			t.Errorf("algorithm %d: %v", alg, err)
		}
	}
}

// The cause of a denial is in the audit log.
func TestOpen_NamesTheCause(t *testing.T) {
	r := newRing(t)
	sealed, err := r.Seal(rand.Reader, noon, Challenge{})
	if err != nil {
		t.Fatal(err)
	}
	altered := bytes.Clone(sealed)
	altered[len(altered)-1] ^= 1
	for want, box := range map[string][]byte{"ChallengeInvalid: sealed challenge does not authenticate": altered,
		"ChallengeInvalid: sealed challenge: broken encoding":    r.box(t, 1, []byte("x")),
		"ChallengeKeyUnknown: sealed challenge with algorithm 7": append([]byte{7}, sealed[1:]...)} {
		if _, err := r.Open(box); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	plain, err := Rehearsal{MachineUID: "u", AgentVersion: "v"}.encode(t, r)
	if err != nil {
		t.Fatal(err)
	}
	for n := range plain {
		if _, err := r.OpenRehearsal(r.box(t, 0x21, plain[:n])); reason.From(err) == nil ||
			reason.From(err).Code != reason.ChallengeInvalid {
			t.Errorf("%d of %d bytes of a rehearsal: %v", n, len(plain), err)
		}
	}
	longer := append([]byte{0xff}, plain[2:]...) // of the machine's UID, which has one byte
	if _, err := r.OpenRehearsal(r.box(t, 0x21, longer)); err == nil {
		t.Error("a rehearsal without its machine")
	}
	if _, err := newRing(t).OpenRehearsal(r.box(t, 0x21, plain)); reason.From(err).Code != reason.ChallengeKeyUnknown {
		t.Errorf("of another ring: %v", err)
	}
	ticket, err := r.SealTicket(rand.Reader, noon, Ticket{Expiry: noon})
	if err != nil {
		t.Fatal(err)
	}
	number := r.box(t, 0x81, []byte(`{"exp":"2026-11-01T12:00:00Z","id":7}`))
	if _, err := r.OpenTicket(noon, base64.RawURLEncoding.EncodeToString(number)); err == nil {
		t.Error("a ticket without its ID")
	}
	empty := append([]byte{0x81}, append(bytes.Clone(r.Keys[0].ID[:]), make([]byte, 24)...)...)
	for text, want := range map[string]string{ticket + "%": "not a ticket",
		base64.RawURLEncoding.EncodeToString(empty):      "of 33 bytes",
		base64.RawURLEncoding.EncodeToString(empty[:32]): "not a ticket"} {
		if _, err := r.OpenTicket(noon, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// encode returns the content of a sealed rehearsal.
func (c Rehearsal) encode(t *testing.T, r Ring) ([]byte, error) {
	t.Helper()
	sealed, err := r.SealRehearsal(rand.Reader, noon, c)
	if err != nil {
		return nil, err
	}
	return r.open(sealed, rehearsal)
}

// A clock that was set back gives a new key an earlier time than others have.
func TestRotate_SortsTheKeys(t *testing.T) {
	r := newRing(t)
	later, err := r.Rotate(rand.Reader, noon, time.Hour, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	back, err := later.Rotate(rand.Reader, noon.Add(-time.Hour), 0, time.Hour)
	if err != nil || len(back.Keys) != 3 || back.Keys[1].ID != r.Keys[0].ID || back.Keys[2].ID != later.Keys[1].ID {
		t.Errorf("%+v, %v", back, err)
	}
}
