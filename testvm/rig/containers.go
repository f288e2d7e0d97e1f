// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
)

// Image is a container image of one layer.
type Image struct {
	Files      map[string]string // paths in it, and the programs of this host that it has there
	User       string            // UID:GID; root if empty
	Entrypoint []string
}

// pause is the image of a pod's sandbox. Its program only exists.
const pause = "localhost/pause:1"

// containerd is the configuration of a machine's containerd. The kernel's modules are not on the root disk,
// so it copies the files of an image instead of mounting an overlay, and loopback is the only network.
const containerd = `version = 3
[grpc]
  address = "/run/cri.sock"
[plugins.'io.containerd.cri.v1.images']
  snapshotter = "native"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "` + pause + `"
[plugins.'io.containerd.cri.v1.runtime'.cni]
  conf_dir = "/etc/cni/net.d"
  use_internal_loopback = true
`

// noNetwork is a configuration for pods that all use the network of their Node.
const noNetwork = `{"cniVersion": "0.4.0", "name": "none", "plugins": [{"type": "loopback"}]}`

// images is where the root disk has the images.
const images = "usr/lib/images.tar"

// containers returns the files and the programs of a root disk with containerd.
func (r *Rig) containers(k *Kubelet) (files, programs map[string]string) {
	r.t.Helper()
	files = map[string]string{
		"etc/containerd.toml": containerd, "etc/cni/net.d/10-none.conflist": noNetwork,
		"etc/hosts": "127.0.0.1 localhost\n",
	}
	programs = map[string]string{images: r.imageArchive(k.Images)}
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "ctr", "runc"} {
		programs["usr/bin/"+name] = filepath.Join(k.Containers, name)
	}
	return files, programs
}

// imageArchive writes images to a file, in the format of "docker save".
func (r *Rig) imageArchive(all map[string]Image) (path string) {
	r.t.Helper()
	all = maps.Clone(all)
	all[pause] = Image{Files: map[string]string{"bin/sleep": busybox}, Entrypoint: []string{"/bin/sleep", "2147483647"}}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	add := func(w *tar.Writer, name string, mode int64, content []byte) {
		err := w.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(content))})
		if err == nil {
			_, err = w.Write(content)
		}
		r.fatal(err, "image")
	}
	encode := func(v any) []byte {
		b, err := json.Marshal(v)
		r.fatal(err, "image")
		return b
	}
	type image struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	var manifest []image
	for _, name := range slices.Sorted(maps.Keys(all)) {
		var layer bytes.Buffer
		l := tar.NewWriter(&layer)
		for _, to := range slices.Sorted(maps.Keys(all[name].Files)) {
			program, err := os.ReadFile(all[name].Files[to])
			r.fatal(err, "image")
			add(l, to, 0o755, program)
		}
		r.fatal(l.Close(), "image")
		sum := sha256.Sum256(layer.Bytes())
		digest := hex.EncodeToString(sum[:])
		add(w, digest+".tar", 0o644, layer.Bytes())
		config := encode(map[string]any{
			"architecture": runtime.GOARCH, "os": "linux",
			"config": map[string]any{"Entrypoint": all[name].Entrypoint, "User": all[name].User},
			"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + digest}},
		})
		sum = sha256.Sum256(config)
		file := hex.EncodeToString(sum[:]) + ".json"
		add(w, file, 0o644, config)
		manifest = append(manifest, image{Config: file, RepoTags: []string{name}, Layers: []string{digest + ".tar"}})
	}
	add(w, "manifest.json", 0o644, encode(manifest))
	r.fatal(w.Close(), "image")
	path = filepath.Join(r.dir, "images.tar")
	r.fatal(os.WriteFile(path, out.Bytes(), 0o644), "image")
	return path
}
