// SPDX-License-Identifier: Apache-2.0

package dracut_test

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const (
	firstEntry = "title CoreOS 42 (ostree:1)\nversion 2\noptions ignition.platform.id=metal $ignition_firstboot " +
		"ostree=/ostree/boot.1/os/0/0\nlinux /ostree/os-0/vmlinuz-6\ninitrd /ostree/os-0/initramfs-6.img\n"
	// As OSTree writes it where /boot has no file system of its own.
	secondEntry = "title CoreOS 41 (ostree:0)\noptions root=LABEL=root ostree=/ostree/boot.1/os/1/0\n" +
		"linux /boot/ostree/os-1/vmlinuz-6\ninitrd /boot/ostree/os-1/initramfs-6.img\naboot /x\n"
	otherEntry = "title Another system\noptions root=/dev/sdb\nlinux /vmlinuz\ninitrd /initrd\n"
)

// archive writes an archive for an initramfs and returns its path, and the path that OSTree gives it.
func archive(t *testing.T, content string) (path, overlay string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "archive")
	content = "070701" + content
	write(t, path, content)
	return path, fmt.Sprintf("ostree/initramfs-overlays/%x.img", sha256.Sum256([]byte(content)))
}

// bootFolder returns the boot file system of an installed system.
func bootFolder(t *testing.T) string {
	t.Helper()
	boot := t.TempDir()
	write(t, filepath.Join(boot, "loader.1/entries/ostree-2-os.conf"), firstEntry)
	write(t, filepath.Join(boot, "loader.1/entries/ostree-1-os.conf"), secondEntry)
	write(t, filepath.Join(boot, "loader.1/entries/other.conf"), otherEntry)
	write(t, filepath.Join(boot, "ostree/os-0/initramfs-6.img"), "stock")
	if err := os.Symlink("loader.1", filepath.Join(boot, "loader")); err != nil {
		t.Fatal(err)
	}
	return boot
}

