// SPDX-License-Identifier: Apache-2.0

package keys

import (
	"testing"
	"time"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

const publish = 10 * time.Minute

func made(t *testing.T, p Pair, now time.Time, publish time.Duration) Pair {
	t.Helper()
	p, err := p.Rotate(now, publish)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// stored is the pair after it was stored and read again.
func stored(t *testing.T, p Pair) Pair {
	t.Helper()
	data, err := p.Data()
	if err != nil {
		t.Fatal(err)
	}
	if p, err = Parse(data); err != nil {
		t.Fatal(err)
	}
	return p
}

// signer is the key that signs now, after the pair was stored and read again.
func signer(t *testing.T, p Pair, now time.Time) string {
	t.Helper()
	p = stored(t, p)
	k, signs := p.Tokens.Current(now)
	if _, seals := p.Seals.Current(now); !signs || !seals {
		t.Errorf("a key signs: %v, a key seals: %v", signs, seals)
	}
	return k.ID
}

// No replica is without a key, whatever its clock and that of the process that makes the keys.
func TestKeysAreInUseAtEveryClock(t *testing.T) {
	for _, maker := range []time.Duration{0, 9 * time.Hour, -9 * time.Hour, 10 * 365 * 24 * time.Hour} {
		p := made(t, Pair{}, noon.Add(maker), 0)
		for _, clock := range []time.Duration{0, ClockSkew, -ClockSkew, 9 * time.Hour, -9 * time.Hour,
			-10 * 365 * 24 * time.Hour} {
			if got := signer(t, p, noon.Add(clock)); got != p.Tokens.Keys[0].ID {
				t.Errorf("made by a clock of %v, at %v: %q signs", maker, clock, got)
			}
		}
		if ahead := !p.Ahead(noon, publish).IsZero(); ahead != (maker > time.Hour) {
			t.Errorf("made by a clock of %v: dated ahead %v", maker, ahead)
		}
	}
}

// Processes with different clocks make the keys in turn. Each makes at most one before another had its turn.
func TestClocksThatDifferDoNotLoop(t *testing.T) {
	const month = 30 * 24 * time.Hour
	for name, clocks := range map[string][]time.Duration{
		"hours ahead":  {9 * time.Hour, 0},
		"hours behind": {-9 * time.Hour, 0},
		"both":         {9 * time.Hour, -9 * time.Hour, 0},
		"years":        {10 * 365 * 24 * time.Hour, 0},
	} {
		var p Pair
		writes := 0
		for turn := range 60 { // ten minutes each
			now := noon.Add(time.Duration(turn) * publish).Add(clocks[turn%len(clocks)])
			if turn > 0 && (p.Rotating(now) || now.Before(p.Due(now, month))) {
				continue
			}
			p, writes = stored(t, made(t, p, now, publish)), writes+1
			signer(t, p, noon.Add(time.Duration(turn)*publish))
		}
		if writes > 3 || len(p.Tokens.Keys) > 3 || len(p.Seals.Keys) > 3 {
			t.Errorf("%s: written %d times, %d token keys, %d sealing keys", name, writes, len(p.Tokens.Keys), len(p.Seals.Keys))
		}
	}
}

// A key of the far future neither stops rotation, nor keeps its predecessor valid.
func TestRotate_DropsKeysOfTheFarFuture(t *testing.T) {
	first := made(t, Pair{}, noon, 0)
	p := stored(t, made(t, first, noon.AddDate(10, 0, 0), 0)) // a clock that is years ahead rotates
	month := 30 * 24 * time.Hour
	if p.Rotating(noon) || !p.Due(noon, month).Equal(noon.Add(month)) {
		t.Errorf("rotating %v, due %v", p.Rotating(noon), p.Due(noon, month))
	}
	next := stored(t, made(t, p, noon.Add(month), publish))
	if len(next.Tokens.Keys) != 2 || next.Tokens.Keys[0].ID != first.Tokens.Keys[0].ID ||
		!next.Ahead(noon.Add(month), publish).IsZero() {
		t.Errorf("the keys are %+v", next.Tokens.Keys)
	}
	if at := next.Tokens.Keys[0].NotAfter; !at.Equal(noon.Add(month + publish)) {
		t.Errorf("the key before ends at %v", at)
	}
}

// All keys are of the far future. The replicas use the earliest, until its successor was published to all of them.
func TestRotate_KeepsTheKeyThatIsUsedEarly(t *testing.T) {
	ahead := made(t, Pair{}, noon.AddDate(10, 0, 0), 0)
	if due := ahead.Due(noon, time.Hour); due.After(noon) {
		t.Errorf("due at %v", due)
	}
	next := stored(t, made(t, ahead, noon, publish))
	if len(next.Tokens.Keys) != 2 || len(next.Seals.Keys) != 2 || !next.Ahead(noon, publish).IsZero() {
		t.Fatalf("the keys are %+v", next.Tokens.Keys)
	}
	if got := signer(t, next, noon); got != ahead.Tokens.Keys[0].ID {
		t.Errorf("%s signs before each replica has it", got)
	}
	if got := signer(t, next, noon.Add(publish)); got != next.Tokens.Keys[1].ID {
		t.Errorf("%s signs", got)
	}
}
