// SPDX-License-Identifier: Apache-2.0

package azureattested

import (
	"embed"
	"io/fs"
	"slices"
	"sync"

	"github.com/mcs-attest/mcs-attest/pkg/anchors"
)

//go:embed roots/*.pem
var embedded embed.FS

// DefaultRoots returns the known roots and intermediates of attested documents, each with its
// provenance. An operator's bundle extends or replaces them, because Microsoft changes them without
// notice.
func DefaultRoots() []anchors.Anchor { return slices.Clone(defaultRoots()) }

var defaultRoots = sync.OnceValue(func() []anchors.Anchor {
	var all []anchors.Anchor
	names, _ := fs.Glob(embedded, "roots/*.pem") // the pattern is well-formed
	for _, name := range names {
		raw, err := embedded.ReadFile(name)
		if err != nil {
			panic(err) // the file is embedded
		}
		bundle, err := anchors.Parse(name, raw)
		if err != nil {
			panic(err) // a test parses them
		}
		all = append(all, bundle...)
	}
	return all
})
