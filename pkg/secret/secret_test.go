// SPDX-License-Identifier: Apache-2.0

package secret_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/secret"
)

func TestBytes_NoFormatterPrintsASecret(t *testing.T) {
	const plain = "hunter2"
	s := secret.New([]byte(plain))
	hex := "68756e74657232"
	var out []string
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d"} {
		out = append(out, fmt.Sprintf(verb, s), fmt.Sprintf(verb, &s), fmt.Sprintf(verb, struct{ S secret.Bytes }{s}))
	}
	j, err := json.Marshal(map[string]any{"s": s, "p": &s})
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "s", s)
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "s", s)
	out = append(out, string(j), log.String(), s.String())
	for _, o := range out {
		if strings.Contains(o, plain) || strings.Contains(strings.ToLower(o), hex) || strings.Contains(o, "104 117") {
			t.Errorf("printed the secret: %s", o)
		}
	}
	if string(s.Expose()) != plain {
		t.Error("Expose lost the secret")
	}
}

func TestBytes_IsEmptyOnlyWithoutBytes(t *testing.T) {
	for name, c := range map[string]struct {
		s     secret.Bytes
		empty bool
	}{
		"the zero value": {secret.Bytes{}, true},
		"an empty slice": {secret.New([]byte{}), true},
		"one byte":       {secret.New([]byte{0}), false},
		"several bytes":  {secret.New([]byte("hunter2")), false},
	} {
		if got := c.s.Empty(); got != c.empty {
			t.Errorf("%s: got %v, want %v", name, got, c.empty)
		}
	}
}
