// SPDX-License-Identifier: Apache-2.0

package provisioning

import (
	"errors"
	"testing"
	"time"
)

func TestView_KeepsTheLastValidState(t *testing.T) {
	want := func(v View, now time.Time, presence Presence, current string, broken bool) {
		t.Helper()
		tokens, p := v.At(now)
		if p != presence || text(tokens.Current) != current || (v.Err() != nil) != broken {
			t.Errorf("%v %q %v, want %v %q", p, tokens.Current.Expose(), v.Err(), presence, current)
		}
	}
	read := func(v View, pairs ...string) View {
		next, _ := v.Read(noon, data(pairs...), time.Hour)
		return next
	}
	var none View
	want(none, noon, Unknown, "", false)
	want(none.Failed(errors.New("no API server")), noon, Unknown, "", true)
	want(none.Gone(noon), noon, Absent, "", false)
	want(none.Gone(noon).Failed(errors.New("no API server")), noon, Absent, "", true)

	good := read(none, KeyToken, tokenA)
	want(good, noon, Present, tokenA, false)
	want(good.Failed(errors.New("no API server")), noon, Present, tokenA, true)
	want(read(good, KeyToken, "short"), noon, Present, tokenA, true)
	want(read(read(good, KeyToken, "short"), KeyToken, tokenA), noon, Present, tokenA, false)

	// An invalid Secret does not count as absent.
	want(read(none, KeyToken, "short"), noon, Unknown, "", true)
	want(read(none.Gone(noon), KeyToken, "short"), noon, Unknown, "", true)

	// After a deletion the token stays in force for a moment, because it may return.
	gone := good.Gone(noon).Gone(noon.Add(5 * time.Second))
	want(gone, noon.Add(10*time.Second-1), Present, tokenA, false)
	want(gone, noon.Add(10*time.Second), Absent, "", false)
	want(gone.Failed(errors.New("x")), noon.Add(10*time.Second), Absent, "", true)
	want(read(gone, KeyToken, tokenA), noon.Add(time.Hour), Present, tokenA, false)
}

// A11, A12: every replica immediately applies the grace period after an edit. The value
// written back gives it to replicas that start later.
func TestView_GivesAnEditAGracePeriod(t *testing.T) {
	first, back := View{}.Read(noon, data(KeyToken, tokenA), time.Hour)
	if back != nil {
		t.Fatal("a first token is written back")
	}
	edited, back := first.Read(noon, data(KeyToken, tokenB), time.Hour)
	if back == nil {
		t.Fatal("an edit is not written back")
	}
	later, again := View{}.Read(noon.Add(time.Minute), back.Data(), time.Hour)
	if again != nil {
		t.Error("written back twice")
	}
	settled, again := edited.Read(noon.Add(time.Minute), back.Data(), time.Hour)
	if again != nil {
		t.Error("its own writing is taken for an edit")
	}
	for name, v := range map[string]View{"the replica that saw it": edited, "one that started later": later,
		"after the writing": settled} {
		for at, want := range map[time.Duration]Match{time.Minute: Previous, time.Hour - 1: Previous, time.Hour: Expired} {
			tokens, _ := v.At(noon.Add(at))
			if got := tokens.Check(noon.Add(at), []byte(tokenA)); got != want {
				t.Errorf("%s after %v: %v, want %v", name, at, got, want)
			}
			if tokens.Check(noon.Add(at), []byte(tokenB)) != Current {
				t.Errorf("%s: the new token does not open", name)
			}
		}
	}
	// Replaced by deleting and creating it: the same grace period.
	replaced, back := first.Gone(noon).Read(noon.Add(time.Second), data(KeyToken, tokenB), time.Hour)
	if tokens, _ := replaced.At(noon.Add(time.Second)); back == nil ||
		tokens.Check(noon.Add(time.Second), []byte(tokenA)) != Previous {
		t.Error("no grace period for a Secret that was deleted and created again")
	}
	// Deleted permanently, and a new one much later: no grace period.
	fresh, back := first.Gone(noon).Read(noon.Add(time.Hour), data(KeyToken, tokenB), time.Hour)
	if tokens, _ := fresh.At(noon.Add(time.Hour)); back != nil ||
		tokens.Check(noon.Add(time.Hour), []byte(tokenA)) != None {
		t.Error("a token from before the deletion is valid again")
	}
}
