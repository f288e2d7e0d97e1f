// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// coreos is the image with what is added to an image of Fedora CoreOS or RHCOS. bundleImage is the one that OLM reads.
const (
	coreos      = "mcs-attest-coreos"
	bundleImage = "mcs-attest-bundle"
)

// An image is one layer for each architecture, on its base if it has one. Labels are in addition to those of all
// images.
type image struct {
	name, title string
	base        v1.ImageIndex
	config      v1.Config
	labels      func() (map[string]string, error)
	layer       func(ctx context.Context, arch string) ([]entry, error)
}

func (r *release) all() []image {
	all := []image{
		{
			name: verifier, title: "Attestation in front of the Machine Config Server", layer: r.verifierLayer,
			// A number: the kubelet cannot see from a name whether it is root.
			config: v1.Config{User: "65532:65532", Entrypoint: []string{"/usr/bin/" + verifier}},
		},
		{
			name: coreos, title: "The agent, its dracut module and its units, for a layer on a CoreOS image",
			layer: r.coreosLayer,
		},
	}
	if r.base != nil {
		all = append(all, r.mustGather())
	}
	// After the images whose digests it names.
	return append(all, image{
		name: bundleImage, title: "The bundle for the Operator Lifecycle Manager",
		layer: r.bundleLayer, labels: r.bundleLabels,
	})
}

// images writes an index of all architectures for each image, as an OCI image layout.
func (r *release) images(ctx context.Context) error {
	for _, i := range r.all() {
		if err := r.image(ctx, i); err != nil {
			return fmt.Errorf("%s: %w", i.name, err)
		}
	}
	return nil
}

func (r *release) image(ctx context.Context, i image) error {
	index, err := r.index(ctx, i)
	if err != nil {
		return err
	}
	path, err := layout.Write(r.file("images", i.name), empty.Index)
	if err != nil {
		return err
	}
	err = path.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": r.version,
	}))
	if err != nil {
		return err
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	r.say("%s: %s", i.name, digest)
	return nil
}

func (r *release) index(ctx context.Context, i image) (v1.ImageIndex, error) {
	labels := map[string]string{
		"org.opencontainers.image.title":       i.name,
		"org.opencontainers.image.description": i.title,
		"org.opencontainers.image.source":      repository,
		"org.opencontainers.image.licenses":    "Apache-2.0",
		"org.opencontainers.image.version":     r.version,
		"org.opencontainers.image.revision":    r.commit,
		"io.openshift.tags":                    "security",
	}
	if i.labels != nil {
		more, err := i.labels()
		if err != nil {
			return nil, err
		}
		maps.Copy(labels, more)
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, arch := range r.architectures {
		entries, err := i.layer(ctx, arch)
		if err != nil {
			return nil, err
		}
		platform := v1.Platform{OS: "linux", Architecture: arch}
		img, config, mediaType, err := i.start(platform)
		if err != nil {
			return nil, err
		}
		layer, err := r.layer(entries, mediaType)
		if err != nil {
			return nil, err
		}
		config.Created, config.Config.Labels = v1.Time{Time: r.date}, labels
		if img, err = mutate.ConfigFile(img, config); err != nil {
			return nil, err
		}
		img, err = mutate.Append(img, mutate.Addendum{Layer: layer, History: v1.History{
			Created: v1.Time{Time: r.date}, CreatedBy: "release " + r.version,
		}})
		if err != nil {
			return nil, err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &platform}})
	}
	annotated, ok := mutate.Annotations(index, labels).(v1.ImageIndex)
	if !ok {
		return nil, fmt.Errorf("an index with annotations is a %T", annotated)
	}
	return annotated, nil
}

// start returns the image that gets the layer, its config, and the layer's media type.
func (i image) start(platform v1.Platform) (v1.Image, *v1.ConfigFile, types.MediaType, error) {
	if i.base != nil {
		return onBase(i.base, platform)
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	return img, &v1.ConfigFile{
		OS: platform.OS, Architecture: platform.Architecture, Config: i.config, RootFS: v1.RootFS{Type: "layers"},
	}, types.OCILayer, nil
}

func (r *release) layer(entries []entry, mediaType types.MediaType) (v1.Layer, error) {
	var content bytes.Buffer
	w := tar.NewWriter(&content)
	for _, e := range entries {
		if err := r.add(w, e); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content.Bytes())), nil },
		tarball.WithMediaType(mediaType), tarball.WithCompressedCaching)
}

