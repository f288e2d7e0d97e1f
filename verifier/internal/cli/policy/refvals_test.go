// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// buildUKI returns a unified kernel image with the stub of systemd. Another signed image is its kernel.
func buildUKI(t *testing.T) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "image.efi")
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("quiet\x00"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("objcopy",
		"--add-section", ".cmdline="+text, "--change-section-vma", ".cmdline=0x30000",
		"--add-section", ".initrd="+text, "--change-section-vma", ".initrd=0x40000",
		"--add-section", ".linux=/usr/lib/shim/shimx64.efi.signed", "--change-section-vma", ".linux=0x2000000",
		"/usr/lib/systemd/boot/efi/linuxx64.efi.stub", out)
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("objcopy: %v, %s", err, b)
	}
	return out
}

// layoutOf writes an OCI image layout with one file.
func layoutOf(t *testing.T, name string, content []byte) string {
	t.Helper()
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	h := &tar.Header{Name: name, Typeflag: tar.TypeReg, Size: int64(len(content)), Mode: 0o644}
	if err := w.WriteHeader(h); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	put := func(path string, b []byte) {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, path), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	blob := func(b []byte) string {
		digest := fmt.Sprintf("%x", sha256.Sum256(b))
		put("blobs/sha256/"+digest, b)
		return digest
	}
	manifest := fmt.Sprintf(`{"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"sha256:%s"}]}`,
		blob(layer.Bytes()))
	put("index.json", fmt.Appendf(nil, `{"manifests":[{"digest":"sha256:%s"}]}`, blob([]byte(manifest))))
	return dir
}

func TestRefvals_AContainerImageHasTheValuesOfItsUKI(t *testing.T) {
	uki := buildUKI(t)
	want, err := source{uki: uki}.referenceValues("x")
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(uki)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"boot/EFI/Linux/x.efi", "boot/EFI/Linux/bootc/x.efi", "usr/lib/modules/6.12/x.efi"} {
		got, err := source{oci: layoutOf(t, name, content)}.referenceValues("x")
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %v, %v, expected %v", name, got, err, want)
		}
	}
	_, err = source{oci: layoutOf(t, "usr/lib/modules/6.12/vmlinuz", content)}.referenceValues("x")
	if err == nil || !strings.Contains(err.Error(), "use --boot") {
		t.Errorf("an image without a UKI: %v", err)
	}
}
