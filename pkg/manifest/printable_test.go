// SPDX-License-Identifier: Apache-2.0

package manifest

import "testing"

func TestProblem_CannotControlATerminal(t *testing.T) {
	p := Problem{
		File: "a\x1b]0;x\a.yaml", What: "kind \x1b[31mPod\u009b2J\x7f\r\xff\u202e", Want: "one line\n\tanother: é",
	}
	const want = "a?]0;x?.yaml: kind ?[31mPod?2J????; one line\n\tanother: é"
	if got := p.Error(); got != want {
		t.Errorf("got %q, expected %q", got, want)
	}
}