// verifierLayer is all that the static verifier needs.
// It has the agents of all architectures: it serves them to boot images without the agent, and a pod that
// rehearses a first boot runs that of its node.
func (r *release) verifierLayer(_ context.Context, arch string) ([]entry, error) {
	all := []entry{
		{name: "etc/", mode: 0o755},
		{name: "etc/passwd", mode: 0o644, content: []byte("root:x:0:0:root:/:/sbin/nologin\n" +
			"nonroot:x:65532:65532:nonroot:/:/sbin/nologin\n")},
		{name: "etc/group", mode: 0o644, content: []byte("root:x:0:\nnonroot:x:65532:\n")},
		{name: "etc/ssl/", mode: 0o755},
		{name: "etc/ssl/certs/", mode: 0o755},
		{name: "etc/ssl/certs/ca-certificates.crt", mode: 0o644, content: authorities()},
		{name: "licenses/", mode: 0o755},
		{name: "licenses/LICENSE", mode: 0o644, from: filepath.Join(r.source, "LICENSE")},
		{name: "usr/", mode: 0o755},
		{name: "usr/bin/", mode: 0o755},
		{name: "usr/bin/" + verifier, mode: 0o755, from: r.binary(verifier, arch)},
		{name: "usr/share/", mode: 0o755},
		{name: "usr/share/mcs-attest/", mode: 0o755},
		{name: "usr/share/mcs-attest/agents/", mode: 0o755},
	}
	for _, machine := range r.architectures {
		all = append(all, entry{name: "usr/share/mcs-attest/agents/" + agent + "-" + machine, mode: 0o755,
			from: r.binary(agent, machine)})
	}
	return all, nil
}

// authorities are Mozilla's, as the Go project publishes them: the same on every build machine. Those
// that are trusted for some certificates only are left out, because PEM cannot say for which.
func authorities() []byte {
	var all bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			all.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}))
		}
	}
	return all.Bytes()
}

// coreosLayer is what 'make install' of the dracut tarball installs.
func (r *release) coreosLayer(ctx context.Context, arch string) ([]entry, error) {
	dir, err := os.MkdirTemp("", "release-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	_, err = output(ctx, r.source, []string{"MAKEFLAGS="}, "make", "-C", "dracut", "install",
		"DESTDIR="+dir, "AGENT="+r.binary(agent, arch))
	if err != nil {
		return nil, err
	}
	return tree(dir)
}

// tree reads the files of a folder, in the order of their names.
func tree(dir string) (all []entry, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		e := entry{name: strings.TrimPrefix(path, dir+"/"), mode: int64(info.Mode().Perm())}
		switch {
		case d.IsDir():
			e.name, e.mode = e.name+"/", 0o755
		case info.Mode()&fs.ModeSymlink != 0:
			e.mode = 0o777
			e.link, err = os.Readlink(path)
		default:
			e.content, err = os.ReadFile(path)
		}
		all = append(all, e)
		return err
	})
	return all, err
}

// push copies the images from the layouts to a registry, each as REPOSITORY/NAME:VERSION.
func (r *release) push(ctx context.Context, to name.Repository) error {
	for _, i := range r.all() {
		index, err := stored(r.file("images", i.name))
		if err != nil {
			return err
		}
		ref := to.Registry.Repo(to.RepositoryStr(), i.name).Tag(r.version)
		r.say("push %s", ref)
		err = remote.WriteIndex(ref, index, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain))
		if err != nil {
			return fmt.Errorf("push %s: %w", ref, err)
		}
	}
	return nil
}

// stored returns the only index of a layout.
func stored(path string) (v1.ImageIndex, error) {
	all, err := layout.ImageIndexFromPath(path)
	if err != nil {
		return nil, err
	}
	manifest, err := all.IndexManifest()
	if err != nil {
		return nil, err
	}
	if len(manifest.Manifests) != 1 {
		return nil, fmt.Errorf("%s: %d images, not one", path, len(manifest.Manifests))
	}
	return all.ImageIndex(manifest.Manifests[0].Digest)
}
