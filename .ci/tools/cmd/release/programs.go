// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/mcs-attest/mcs-attest/ci/tools/sbom"
)

const (
	module   = "github.com/mcs-attest/mcs-attest"
	agent    = "mcs-attest-agent"
	verifier = "mcs-attest-verifier"
	plugin   = "kubectl-attest"
)

// binary is the path of a program for an architecture.
func (r *release) binary(program, arch string) string { return r.file(program + "-linux-" + arch) }

// program is a program of the product: its name, its folder, and its own build flags.
type program struct {
	name, folder string
	flags        []string
}

var programs = []program{
	{agent, "./agent", []string{"-tags=nethttpomithttp2", "-gcflags=all=-l"}},
	{verifier, "./verifier", nil},
}

func (r *release) programs(ctx context.Context, arch string) error {
	for _, p := range programs {
		if err := r.build(ctx, arch, p); err != nil {
			return err
		}
	}
	return nil
}

// buildEnv has fixed values for the settings that change the bytes, whatever the environment says.
func buildEnv(arch string) []string {
	return []string{
		"CGO_ENABLED=0", "GOOS=linux", "GOARCH=" + arch, "GOFLAGS=-mod=readonly", "GOWORK=off", "GOEXPERIMENT=",
		"GOFIPS140=off", "GOAMD64=v1", "GOARM64=v8.0", "GOPPC64=power8",
	}
}

// build builds a program with the flags of the Makefile.
func (r *release) build(ctx context.Context, arch string, p program) error {
	stamp := fmt.Sprintf("-s -w -buildid= -X %[1]s/pkg/version.version=%[2]s -X %[1]s/pkg/version.commit=%[3]s "+
		"-X %[1]s/pkg/version.date=%[4]d", module, r.version, r.commit, r.date.Unix())
	args := append([]string{"build", "-trimpath", "-buildvcs=false", "-ldflags=" + stamp}, p.flags...)
	_, err := output(ctx, r.source, buildEnv(arch), "go", append(args, "-o", r.binary(p.name, arch), p.folder)...)
	return err
}

// archives makes what goes into an initramfs, and the archive of the kubectl plug-in.
func (r *release) archives(ctx context.Context, arch string) error {
	dir, err := os.MkdirTemp("", "release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	env := []string{fmt.Sprintf("SOURCE_DATE_EPOCH=%d", r.date.Unix())}
	if _, err := output(ctx, r.source, env, "dracut/image.sh", r.binary(agent, arch), dir); err != nil {
		return err
	}
	for from, to := range map[string]string{
		"mcs-attest-initramfs.cpio.zst": "mcs-attest-initramfs-linux-" + arch + ".cpio.zst",
		"mcs-attest-dracut.tar.gz":      "mcs-attest-dracut-linux-" + arch + ".tar.gz",
	} {
		raw, err := os.ReadFile(filepath.Join(dir, from))
		if err != nil {
			return err
		}
		if err := os.WriteFile(r.file(to), raw, 0o644); err != nil {
			return err
		}
	}
	return r.pluginArchive(arch)
}

// pluginArchive is what krew downloads: the verifier under the plug-in's name, and the license.
func (r *release) pluginArchive(arch string) error {
	f, err := os.Create(r.file(pluginFile(arch)))
	if err != nil {
		return err
	}
	z := gzip.NewWriter(f)
	w := tar.NewWriter(z)
	err = errors.Join(
		r.add(w, entry{name: plugin, from: r.binary(verifier, arch), mode: 0o755}),
		r.add(w, entry{name: "LICENSE", from: filepath.Join(r.source, "LICENSE"), mode: 0o644}))
	return errors.Join(err, w.Close(), z.Close(), f.Close())
}

func pluginFile(arch string) string { return plugin + "-linux-" + arch + ".tar.gz" }

// entry is a file of an archive. From is where its content is; a folder has none. A link has a target.
type entry struct {
	name, from, link string
	content          []byte // instead of from
	mode             int64
}

// add writes an entry: owned by root, with the date of the release.
func (r *release) add(w *tar.Writer, e entry) (err error) {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: e.name, Mode: e.mode, ModTime: r.date, Format: tar.FormatPAX}
	content := e.content
	switch {
	case strings.HasSuffix(e.name, "/"):
		h.Typeflag = tar.TypeDir
	case e.link != "":
		h.Typeflag, h.Linkname = tar.TypeSymlink, e.link
	case e.from != "":
		if content, err = os.ReadFile(e.from); err != nil {
			return err
		}
	}
	h.Size = int64(len(content))
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	_, err = w.Write(content)
	return err
}

func (r *release) sboms(context.Context) error {
	modules, err := sbom.Read(r.source, r.version)
	if err != nil {
		return err
	}
	for _, arch := range r.architectures {
		for _, program := range []string{agent, verifier} {
			path := r.binary(program, arch)
			if err := modules.Write(path+".cdx.json", path); err != nil {
				return err
			}
		}
	}
	return nil
}
