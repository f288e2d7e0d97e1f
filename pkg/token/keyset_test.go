// SPDX-License-Identifier: Apache-2.0

package token_test

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/token"
)

const publish = 10 * time.Minute

func rotate(t *testing.T, s token.KeySet, now time.Time, delay time.Duration) token.KeySet {
	t.Helper()
	s, err := s.Rotate(now, rand.Reader, delay)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func signAt(t *testing.T, s token.KeySet, now time.Time, life time.Duration) []byte {
	t.Helper()
	c := claims()
	c.IssuedAt, c.NotBefore, c.Expiry = now, now, now.Add(life)
	raw, err := s.Sign(now, c)
	if err != nil {
		t.Fatal(err)
	}
	return raw.Expose()
}

func TestRotate_NewKeySignsAfterPublication(t *testing.T) {
	first := rotate(t, token.KeySet{}, noon, 0)
	both := rotate(t, first, noon.Add(time.Hour), publish)
	takeover := noon.Add(time.Hour + publish)
	for _, c := range []struct {
		name string
		now  time.Time
		key  token.Key
	}{
		{"the first key signs immediately", noon, both.Keys[0]},
		{"a second before the takeover the old one signs", takeover.Add(-time.Second), both.Keys[0]},
		{"from the takeover on the new one signs", takeover, both.Keys[1]},
		{"and goes on to", takeover.Add(1000 * time.Hour), both.Keys[1]},
	} {
		got, ok := both.Current(c.now)
		if !ok || got.ID != c.key.ID {
			t.Errorf("%s: got %v, %t", c.name, got.ID, ok)
		}
	}
	if len(first.Keys) != 1 || !first.Keys[0].NotAfter.IsZero() {
		t.Errorf("the first set was changed: %+v", first)
	}
	// A replica that already has the new key accepts its tokens, even from a replica whose clock is
	// ahead.
	raw := signAt(t, both, takeover, time.Hour)
	if _, err := both.Verify(takeover.Add(-token.Leeway), raw); err != nil {
		t.Error(err)
	}
	// A replica without the new key returns a temporary denial.
	_, err := first.Verify(takeover, raw)
	want(t, err, reason.TokenKeyUnknown)
}

func TestRotate_RejectsASecondRotation(t *testing.T) {
	s := rotate(t, rotate(t, token.KeySet{}, noon, 0), noon, publish)
	got, err := s.Rotate(noon.Add(publish-time.Second), rand.Reader, publish)
	if !errors.Is(err, token.ErrRotating) || len(got.Keys) != 2 {
		t.Errorf("got %d keys, %v", len(got.Keys), err)
	}
	if s = rotate(t, s, noon.Add(publish), publish); len(s.Keys) != 3 {
		t.Errorf("%d keys", len(s.Keys))
	}
}

func TestCurrent_NewerOfTwoKeysOfOneSecond(t *testing.T) {
	s := rotate(t, rotate(t, token.KeySet{}, noon, 0), noon, 0)
	for _, now := range []time.Time{noon, noon.Add(time.Hour)} {
		if k, _ := s.Current(now); k.ID != s.Keys[1].ID {
			t.Errorf("%s: the retired key signs", now)
		}
	}
}

// A stored set with more keys than ParseKeySet reads would stop every replica that starts, and each later rotation.
func TestRotate_StoresNoMoreKeysThanCanBeRead(t *testing.T) {
	var set token.KeySet
	now, rejected := noon, 0
	for range 120 {
		now = now.Add(2 * time.Minute)
		next, err := set.Prune(now, token.MaxLifetime+token.Leeway).Rotate(now, rand.Reader, time.Minute)
		if err != nil {
			rejected++
			continue
		}
		set = next
		raw, err := set.EncodeSecret()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := token.ParseKeySet(raw.Expose()); err != nil {
			t.Fatalf("after %v: %v", now.Sub(noon), err)
		}
	}
	if rejected == 0 || now.Sub(set.Keys[len(set.Keys)-1].NotBefore) > time.Hour {
		t.Errorf("%d rotations were rejected, the last key is of %v", rejected, set.Keys[len(set.Keys)-1].NotBefore)
	}
}

func TestAttack_T45_ARotatedOutKey(t *testing.T) {
	first := rotate(t, token.KeySet{}, noon, 0)
	takeover := noon.Add(publish)
	both := rotate(t, first, noon, publish)
	// The last token of the old key has the full lifetime of a token.
	last := signAt(t, both, takeover.Add(-time.Second), token.MaxLifetime)
	if _, err := both.Verify(takeover.Add(token.MaxLifetime-2*time.Second), last); err != nil {
		t.Errorf("a valid token of the old key: %v", err)
	}

	// An attacker with the old key cannot issue a token after the key's time ...
	late := signAt(t, first, takeover.Add(token.Leeway+time.Second), time.Minute)
	_, err := both.Verify(takeover.Add(token.Leeway+time.Second), late)
	want(t, err, reason.TokenInvalid)
	// ... and after its time and the lifetime of a token the key is useless, even if Prune is never
	// called.
	end := takeover.Add(token.MaxLifetime + token.Leeway)
	_, err = both.Verify(end.Add(time.Second), last)
	want(t, err, reason.TokenExpired)
	later := signAt(t, first, end, time.Hour)
	_, err = both.Verify(end.Add(time.Second), later)
	want(t, err, reason.TokenKeyUnknown)
}

// The clock of the replica that created the keys is ahead.
func TestSign_WithKeysFromTheFuture(t *testing.T) {
	ahead := rotate(t, rotate(t, token.KeySet{}, noon.Add(9*time.Hour), 0), noon.Add(9*time.Hour), publish)
	for name, keys := range map[string][]token.Key{"in order": ahead.Keys, "in disorder": {ahead.Keys[1], ahead.Keys[0]}} {
		s := token.KeySet{Keys: keys}
		for now, want := range map[time.Time]token.Key{
			noon:                                 ahead.Keys[0], // no key is in use
			noon.Add(9 * time.Hour):              ahead.Keys[0],
			noon.Add(9*time.Hour + publish):      ahead.Keys[1],
			noon.Add(-10 * 365 * 24 * time.Hour): ahead.Keys[0],
		} {
			if k, ok := s.Current(now); !ok || k.ID != want.ID {
				t.Errorf("%s, at %s: %s signs, not %s", name, now, k.ID, want.ID)
			}
		}
		// Each replica accepts the token, also after its own clock has reached that time.
		if _, err := s.Verify(noon.Add(time.Minute), signAt(t, s, noon, time.Hour)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, ok := (token.KeySet{}).Current(noon); ok {
		t.Error("an empty set signs")
	}
}

// No replica signs with the next key while another one is in use, so such a token is forged.
func TestAttack_T45_AKeyBeforeItsTime(t *testing.T) {
	both := rotate(t, rotate(t, token.KeySet{}, noon, 0), noon.Add(time.Hour), publish)
	next := token.KeySet{Keys: both.Keys[1:]}
	early := noon.Add(time.Hour + publish - token.Leeway - time.Second)
	raw := signAt(t, next, early, time.Hour)
	_, err := both.Verify(early, raw)
	want(t, err, reason.TokenInvalid)
	if _, err := next.Verify(early, raw); err != nil {
		t.Errorf("where it is the only key: %v", err)
	}
}

func TestPrune_KeepsAKeyForTheLifetimeOfAToken(t *testing.T) {
	both := rotate(t, rotate(t, token.KeySet{}, noon, 0), noon, publish)
	keep := token.MaxLifetime + token.Leeway
	end := noon.Add(publish + keep)
	if got := both.Prune(end, keep); len(got.Keys) != 2 {
		t.Errorf("at the last moment: %d keys", len(got.Keys))
	}
	if got := both.Prune(end.Add(1), keep); len(got.Keys) != 1 || got.Keys[0].ID != both.Keys[1].ID {
		t.Errorf("afterwards: %+v", got.Keys)
	}
	if got := both.Prune(end.Add(10000*time.Hour), keep); len(got.Keys) != 1 {
		t.Errorf("the current key went as well: %+v", got.Keys)
	}
	if len(both.Keys) != 2 {
		t.Error("the set itself was changed")
	}
}

func TestKeySet_PrintsNoPrivateKey(t *testing.T) {
	s, key := goldenKeys(t)
	d, err := key.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := s.EncodeSecret()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	log := slog.New(slog.NewJSONHandler(&out, nil))
	text := slog.New(slog.NewTextHandler(&out, nil))
	for _, v := range []any{s, &s, s.Keys, s.Keys[0], &s.Keys[0], encoded,
		token.Checker{Keys: func() token.KeySet { return s }}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
			fmt.Fprintf(&out, verb+"\n", v)
		}
		log.Info("keys", "v", v)
		text.Info("keys", "v", v)
		if j, err := json.Marshal(v); err == nil {
			out.Write(j)
		}
	}
	for name, form := range map[string]string{
		"base64url": b64(d), "hex": fmt.Sprintf("%x", d), "HEX": fmt.Sprintf("%X", d),
		"decimal": new(big.Int).SetBytes(d).String(), "list": strings.Trim(fmt.Sprint(d), "[]"),
	} {
		if strings.Contains(out.String(), form) {
			t.Errorf("the private key is printed in %s", name)
		}
	}
	if !strings.Contains(out.String(), s.Keys[0].ID) {
		t.Error("not even the key's id is printed: the test looks at nothing")
	}
}

func TestKeySet_EncodeAndParse(t *testing.T) {
	s := rotate(t, rotate(t, token.KeySet{}, noon.Add(123456789), 0), noon.Add(time.Minute), publish)
	raw, err := s.EncodeSecret()
	if err != nil {
		t.Fatal(err)
	}
	back, err := token.ParseKeySet(raw.Expose())
	if err != nil {
		t.Fatal(err)
	}
	for i, k := range s.Keys {
		b := back.Keys[i]
		if b.ID != k.ID || !b.PublishedAt.Equal(k.PublishedAt) || !b.NotBefore.Equal(k.NotBefore) ||
			!b.NotAfter.Equal(k.NotAfter) {
			t.Errorf("key %d: %+v became %+v", i, k, b)
		}
	}
	at := noon.Add(time.Hour)
	if _, err := back.Verify(at, signAt(t, s, at, time.Hour)); err != nil {
		t.Error(err)
	}
	golden := golden(t, "keys.golden.json")
	s, _ = goldenKeys(t)
	if raw, err := s.EncodeSecret(); err != nil || !bytes.Equal(raw.Expose(), golden) {
		t.Errorf("the form at rest has changed (%v)", err)
	}
}

func TestParseKeySet_RejectsInvalidSets(t *testing.T) {
	good := string(golden(t, "keys.golden.json"))
	s, _ := goldenKeys(t)
	other := rotate(t, token.KeySet{}, noon, 0)
	otherRaw, err := other.EncodeSecret()
	if err != nil {
		t.Fatal(err)
	}
	field := func(raw []byte, name string) string {
		t.Helper()
		_, rest, ok := strings.Cut(string(raw), `"`+name+`": "`)
		if !ok {
			t.Fatalf("no field %s", name)
		}
		value, _, _ := strings.Cut(rest, `"`)
		return value
	}
	replace := func(old, new string) string {
		t.Helper()
		if !strings.Contains(good, old) {
			t.Fatalf("no %s", old)
		}
		return strings.Replace(good, old, new, 1)
	}
	start, end := strings.Index(good, "["), strings.LastIndex(good, "]")
	entry := good[start+1 : end]
	for name, raw := range map[string]string{
		"empty":                     "",
		"null":                      "null",
		"no keys":                   `{"keys":[]}`,
		"a key that is null":        `{"keys":[null]}`,
		"keys twice":                `{"keys":[],"keys":[` + entry + `]}`,
		"Keys in another case":      replace(`"keys"`, `"Keys"`),
		"another member":            replace(`"keys"`, `"x":1,"keys"`),
		"trailing bytes":            good + "{}",
		"the same key twice":        `{"keys":[` + entry + `,` + entry + `]}`,
		"seventeen keys":            `{"keys":[` + strings.Repeat(entry+",", 16) + entry + `]}`,
		"a kid that is not its own": replace(s.Keys[0].ID, other.Keys[0].ID),
		"no private part":           replace(`"d": "`+field([]byte(good), "d")+`"`, `"use": "sig"`),
		"another key's private part: its signatures would not verify": replace(field([]byte(good), "d"),
			field(otherRaw.Expose(), "d")),
		"another curve's name":     replace(`"P-256"`, `"P-384"`),
		"no notBefore":             replace(`"notBefore"`, `"notBfore"`),
		"notAfter before its time": replace(`"notBefore"`, `"notAfter": "2001-01-01T00:00:00Z", "notBefore"`),
		"half of it":               good[:len(good)/2],
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := token.ParseKeySet([]byte(raw)); err == nil {
				t.Error("accepted")
			} else if strings.Contains(err.Error(), field([]byte(good), "d")) {
				t.Errorf("the error prints the key: %v", err)
			}
		})
	}
}

func FuzzKeySetJSON(f *testing.F) {
	f.Add(golden(f, "keys.golden.json"))
	f.Add([]byte(`{"keys":[{"jwk":{"kty":"EC"}}]}`))
	f.Add([]byte(`{"keys":[{"jwk":{"kty":"oct","k":"AA"}}]}`))
	f.Add([]byte(`{"keys":[null]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		s, err := token.ParseKeySet(raw)
		if err != nil {
			return
		}
		// Every accepted set can be stored and read again, and signs or returns an error.
		again, err := s.EncodeSecret()
		if err != nil {
			t.Fatalf("cannot be kept: %v", err)
		}
		if _, err := token.ParseKeySet(again.Expose()); err != nil {
			t.Fatalf("cannot be read again: %v\n%s", err, raw)
		}
		if _, err := s.Sign(noon, claims()); err != nil && !errors.Is(err, token.ErrNoKey) {
			t.Fatalf("cannot sign: %v", err)
		}
	})
}