// tree returns the files of a folder: path to content.
func tree(t *testing.T, root string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			name, _ := filepath.Rel(root, path)
			files[name] = read(t, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func wantTree(t *testing.T, got, want map[string]string) {
	t.Helper()
	for name, content := range want {
		if got[name] != content {
			t.Errorf("%s is\n%s\nwant\n%s", name, got[name], content)
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("%s should not exist", name)
		}
	}
}

// wantError runs boot.sh, which must fail with this message.
func wantError(t *testing.T, message string, args ...string) {
	t.Helper()
	out, err := exec.Command("./boot.sh", args...).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "error: "+message) {
		t.Errorf("boot.sh %s: %v\n%s\nwant the error %q", strings.Join(args, " "), err, out, message)
	}
}

func TestBoot_AddsTheArchiveToEachEntryOfOSTreeAndRemovesIt(t *testing.T) {
	boot := bootFolder(t)
	before := tree(t, boot)
	agent, agentOverlay := archive(t, "agent")
	settings, settingsOverlay := archive(t, "settings")
	after := map[string]string{agentOverlay: "070701agent", settingsOverlay: "070701settings"}
	for name, content := range before {
		after[name] = content
	}
	after["loader.1/entries/ostree-2-os.conf"] = firstEntry +
		"initrd /" + agentOverlay + "\ninitrd /" + settingsOverlay + "\n"
	after["loader.1/entries/ostree-1-os.conf"] = strings.Replace(secondEntry, "aboot",
		"initrd /boot/"+agentOverlay+"\ninitrd /boot/"+settingsOverlay+"\naboot", 1)

	out := run(t, nil, "./boot.sh", "add", "--boot", boot, agent, settings)
	wantTree(t, tree(t, boot), after)
	want := agentOverlay + "\n" + settingsOverlay + "\nloader/entries/ostree-1-os.conf\nloader/entries/ostree-2-os.conf\n"
	if out != want {
		t.Errorf("the first run printed %q, want %q", out, want)
	}
	if out := run(t, nil, "./boot.sh", "add", "--boot", boot, agent, settings); out != "" {
		t.Errorf("the second run changed %s", out)
	}
	wantTree(t, tree(t, boot), after)
	run(t, nil, "./boot.sh", "remove", "--boot", boot, settings, agent)
	wantTree(t, tree(t, boot), before)
	if out := run(t, nil, "./boot.sh", "remove", "--boot", boot, agent); out != "" {
		t.Errorf("the second removal changed %s", out)
	}
}

// GRUB does not read the journal of a file system. debugfs does not either.
func TestBoot_TheBootLoaderSeesTheChangeAfterAPowerLoss(t *testing.T) {
	if _, err := os.Stat("/dev/loop-control"); err != nil || os.Geteuid() != 0 {
		t.Skip("mounting a file system requires root and loop devices")
	}
	agent, overlay := archive(t, "agent")
	image, disk, mounted, seen := filepath.Join(t.TempDir(), "image"), filepath.Join(t.TempDir(), "disk"), t.TempDir(),
		t.TempDir()
	run(t, nil, "mkfs.ext4", "-q", "-d", bootFolder(t), image, "64M")
	run(t, nil, "unshare", "--mount", "sh", "-e", "-c", `mount -o loop "$1" "$3"
		./boot.sh add --boot "$3" "$4"
		cp --sparse=always "$1" "$2"
		: > "$3/thawed"`, "sh", image, disk, mounted, agent)
	run(t, nil, "debugfs", "-R", "rdump / "+seen, disk)
	got := tree(t, seen)
	if got[overlay] != "070701agent" || !strings.Contains(got["loader.1/entries/ostree-1-os.conf"], overlay) {
		t.Errorf("the boot loader sees %q", got)
	}
}

// A program that fails at its second call for an entry stands for a full disk or a cut connection.
func TestBoot_RestoresEverythingAfterAnError(t *testing.T) {
	agent, _ := archive(t, "agent")
	for _, tool := range []string{"mv", "cp", "sync"} {
		t.Run(tool, func(t *testing.T) {
			boot := bootFolder(t)
			if err := os.Remove(filepath.Join(boot, "loader.1/entries/other.conf")); err != nil {
				t.Fatal(err)
			}
			real, err := exec.LookPath(tool)
			if err != nil {
				t.Fatal(err)
			}
			for _, action := range []string{"add", "remove"} {
				if action == "remove" {
					run(t, nil, "./boot.sh", "add", "--boot", boot, agent)
				}
				before := tree(t, boot)
				fakes := t.TempDir()
				fake := filepath.Join(fakes, tool)
				write(t, fake, `#!/bin/sh
case "$*" in */new/ostree-2-os.conf*) [ -e "$0.done" ] || { : > "$0.done"; echo "no space left"; exit 1; } ;; esac
exec `+real+` "$@"
`)
				if err := os.Chmod(fake, 0o755); err != nil {
					t.Fatal(err)
				}
				cmd := exec.Command("./boot.sh", action, "--boot", boot, agent)
				cmd.Env = append(os.Environ(), "PATH="+fakes+":"+os.Getenv("PATH"))
				if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "no space left") {
					t.Fatalf("%s: %v\n%s", action, err, out)
				}
				wantTree(t, tree(t, boot), before)
			}
		})
	}
}

// withFake returns the environment in which a shell script with this body precedes a tool, which is $real in it.
func withFake(t *testing.T, tool, body string) []string {
	t.Helper()
	real, err := exec.LookPath(tool)
	if err != nil {
		t.Fatal(err)
	}
	fakes := t.TempDir()
	write(t, filepath.Join(fakes, tool), "#!/bin/sh\nreal="+real+"\n"+body)
	if err := os.Chmod(filepath.Join(fakes, tool), 0o755); err != nil {
		t.Fatal(err)
	}
	return append(os.Environ(), "PATH="+fakes+":"+os.Getenv("PATH"))
}

