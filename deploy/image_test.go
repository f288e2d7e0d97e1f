package deploy

import (
	"bytes"
	"debug/elf"
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

// instruction is one line of a Containerfile, continued lines joined.
type instruction struct{ name, rest string }

func containerfile(t *testing.T) (instructions []instruction) {
	t.Helper()
	raw, err := os.ReadFile("Containerfile")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(strings.ReplaceAll(string(raw), "\\\n", " ")) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		name, rest, _ := strings.Cut(line, " ")
		instructions = append(instructions, instruction{name, rest})
	}
	return instructions
}

// build does in dir what the Containerfile does to make the binary: nothing but
// what it copies is there, and its own command is run.
func build(t *testing.T, dir string) (binary string) {
	t.Helper()
	src, out := filepath.Join(dir, "src"), filepath.Join(dir, "out")
	built := false
	for _, i := range containerfile(t) {
		f := strings.Fields(i.rest)
		switch {
		case i.name == "COPY" && !strings.HasPrefix(i.rest, "--from="):
			for _, from := range f[:len(f)-1] {
				info, err := os.Stat(filepath.Join("..", from))
				if err != nil {
					t.Fatalf("COPY %s: %v", i.rest, err)
				}
				to := filepath.Join(src, from)
				if info.IsDir() {
					err = os.CopyFS(to, os.DirFS(filepath.Join("..", from)))
				} else if err = os.MkdirAll(filepath.Dir(to), 0o755); err == nil {
					var raw []byte
					if raw, err = fs.ReadFile(os.DirFS(".."), from); err == nil {
						err = os.WriteFile(to, raw, 0o644)
					}
				}
				if err != nil {
					t.Fatal(err)
				}
			}
		case i.name == "RUN" && strings.Contains(i.rest, "go build"):
			cmd := exec.Command("/bin/sh", "-ec", strings.ReplaceAll(i.rest, "/out/", out+"/"))
			cmd.Dir = src
			cmd.Env = append(os.Environ(), "VERSION=v1.2.3", "GOFLAGS=", "GOWORK=off")
			if raw, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("RUN %s: %v\n%s", i.rest, err, raw)
			}
			built = true
		}
	}
	if !built {
		t.Fatal("the Containerfile builds nothing")
	}
	return filepath.Join(out, "mcs-attest-verifier")
}

func TestImage_HasAStaticReproducibleBinary(t *testing.T) {
	t.Parallel()
	// Two places, with names of different length, and neither a git repository.
	one, two := t.TempDir(), filepath.Join(t.TempDir(), "a", "longer", "name")
	a, b := build(t, one), build(t, two)
	rawA, err := os.ReadFile(a)
	if err != nil {
		t.Fatal(err)
	}
	rawB, err := os.ReadFile(b)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(rawA, rawB) {
		t.Error("two builds make two binaries")
	}
	for _, dir := range []string{one, two} {
		if bytes.Contains(rawA, []byte(dir)) || bytes.Contains(rawB, []byte(dir)) {
			t.Errorf("the binary names %s, where it was built", dir)
		}
	}
	if home, err := os.UserHomeDir(); err == nil && len(home) > 1 && bytes.Contains(rawA, []byte(home+"/go/")) {
		t.Error("the binary names the builder's home")
	}
	f, err := elf.NewFile(bytes.NewReader(rawA))
	if err != nil {
		t.Fatal(err)
	}
	if f.Section(".interp") != nil || f.Section(".dynamic") != nil {
		t.Error("the binary is not static")
	}
	out, err := exec.Command(a, "--version").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "v1.2.3") {
		t.Errorf("--version: %v %s", err, out)
	}

	// What the list of its modules says is what the toolchain says.
	tool := exec.Command("go", "run", "./cmd/sbom", "-o", one, a)
	tool.Dir = "../.ci/tools"
	if out, err := tool.CombinedOutput(); err != nil {
		t.Fatalf("sbom: %v\n%s", err, out)
	}
	raw, err := os.ReadFile(filepath.Join(one, "mcs-attest-verifier.cdx.json"))
	if err != nil {
		t.Fatal(err)
	}
	var bom struct {
		BOMFormat  string
		Components []struct{ Name, Version string }
	}
	if err := json.Unmarshal(raw, &bom); err != nil {
		t.Fatal(err)
	}
	listed := map[string]string{}
	for _, c := range bom.Components {
		listed[c.Name] = c.Version
	}
	if out, err = exec.Command("go", "version", "-m", a).Output(); err != nil {
		t.Fatal(err)
	}
	var modules [][]string
	var module []string // of the main module
	for line := range strings.Lines(string(out)) {
		switch m := strings.Fields(line); {
		case len(m) >= 3 && m[0] == "mod":
			module = m[1:3]
		case len(m) >= 3 && m[0] == "dep":
			modules = append(modules, m[1:3])
		case len(m) >= 2 && m[0] == "=>" && strings.HasPrefix(m[1], "./"):
			modules[len(modules)-1] = []string{path.Join(module[0], m[1]), module[1]}
		}
	}
	found := len(modules)
	for _, m := range modules {
		if version, ok := listed[m[0]]; !ok || version != m[1] {
			t.Errorf("%s %s is listed as %q", m[0], m[1], version)
		}
	}
	if bom.BOMFormat != "CycloneDX" || found < 20 || len(listed) != found+1 {
		t.Errorf("%s: %d modules, %d listed with Go's own library", bom.BOMFormat, found, len(listed))
	}
}

func TestImage_RunsAsAnyUser(t *testing.T) {
	var user, entrypoint, base string
	for _, i := range containerfile(t) {
		switch i.name {
		case "USER":
			user = i.rest
		case "ENTRYPOINT":
			entrypoint = i.rest
		case "FROM":
			user, entrypoint, base = "", "", i.rest
		}
	}
	// A number: the kubelet cannot tell whether a name is root.
	if user != "65532:65532" {
		t.Errorf("USER %q", user)
	}
	if base != "${BASE}" || entrypoint != `["/usr/bin/mcs-attest-verifier"]` {
		t.Errorf("FROM %s, ENTRYPOINT %s", base, entrypoint)
	}
	if args := podSpec(t, "openshift").Containers[0].Args; len(args) == 0 || args[0] != "serve" {
		t.Errorf("the DaemonSet's arguments are %v", args)
	}
	// The Go that builds it is one that go.mod accepts.
	mod, err := os.ReadFile("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mod)) {
		if v, ok := strings.CutPrefix(line, "go "); ok {
			minor := strings.Join(strings.Split(strings.TrimSpace(v), ".")[:2], ".")
			if raw, err := os.ReadFile("Containerfile"); err != nil || !strings.Contains(string(raw), "golang:"+minor+".") {
				t.Errorf("go.mod wants Go %s; the Containerfile builds with another (%v)", minor, err)
			}
		}
	}
}
