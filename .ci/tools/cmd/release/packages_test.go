// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// packageFiles are some files of each package. The first is the program.
var packageFiles = map[string][]string{
	verifier: {
		"/usr/bin/mcs-attest-verifier", "/usr/lib/systemd/system/mcs-attest-verifier.service",
		"/usr/lib/sysusers.d/mcs-attest.conf", "/usr/lib/tmpfiles.d/mcs-attest.conf",
		"/usr/share/man/man1/mcs-attest-verifier.1.gz", "/usr/share/man/man1/mcs-attest-verifier-token-rotate.1.gz",
		"/usr/share/bash-completion/completions/mcs-attest-verifier",
		"/usr/share/fish/vendor_completions.d/mcs-attest-verifier.fish",
	},
	agent: {"/usr/bin/mcs-attest-agent", "/usr/lib/dracut/modules.d/90mcs-attest/module-setup.sh"},
	plugin: {
		"/usr/bin/kubectl-attest", "/usr/bin/oc-attest", "/usr/bin/kubectl_complete-attest",
		"/usr/share/man/man1/kubectl-attest-status.1.gz",
	},
}

// built returns the package of a release in a format.
func built(t *testing.T, name, format string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dist(t), name+"?0*."+format))
	if err != nil || len(found) != 1 {
		t.Fatalf("%s.%s: %v, %v", name, format, found, err)
	}
	return found[0]
}

// formats are the two package managers, working on a folder in place of the root.
var formats = map[string]struct {
	inspect, list, install, remove func(root, path, name string) []string
}{
	"rpm": {
		inspect: func(_, path, _ string) []string { return []string{"rpm", "-qip", "--requires", path} },
		list:    func(_, path, _ string) []string { return []string{"rpm", "-qlp", path} },
		install: func(root, path, _ string) []string {
			return asRoot("rpm", "--root", root, "--dbpath", "/var/lib/rpm", "--nodeps", "-i", path)
		},
		remove: func(root, _, name string) []string {
			return asRoot("rpm", "--root", root, "--dbpath", "/var/lib/rpm", "-e", name)
		},
	},
	"deb": {
		inspect: func(_, path, _ string) []string { return []string{"dpkg-deb", "-I", path} },
		list: func(_, path, _ string) []string {
			return []string{"sh", "-c", `dpkg-deb --fsys-tarfile "$1" | tar -t | sed -n 's,^\.\(.*[^/]\)$,\1,p'`, "sh", path}
		},
		install: func(root, path, _ string) []string {
			return asRoot("dpkg", "--root="+root, "--force-depends", "--force-not-root", "-i", path)
		},
		remove: func(root, _, name string) []string {
			return asRoot("dpkg", "--root="+root, "--force-not-root", "-P", name)
		},
	},
}