// On a full disk cp leaves an empty file, and mkdir fails after mktemp has succeeded.
func TestBoot_RestoresEverythingOnAFullDisk(t *testing.T) {
	agent, _ := archive(t, "agent")
	for _, c := range []struct{ name, tool, fake string }{
		{"a copy of an entry", "cp", `for last; do :; done
case "$*" in
*/new/*) ;;
*.conf*) [ ! -d "$last" ] || last=$last/ostree-1-os.conf; : > "$last"; echo "No space left on device"; exit 1 ;;
esac
exec $real "$@"
`},
		{"a folder", "mkdir", `echo "No space left on device"; exit 1` + "\n"},
		{"a new entry", "awk", `echo "No space left on device" >&2; exit 2` + "\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			boot := bootFolder(t)
			before := tree(t, boot)
			cmd := exec.Command("./boot.sh", "add", "--boot", boot, agent)
			cmd.Env = withFake(t, c.tool, c.fake)
			if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "No space left") ||
				strings.Contains(string(out), "names no initrd") {
				t.Fatalf("%v\n%s", err, out)
			}
			wantTree(t, tree(t, boot), before)
			if left, err := filepath.Glob(filepath.Join(boot, ".mcs-attest.*")); err != nil || len(left) != 0 {
				t.Errorf("files are left: %v, %v", left, err)
			}
		})
	}
}

// The hint to remount is only for a file system that is read-only.
func TestBoot_SaysWhyItCannotWrite(t *testing.T) {
	boot := bootFolder(t)
	agent, _ := archive(t, "agent")
	for reason, hint := range map[string]bool{"Read-only file system": true, "No space left on device": false} {
		cmd := exec.Command("./boot.sh", "add", "--boot", boot, agent)
		cmd.Env = withFake(t, "mktemp", `echo "mktemp: failed to create directory: `+reason+`" >&2; exit 1`+"\n")
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), "error: cannot write to "+boot) ||
			!strings.Contains(string(out), reason) || strings.Contains(string(out), "remount") != hint {
			t.Errorf("%s: %v\n%s", reason, err, out)
		}
	}
}

// The kernel unpacks each of these formats, and an archive has the one that a kernel supports.
func TestBoot_AcceptsEachFormatOfAnArchive(t *testing.T) {
	_, content := archive(t, "agent")
	plain := filepath.Join(t.TempDir(), "plain.cpio")
	write(t, plain, "070701"+content)
	for _, program := range []string{"", "gzip", "xz", "zstd"} {
		file := plain
		if program != "" {
			file += "." + program
			run(t, nil, "sh", "-c", program+" -c < "+plain+" > "+file)
		}
		run(t, nil, "./boot.sh", "add", "--boot", bootFolder(t), file)
	}
}

func TestBoot_NamesWhatIsWrong(t *testing.T) {
	boot := bootFolder(t)
	agent, _ := archive(t, "agent")
	tarball := filepath.Join(t.TempDir(), "mcs-attest-dracut.tar.gz")
	write(t, tarball, "\x1f\x8btarball")
	plain := t.TempDir()
	write(t, filepath.Join(plain, "loader/entries/other.conf"), otherEntry)
	broken := t.TempDir()
	write(t, filepath.Join(broken, "loader/entries/a.conf"), strings.Replace(firstEntry, "initrd", "uki", 1))
	empty := t.TempDir()
	for message, args := range map[string][]string{
		empty + " has no folder loader/entries":             {"add", "--boot", empty, agent},
		"too few arguments":                                 {"add", "--boot", boot},
		"unknown action install":                            {"install", "--boot", boot, agent},
		"unknown option --root":                             {"add", "--root", boot, agent},
		"/nowhere is not a file":                            {"add", "--boot", boot, "/nowhere"},
		tarball + " is not an archive":                      {"add", "--boot", boot, tarball},
		plain + "/loader/entries has no entry of an OSTree": {"add", "--boot", plain, agent},
		broken + "/loader/entries/a.conf names no initrd":   {"add", "--boot", broken, agent},
		agent + " has no partition named boot":              {"add", "--image", agent, agent},
		filepath.Dir(agent) + " is not a file":              {"add", "--image", filepath.Dir(agent), agent},
	} {
		wantError(t, message, args...)
	}
	wantTree(t, tree(t, boot), tree(t, bootFolder(t)))
	if out := run(t, nil, "./boot.sh", "--help"); !strings.HasPrefix(out, "usage: boot.sh add|remove --boot FOLDER") {
		t.Errorf("--help prints\n%s", out)
	}
}

