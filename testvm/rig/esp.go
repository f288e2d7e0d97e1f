// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
)

// text writes content to a file of this rig, and returns its path.
func (r *Rig) text(name, content string) string {
	r.t.Helper()
	f, err := os.CreateTemp(r.dir, name+"-")
	r.fatal(err, "%s", name)
	defer f.Close()
	_, err = f.WriteString(content)
	r.fatal(err, "%s", name)
	return f.Name()
}

// esp creates an EFI system partition: path inside to path on this host. It is a FAT file system
// that fills its disk.
func (r *Rig) esp(files map[string]string) string {
	r.t.Helper()
	in := r.inputs("esp")
	names := slices.Sorted(maps.Keys(files))
	for _, name := range names {
		in.text(name).file(files[name])
	}
	return r.cached("esp", "EFI system partition", in, func(out string) {
		var size int64
		made := map[string]bool{".": true}
		var dirs []string
		var mkdir func(dir string)
		mkdir = func(dir string) {
			if !made[dir] {
				mkdir(path.Dir(dir))
				made[dir], dirs = true, append(dirs, "::/"+dir)
			}
		}
		for _, name := range names {
			info, err := os.Stat(files[name])
			r.fatal(err, "ESP")
			size += info.Size()
			mkdir(path.Dir(name))
		}
		r.fatal(os.WriteFile(out, nil, 0o644), "ESP")
		// FAT32 requires at least 65525 clusters, so the size is never below 40 MiB.
		r.fatal(os.Truncate(out, max(size+16<<20, 64<<20)&^4095), "ESP")
		r.run(r.dir, nil, "mkfs.vfat", "-F", "32", "-n", "ESP", out)
		r.run(r.dir, nil, "mmd", append([]string{"-i", out}, dirs...)...)
		for _, name := range names {
			r.run(r.dir, nil, "mcopy", "-i", out, files[name], "::/"+filepath.ToSlash(name))
		}
	})
}
