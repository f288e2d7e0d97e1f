// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/mcs-attest/mcs-attest/ci/tools/manifests"
)

// sameFiles compares the files below a folder with those that it should have.
func sameFiles(t *testing.T, dir string, want map[string][]byte) {
	t.Helper()
	for name, content := range want {
		if string(read(t, filepath.Join(dir, name))) != string(content) {
			t.Errorf("%s has another content", name)
		}
	}
	if got := filesBelow(t, dir); len(got) != len(want) {
		t.Errorf("%d files, not %d", len(got), len(want))
	}
}

func TestCharts_TheChartIsThatOfTheVersion(t *testing.T) {
	dir, released := t.TempDir(), dist(t)
	want, err := manifests.Chart(filepath.Join(scratch, "a"), testVersion)
	if err != nil {
		t.Fatal(err)
	}
	command(t, "tar", "-C", dir, "-xzf", filepath.Join(released, "mcs-attest-0.9.0-rc.1.tgz"))
	sameFiles(t, filepath.Join(dir, manifests.Name), want)
}

func TestCharts_TheBundleNamesTheImageOfTheVerifier(t *testing.T) {
	r := &release{out: dist(t), source: filepath.Join(scratch, "a"), version: testVersion, log: io.Discard}
	index, err := stored(r.file("images", verifier))
	if err != nil {
		t.Fatal(err)
	}
	digest, err := index.Digest()
	if err != nil {
		t.Fatal(err)
	}
	want, err := manifests.MakeBundle(r.source, testVersion, manifests.Digests{Verifier: digest.String()})
	if err != nil {
		t.Fatal(err)
	}
	img := pull(t, r.out, bundleImage, runtime.GOARCH)
	sameFiles(t, unpack(t, img), want.Files)
	for name, content := range map[string][]byte{
		"olm-namespace.yaml": want.Namespace, "olm-remainder.yaml": want.Remainder,
	} {
		if got := read(t, r.file(name)); len(got) == 0 || string(got) != string(content) {
			t.Errorf("%s is of another bundle", name)
		}
	}
	// OLM finds the folders by the labels of the image.
	for label, value := range map[string]string{
		"operators.operatorframework.io.bundle.mediatype.v1": "registry+v1",
		"operators.operatorframework.io.bundle.manifests.v1": "manifests/",
		"operators.operatorframework.io.bundle.package.v1":   "mcs-attest",
	} {
		if got := configOf(t, img).Config.Labels[label]; got != value {
			t.Errorf("label %s is %q", label, got)
		}
	}
}
