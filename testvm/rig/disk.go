// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strings"
)

const busybox = "/bin/busybox"

// applets are the commands of a root disk. The kubelet needs mount and umount for the volumes of pods.
var applets = []string{"sh", "cat", "grep", "find", "sync", "poweroff", "sleep", "ls", "head", "mkdir", "mount",
	"umount"}

// rootFiles returns what each root file system has: an init that reports, and the files that
// Ignition needs (accounts, os-release, an SELinux configuration that disables SELinux;
// /etc/machine-id must be absent).
func (r *Rig) rootFiles() map[string]string {
	r.t.Helper()
	init, err := guestFiles.ReadFile("guest/init")
	r.fatal(err, "guest init")
	script, err := guestFiles.ReadFile("guest/99rig/rig-scan")
	r.fatal(err, "guest files")
	return map[string]string{
		"sbin/init":          string(init),
		"bin/rig-scan":       string(script),
		"etc/os-release":     "ID=rig\nNAME=rig\nVERSION_ID=1\n",
		"etc/passwd":         "root:x:0:0:root:/root:/bin/sh\n",
		"etc/group":          "root:x:0:\n",
		"etc/shadow":         "root:*:19000:0:99999:7:::\n",
		"etc/selinux/config": "SELINUX=disabled\nSELINUXTYPE=none\n",
	}
}

// installBusybox writes busybox and its commands to a folder.
func (r *Rig) installBusybox(bin string) {
	r.t.Helper()
	b, err := os.ReadFile(busybox)
	r.fatal(err, "busybox")
	r.fatal(os.MkdirAll(bin, 0o755), "busybox")
	r.fatal(os.WriteFile(filepath.Join(bin, "busybox"), b, 0o755), "busybox")
	for _, applet := range applets {
		r.fatal(os.Symlink("busybox", filepath.Join(bin, applet)), "busybox")
	}
}

// rootDisk creates the root file system without mounts and without root. With a kubelet it has the
// kubelet and another init.
func (r *Rig) rootDisk(extra map[string]string, kubelet *Kubelet) string {
	r.t.Helper()
	files, programs := r.rootFiles(), map[string]string{}
	if kubelet != nil {
		init, err := guestFiles.ReadFile("guest/kubelet-init")
		r.fatal(err, "guest init")
		files["sbin/init"] = string(init)
		programs = kubelet.programs()
		if kubelet.Containers != "" {
			more, runtime := r.containers(kubelet)
			maps.Copy(files, more)
			maps.Copy(programs, runtime)
		}
	}
	size := 16 << 20
	for name, content := range extra {
		files[name] = content
		size += len(content)
	}
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, name)
	}
	sort.Strings(names)
	in := r.inputs("root").file(busybox).text(applets...)
	for _, name := range names {
		in.text(name, files[name])
	}
	for _, name := range slices.Sorted(maps.Keys(programs)) {
		info, err := os.Stat(programs[name])
		r.fatal(err, "root disk")
		size += int(info.Size())
		if name == images {
			size += 6 * int(info.Size()) // each container has a copy of its image
		}
		in.text(name).file(programs[name])
	}
	if kubelet != nil {
		size += 64 << 20 // space for the kubelet's state and logs
	}
	return r.cached("root", "root disk", in, func(out string) {
		tree, err := os.MkdirTemp(r.dir, "root-")
		r.fatal(err, "root disk")
		for _, d := range []string{"bin", "sbin", "etc", "dev", "proc", "sys", "run", "tmp", "root", "var", "usr/bin",
			"usr/lib"} {
			r.fatal(os.MkdirAll(filepath.Join(tree, d), 0o755), "root disk")
		}
		r.installBusybox(filepath.Join(tree, "bin"))
		r.writeFiles(files, tree)
		for name, program := range programs {
			b, err := os.ReadFile(program)
			r.fatal(err, "root disk")
			r.fatal(os.WriteFile(filepath.Join(tree, name), b, 0o755), "root disk")
		}
		r.fatal(os.WriteFile(out, nil, 0o644), "root disk")
		r.fatal(os.Truncate(out, int64(size)), "root disk")
		r.run(tree, []string{"E2FSPROGS_FAKE_TIME=1700000000"}, "mkfs.ext4", "-q", "-F", "-L", "root",
			"-U", "6d63732d-6174-4465-8374-726967000001", "-E", "hash_seed=6d63732d-6174-4465-8374-726967000002",
			"-d", tree, out)
	})
}