// rootFolder is a folder with a shell, in which packages can be installed.
func rootFolder(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for _, dir := range []string{"bin", "usr/bin", "var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/dpkg/triggers"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	shell := string(read(t, "/bin/busybox"))
	write(t, filepath.Join(root, "bin/sh"), shell)
	if err := os.Chmod(filepath.Join(root, "bin/sh"), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(root, "var/lib/dpkg/status"), "")
	return root
}

// filesBelow lists what is below a folder, without the databases of the package managers.
func filesBelow(t *testing.T, root string) []string {
	t.Helper()
	return strings.Fields(command(t, "sh", "-c",
		`cd "$1" && find . -path ./var -prune -o ! -type d -printf '/%P\n' | sort`, "sh", root))
}

func TestPackages_AreInstalledAndRemoved(t *testing.T) {
	for format, manager := range formats {
		for name, want := range packageFiles {
			t.Run(format+" of "+name, func(t *testing.T) {
				path := built(t, name, format)
				do := func(f func(root, path, name string) []string, root string) string {
					t.Helper()
					args := f(root, path, name)
					return command(t, args[0], args[1:]...)
				}
				info := do(manager.inspect, "")
				for _, want := range []string{name, "0.9.0~rc.1", "Apache-2.0"} {
					if format == "deb" && want == "Apache-2.0" {
						continue // dpkg has no such field
					}
					if !strings.Contains(info, want) {
						t.Errorf("%q is missing in %s", want, info)
					}
				}
				listed := strings.Fields(do(manager.list, ""))
				for _, file := range want {
					if !slices.Contains(listed, file) {
						t.Errorf("%s is not in %v", file, listed)
					}
				}
				root := rootFolder(t)
				before := filesBelow(t, root)
				do(manager.install, root)
				after := filesBelow(t, root)
				for _, file := range listed {
					if info, err := os.Lstat(filepath.Join(root, file)); err != nil || !info.IsDir() && !slices.Contains(after, file) {
						t.Errorf("%s is not installed (%v)", file, err)
					}
				}
				for _, file := range after {
					if !slices.Contains(listed, file) && !slices.Contains(before, file) {
						t.Errorf("%s is installed and not listed", file)
					}
				}
				if out := command(t, filepath.Join(root, want[0]), "version"); !strings.Contains(out, testVersion) {
					t.Errorf("version: %s", out)
				}
				do(manager.remove, root)
				if left := filesBelow(t, root); !slices.Equal(left, before) {
					t.Errorf("after the removal: %v, before the installation: %v", left, before)
				}
			})
		}
	}
}

func TestPackages_TheAgentsIsWhatMakeInstallInstalls(t *testing.T) {
	want := filesBelow(t, unpack(t, pull(t, dist(t), coreos, runtime.GOARCH)))
	for format, manager := range formats {
		args := manager.list("", built(t, agent, format), agent)
		got := strings.Fields(command(t, args[0], args[1:]...))
		got = slices.DeleteFunc(got, func(f string) bool { return strings.HasPrefix(f, "/usr/share/doc") })
		got = slices.DeleteFunc(got, func(f string) bool { return f == "/usr/lib/dracut/modules.d/90mcs-attest" })
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%s has %v, not %v", format, got, want)
		}
	}
}

