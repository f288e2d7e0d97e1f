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

// signer is the key that signs now, after the pair was stored and read again.
func signer(t *testing.T, p Pair, now time.Time) string {
	t.Helper()
	data, err := p.Data()
	if err != nil {
		t.Fatal(err)
	}
	if p, err = Parse(data); err != nil {
		t.Fatal(err)
	}
	k, ok := p.Tokens.Current(now)
	if ok != p.Usable(now) {
		t.Errorf("usable is %v and a key signs is %v", p.Usable(now), ok)
	}
	return k.ID
}

func TestBridge_SignsUntilTheKeysThatAreDatedAhead(t *testing.T) {
	ahead := made(t, Pair{}, noon.Add(9*time.Hour), 0)
	if ahead.Usable(noon) || ahead.Ahead(noon, publish).IsZero() {
		t.Fatal("the keys are not dated ahead")
	}
	p, err := ahead.Bridge(noon)
	if err != nil {
		t.Fatal(err)
	}
	// Also for a replica whose clock is a little behind.
	if got := signer(t, p, noon.Add(-ClockSkew)); got == "" || got == ahead.Tokens.Keys[0].ID {
		t.Errorf("now %q signs", got)
	}
	if got := signer(t, p, noon.Add(9*time.Hour)); got != ahead.Tokens.Keys[0].ID {
		t.Errorf("for the replica whose clock is ahead %q signs", got)
	}
	if len(p.Tokens.Keys) != 2 || len(p.Seals.Keys) != 2 {
		t.Errorf("%d token keys and %d sealing keys", len(p.Tokens.Keys), len(p.Seals.Keys))
	}
}

func TestBridge_AddsNoKeysWithoutBound(t *testing.T) {
	p, n := made(t, Pair{}, noon, 0), 0
	for now := noon.Add(-time.Hour); ; now = now.Add(-time.Hour) { // clocks that are ever further behind
		next, err := p.Bridge(now)
		if err != nil {
			break
		}
		if p, n = next, n+1; n > mostKeys {
			t.Fatalf("%d keys", len(p.Tokens.Keys))
		}
	}
	if signer(t, p, noon) == "" {
		t.Error("no key signs")
	}
}

// A key of the far future neither stops rotation, nor keeps its predecessor valid.
func TestRotate_DropsKeysOfTheFarFuture(t *testing.T) {
	p, err := made(t, Pair{}, noon.AddDate(10, 0, 0), 0).Bridge(noon)
	if err != nil {
		t.Fatal(err)
	}
	month := 30 * 24 * time.Hour
	if p.Rotating(noon) || !p.Due(noon, month).Equal(noon.Add(month)) {
		t.Errorf("rotating %v, due %v", p.Rotating(noon), p.Due(noon, month))
	}
	next := made(t, p, noon.Add(month), publish)
	if len(next.Tokens.Keys) != 2 || !next.Ahead(noon.Add(month), publish).IsZero() {
		t.Errorf("the keys are %+v", next.Tokens.Keys)
	}
	if at := next.Tokens.Keys[0].NotAfter; !at.Equal(noon.Add(month + publish)) {
		t.Errorf("the key before ends at %v", at)
	}
}
