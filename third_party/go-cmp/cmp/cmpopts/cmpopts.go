// Package cmpopts is empty. It exists because tests of dependencies import it,
// which "go mod tidy" resolves but nothing here compiles.
package cmpopts
