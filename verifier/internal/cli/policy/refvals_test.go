// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"fmt"
	"maps"
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

// layoutOf writes an OCI image layout with files.
func layoutOf(t *testing.T, files map[string]string) string {
	t.Helper()
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	for name, content := range files {
		h := &tar.Header{Name: name, Typeflag: tar.TypeReg, Size: int64(len(content)), Mode: 0o644}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	blob := func(b []byte) string {
		digest := fmt.Sprintf("%x", sha256.Sum256(b))
		out["blobs/sha256/"+digest] = string(b)
		return digest
	}
	manifest := fmt.Sprintf(`{"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"sha256:%s"}]}`,
		blob(layer.Bytes()))
	out["index.json"] = fmt.Sprintf(`{"manifests":[{"digest":"sha256:%s"}]}`, blob([]byte(manifest)))
	return folderOf(t, out)
}

// folderOf writes files to a folder.
func folderOf(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestRefvals_AContainerImageHasTheValuesOfItsUKI(t *testing.T) {
	uki := buildUKI(t)
	want, err := source{uki: uki}.referenceValues(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	content := read(t, uki)
	for _, name := range []string{"boot/EFI/Linux/x.efi", "boot/EFI/Linux/bootc/x.efi", "usr/lib/modules/6.12/x.efi"} {
		got, err := source{oci: layoutOf(t, map[string]string{name: content})}.referenceValues(t.Context(), "x")
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %v, %v, expected %v", name, got, err, want)
		}
	}
	without := source{oci: layoutOf(t, map[string]string{"usr/lib/modules/6.12/vmlinuz": content})}
	_, err = without.referenceValues(t.Context(), "x")
	if err == nil || !strings.Contains(err.Error(), "also give the folder") {
		t.Errorf("an image without a UKI: %v", err)
	}
}

// The container image has shim, GRUB, the kernel and its initramfs. The installer writes the rest. Files of the
// disk with the names of those in the image have no effect.
func TestRefvals_AContainerImageWithGRUBHasTheValuesOfItsDisk(t *testing.T) {
	shim := read(t, "/usr/lib/shim/shimx64.efi.signed")
	grub := read(t, "/usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed")
	kernel := read(t, "/usr/lib/shim/mmx64.efi.signed") // another signed image
	const version, deployment = "6.12.1-200.fc43.x86_64", "ostree/fedora-coreos-1f2e/"
	config := map[string]string{
		"efi/EFI/fedora/grub.cfg": "configfile /grub2/grub.cfg\n",
		"grub2/grub.cfg": "set ignition_firstboot=\nif [ -f /ignition.firstboot ]; then\n" +
			"  set ignition_firstboot=ignition.firstboot\nfi\nblscfg\n",
		"loader.1/entries/ostree-1.conf": "title CoreOS\nversion 1\noptions $ignition_firstboot " +
			"ostree=/ostree/boot.1/x/1f2e/0\n" +
			"linux /" + deployment + "vmlinuz-" + version + "\ninitrd /" + deployment + "initramfs-" + version + ".img\n" +
			"initrd /ostree/initramfs-overlays/agent.img\n",
		"ostree/initramfs-overlays/agent.img": "the agent's archive",
	}
	folder := func(files map[string]string) string {
		all := maps.Clone(config)
		maps.Copy(all, files)
		dir := folderOf(t, all)
		if err := os.Symlink("loader.1", filepath.Join(dir, "loader")); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	want, err := source{boot: folder(map[string]string{
		"efi/EFI/BOOT/BOOTX64.EFI": shim, "efi/EFI/fedora/grubx64.efi": grub,
		deployment + "vmlinuz-" + version: kernel, deployment + "initramfs-" + version + ".img": "initramfs",
	})}.referenceValues(t.Context(), "x")
	if err != nil || len(want) != 1 || len(want[0].Loads) != 3 {
		t.Fatalf("the disk: %+v, %v", want, err)
	}
	image := func(efi string) string {
		return layoutOf(t, map[string]string{
			efi + "BOOT/BOOTX64.EFI": shim, efi + "fedora/grubx64.efi": grub,
			"usr/lib/modules/" + version + "/vmlinuz": kernel, "usr/lib/modules/" + version + "/initramfs.img": "initramfs",
		})
	}
	for _, efi := range []string{
		"usr/lib/bootupd/updates/EFI/", "usr/lib/ostree-boot/efi/EFI/", "usr/lib/efi/shim/16.1/EFI/",
	} {
		for name, disk := range map[string]string{
			"only the configuration": folder(nil),
			"other files of those names": folder(map[string]string{
				"efi/EFI/BOOT/BOOTX64.EFI": grub, "efi/EFI/debian/shimx64.efi": grub,
				deployment + "vmlinuz-" + version: grub, deployment + "initramfs-" + version + ".img": "another",
				"usr/EFI/BOOT/BOOTX64.EFI": grub,
			}),
		} {
			got, err := source{oci: image(efi), boot: disk}.referenceValues(t.Context(), "x")
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("%s, %s: got %+v, %v, expected %+v", efi, name, got, err, want)
			}
		}
	}
	for name, c := range map[string]struct{ old, replacement, want string }{
		"a kernel that the image does not have": {version, "6.12.2", "which does not exist"},
		"a kernel only on the disk": {deployment + "vmlinuz-" + version, "vmlinuz",
			"which no container image has"},
		"an initramfs only on the disk": {"initrd /" + deployment + "initramfs-" + version + ".img\n", "",
			"which no container image has"},
	} {
		entry := strings.ReplaceAll(config["loader.1/entries/ostree-1.conf"], c.old, c.replacement)
		disk := folder(map[string]string{"loader.1/entries/ostree-1.conf": entry, "vmlinuz": kernel})
		_, err := source{oci: image("usr/lib/bootupd/updates/EFI/"), boot: disk}.referenceValues(t.Context(), "x")
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A live image has the configuration of GRUB in both file systems. The stub in the EFI system partition leads to the
// other one. Firmware that starts the image by El Torito lets GRUB read only the other one.
func TestRefvals_AnISOHasTheValuesOfItsFiles(t *testing.T) {
	shim := read(t, "/usr/lib/shim/shimx64.efi.signed")
	iso := map[string]string{
		"EFI/fedora/grub.cfg": "set default=\"1\"\nfunction load_video {\n  insmod all_video\n}\nload_video\n" +
			"set gfxpayload=keep\nset timeout=5\nmenuentry 'CoreOS (Live)' --class gnu-linux --class os {\n" +
			"\tlinux /images/pxeboot/vmlinuz coreos.liveiso=coreos-43 ignition.firstboot ignition.platform.id=metal\n" +
			strings.Repeat("#", 1000) + " KERNEL ARGUMENTS\n" +
			"\tinitrd /images/pxeboot/initrd.img /images/ignition.img\n}\n",
		"images/pxeboot/vmlinuz":    read(t, "/usr/lib/shim/mmx64.efi.signed"),
		"images/pxeboot/initrd.img": "initramfs",
		"images/pxeboot/rootfs.img": "root file system",
		"images/ignition.img":       strings.Repeat("\x00", 1000),
	}
	partition := map[string]string{
		"EFI/BOOT/BOOTX64.EFI": shim,
		"EFI/BOOT/grubx64.efi": read(t, "/usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed"),
		"EFI/BOOT/grub.cfg": "search --label \"coreos-43\" --set root --no-floppy\nset prefix=($root)/EFI/fedora\n" +
			"echo \"Booting\"\nconfigfile $prefix/grub.cfg\nboot\n",
	}
	mounted := maps.Clone(iso)
	for name, content := range partition {
		mounted["efi/"+name] = content
	}
	want, err := source{boot: folderOf(t, mounted)}.referenceValues(t.Context(), "x")
	if err != nil || len(want) != 1 || len(want[0].Loads) != 3 {
		t.Fatalf("the files: %+v, %v", want, err)
	}
	var configs []string
	for _, f := range want[0].Files {
		configs = append(configs, f.Name)
	}
	if !reflect.DeepEqual(configs, []string{"/EFI/*/grub.cfg", "/EFI/*/grub.cfg"}) {
		t.Errorf("the configurations are no alternatives: %q", configs)
	}

	run := func(name string, args ...string) {
		t.Helper()
		if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v, %s", name, err, out)
		}
	}
	dir, image := folderOf(t, iso), filepath.Join(t.TempDir(), "live.iso")
	efi := filepath.Join(dir, "images/efiboot.img")
	run("mkfs.vfat", "-C", efi, "8192")
	run("mcopy", "-s", "-i", efi, filepath.Join(folderOf(t, partition), "EFI"), "::")
	run("xorrisofs", "-quiet", "-rational-rock", "-J", "-joliet-long", "-o", image,
		"-eltorito-alt-boot", "-e", "images/efiboot.img", "-no-emul-boot", dir)
	got, err := source{iso: image}.referenceValues(t.Context(), "x")
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, expected %+v", got, err, want)
	}
	if _, err := (source{iso: efi}).referenceValues(t.Context(), "x"); err == nil ||
		!strings.Contains(err.Error(), "not an ISO 9660 image") {
		t.Errorf("the EFI system partition: %v", err)
	}
}
