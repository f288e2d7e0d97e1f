// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"sigs.k8s.io/yaml"
)

// pull returns the image of a layout for an architecture.
func pull(t *testing.T, dir, name, arch string) v1.Image {
	t.Helper()
	index, err := stored(filepath.Join(dir, "images", name))
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Errorf("%s: %v", name, err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range manifest.Manifests {
		if m.Platform.OS == "linux" && m.Platform.Architecture == arch {
			img, err := index.Image(m.Digest)
			if err != nil {
				t.Fatal(err)
			}
			return img
		}
	}
	t.Fatalf("%s has no image for %s", name, arch)
	return nil
}

// unpack writes the files of an image to a folder.
func unpack(t *testing.T, img v1.Image) string {
	t.Helper()
	root := t.TempDir()
	content := mutate.Extract(img)
	defer content.Close()
	for r := tar.NewReader(content); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return root
		} else if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 {
			t.Errorf("%s belongs to %d:%d", h.Name, h.Uid, h.Gid)
		}
		path := filepath.Join(root, h.Name)
		switch h.Typeflag {
		case tar.TypeDir:
			err = os.MkdirAll(path, 0o755)
		case tar.TypeSymlink:
			err = os.Symlink(h.Linkname, path)
		default:
			var raw []byte
			if raw, err = io.ReadAll(r); err == nil {
				err = os.WriteFile(path, raw, h.FileInfo().Mode())
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func configOf(t *testing.T, img v1.Image) *v1.ConfigFile {
	t.Helper()
	c, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// asRoot is a command in which this user is root, so that it can change its root folder.
func asRoot(args ...string) []string {
	if os.Getuid() == 0 {
		return args
	}
	return append([]string{"unshare", "--map-root-user"}, args...)
}

func TestImages_TheVerifierRunsInItsOwn(t *testing.T) {
	img := pull(t, dist(t), verifier, runtime.GOARCH)
	c := configOf(t, img)
	root := unpack(t, img)
	run := asRoot(append([]string{"chroot", "--userspec=" + userspec(c.Config.User), root}, c.Config.Entrypoint...)...)
	if out := command(t, run[0], append(run[1:], "version")...); !strings.Contains(out, testVersion) {
		t.Errorf("version: %s", out)
	}
	// By number: the kubelet cannot see from a name whether it is root.
	if c.Config.User != "65532:65532" || c.Config.Labels["org.opencontainers.image.version"] != testVersion {
		t.Errorf("the image's config is %+v", c.Config)
	}
	if !strings.Contains(string(read(t, filepath.Join(root, "etc/passwd"))), ":65532:65532:") {
		t.Error("the user has no entry in /etc/passwd")
	}
	if info, err := os.Stat(filepath.Join(root, "usr/share/mcs-attest/agents", agent+"-"+runtime.GOARCH)); err != nil ||
		info.Size() < 1<<20 || info.Mode().Perm() != 0o755 {
		t.Errorf("the agent that the gate serves and a pod runs: %v, %v", info, err)
	}
	pool, rest := x509.NewCertPool(), read(t, filepath.Join(root, "etc/ssl/certs/ca-certificates.crt"))
	if !pool.AppendCertsFromPEM(rest) {
		t.Fatal("no CA")
	}
	count := 0
	for block, rest := pem.Decode(rest); block != nil; block, rest = pem.Decode(rest) {
		count++
	}
	if count < 100 {
		t.Errorf("only %d CAs", count)
	}
	date := command(t, "git", "-C", filepath.Join(scratch, "a"), "log", "-1", "--format=%cI")
	if want := strings.TrimSpace(date); c.Created.Format("2006-01-02T15:04:05-07:00") != strings.Replace(want, "Z", "+00:00", 1) {
		t.Errorf("created %s, the commit is of %s", c.Created, want)
	}
}

// userspec is the user for chroot. In a user namespace with one user there is no other than root.
func userspec(user string) string {
	if os.Getuid() == 0 {
		return user
	}
	return "0:0"
}

func TestImages_TheCoreOSLayerIsWhatMakeInstallInstalls(t *testing.T) {
	root := unpack(t, pull(t, dist(t), coreos, runtime.GOARCH))
	installed := t.TempDir()
	if _, err := output(t.Context(), filepath.Join(scratch, "a"), []string{"MAKEFLAGS="}, "make", "-C", "dracut",
		"install", "DESTDIR="+installed, "AGENT="+filepath.Join(dist(t), agent+"-linux-"+runtime.GOARCH)); err != nil {
		t.Fatal(err)
	}
	command(t, "diff", "--recursive", "--no-dereference", installed, root)
	for _, path := range []string{
		"usr/bin/mcs-attest-agent", "usr/lib/dracut/modules.d/90mcs-attest/module-setup.sh",
		"usr/lib/dracut/dracut.conf.d/50-mcs-attest.conf", "usr/lib/systemd/system/mcs-attest-cap-root.service",
	} {
		if _, err := os.Stat(filepath.Join(root, path)); err != nil {
			t.Error(err)
		}
	}
	if out := command(t, filepath.Join(root, "usr/bin/mcs-attest-agent"), "version"); !strings.Contains(out, testVersion) {
		t.Errorf("version: %s", out)
	}
}

// What the images of other architectures hold runs there: with QEMU's emulation of one program. Only the
// agent, in both images: the verifier takes minutes to compile. 'make release' compiles it for each.
func TestImages_OfOtherArchitecturesRunThere(t *testing.T) {
	source, err := clone("others")
	if err != nil {
		t.Fatal(err)
	}
	r := &release{
		source: source, out: filepath.Join(scratch, "others.out"), version: testVersion, log: io.Discard,
		architectures: []string{"arm64", "s390x"},
	}
	if r.commit, r.date, err = origin(t.Context(), source, testVersion); err != nil {
		t.Fatal(err)
	}
	for _, arch := range r.architectures {
		if err := r.build(t.Context(), arch, programs[0]); err != nil {
			t.Fatal(err)
		}
		write(t, r.binary(verifier, arch), string(read(t, r.binary(agent, arch))))
	}
	if err := r.images(t.Context()); err != nil {
		t.Fatal(err)
	}
	for arch, emulator := range map[string]string{"arm64": "qemu-aarch64", "s390x": "qemu-s390x"} {
		for image, path := range map[string]string{verifier: "usr/bin/" + verifier, coreos: "usr/bin/" + agent} {
			img := pull(t, r.out, image, arch)
			if c := configOf(t, img); c.Architecture != arch {
				t.Errorf("%s is of %s, not %s", image, c.Architecture, arch)
			}
			out := command(t, emulator, filepath.Join(unpack(t, img), path), "version")
			if !strings.HasPrefix(out, "mcs-attest-agent "+testVersion) || !strings.HasSuffix(out, "linux/"+arch+")\n") {
				t.Errorf("%s: %s", arch, out)
			}
		}
	}
}

// The files of a base stay, and oc finds /usr/bin/gather.
func TestImages_OfMustGatherAreTheBaseAndGather(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	base, err := random.Image(1024, 2)
	if err != nil {
		t.Fatal(err)
	}
	config := configOf(t, base).DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	config.Config = v1.Config{Env: []string{"PATH=/usr/bin"}, Labels: map[string]string{"vendor": "another"}}
	if base, err = mutate.ConfigFile(base, config); err != nil {
		t.Fatal(err)
	}
	index := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{
		Add: base, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: runtime.GOARCH}},
	})
	to, err := name.NewTag(host + "/base:1")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(to, index); err != nil {
		t.Fatal(err)
	}
	digest, err := index.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pullBase(t.Context(), host+"/base:1"); err == nil {
		t.Error("a base without a digest is accepted")
	}
	source, err := filepath.Abs("../../../..")
	if err != nil {
		t.Fatal(err)
	}
	r := &release{
		source: source, out: t.TempDir(), version: testVersion, log: io.Discard, architectures: []string{runtime.GOARCH},
	}
	if r.base, err = pullBase(t.Context(), host+"/base@"+digest.String()); err != nil {
		t.Fatal(err)
	}
	write(t, r.binary(verifier, runtime.GOARCH), "the verifier")
	if err := r.image(t.Context(), r.mustGather()); err != nil {
		t.Fatal(err)
	}
	img := pull(t, r.out, gatherer, runtime.GOARCH)
	c := configOf(t, img).Config
	if !slices.Equal(c.Env, []string{"PATH=/usr/bin"}) || c.Labels["org.opencontainers.image.version"] != testVersion ||
		c.Labels["vendor"] != "" {
		t.Errorf("the image's config is %+v", c)
	}
	root, before := unpack(t, img), unpack(t, base)
	for _, file := range filesBelow(t, before) {
		if _, err := os.Stat(filepath.Join(root, file)); err != nil {
			t.Error(err)
		}
	}
	script := filepath.Join(root, "usr/bin/gather")
	command(t, "cmp", script, filepath.Join(source, "deploy/must-gather/gather"))
	if info, err := os.Stat(script); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("gather: %v, %v", info, err)
	}
	if got := string(read(t, filepath.Join(root, "usr/bin", plugin))); got != "the verifier" {
		t.Errorf("the plug-in is %q", got)
	}

	// The bundle comes last and names the image.
	all := r.all()
	if last := all[len(all)-1].name; last != bundleImage {
		t.Errorf("the last image is %s", last)
	}
	empty := func(context.Context, string) ([]entry, error) { return nil, nil }
	if err := r.image(t.Context(), image{name: verifier, layer: empty}); err != nil {
		t.Fatal(err)
	}
	bundle, err := r.bundle()
	if err != nil {
		t.Fatal(err)
	}
	named, err := r.digest(gatherer)
	if csv := bundle.Files["manifests/mcs-attest.clusterserviceversion.yaml"]; err != nil ||
		!bytes.Contains(csv, []byte("/"+gatherer+"@"+named)) {
		t.Errorf("the bundle does not name %s: %v", named, err)
	}
}

