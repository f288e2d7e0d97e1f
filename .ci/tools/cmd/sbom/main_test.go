package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

func TestEachModuleOfTheBinaryIsListed(t *testing.T) {
	dir := t.TempDir()
	binary := filepath.Join(dir, "sbom")
	if out, err := exec.Command("go", "build", "-trimpath", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	var files [2][]byte
	for i := range files {
		path := filepath.Join(dir, "bom.json")
		if err := write(path, binary); err != nil {
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
	listed := map[string]bool{}
	for _, c := range *bom.Components {
		listed[c.Name+" "+c.Version] = true
	}
	// What the toolchain says of the binary, in its own words.
	out, err := exec.Command("go", "version", "-m", binary).Output()
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) >= 3 && f[0] == "dep" {
			if found++; !listed[f[1]+" "+f[2]] {
				t.Errorf("%s %s is not listed", f[1], f[2])
			}
		}
	}
	if found == 0 || found+1 != len(listed) {
		t.Errorf("%d modules in the binary, %d components, the library of Go included", found, len(listed))
	}
}

func TestAReplacementInTheTreeHasTheMainModulesVersion(t *testing.T) {
	main := &debug.Module{Path: "example.com/product", Version: "v1.2.3"}
	replaced := &debug.Module{Path: "example.com/library", Version: "v0.7.0",
		Replace: &debug.Module{Path: "./third_party/library"}}
	if c := module(local(replaced, main)); c.PackageURL != "pkg:golang/example.com/product/third_party/library@v1.2.3" {
		t.Errorf("the replacement is listed as %s", c.PackageURL)
	}
	fork := &debug.Module{Path: "example.com/library", Version: "v0.7.0",
		Replace: &debug.Module{Path: "example.com/fork", Version: "v0.7.1"}}
	if c := module(local(fork, main)); c.PackageURL != "pkg:golang/example.com/fork@v0.7.1" {
		t.Errorf("the fork is listed as %s", c.PackageURL)
	}
}

func TestWhatIsNoGoProgramIsAnError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := read(path); err == nil {
		t.Error("a script has modules")
	}
}
