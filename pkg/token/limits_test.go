// SPDX-License-Identifier: Apache-2.0

package token_test

import (
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/token"
)

func TestSign_AnHourIsTheLongestLifetime(t *testing.T) {
	s, _ := goldenKeys(t)
	for lifetime, ok := range map[time.Duration]bool{time.Hour: true, time.Hour + time.Second: false} {
		c := claims()
		c.Expiry = noon.Add(lifetime)
		if _, err := s.Sign(noon, c); (err == nil) != ok {
			t.Errorf("%s: %v", lifetime, err)
		}
	}
}

// A replica accepts tokens of replicas whose clocks are up to five minutes ahead.
func TestVerify_FiveMinutesBetweenTwoClocks(t *testing.T) {
	s, _ := goldenKeys(t)
	raw := golden(t, "token.golden.txt")
	if _, err := s.Verify(noon.Add(-5*time.Minute), raw); err != nil {
		t.Error(err)
	}
	_, err := s.Verify(noon.Add(-5*time.Minute-time.Second), raw)
	want(t, err, reason.Internal)
}

// A token has at most 4096 bytes. A longer one is not even split.
func TestVerify_SizeOfAToken(t *testing.T) {
	s, _ := goldenKeys(t)
	for n, message := range map[int]string{4096: "1 parts", 4097: "4097 bytes"} {
		_, err := s.Verify(noon, []byte(strings.Repeat("a", n)))
		want(t, err, reason.TokenInvalid)
		if !strings.Contains(err.Error(), message) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}

// Anyone can send a token with any name, which an error must not repeat.
func TestVerify_ErrorIsShort(t *testing.T) {
	s, key := goldenKeys(t)
	for _, name := range []string{strings.Repeat("a", 2900), strings.Repeat("\U000E0001", 700)} {
		_, err := s.Verify(noon, es256(t, key, `{"`+name+`":1}`, "{}"))
		want(t, err, reason.TokenInvalid)
		if len(err.Error()) > 500 {
			t.Errorf("an error of %d bytes", len(err.Error()))
		}
	}
}

// Rotation produces fewer than 16 keys.
func TestParseKeySet_SixteenKeys(t *testing.T) {
	var s token.KeySet
	for i := range 17 {
		next := rotate(t, token.KeySet{}, noon, 0)
		s.Keys = append(s.Keys, next.Keys...)
		raw, err := s.EncodeSecret()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := token.ParseKeySet(raw.Expose()); (err == nil) != (i < 16) {
			t.Errorf("%d keys: %v", i+1, err)
		}
	}
}