func TestPush_CopiesEachImageWithEachArchitecture(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	to, err := name.NewRepository(strings.TrimPrefix(server.URL, "http://") + "/team")
	if err != nil {
		t.Fatal(err)
	}
	r := &release{out: dist(t), version: testVersion, log: io.Discard}
	if err := r.push(t.Context(), to); err != nil {
		t.Fatal(err)
	}
	for _, image := range []string{verifier, coreos, bundleImage} {
		want, err := stored(r.file("images", image))
		if err != nil {
			t.Fatal(err)
		}
		index, err := remote.Index(to.Registry.Repo("team", image).Tag(testVersion))
		if err != nil {
			t.Fatal(err)
		}
		a, err := want.Digest()
		if err != nil {
			t.Fatal(err)
		}
		if b, err := index.Digest(); err != nil || a != b {
			t.Errorf("%s: %s, not %s (%v)", image, b, a, err)
		}
		if err := validate.Index(index); err != nil {
			t.Errorf("%s: %v", image, err)
		}
	}
}

// The kubelet adds the arguments of the manifests to the entrypoint.
func TestImages_AcceptTheArgumentsOfTheManifests(t *testing.T) {
	for _, file := range []string{"daemonset.yaml", "controller.yaml"} {
		var found bool
		for _, document := range strings.Split(string(read(t, "../../../../deploy/base/"+file)), "\n---\n") {
			var o struct {
				Spec struct {
					Template struct {
						Spec struct {
							Containers []struct{ Command, Args []string }
						}
					}
				}
			}
			if err := yaml.Unmarshal([]byte(document), &o); err != nil {
				t.Fatal(err)
			}
			for _, c := range o.Spec.Template.Spec.Containers {
				found = true
				if len(c.Command) > 0 {
					t.Errorf("%s replaces the entrypoint by %v", file, c.Command)
				}
				command(t, filepath.Join(dist(t), verifier+"-linux-"+runtime.GOARCH), append(c.Args, "--help")...)
			}
		}
		if !found {
			t.Errorf("%s has no container", file)
		}
	}
}