// diskImage returns a disk image whose second partition is the boot file system of an installed system.
func diskImage(t *testing.T) (image, system string) {
	t.Helper()
	dir := t.TempDir()
	image = filepath.Join(dir, "disk.img")
	run(t, nil, "truncate", "--size=20M", image)
	run(t, nil, "sh", "-c", `printf 'label: gpt\nsize=1MiB, name=BIOS-BOOT\nsize=10MiB, name=boot\nname=root\n' |
		sfdisk --quiet "$1"`, "sh", image)
	const start = "2097152"
	run(t, nil, "mkfs.ext4", "-q", "-F", "-L", "boot", "-d", bootFolder(t), "-E", "offset="+start, image, "10M")
	return image, image + "?offset=" + start
}

// bootFiles returns the files of an image's boot file system.
func bootFiles(t *testing.T, system string) map[string]string {
	t.Helper()
	run(t, nil, "e2fsck", "-fn", system)
	dir := t.TempDir()
	run(t, nil, "debugfs", "-R", "rdump / "+dir, system)
	return tree(t, dir)
}

func TestBoot_ChangesADiskImageAsAFolder(t *testing.T) {
	image, system := diskImage(t)
	const label = "system_u:object_r:boot_t:s0"
	for _, name := range []string{"", "/ostree-1-os.conf", "/ostree-2-os.conf"} {
		run(t, nil, "debugfs", "-w", "-R", "ea_set /loader/entries"+name+" security.selinux "+label, system)
	}
	before := bootFiles(t, system)
	agent, overlay := archive(t, strings.Repeat("agent", 1<<19))
	folder := bootFolder(t)
	run(t, nil, "./boot.sh", "add", "--boot", folder, agent)

	for range 2 {
		run(t, nil, "./boot.sh", "add", "--image", image, agent)
		wantTree(t, bootFiles(t, system), tree(t, folder))
	}
	for _, path := range []string{"/loader/entries/ostree-1-os.conf", "/" + overlay} {
		if got := run(t, nil, "debugfs", "-R", "ea_get "+path+" security.selinux", system); !strings.Contains(got, label) {
			t.Errorf("the label of %s is %q, want %s", path, got, label)
		}
	}
	run(t, nil, "./boot.sh", "remove", "--image", image, agent)
	wantTree(t, bootFiles(t, system), before)
	if left := glob(t, image+"*"); len(left) != 1 {
		t.Errorf("files are left: %v", left)
	}
}

// sfdisk before util-linux 2.35, for example in RHEL 8, does not print the size of a sector.
func TestBoot_ChangesADiskImageWithAnOlderSfdisk(t *testing.T) {
	image, system := diskImage(t)
	agent, overlay := archive(t, "agent")
	cmd := exec.Command("./boot.sh", "add", "--image", image, agent)
	cmd.Env = withFake(t, "sfdisk", `$real "$@" | grep -v '^sector-size'`+"\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if got := bootFiles(t, system)[overlay]; got != "070701agent" {
		t.Errorf("the archive in the image is %q", got)
	}
}

