// SPDX-License-Identifier: Apache-2.0

package command

import (
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/agent/internal/client"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// Each permanent denial on the console has a hint with the command that explains it, and a sentence for its class.
func TestAdvice_HasAHintForEachDenial(t *testing.T) {
	for _, code := range reason.Codes() {
		if code.Temporary() {
			continue
		}
		d := &client.Denied{Class: code.Info().Class, CorrelationID: "c0ffee"}
		if hint := advice(d); !strings.Contains(hint, "explain c0ffee") {
			t.Errorf("%v: hint %q", code, hint)
		}
		if strings.HasPrefix(d.Error(), "denied by the verifier") {
			t.Errorf("%v: class %s has no sentence", code, d.ClassName())
		}
	}
}
