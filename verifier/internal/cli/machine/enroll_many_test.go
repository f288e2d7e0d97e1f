// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"strings"
	"testing"
)

// A list of which the end is not read would leave machines out without an error.
func TestReadList_ReadsLinesOfAnyLength(t *testing.T) {
	list := "rack1 " + strings.Repeat("a", 64) + "\n# " + strings.Repeat("x", 1<<17) + "\nrack2 " + strings.Repeat("b", 64)
	all, err := readList("list", []byte(list))
	if err != nil || len(all) != 2 || all[1].name != "rack2" || all[1].from != "list:3" {
		t.Errorf("%d machines, %v", len(all), err)
	}
}
