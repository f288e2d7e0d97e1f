// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"debug/elf"
	"encoding/pem"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// The tests release the working tree, for the architecture that they run on, as this version.
const testVersion = "v0.9.0-rc.1"

var scratch string // the folder of all tests

func TestMain(m *testing.M) {
	var err error
	if scratch, err = os.MkdirTemp("", "release-test-"); err != nil {
		panic(err)
	}
	code := m.Run()
	os.RemoveAll(scratch)
	os.Exit(code)
}

// command runs a program and returns what it prints on its standard output.
func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := output(t.Context(), "", nil, name, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// committed returns a repository whose only commit is the working tree.
var committed = sync.OnceValues(func() (string, error) {
	dir := filepath.Join(scratch, "committed")
	const script = `set -e
mkdir "$1"
cd "$(git rev-parse --show-toplevel)"
git ls-files -co --exclude-standard -z | while IFS= read -r -d '' f; do [ ! -e "$f" ] || printf '%s\0' "$f"; done |
	tar -c --null -T - | tar -x -C "$1"
cd "$1"
git init -q
git add -A
git -c user.name=test -c user.email=test@example.com commit -q -m test --date=2026-01-02T03:04:05Z`
	_, err := output(context.Background(), "", nil, "bash", "-c", script, "bash", dir)
	return dir, err
})

// clone clones the commit to a path below scratch.
func clone(to string) (string, error) {
	from, err := committed()
	if err != nil {
		return "", err
	}
	to = filepath.Join(scratch, to)
	_, err = output(context.Background(), "", nil, "git", "clone", "-q", from, to)
	return to, err
}

// once makes the folder of a release that is made once for all tests.
var once = sync.OnceValues(func() (string, error) {
	source, err := clone("a")
	if err != nil {
		return "", err
	}
	out := filepath.Join(scratch, "released")
	return out, run(context.Background(), options(source, out), os.Stderr)
})

func options(source, out string) []string {
	return []string{"-version", testVersion, "-source", source, "-o", out, "-arch", runtime.GOARCH}
}

func dist(t *testing.T) string {
	t.Helper()
	dir, err := once()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestRelease_IsTheSameFromEachCloneAndFromAnArchive(t *testing.T) {
	want := string(read(t, filepath.Join(dist(t), sums)))
	second, err := clone("another/path/that/is/longer")
	if err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(scratch, "archive")
	if err := os.Mkdir(archive, 0o700); err != nil {
		t.Fatal(err)
	}
	// What a builder's account and host may have otherwise.
	defer syscall.Umask(syscall.Umask(0o077))
	t.Setenv("TZ", "Asia/Tokyo")
	t.Setenv("SOURCE_DATE_EPOCH", "1")
	t.Setenv("GOAMD64", "v3")
	command(t, "sh", "-c", `git -C "$1" archive HEAD | tar -x -C "$2"`, "sh", second, archive)
	if _, err := os.Stat(filepath.Join(archive, ".git")); err == nil {
		t.Fatal("the archive is a clone")
	}
	for _, source := range []string{second, archive} {
		out := source + ".out"
		if err := run(t.Context(), options(source, out), io.Discard); err != nil {
			t.Fatal(err)
		}
		got := string(read(t, filepath.Join(out, sums)))
		for line := range strings.Lines(got) {
			if !strings.Contains(want, line) {
				t.Errorf("from %s: %s", source, line)
			}
		}
		if strings.Count(got, "\n") != strings.Count(want, "\n") {
			t.Errorf("from %s: %d files, not %d", source, strings.Count(got, "\n"), strings.Count(want, "\n"))
		}
		if err := os.RemoveAll(out); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRelease_ProgramsAreStaticAndHaveTheVersionAndTheCommit(t *testing.T) {
	dir := dist(t)
	commit := strings.TrimSpace(command(t, "git", "-C", filepath.Join(scratch, "a"), "rev-parse", "HEAD"))
	for _, program := range []string{agent, verifier} {
		path := filepath.Join(dir, program+"-linux-"+runtime.GOARCH)
		raw := read(t, path)
		f, err := elf.NewFile(bytes.NewReader(raw))
		if err != nil {
			t.Fatal(err)
		}
		if f.Section(".interp") != nil || f.Section(".dynamic") != nil {
			t.Errorf("%s is not static", program)
		}
		if bytes.Contains(raw, []byte(scratch)) {
			t.Errorf("%s names the folder where it was built", program)
		}
		if home, err := os.UserHomeDir(); err == nil && len(home) > 1 && bytes.Contains(raw, []byte(home+"/go/")) {
			t.Errorf("%s names the builder's home", program)
		}
		if got, want := command(t, path, "version"), program+" "+testVersion+" (commit "+commit+", go"; !strings.HasPrefix(got, want) {
			t.Errorf("%s version: %q does not begin with %q", program, got, want)
		}
	}
}

func TestRelease_ChecksumsCoverEveryFile(t *testing.T) {
	dir := dist(t)
	cmd := exec.Command("sha256sum", "--check", "--strict", "--quiet", sums)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("sha256sum: %v\n%s", err, out)
	}
	list := string(read(t, filepath.Join(dir, sums)))
	files := command(t, "sh", "-c", `cd "$1" && find . -type f ! -name SHA256SUMS | sort`, "sh", dir)
	for path := range strings.Lines(files) {
		if !strings.Contains(list, "  "+strings.TrimPrefix(path, "./")) {
			t.Errorf("%s has no checksum", strings.TrimSpace(path))
		}
	}
	for _, want := range []string{
		"mcs-attest-initramfs-linux-ARCH.cpio.zst", "mcs-attest-dracut-linux-ARCH.tar.gz",
		"mcs-attest-agent-linux-ARCH.cdx.json", "kubectl-attest-linux-ARCH.tar.gz", "provenance.json", "attest.yaml",
		"mcs-attest-0.9.0-rc.1.tgz", "olm-namespace.yaml", "olm-remainder.yaml",
	} {
		if want = strings.ReplaceAll(want, "ARCH", runtime.GOARCH); !strings.Contains(list, "  "+want+"\n") {
			t.Errorf("%s is missing", want)
		}
	}
}

func TestRelease_OpensslVerifiesTheSignature(t *testing.T) {
	dir := t.TempDir()
	key, public := filepath.Join(dir, "key.pem"), filepath.Join(dir, "public.pem")
	command(t, "openssl", "genpkey", "-algorithm", "ed25519", "-out", key)
	command(t, "openssl", "pkey", "-in", key, "-pubout", "-out", public)
	sign, err := signer(key)
	if err != nil {
		t.Fatal(err)
	}
	r := &release{out: filepath.Join(dir, "out"), log: io.Discard}
	write(t, r.file("file"), "content")
	if err := r.checksums(sign); err != nil {
		t.Fatal(err)
	}
	verify := []string{"pkeyutl", "-verify", "-pubin", "-inkey", public, "-rawin", "-in", r.file(sums),
		"-sigfile", r.file(sums + ".sig")}
	command(t, "openssl", verify...)
	write(t, r.file(sums), "another list")
	if err := exec.Command("openssl", verify...).Run(); err == nil {
		t.Error("the signature is valid for another list")
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestSigner_AcceptsOnlyAnEd25519Key(t *testing.T) {
	dir := t.TempDir()
	key := filepath.Join(dir, "rsa.pem")
	command(t, "openssl", "genpkey", "-quiet", "-algorithm", "rsa", "-out", key)
	if _, err := signer(key); err == nil || !strings.Contains(err.Error(), "not Ed25519") {
		t.Errorf("an RSA key: %v", err)
	}
	write(t, filepath.Join(dir, "text"), "no key")
	if _, err := signer(filepath.Join(dir, "text")); err == nil || !strings.Contains(err.Error(), "not PEM") {
		t.Errorf("text: %v", err)
	}
	public, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "public.pem"), string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})))
	if _, err := signer(filepath.Join(dir, "public.pem")); err == nil {
		t.Error("a public key signs")
	}
}

