// SPDX-License-Identifier: Apache-2.0

package tpm2

import (
	"embed"
	"io/fs"
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

var defaultAKRoots = sync.OnceValue(func() []anchors.Anchor {
	var all []anchors.Anchor
	files, err := fs.Glob(akRoots, "akroots/*.pem")
	for _, file := range files {
		var raw []byte
		if raw, err = akRoots.ReadFile(file); err != nil {
			break
		}
		var some []anchors.Anchor
		if some, err = anchors.Parse(file, raw); err != nil {
			break
		}
		all = append(all, some...)
	}
	if err != nil {
		panic(err) // a file of this package
	}
	return all
})
