// SPDX-License-Identifier: Apache-2.0

package render_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/render"
)

// TestMergeInPairs_AgreesWithSequentialMerge compares with the machine-config-operator's
// method: random configs that define the same few items.
func TestMergeInPairs_AgreesWithSequentialMerge(t *testing.T) {
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 11))
		var all strings.Builder
		for i := range 1 + rng.IntN(9) {
			if rng.IntN(8) == 0 {
				all.WriteString("---\n" + customer(fmt.Sprint("c-", i), "worker", "fips: false"))
				continue
			}
			spec := "config:\n  ignition:\n    version: 3.5.0\n    timeouts:\n      httpTotal: " + fmt.Sprint(rng.IntN(9)) +
				"\n  storage:\n"
			kinds := map[string]string{}
			for _, path := range []string{"/a", "/b", "/c", "/d", "/e"} {
				switch rng.IntN(8) {
				case 0, 1:
					kinds["files"] += fmt.Sprintf(
						"    - path: %s\n      mode: %d\n      contents:\n        source: https://x.example/%d\n", path, rng.IntN(400), i)
					if rng.IntN(3) == 0 {
						kinds["files"] += "        httpHeaders:\n        - name: X\n" + []string{"", "          value: v\n"}[rng.IntN(2)]
					}
				case 2:
					kinds["files"] += fmt.Sprintf("    - path: %s\n      overwrite: false\n      append:\n      - source: data:,%d\n",
						path, i)
				case 3:
					if seed%2 == 0 {
						kinds["links"] += fmt.Sprintf("    - path: %s\n      target: /t%d\n", path, i)
					}
				case 4:
					if seed%2 == 0 {
						kinds["directories"] += fmt.Sprintf("    - path: %s\n", path)
					}
				}
			}
			if len(kinds) == 0 {
				spec = strings.TrimSuffix(spec, "  storage:\n")
			}
			for _, kind := range []string{"files", "links", "directories"} {
				if kinds[kind] != "" {
					spec += "    " + kind + ":\n" + kinds[kind]
				}
			}
			spec += "  systemd:\n    units:\n"
			for _, name := range []string{"u.service", "v.service"} {
				spec += fmt.Sprintf(
					"    - name: %s\n      dropins:\n      - name: %d.conf\n        contents: \"[Unit]\\nX=%d\\n\"\n", name,
					rng.IntN(3), i)
			}
			spec += fmt.Sprintf("  passwd:\n    users:\n    - name: core\n      sshAuthorizedKeys: [k%d, k%d]\n", rng.IntN(3),
				3+rng.IntN(3))
			all.WriteString("---\n" + customer(fmt.Sprint("c-", i), "worker", spec))
		}
		in := parse(t, "f.yaml", all.String())
		a, err := render.Encoded(render.Ours(in))
		if err != nil {
			t.Fatal(err)
		}
		b, err := render.Encoded(render.Theirs(in))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(a, b) {
			t.Fatalf("seed %d:\n%s\n%s\n%s", seed, a, b, all.String())
		}
	}
}
