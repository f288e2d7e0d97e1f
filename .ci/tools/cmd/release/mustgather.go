// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/mcs-attest/mcs-attest/ci/tools/manifests"
)

const gatherer = manifests.MustGather

// mustGather is the image that 'oc adm must-gather' runs. Its base has bash and tar, which oc calls in it.
func (r *release) mustGather() image {
	return image{
		name: gatherer, title: "The support bundle of mcs-attest, for oc adm must-gather", base: r.base,
		layer: func(_ context.Context, arch string) ([]entry, error) {
			return []entry{
				{name: "licenses/", mode: 0o755},
				{name: "licenses/LICENSE", mode: 0o644, from: filepath.Join(r.source, "LICENSE")},
				{name: "usr/", mode: 0o755},
				{name: "usr/bin/", mode: 0o755},
				{name: "usr/bin/gather", mode: 0o755, from: filepath.Join(r.source, "deploy/must-gather/gather")},
				{name: "usr/bin/" + plugin, mode: 0o755, from: r.binary(verifier, arch)},
			}, nil
		},
	}
}

// pullBase reads the index of an image from its registry. The digest makes the release reproducible.
func pullBase(ctx context.Context, image string) (v1.ImageIndex, error) {
	ref, err := name.NewDigest(image)
	if err != nil {
		return nil, err
	}
	return remote.Index(ref, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain))
}

// onBase returns the base's image for a platform, its config, and the media type of a layer on it.
func onBase(base v1.ImageIndex, platform v1.Platform) (v1.Image, *v1.ConfigFile, types.MediaType, error) {
	images, err := partial.FindImages(base, func(d v1.Descriptor) bool {
		return d.Platform != nil && d.Platform.Satisfies(platform)
	})
	if err != nil {
		return nil, nil, "", err
	}
	if len(images) != 1 {
		return nil, nil, "", fmt.Errorf("the base has %d images for %s", len(images), platform)
	}
	config, err := images[0].ConfigFile()
	if err != nil {
		return nil, nil, "", err
	}
	mediaType, err := images[0].MediaType()
	if err != nil {
		return nil, nil, "", err
	}
	layer := types.OCILayer
	if mediaType == types.DockerManifestSchema2 {
		layer = types.DockerLayer
	}
	return images[0], config.DeepCopy(), layer, nil
}
