// SPDX-License-Identifier: Apache-2.0

package azureattested

import (
	"embed"
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

var defaultRoots = sync.OnceValue(func() []anchors.Anchor { return anchors.Embedded(embedded, "roots/*.pem") })