// configDrive creates an ISO 9660 image like Nova, with the same options.
func (r *Rig) configDrive(out string, files map[string]string) string {
	r.t.Helper()
	tree, err := os.MkdirTemp(r.dir, "config-")
	r.fatal(err, "config drive")
	for name, content := range files {
		path := filepath.Join(tree, name)
		r.fatal(os.MkdirAll(filepath.Dir(path), 0o755), "config drive")
		r.fatal(os.WriteFile(path, []byte(content), 0o644), "config drive")
	}
	r.run(tree, nil, "genisoimage", "-quiet", "-o", out, "-ldots", "-allow-lowercase", "-allow-multidot", "-l",
		"-J", "-r", "-V", "config-2", tree)
	return out
}

// Disk returns a flat image of the disk of a machine that has ended.
func (n *Node) Disk() string {
	n.r.t.Helper()
	out := filepath.Join(n.dir, "raw.img")
	n.r.run(n.dir, nil, "qemu-img", "convert", "-O", "raw", n.overlay, out)
	return out
}

// ReadFile reads a file from the disk of a machine that has ended. It returns "" for a missing
// file. If the power was cut, some changes are only in the journal of the file system.
func (n *Node) ReadFile(path string) string {
	n.r.t.Helper()
	disk := n.Disk()
	n.r.run(n.dir, nil, "e2fsck", "-p", "-E", "journal_only", disk)
	out := n.r.run(n.dir, nil, "debugfs", "-R", "cat "+path, disk)
	lines := strings.SplitAfter(out, "\n")
	kept := lines[:0]
	for _, l := range lines {
		if !strings.HasPrefix(l, "debugfs ") && !strings.Contains(l, "File not found by ext2_lookup") {
			kept = append(kept, l)
		}
	}
	return strings.Join(kept, "")
}

// tokenShape matches the beginning of a JWT: two base64url JSON objects.
var tokenShape = regexp.MustCompile(`eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}`)

// wholeToken matches a JWT with its signature.
var wholeToken = regexp.MustCompile(tokenShape.String() + `\.[A-Za-z0-9_-]{10,}`)

// Tokens returns the different tokens on the console, in the journal and on the disk.
func (n *Node) Tokens() []string {
	n.r.t.Helper()
	disk, err := os.ReadFile(n.Disk())
	n.r.fatal(err, "disk")
	found := wholeToken.FindAllString(n.Console()+n.Journal(), -1)
	for _, token := range wholeToken.FindAll(disk, -1) {
		found = append(found, string(token))
	}
	sort.Strings(found)
	return slices.Compact(found)
}

// HasToken reports whether text contains a string with the form of a token.
func HasToken(text string) bool { return tokenShape.MatchString(text) }

// WantNoTokensLeft checks that there is no token outside of the guest's memory: on the console, in
// the journal, in any block of the disk.
func (n *Node) WantNoTokensLeft() {
	n.r.t.Helper()
	var where []string
	disk, err := os.ReadFile(n.Disk())
	n.r.fatal(err, "disk")
	for name, content := range map[string][]byte{
		"console": []byte(n.Console()), "journal": []byte(n.Journal()), "disk": disk,
	} {
		if tokenShape.Match(content) {
			where = append(where, name)
		}
	}
	for _, line := range n.lines() {
		if strings.HasPrefix(line, "rig: ") && strings.Contains(line, " token in ") {
			where = append(where, strings.TrimPrefix(line, "rig: "))
		}
	}
	if len(where) > 0 {
		sort.Strings(where)
		n.r.t.Fatalf("a token was left in %s", strings.Join(where, ", "))
	}
}
