// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"maps"
	"os"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/mcs-attest/mcs-attest/ci/tools/manifests"
)

// charts makes the chart, and the files with what the bundle cannot contain. The bundle itself is an image.
func (r *release) charts(context.Context) error {
	files, err := manifests.Chart(r.source, r.version)
	if err != nil {
		return err
	}
	f, err := os.Create(r.file(manifests.Name + "-" + strings.TrimPrefix(r.version, "v") + ".tgz"))
	if err != nil {
		return err
	}
	z := gzip.NewWriter(f)
	w := tar.NewWriter(z)
	for _, e := range entries(manifests.Name+"/", files) {
		err = errors.Join(err, r.add(w, e))
	}
	if err := errors.Join(err, w.Close(), z.Close(), f.Close()); err != nil {
		return err
	}
	b, err := r.bundle()
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(r.file("olm-namespace.yaml"), b.Namespace, 0o644),
		os.WriteFile(r.file("olm-remainder.yaml"), b.Remainder, 0o644))
}

// bundle makes the bundle for the images that exist.
func (r *release) bundle() (*manifests.Bundle, error) {
	var digests manifests.Digests
	var err error
	if digests.Verifier, err = r.digest(verifier); err != nil {
		return nil, err
	}
	if r.base != nil {
		if digests.MustGather, err = r.digest(gatherer); err != nil {
			return nil, err
		}
	}
	return manifests.MakeBundle(r.source, r.version, digests)
}

// digest returns the digest of an image that exists.
func (r *release) digest(image string) (string, error) {
	index, err := stored(r.file("images", image))
	if err != nil {
		return "", err
	}
	digest, err := index.Digest()
	return digest.String(), err
}

// bundleLayer has the same content for each architecture: a node pulls the image of its own.
func (r *release) bundleLayer(context.Context, string) ([]entry, error) {
	b, err := r.bundle()
	if err != nil {
		return nil, err
	}
	all := []entry{{name: "manifests/", mode: 0o755}, {name: "metadata/", mode: 0o755}}
	return append(all, entries("", b.Files)...), nil
}

// bundleLabels are the annotations of the bundle: OLM reads them from the image, too.
func (r *release) bundleLabels() (map[string]string, error) {
	b, err := r.bundle()
	if err != nil {
		return nil, err
	}
	var m struct {
		Annotations map[string]string `json:"annotations"`
	}
	return m.Annotations, yaml.Unmarshal(b.Files["metadata/annotations.yaml"], &m)
}

// entries are files of an archive, in the order of their names.
func entries(prefix string, files map[string][]byte) (all []entry) {
	for _, name := range slices.Sorted(maps.Keys(files)) {
		all = append(all, entry{name: prefix + name, mode: 0o644, content: files[name]})
	}
	return all
}
