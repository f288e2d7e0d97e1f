// SPDX-License-Identifier: Apache-2.0

package command

import (
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/agent/internal/client"
	"github.com/mcs-attest/mcs-attest/agent/internal/flow"
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

// The message has each name in full, but not a list without an end.
func TestAdvice_NamesTheNodeNamesAndHowToSetTheHostName(t *testing.T) {
	const long = "ip-10-0-134-17.eu-central-1.compute.internal"
	err := &flow.OtherHostname{Nodes: append(make([]string, 9), long, "the eleventh"), Hostname: "localhost"}
	if text := err.Error(); !strings.Contains(text, long) || strings.Contains(text, "eleventh") {
		t.Error(text)
	}
	if hint := advice(err); !strings.Contains(hint, "systemd.hostname=") || !strings.Contains(hint, "InternalDNS") {
		t.Errorf("hint %q", hint)
	}
}
