// SPDX-License-Identifier: Apache-2.0

package command

import (
	"bytes"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/agent/internal/console"
	"github.com/mcs-attest/mcs-attest/agent/internal/metadata"
)

// Each reason is printed immediately, with its hint, and once a minute while it persists.
func TestWaiting_PrintsEachReason(t *testing.T) {
	var out bytes.Buffer
	now := time.Duration(0)
	w := newWaiting(&console.Console{Out: &out, Err: &out})
	w.now = func() time.Duration { return now }
	off := &metadata.Fault{Cloud: "AWS", What: "the user data", Problem: "no answer in time", Hint: "turn it on",
		Temporary: true}
	other := errors.New("there is no config drive")
	for ; now < 5*time.Minute; now += 5 * time.Second {
		w.because(off)
		w.because(other)
	}
	for line, want := range map[string]int{
		"mcs-attest: the pointer config cannot be read yet: AWS metadata service, asked for the user data: " +
			"no answer in time; trying again\nhint: turn it on\n": 5,
		"mcs-attest: the pointer config cannot be read yet: there is no config drive; trying again\n": 5,
	} {
		if n := strings.Count(out.String(), line); n != want {
			t.Errorf("%d times, want %d:\n%s", n, want, out.String())
		}
	}
	if !strings.HasPrefix(out.String(), "mcs-attest: the pointer config cannot be read yet: AWS") {
		t.Errorf("have %s", out.String())
	}
	for i := range 10 * maxReasons {
		w.because(errors.New(strconv.Itoa(i)))
	}
	if len(w.printed) > maxReasons {
		t.Errorf("%d reasons are kept", len(w.printed))
	}
}
