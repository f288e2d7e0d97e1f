// SPDX-License-Identifier: Apache-2.0

package poolconfig

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/render"
)

func TestStore_DeletedPoolHasNoFindings(t *testing.T) {
	s := NewStore(Options{Log: slog.New(slog.DiscardHandler)})
	s.Report("", Fault{Reason: ReasonNotUsable, Text: "of no pool"})
	for _, name := range []string{"gone", "kept"} {
		s.Keep(name, render.Input{}, errors.New("unread"), Fault{Reason: ReasonNotRead, Text: name})
	}
	s.Retain(func(name string) bool { return name != "gone" })
	if got := s.Findings(); len(got) != 2 || got[0].Text != "of no pool" || got[1].Text != "kept" {
		t.Errorf("%v", got)
	}
}
