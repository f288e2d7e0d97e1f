// SPDX-License-Identifier: Apache-2.0

package seal_test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/seal"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
)

var epoch = time.UnixMilli(1_800_000_000_123)

func ring(t testing.TB) seal.Ring {
	t.Helper()
	r, err := seal.Ring{}.Rotate(rand.Reader, epoch, 0, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func challenge() seal.Challenge {
	return seal.Challenge{
		Issued: epoch, Nonce: bytes.Repeat([]byte{1}, 32), Secret: secret.New(bytes.Repeat([]byte{2}, 32)),
		Origin: "https://api-int.example:22623", Pool: "worker", PolicyHash: []byte{3, 4},
		Required: []evidence.Kind{evidence.TPM2, evidence.AWSIID}, Bank: 11, PCRs: []int{0, 7, 11},
		EKPublic: []byte("ek"), AKPublic: []byte("ak"), EKCertificates: [][]byte{[]byte("leaf"), []byte("ca")},
		Binding: "exporter", Exporter: bytes.Repeat([]byte{5}, 32),
	}
}

func wantCode(t *testing.T, err error, want reason.Code) {
	t.Helper()
	if d := reason.From(err); d == nil || d.Code != want {
		t.Errorf("got %v, want %v", err, want)
	}
}

func TestSealAndOpen(t *testing.T) {
	r := ring(t)
	for name, c := range map[string]seal.Challenge{
		"full": challenge(),
		"empty": {Issued: epoch, Nonce: []byte{}, Secret: secret.New([]byte{}), PolicyHash: []byte{}, EKPublic: []byte{},
			AKPublic: []byte{}, Exporter: []byte{}},
	} {
		sealed, err := r.Seal(rand.Reader, epoch, c)
		if err != nil {
			t.Fatal(err)
		}
		got, err := r.Open(sealed)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, c) {
			t.Errorf("%s: got %+v\nwant %+v", name, got, c)
		}
	}
}

func TestAttack_T44_ChallengeForgedOrAltered(t *testing.T) {
	r := ring(t)
	sealed, err := r.Seal(rand.Reader, epoch, challenge())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Open(sealed); err != nil {
		t.Fatal("the valid challenge is denied:", err)
	}
	for i := range sealed {
		for bit := range 8 {
			bad := bytes.Clone(sealed)
			bad[i] ^= 1 << bit
			if _, err := r.Open(bad); err == nil {
				t.Fatalf("bit %d of byte %d flipped, and it opened", bit, i)
			}
		}
	}
	for n := range sealed {
		if _, err := r.Open(sealed[:n]); err == nil {
			t.Fatalf("cut to %d bytes, and it opened", n)
		}
	}
	_, err = r.Open(append(bytes.Clone(sealed), 0))
	wantCode(t, err, reason.ChallengeInvalid)
	_, err = ring(t).Open(sealed)
	wantCode(t, err, reason.ChallengeKeyUnknown)
	_, err = r.Open(make([]byte, seal.MaxSize+1))
	wantCode(t, err, reason.TooLarge)
}

func TestAttack_T44_ChallengeExpired(t *testing.T) {
	c := challenge()
	if err := c.Fresh(epoch.Add(2*time.Minute), 2*time.Minute); err != nil {
		t.Error("at the end of its life:", err)
	}
	wantCode(t, c.Fresh(epoch.Add(2*time.Minute+time.Millisecond), 2*time.Minute), reason.ChallengeExpired)
	if err := c.Fresh(epoch.Add(-5*time.Minute), 2*time.Minute); err != nil {
		t.Error("another replica's clock five minutes ahead:", err)
	}
	wantCode(t, c.Fresh(epoch.Add(-6*time.Minute), 2*time.Minute), reason.ChallengeExpired)
}

func TestAttack_T44_ChallengeFromBeforeAKeyRotation(t *testing.T) {
	const publish, keep = 10 * time.Minute, 7 * time.Minute
	old := ring(t)
	sealed, err := old.Seal(rand.Reader, epoch, challenge())
	if err != nil {
		t.Fatal(err)
	}
	rotated, err := old.Rotate(rand.Reader, epoch, publish, keep)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := rotated.Open(sealed); err != nil {
		t.Error("a challenge in flight is lost by a rotation:", err)
	}
	// A replica without the new key in use must already open what others seal with it.
	early, err := rotated.Seal(rand.Reader, epoch.Add(publish-time.Second), challenge())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := old.Open(early); err != nil {
		t.Error("the new key was used before every replica could have it:", err)
	}
	late, err := rotated.Seal(rand.Reader, epoch.Add(publish), challenge())
	if err != nil {
		t.Fatal(err)
	}
	_, err = old.Open(late)
	wantCode(t, err, reason.ChallengeKeyUnknown)
	next, err := rotated.Rotate(rand.Reader, epoch.Add(publish+keep+time.Second), publish, keep)
	if err != nil {
		t.Fatal(err)
	}
	_, err = next.Open(sealed)
	wantCode(t, err, reason.ChallengeKeyUnknown)
	if _, err := next.Open(late); err != nil {
		t.Error("the current key was dropped:", err)
	}
}

func TestRing_EncodesAndPrintsNoSecret(t *testing.T) {
	r := ring(t)
	doc, err := r.EncodeSecret()
	if err != nil {
		t.Fatal(err)
	}
	back, err := seal.ParseRing(doc.Expose())
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := r.Seal(rand.Reader, epoch, challenge())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := back.Open(sealed); err != nil {
		t.Error(err)
	}
	if s := fmt.Sprintf("%v %+v", r, doc); bytes.Contains([]byte(s), r.Keys[0].Secret.Expose()) {
		t.Error("printed a key")
	}
	for _, bad := range []string{"", "{}", `{"keys":[{"id":"00","key":"AA=="}]}`,
		`{"keys":[{"id":"0011223344556677","key":"AA=="}]}`} {
		if _, err := seal.ParseRing([]byte(bad)); err == nil {
			t.Errorf("accepted %q", bad)
		}
	}
	if _, err := (seal.Ring{}).Seal(rand.Reader, epoch, challenge()); !errors.Is(err, seal.ErrNoKey) {
		t.Errorf("an empty ring sealed: %v", err)
	}
}

// The clock of the replica that created the keys is ahead.
func TestSeal_WithKeysFromTheFuture(t *testing.T) {
	ahead, err := ring(t).Rotate(rand.Reader, epoch, time.Minute, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for name, keys := range map[string][]seal.Key{"in order": ahead.Keys, "in disorder": {ahead.Keys[1], ahead.Keys[0]}} {
		r := seal.Ring{Keys: keys}
		for now, want := range map[time.Time]seal.Key{
			epoch.Add(-9 * time.Hour): ahead.Keys[0], // no key is in use
			epoch:                     ahead.Keys[0],
			epoch.Add(time.Minute):    ahead.Keys[1],
		} {
			sealed, err := r.Seal(rand.Reader, now, challenge())
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(sealed[1:1+len(want.ID)], want.ID[:]) {
				t.Errorf("%s, at %s: sealed under another key", name, now)
			}
			if _, err := r.Open(sealed); err != nil {
				t.Error(err)
			}
		}
	}
}

func FuzzOpen(f *testing.F) {
	r := ring(f)
	good, err := r.Seal(rand.Reader, epoch, challenge())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[:40])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, raw []byte) {
		if _, err := r.Open(raw); err == nil && !bytes.Equal(raw, good) {
			t.Error("opened something that was never sealed")
		}
	})
}
