package tpm2

import (
	"embed"
	"io/fs"

	"github.com/mcs-attest/mcs-attest/pkg/anchors"
)

// The anchors of the clouds that certify AKs, with where each came from. Nothing
// is fetched: an authority that is missing is for the operator to add.
//
//go:embed akroots/*.pem
var akRoots embed.FS

// DefaultAKRoots are the anchors of AK certificates that come with this version.
func DefaultAKRoots() []anchors.Anchor {
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
}
