// SPDX-License-Identifier: Apache-2.0

package sbom

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// The subject of the tests is command sbom, a program of this module.
var modules = sync.OnceValues(func() (*Modules, error) {
	m, err := Read("..", "v1.2.3")
	if err == nil {
		// The license of this module is at the root of the repository.
		m.folders["github.com/mcs-attest/mcs-attest/ci/tools@v1.2.3"] = "../../.."
	}
	return m, err
})

func ofThisModule(t *testing.T) *Modules {
	t.Helper()
	m, err := modules()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestWrite_ListsEachModuleWithItsLicense(t *testing.T) {
	dir := t.TempDir()
	binary := filepath.Join(dir, "sbom")
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", binary, "../cmd/sbom")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	var files [2][]byte
	for i := range files {
		path := filepath.Join(dir, "bom.json")
		if err := ofThisModule(t).Write(path, binary); err != nil {
			t.Fatal(err)
		}
		var err error
		if files[i], err = os.ReadFile(path); err != nil {
			t.Fatal(err)
		}
	}
	if string(files[0]) != string(files[1]) {
		t.Error("the same binary makes two different files")
	}
	var bom cdx.BOM
	if err := cdx.NewBOMDecoder(strings.NewReader(string(files[0])), cdx.BOMFileFormatJSON).Decode(&bom); err != nil {
		t.Fatal(err)
	}
	licenses := map[string]string{}
	for _, c := range *bom.Components {
		for _, l := range *c.Licenses {
			licenses[c.Name+" "+c.Version] += l.License.ID
		}
	}
	// The toolchain's own list.
	out, err := exec.Command("go", "version", "-m", binary).Output()
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) >= 3 && f[0] == "dep" {
			if found++; licenses[f[1]+" "+f[2]] == "" {
				t.Errorf("%s %s is not listed with a license", f[1], f[2])
			}
		}
	}
	if found == 0 || found+1 != len(licenses) {
		t.Errorf("%d modules in the binary, %d components, the library of Go included", found, len(licenses))
	}
	for name, want := range map[string]string{
		"github.com/google/uuid v1.6.0":             "BSD-3-Clause",
		"github.com/CycloneDX/cyclonedx-go v0.12.0": "Apache-2.0",
	} {
		if licenses[name] != want {
			t.Errorf("%s has the license %q, not %s", name, licenses[name], want)
		}
	}
	main := bom.Metadata.Component
	if main.Version != "v1.2.3" || main.PackageURL != "pkg:golang/github.com/mcs-attest/mcs-attest/ci/tools@v1.2.3" {
		t.Errorf("the program is listed as %s %s", main.Version, main.PackageURL)
	}
}

func TestWrite_RefusesAModuleWithoutALicense(t *testing.T) {
	m := ofThisModule(t)
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "LICENSE"), []byte("All rights reserved.\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	m.folders["example.com/secret@v1.0.0"] = folder
	for _, path := range []string{"example.com/secret", "example.com/unknown"} {
		_, err := m.component(&debug.Module{Path: path, Version: "v1.0.0"})
		if err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestWrite_RefusesAScript(t *testing.T) {
	path := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := ofThisModule(t).Write(path+".cdx.json", path); err == nil {
		t.Error("a script has modules")
	}
}
