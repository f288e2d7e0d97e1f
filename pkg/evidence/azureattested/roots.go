package azureattested

import (
	"embed"
	"io/fs"

	"github.com/mcs-attest/mcs-attest/pkg/anchors"
)

//go:embed roots/*.pem
var embedded embed.FS

// DefaultRoots are the roots and intermediates that are known to sign attested
// documents, each with its provenance. A bundle of the operator's adds to them or
// replaces them; Microsoft changes them without notice.
func DefaultRoots() []anchors.Anchor {
	var all []anchors.Anchor
	names, _ := fs.Glob(embedded, "roots/*.pem") // the pattern is well-formed
	for _, name := range names {
		raw, err := embedded.ReadFile(name)
		if err != nil {
			panic(err) // it is in the binary
		}
		bundle, err := anchors.Parse(name, raw)
		if err != nil {
			panic(err) // a test parses them
		}
		all = append(all, bundle...)
	}
	return all
}
