// Command sbom writes what Go programs are made of, as CycloneDX 1.6 JSON: each
// module that the linker put into a binary, as the binary itself tells. The same
// binary always makes the same bytes.
//
//	sbom -o DIR BINARY...
package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"runtime/debug"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/uuid"
)

func main() {
	dir := flag.String("o", ".", "folder for BINARY.cdx.json")
	flag.Parse()
	if flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "usage: sbom -o DIR BINARY...")
		os.Exit(2)
	}
	for _, binary := range flag.Args() {
		file := filepath.Join(*dir, filepath.Base(binary)+".cdx.json")
		if err := write(file, binary); err != nil {
			fmt.Fprintf(os.Stderr, "error: %s: %v\n", binary, err)
			os.Exit(1)
		}
		fmt.Println(file)
	}
}

func write(file, binary string) error {
	bom, err := read(binary)
	if err != nil {
		return err
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	err = cdx.NewBOMEncoder(f, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bom, cdx.SpecVersion1_6)
	return errors.Join(err, f.Close())
}

func read(binary string) (*cdx.BOM, error) {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	raw, err := os.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(raw)

	main := module(&info.Main)
	main.Type, main.Name, main.BOMRef = cdx.ComponentTypeApplication, filepath.Base(binary), "binary"
	main.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}}
	var properties []cdx.Property
	for _, s := range info.Settings {
		// Linker flags may name folders; what else there is decides the bytes.
		if s.Key != "-ldflags" {
			properties = append(properties, cdx.Property{Name: "go:" + s.Key, Value: s.Value})
		}
	}
	main.Properties = &properties

	// Go's own library is in every binary, and no module.
	version := strings.TrimPrefix(info.GoVersion, "go")
	components := []cdx.Component{{
		BOMRef: "pkg:golang/stdlib@" + version, Type: cdx.ComponentTypeLibrary,
		Name: "stdlib", Version: version, PackageURL: "pkg:golang/stdlib@" + version,
	}}
	for _, m := range info.Deps {
		components = append(components, module(local(m, &info.Main)))
	}
	refs := make([]string, len(components))
	for i, c := range components {
		refs[i] = c.BOMRef
	}

	bom := cdx.NewBOM()
	bom.SerialNumber = "urn:uuid:" + uuid.NewSHA1(uuid.NameSpaceOID, sum[:]).String()
	bom.Metadata = &cdx.Metadata{Component: &main}
	bom.Components = &components
	bom.Dependencies = &[]cdx.Dependency{{Ref: main.BOMRef, Dependencies: &refs}}
	return bom, nil
}

// local names a module that a folder of the main module replaces: it is part of the
// main module and has its version. Other modules are returned as they are.
func local(m, main *debug.Module) *debug.Module {
	if m.Replace == nil || !strings.HasPrefix(m.Replace.Path, "./") {
		return m
	}
	return &debug.Module{Path: path.Join(main.Path, m.Replace.Path), Version: main.Version}
}

func module(m *debug.Module) cdx.Component {
	if m.Replace != nil {
		m = m.Replace
	}
	purl := "pkg:golang/" + m.Path + "@" + m.Version
	c := cdx.Component{BOMRef: purl, Type: cdx.ComponentTypeLibrary, Name: m.Path, Version: m.Version, PackageURL: purl}
	if m.Sum != "" {
		c.Properties = &[]cdx.Property{{Name: "go:sum", Value: m.Sum}}
	}
	return c
}
