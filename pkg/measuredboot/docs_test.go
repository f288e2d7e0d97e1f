// SPDX-License-Identifier: Apache-2.0

package measuredboot_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/mcs-attest/mcs-attest/pkg/eventlog/eventlogtest"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot"
)

const page = "../../docs/measured-boot.md"

// blocks returns the fenced code blocks of a language in the page.
func blocks(t *testing.T, language string) []string {
	t.Helper()
	raw, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for i, part := range strings.Split(string(raw), "```") {
		if first, rest, _ := strings.Cut(part, "\n"); i%2 == 1 && first == language {
			found = append(found, strings.TrimSpace(rest))
		}
	}
	return found
}

func TestDocumentedDenialsAreReal(t *testing.T) {
	capped := captured(t, eventlogtest.SecureBootUKICapped)
	capped.refs = append(capped.refs, references(t, eventlogtest.SecureBootUKICapped))
	capped.quoted[11] = eventlogtest.Load(t, eventlogtest.SecureBootUKICapped).Later("capped")
	trap := captured(t, eventlogtest.UnsignedKernel)
	trap.refs = nil
	left := captured(t, eventlogtest.SecureBootUKI).claimed(t, func(e events) events {
		var kept events
		for _, x := range e {
			if x.PCR != 4 {
				kept = append(kept, x)
			}
		}
		return kept
	})
	line := grubBoot(t).booted(t, func(e events) events {
		i := find(t, e, 8, "kernel_cmdline: ")
		e[i] = said(e[i], "kernel_cmdline: ", grubLine(e[i])+" systemd.debug-shell")
		return e
	})
	other := strictBoot(t)
	other.refs[1] = firmwareOf(t, "r750-bios-2.3.5", build2022SMM)
	documented := map[string]bool{}
	for _, b := range blocks(t, "") {
		documented[b] = true
	}
	for name, b := range map[string]boot{
		"Secure Boot off":   captured(t, eventlogtest.UKI),
		"not used":          trap,
		"another initramfs": captured(t, eventlogtest.SecureBootUKIAltered),
		"systemd-boot":      captured(t, eventlogtest.SecureBootSDBoot),
		"events left out":   left,
		"capped":            capped,
		"a word more":       line,
		"another firmware":  other,
		"more in PCR 9":     debian13(t, measuredboot.Release).separated(t).extended(word("nvpcr-separator"), 9),
	} {
		_, err := b.appraise()
		if err == nil || !documented[err.Error()] {
			t.Errorf("%s: %s does not have\n%v", name, page, err)
		}
	}
}

func TestDocumentedReferenceValuesAreReal(t *testing.T) {
	doc := blocks(t, "yaml")
	if len(doc) != 1 {
		t.Fatalf("%d documents", len(doc))
	}
	var r measuredboot.ReferenceValues
	if err := yaml.UnmarshalStrict([]byte(doc[0]), &r); err != nil {
		t.Fatal(err)
	}
	if err := r.Validate(); err != nil {
		t.Fatal(err)
	}
	b := captured(t, eventlogtest.SecureBootUKI)
	b.refs = []measuredboot.ReferenceValues{r}
	passes(t, b)
	// YAML and JSON give the same document.
	text, err := yaml.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	again, err := yaml.YAMLToJSON(text)
	if err != nil {
		t.Fatal(err)
	}
	direct, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var x, y measuredboot.ReferenceValues
	if json.Unmarshal(again, &x) != nil || json.Unmarshal(direct, &y) != nil || x.Validate() != nil ||
		y.Validate() != nil {
		t.Errorf("written as\n%s", text)
	}
}
