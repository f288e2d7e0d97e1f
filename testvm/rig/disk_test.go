// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
)

// A machine whose power was cut has changes that are only in the journal of its file system.
func TestReadFile_ReplaysTheJournal(t *testing.T) {
	const block = 1024
	dir := t.TempDir()
	n := &Node{r: &Rig{t: t, dir: dir}, dir: dir, overlay: filepath.Join(dir, "disk.img")}
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	if err := os.Mkdir(filepath.Join(dir, "root"), 0o755); err != nil {
		t.Fatal(err)
	}
	write("root/file", "content")
	n.r.run(dir, nil, "mkfs.ext4", "-q", "-F", "-b", strconv.Itoa(block), "-d", "root", n.overlay, "64M")
	if got := n.ReadFile("/file") + n.ReadFile("/missing"); got != "content" {
		t.Fatalf("read %q", got)
	}

	// The journal has the good bitmap, and the file system another one.
	groups := n.r.run(dir, nil, "dumpe2fs", n.overlay)
	bitmap, err := strconv.Atoi(regexp.MustCompile(`Block bitmap at (\d+)`).FindStringSubmatch(groups)[1])
	if err != nil {
		t.Fatal(err)
	}
	disk, err := os.ReadFile(n.overlay)
	if err != nil {
		t.Fatal(err)
	}
	write("good", string(disk[bitmap*block:][:block]))
	write("commands", "jo\njw -b "+strconv.Itoa(bitmap)+" good\njc\n")
	n.r.run(dir, nil, "debugfs", "-w", "-f", "commands", n.overlay)
	if disk, err = os.ReadFile(n.overlay); err != nil {
		t.Fatal(err)
	}
	copy(disk[bitmap*block:], bytes.Repeat([]byte{0}, block))
	write("disk.img", string(disk))
	if got := n.ReadFile("/file"); got != "content" {
		t.Errorf("after a power cut: %q", got)
	}
}