func TestRelease_RefusesWhatIsNotOneCommit(t *testing.T) {
	source, err := clone("refuses")
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "out")
	refused := func(why string, args ...string) {
		t.Helper()
		err := run(t.Context(), append(options(source, out), args...), io.Discard)
		if err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%q: %v", why, err)
		}
		if _, err := os.Stat(out); err == nil {
			t.Errorf("%q: something was made", why)
		}
	}
	refused("not of the form v1.2.3", "-version", "0.3")
	refused("not one of", "-arch", "amd64,sparc")
	write(t, filepath.Join(source, "LICENSE"), "changed")
	refused("not committed")
	command(t, "git", "-C", source, "checkout", "-q", "LICENSE")
	command(t, "git", "-C", source, "-c", "user.name=test", "-c", "user.email=test@example.com",
		"commit", "-q", "--allow-empty", "-m", "another")
	command(t, "git", "-C", source, "tag", testVersion, "HEAD~")
	refused("is on another commit")
	command(t, "git", "-C", source, "tag", "-f", testVersion, "HEAD")
	refused(`CHANGELOG.md has no section "## [0.9.0-rc.1] -"`)
}

// What is signed or pushed is a version that others can find by its tag.
func TestRelease_SignsAndPushesOnlyATaggedVersion(t *testing.T) {
	source, err := clone("tagged")
	if err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(scratch, "tagged-archive")
	command(t, "bash", "-c", `set -e; mkdir "$2"; git -C "$1" archive HEAD | tar -x -C "$2"`, "bash", source, archive)
	key := filepath.Join(t.TempDir(), "key.pem")
	command(t, "openssl", "genpkey", "-algorithm", "ed25519", "-out", key)
	for _, args := range [][]string{{"-key", key}, {"-push", "127.0.0.1:1/x"}} {
		for _, from := range []string{source, archive} {
			out := filepath.Join(t.TempDir(), "out")
			err := run(t.Context(), append(options(from, out), args...), io.Discard)
			if err == nil || !strings.Contains(err.Error(), "need a clone that has the tag "+testVersion) {
				t.Errorf("%s, %s: %v", from, args[0], err)
			}
			if _, err := os.Stat(out); err == nil {
				t.Errorf("%s, %s: something was made", from, args[0])
			}
		}
	}
	changelog := filepath.Join(source, "CHANGELOG.md")
	write(t, changelog, "## x\n\n## [0.9.0-rc.1] - 2026-12-01\n")
	command(t, "git", "-C", source, "-c", "user.name=test", "-c", "user.email=test@example.com",
		"commit", "-qam", "release")
	command(t, "git", "-C", source, "tag", testVersion)
	r := &release{source: source, out: filepath.Join(t.TempDir(), "out"), version: testVersion, published: true}
	if err := r.prepare(t.Context()); err != nil {
		t.Error("with a tag and a section:", err)
	}
}