func TestBoot_LeavesADiskImageThatItCannotChange(t *testing.T) {
	image, system := diskImage(t)
	large, _ := archive(t, strings.Repeat("large", 2<<20))
	agent, _ := archive(t, "agent")
	before := read(t, image)
	wantError(t, "cannot write ostree/initramfs-overlays/", "add", "--image", image, large)
	if read(t, image) != before {
		t.Error("an archive that is larger than the file system has changed the image")
	}
	run(t, nil, "debugfs", "-w", "-R", "clri /loader.1/entries/other.conf", system)
	before = read(t, image)
	wantError(t, "the boot file system of "+image+" is not a clean ext4", "add", "--image", image, agent)
	if read(t, image) != before {
		t.Error("a file system with errors has been changed")
	}
	if left := glob(t, image+"*"); len(left) != 1 {
		t.Errorf("files are left: %v", left)
	}
}

// The image that a link names is replaced, and only after success.
func TestBoot_ReplacesTheImageThatALinkNames(t *testing.T) {
	image, system := diskImage(t)
	link := filepath.Join(filepath.Dir(image), "latest.img")
	if err := os.Symlink("disk.img", link); err != nil {
		t.Fatal(err)
	}
	large, _ := archive(t, strings.Repeat("large", 2<<20))
	agent, overlay := archive(t, "agent")
	before := read(t, image)
	wantError(t, "cannot write ostree/initramfs-overlays/", "add", "--image", link, large)
	if read(t, image) != before {
		t.Error("a change that failed has changed the image")
	}
	run(t, nil, "./boot.sh", "add", "--image", link, agent)
	if got := bootFiles(t, system)[overlay]; got != "070701agent" {
		t.Errorf("the archive in the image is %q", got)
	}
	if to, err := os.Readlink(link); err != nil || to != "disk.img" {
		t.Errorf("the link leads to %q: %v", to, err)
	}
}

// OSTree itself reads the entry. It writes the line again when it renames the entry of that
// deployment, does not give it to an update, and deletes the archive with the deployment.
func TestBoot_OSTreeKeepsTheArchiveWithItsDeployment(t *testing.T) {
	t.Setenv("OSTREE_SYSROOT_DEBUG", "mutable-deployments")
	tree, sysroot := t.TempDir(), t.TempDir()
	boot := filepath.Join(sysroot, "boot")
	write(t, filepath.Join(tree, "usr/lib/modules/6/vmlinuz"), "kernel")
	write(t, filepath.Join(tree, "usr/lib/modules/6/initramfs.img"), "initramfs")
	write(t, filepath.Join(tree, "usr/lib/os-release"), "ID=os\n")
	repo := "--repo=" + filepath.Join(sysroot, "ostree/repo")
	admin := func(args ...string) string {
		t.Helper()
		return run(t, nil, "ostree", append([]string{"admin", "--sysroot=" + sysroot}, args...)...)
	}
	deploy := func(version string) {
		t.Helper()
		write(t, filepath.Join(tree, "usr/etc/version"), version)
		run(t, nil, "ostree", repo, "commit", "--branch=os", "--tree=dir="+tree)
		admin("deploy", "--os=os", "os")
	}
	run(t, nil, "ostree", "admin", "init-fs", "--modern", sysroot)
	admin("os-init", "os")
	run(t, nil, "ostree", repo, "config", "set", "sysroot.bootloader", "none")
	deploy("1")
	agent, overlay := archive(t, "agent")
	run(t, nil, "./boot.sh", "add", "--boot", boot, agent)
	deploy("2")
	first, second := boot+"/loader/entries/ostree-1-os.conf", boot+"/loader/entries/ostree-2-os.conf"
	if !strings.HasSuffix(read(t, first), "\ninitrd /"+overlay+"\n") {
		t.Errorf("the first deployment's entry is\n%s", read(t, first))
	}
	if strings.Contains(read(t, second), overlay) {
		t.Errorf("the update's entry is\n%s", read(t, second))
	}
	if got := read(t, filepath.Join(boot, overlay)); got != "070701agent" {
		t.Errorf("the archive is %q", got)
	}
	admin("undeploy", "1")
	if _, err := os.Stat(filepath.Join(boot, overlay)); !os.IsNotExist(err) {
		t.Errorf("the archive of a deployment that was deleted: %v", err)
	}
}
