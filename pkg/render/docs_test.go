// SPDX-License-Identifier: Apache-2.0

package render_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/render"
)

func TestDocs_ListTheSearchedSecrets(t *testing.T) {
	raw, err := os.ReadFile("../../docs/configs.md")
	if err != nil {
		t.Fatal(err)
	}
	_, page, _ := strings.Cut(string(raw), "## What is a secret")
	paths, texts, ok := strings.Cut(page, "And these texts")
	if !ok {
		t.Fatal("the page has no such chapter")
	}
	var listed []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\| .* \\|$").FindAllStringSubmatch(paths, -1) {
		listed = append(listed, row[1])
	}
	if !slices.Equal(listed, render.Paths()) {
		t.Errorf("docs/configs.md lists the paths %q, searched for are %q", listed, render.Paths())
	}
	listed = nil
	for _, row := range regexp.MustCompile(`(?m)^\| (an? [^|]+) \| .* \|$`).FindAllStringSubmatch(texts, -1) {
		listed = append(listed, row[1])
	}
	if !slices.Equal(listed, render.Patterns()) {
		t.Errorf("docs/configs.md lists the texts %q, searched for are %q", listed, render.Patterns())
	}
}
