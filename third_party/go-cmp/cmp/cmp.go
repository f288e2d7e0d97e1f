// Package cmp stands in for github.com/google/go-cmp/cmp in the verifier.
//
// The verifier links go-cmp only through library-go's certrotation, which calls
// [Diff] for a log line. The original looks methods up by reflection, so that
// the linker must keep every exported method of every type: 56 MB.
// docs/designs/003-size-of-the-verifier.md has the figures. The package has only
// what the build needs, so that any further use of go-cmp fails to compile.
package cmp

import "fmt"

// Option is an option of the original. This package has none.
type Option interface{ unsupported() }

// Diff returns "" if x and y print alike, and both values otherwise.
func Diff(x, y any, _ ...Option) string {
	before, after := fmt.Sprintf("%+v", x), fmt.Sprintf("%+v", y)
	if before == after {
		return ""
	}
	return fmt.Sprintf("- %s\n+ %s\n", before, after)
}