// The account and the folder that the unit needs are made by systemd, from the files of the package.
func TestPackages_TheVerifiersUnitIsHardenedAndItsAccountIsMade(t *testing.T) {
	root := rootFolder(t)
	args := formats["deb"].install(root, built(t, verifier, "deb"), verifier)
	command(t, args[0], args[1:]...)
	unit := "usr/lib/systemd/system/mcs-attest-verifier.service"
	out, err := exec.Command("systemd-analyze", "security", "--offline=true", "--root="+root, "--threshold=29",
		"--no-pager", "mcs-attest-verifier.service").CombinedOutput()
	if err != nil {
		t.Errorf("exposure of 3.0 or more: %v\n%s", err, out)
	}
	// The program is in the root folder, not here.
	settings := string(read(t, filepath.Join(root, unit)))
	copied := filepath.Join(t.TempDir(), filepath.Base(unit))
	write(t, copied, strings.Replace(settings, "ExecStart=/usr/bin/mcs-attest-verifier", "ExecStart=/bin/true", 1))
	out, err = exec.Command("systemd-analyze", "verify", "--man=no", "--recursive-errors=no", copied).CombinedOutput()
	if err != nil || strings.Contains(string(out), "mcs-attest") {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
	write(t, filepath.Join(root, "etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n")
	write(t, filepath.Join(root, "etc/group"), "root:x:0:\n")
	run := asRoot("systemd-sysusers", "--root="+root, "mcs-attest.conf")
	command(t, run[0], run[1:]...)
	var user string
	for s := bufio.NewScanner(strings.NewReader(string(read(t, filepath.Join(root, "etc/passwd"))))); s.Scan(); {
		if strings.HasPrefix(s.Text(), "mcs-attest:") {
			user = s.Text()
		}
	}
	if !strings.HasSuffix(user, ":/var/lib/mcs-attest:/usr/sbin/nologin") {
		t.Errorf("the account: %q", user)
	}
	for _, want := range []string{"\nUser=mcs-attest\n", "\nStateDirectory=mcs-attest\n"} {
		if !strings.Contains(settings, want) {
			t.Errorf("the unit lacks %s", strings.TrimSpace(want))
		}
	}
	// Only root can give a folder away.
	if os.Getuid() == 0 {
		command(t, "systemd-tmpfiles", "--root="+root, "--create", "mcs-attest.conf")
		info, err := os.Stat(filepath.Join(root, "var/lib/mcs-attest"))
		if err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("the folder: %v, %v", info, err)
		}
	}
}

func TestPackages_ManualPagesAndCompletionsAreOfTheVersion(t *testing.T) {
	root := rootFolder(t)
	args := formats["deb"].install(root, built(t, verifier, "deb"), verifier)
	command(t, args[0], args[1:]...)
	_, date, err := origin(t.Context(), filepath.Join(scratch, "a"), testVersion)
	if err != nil {
		t.Fatal(err)
	}
	page := command(t, "gzip", "-dc", filepath.Join(root, "usr/share/man/man1/mcs-attest-verifier-enroll.1.gz"))
	if want := `.TH "MCS-ATTEST-VERIFIER-ENROLL" "1" "` + date.Format("Jan 2006") + `" "mcs-attest ` + testVersion; !strings.Contains(page, want) {
		t.Errorf("the page does not have %s:\n%.300s", want, page)
	}
	for _, want := range []string{"--pool", "SEE ALSO", "mcs-attest-verifier(1)"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page does not have %s", want)
		}
	}
	// The package's program answers the package's completion.
	script := filepath.Join(root, "usr/share/bash-completion/completions/mcs-attest-verifier")
	out := command(t, "env", "PATH="+filepath.Join(root, "usr/bin")+":"+os.Getenv("PATH"), "bash", "-c",
		`_get_comp_words_by_ref() { words=(mcs-attest-verifier enr) cur=enr cword=1 prev=mcs-attest-verifier; }
. "$1"; COMP_TYPE=9
__start_mcs-attest-verifier; echo "${COMPREPLY[@]}"`, "bash", script)
	if !strings.HasPrefix(out, "enroll") {
		t.Errorf("Tab after 'enr' gives %q", out)
	}
}

func TestKrew_DownloadsWhatTheReleaseHas(t *testing.T) {
	var m krewPlugin
	if err := yaml.UnmarshalStrict(read(t, filepath.Join(dist(t), "attest.yaml")), &m); err != nil {
		t.Fatal(err)
	}
	if m.Metadata["name"] != "attest" || m.Spec.Version != testVersion || len(m.Spec.Platforms) != 1 {
		t.Fatalf("the manifest is %+v", m)
	}
	p := m.Spec.Platforms[0]
	host, file := filepath.Split(p.URI)
	if host != repository+"/releases/download/"+testVersion+"/" {
		t.Errorf("the URI is %s", p.URI)
	}
	if !strings.Contains(string(read(t, filepath.Join(dist(t), sums))), p.SHA256+"  "+file+"\n") {
		t.Errorf("%s has another checksum than %s", file, p.SHA256)
	}
	// krew unpacks the archive, copies the files and links the program.
	dir := t.TempDir()
	command(t, "tar", "-C", dir, "-xzf", filepath.Join(dist(t), file))
	for _, f := range p.Files {
		if _, err := os.Stat(filepath.Join(dir, f["from"])); err != nil {
			t.Error(err)
		}
	}
	if out := command(t, filepath.Join(dir, p.Bin), "version"); !strings.HasPrefix(out, "kubectl attest "+testVersion) {
		t.Errorf("version: %s", out)
	}
}
