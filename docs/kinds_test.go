// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
)

// Each kind of the contract has its name, its place in the API and its pages.
func TestEachKindIsWhereTheChecklistSays(t *testing.T) {
	api := read(t, "pkg/api/v1alpha1/policy_types.go")
	enum := regexp.MustCompile(`(?m)validation:items:Enum=(tpm2;.*)$`).FindStringSubmatch(api)
	limit := regexp.MustCompile(`MaxItems=(\d+)\n\t// \+kubebuilder:validation:items:Enum=tpm2;`).FindStringSubmatch(api)
	if enum == nil || limit == nil {
		t.Fatal("no enum of kinds found: has it moved?")
	}
	allowed := strings.Split(enum[1], ";")
	pages := map[string]string{}
	for _, p := range []string{"docs/policy.md", "docs/threat-model.md", "docs/status.md", "proto/README.md"} {
		pages[p] = read(t, p)
	}
	for number, name := range mcsattestv1.EvidenceKind_name {
		if number == 0 {
			continue
		}
		want := strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(name, "EVIDENCE_KIND_")), "_", "-")
		kind := evidence.Kind(number)
		if !kind.Valid() || kind.String() != want {
			t.Errorf("%s: pkg/evidence/kind.go calls it %q, not %q", name, kind, want)
		}
		if !slices.Contains(allowed, want) {
			t.Errorf("%s is not in the enum of AttestationPolicy", want)
		}
		for path, page := range pages {
			if !strings.Contains(page, "`"+want+"`") && !strings.Contains(page, "(evidence/"+want+".md)") {
				t.Errorf("%s does not name %s", path, want)
			}
		}
		if want != "provisioning-token" && !exists("evidence/"+want+".md") {
			t.Errorf("there is no docs/evidence/%s.md", want)
		}
	}
	if n, _ := strconv.Atoi(limit[1]); n != len(mcsattestv1.EvidenceKind_name)-1 || n != len(allowed) {
		t.Errorf("a set may have %d kinds, the enum has %d, the contract %d", n, len(allowed),
			len(mcsattestv1.EvidenceKind_name)-1)
	}
}
