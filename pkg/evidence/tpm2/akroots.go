// SPDX-License-Identifier: Apache-2.0

package tpm2

import (
	"embed"
	"slices"
	"sync"

	"github.com/mcs-attest/mcs-attest/pkg/anchors"
)

// The anchors of the clouds that certify AKs, with their sources. Nothing is fetched: an
// administrator adds missing authorities.
//
//go:embed akroots/*.pem
var akRoots embed.FS

// DefaultAKRoots returns the anchors of AK certificates that are part of this version.
func DefaultAKRoots() []anchors.Anchor { return slices.Clone(defaultAKRoots()) }

var defaultAKRoots = sync.OnceValue(func() []anchors.Anchor { return anchors.Embedded(akRoots, "akroots/*.pem") })
