// SPDX-License-Identifier: Apache-2.0

// Package sbom writes what a Go program consists of, as CycloneDX 1.6 JSON: each module that the linker
// put into the binary, as the binary itself records it, with the license that its text states. The same
// binary always gives the same bytes.
package sbom

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
	classifier "github.com/google/licenseclassifier/v2"
	"github.com/google/licenseclassifier/v2/assets"
	"github.com/google/uuid"
)

// Modules are the modules that a source tree needs, with their licenses.
type Modules struct {
	version    string            // of the main module
	folders    map[string]string // by path@version
	classifier *classifier.Classifier
	licenses   map[string][]string // by folder, as far as they have been read
	goroot     string
}

// Read lists the modules of the source tree. Version is that of the main module.
func Read(source, version string) (*Modules, error) {
	c, err := assets.DefaultClassifier()
	if err != nil {
		return nil, fmt.Errorf("texts of licenses: %w", err)
	}
	goroot, err := goCommand(source, "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	m := &Modules{
		version: version, folders: map[string]string{}, classifier: c, licenses: map[string][]string{},
		goroot: strings.TrimSpace(string(goroot)),
	}
	list, err := goCommand(source, "list", "-m", "-json=Path,Version,Dir,Main", "all")
	if err != nil {
		return nil, err
	}
	for d := json.NewDecoder(bytes.NewReader(list)); ; {
		var module struct {
			Path, Version, Dir string
			Main               bool
		}
		if err := d.Decode(&module); errors.Is(err, io.EOF) {
			return m, nil
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		if module.Main {
			module.Version = version
		}
		m.folders[module.Path+"@"+module.Version] = module.Dir
	}
}

func goCommand(dir string, args ...string) ([]byte, error) {
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=readonly")
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, exit.Stderr)
	}
	return out, err
}

// Write writes to file what the binary consists of.
func (m *Modules) Write(file, binary string) error {
	bom, err := m.describe(binary)
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

func (m *Modules) describe(binary string) (*cdx.BOM, error) {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	raw, err := os.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(raw)

	// A build without version control records "(devel)".
	info.Main.Version = m.version
	main, err := m.component(&info.Main)
	if err != nil {
		return nil, err
	}
	main.Type, main.Name, main.BOMRef = cdx.ComponentTypeApplication, filepath.Base(binary), "binary"
	main.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}}
	var properties []cdx.Property
	for _, s := range info.Settings {
		// Linker flags may name folders. The other settings determine the bytes.
		if s.Key != "-ldflags" {
			properties = append(properties, cdx.Property{Name: "go:" + s.Key, Value: s.Value})
		}
	}
	main.Properties = &properties

	// Go's own library is in every binary, and is not a module.
	library, err := m.library(strings.TrimPrefix(info.GoVersion, "go"))
	if err != nil {
		return nil, err
	}
	components := []cdx.Component{library}
	for _, d := range info.Deps {
		c, err := m.component(d)
		if err != nil {
			return nil, err
		}
		components = append(components, c)
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

func (m *Modules) component(module *debug.Module) (cdx.Component, error) {
	id := module.Path + "@" + module.Version
	purl := "pkg:golang/" + id
	c := cdx.Component{
		BOMRef: purl, Type: cdx.ComponentTypeLibrary, Name: module.Path, Version: module.Version, PackageURL: purl,
	}
	if module.Sum != "" {
		c.Properties = &[]cdx.Property{{Name: "go:sum", Value: module.Sum}}
	}
	var err error
	c.Licenses, err = m.license(m.folders[id], id)
	return c, err
}

func (m *Modules) library(version string) (cdx.Component, error) {
	purl := "pkg:golang/stdlib@" + version
	licenses, err := m.license(m.goroot, purl)
	return cdx.Component{
		BOMRef: purl, Type: cdx.ComponentTypeLibrary, Name: "stdlib", Version: version, PackageURL: purl, Licenses: licenses,
	}, err
}

// license returns the licenses whose texts are in the folder of a module. None is an error: a
// release must state what it passes on.
func (m *Modules) license(folder, id string) (*cdx.Licenses, error) {
	names, ok := m.licenses[folder]
	if !ok {
		var err error
		if names, err = m.texts(folder); err != nil {
			return nil, fmt.Errorf("license of %s: %w", id, err)
		}
		m.licenses[folder] = names
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("license of %s: no known text in %s", id, cmp.Or(folder, "the module cache"))
	}
	var choices cdx.Licenses
	for _, name := range names {
		choices = append(choices, cdx.LicenseChoice{License: &cdx.License{ID: name}})
	}
	return &choices, nil
}

// texts returns the SPDX identifiers of the license texts in a folder, sorted.
func (m *Modules) texts(folder string) ([]string, error) {
	if folder == "" {
		return nil, nil
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		name := strings.ToUpper(e.Name())
		if e.IsDir() || !slices.ContainsFunc([]string{"LICENSE", "LICENCE", "COPYING", "UNLICENSE"},
			func(p string) bool { return strings.HasPrefix(name, p) }) {
			continue
		}
		raw, err := os.ReadFile(filepath.Join(folder, e.Name()))
		if err != nil {
			return nil, err
		}
		for _, match := range m.classifier.Match(raw).Matches {
			if match.MatchType == "License" && !slices.Contains(names, match.Name) {
				names = append(names, match.Name)
			}
		}
	}
	slices.Sort(names)
	return names, nil
}
