// SPDX-License-Identifier: Apache-2.0

package env

import (
	"errors"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
)

func TestReport_CannotControlATerminal(t *testing.T) {
	var out strings.Builder
	Report(&out, hint.New(errors.New("read \x1b[2Jfile:\n  line 1"), "give \x1b]0;x\aanother"))
	if want := "error: read ?[2Jfile:\n  line 1\nhint: give ?]0;x?another\n"; out.String() != want {
		t.Errorf("got %q, expected %q", out.String(), want)
	}
}
