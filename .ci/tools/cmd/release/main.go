// SPDX-License-Identifier: Apache-2.0

// Command release makes what a version of mcs-attest ships, for each architecture: the programs, what goes
// into an initramfs, RPM and deb packages, OCI images, the Helm chart and the OLM bundle, the manifest of the
// kubectl plug-in, lists of what the programs consist of, the provenance, and the checksums.
//
//	release -version v0.3.0 [-source DIR] [-o DIR] [-arch LIST] [-base IMAGE] [-key FILE] [-push REGISTRY/PATH]
//
// The same commit gives the same bytes, at any path, in a clone or in an archive of git.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// architectures are those of OpenShift, as Go names them.
var architectures = []string{"amd64", "arm64", "ppc64le", "s390x"}

// release is one version, and where it is made.
type release struct {
	source, out   string // folders
	version       string // "v0.3.0"
	published     bool   // signed or pushed, so it needs a tag
	commit        string
	date          time.Time // of the commit: the date of all that is made
	architectures []string
	docs          string // the folder of manual pages and completions
	baseName      string
	base          v1.ImageIndex // of the image for 'oc adm must-gather'; nil: there is none
	log           io.Writer
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, log io.Writer) error {
	r := &release{log: log}
	f := flag.NewFlagSet("release", flag.ContinueOnError)
	f.StringVar(&r.version, "version", "", "`VERSION` to release, for example v0.3.0")
	f.StringVar(&r.source, "source", ".", "`DIR` of the source tree: a clean clone, or an archive of git")
	f.StringVar(&r.out, "o", "dist", "write to `DIR`, which must not exist")
	arch := f.String("arch", strings.Join(architectures, ","), "architectures, a comma-separated `LIST`")
	key := f.String("key", "", "sign the checksums with the Ed25519 key in `FILE` (PKCS #8, PEM)")
	push := f.String("push", "", "also push the images to `REGISTRY/PATH`")
	f.StringVar(&r.baseName, "base", "",
		"also make the image for 'oc adm must-gather', on the `IMAGE` NAME@sha256:DIGEST with bash and tar")
	if err := f.Parse(args); err != nil {
		return err
	}
	r.architectures = strings.Split(*arch, ",")
	r.published = *key != "" || *push != ""
	sign, err := signer(*key)
	if err != nil {
		return err
	}
	var repository name.Repository
	if *push != "" {
		if repository, err = name.NewRepository(*push); err != nil {
			return fmt.Errorf("-push: %w", err)
		}
	}
	if r.baseName != "" {
		if r.base, err = pullBase(ctx, r.baseName); err != nil {
			return fmt.Errorf("-base: %w", err)
		}
	}
	if err := r.prepare(ctx); err != nil {
		return err
	}
	if err := r.make(ctx); err != nil {
		return err
	}
	if err := r.seal(ctx, sign); err != nil {
		return err
	}
	if *push != "" {
		if err := r.push(ctx, repository); err != nil {
			return err
		}
	}
	r.say("%s is in %s", r.version, r.out)
	return nil
}

// A version of semver.org: what Go modules, RPM and deb can all order.
var semver = regexp.MustCompile(`^v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?$`)

// prepare checks what the release is made from, before anything is made.
func (r *release) prepare(ctx context.Context) (err error) {
	if !semver.MatchString(r.version) {
		return fmt.Errorf("version %q: not of the form v1.2.3 or v1.2.3-rc.1", r.version)
	}
	for _, a := range r.architectures {
		if !slices.Contains(architectures, a) {
			return fmt.Errorf("architecture %q: not one of %s", a, strings.Join(architectures, ", "))
		}
	}
	if r.source, err = filepath.Abs(r.source); err != nil {
		return err
	}
	if r.out, err = filepath.Abs(r.out); err != nil {
		return err
	}
	if r.commit, r.date, err = origin(ctx, r.source, r.version); err != nil {
		return err
	}
	if r.published {
		if err := hasTag(ctx, r.source, r.version); err != nil {
			return err
		}
	}
	if err := os.Mkdir(r.out, 0o755); errors.Is(err, os.ErrExist) {
		return fmt.Errorf("%s exists; remove it first", r.out)
	} else if err != nil {
		return err
	}
	return nil
}

// make makes all but the provenance and the checksums.
func (r *release) make(ctx context.Context) (err error) {
	r.say("manual pages and completions")
	r.docs, err = r.manuals(ctx)
	defer os.RemoveAll(r.docs)
	if err != nil {
		return fmt.Errorf("manual pages and completions: %w", err)
	}
	for _, arch := range r.architectures {
		for _, step := range []struct {
			what string
			do   func(context.Context, string) error
		}{
			{"programs", r.programs},
			{"archives", r.archives},
			{"packages", r.packages},
		} {
			r.say("%s: %s", arch, step.what)
			if err := step.do(ctx, arch); err != nil {
				return fmt.Errorf("%s: %s: %w", arch, step.what, err)
			}
		}
	}
	for _, step := range []struct {
		what string
		do   func(context.Context) error
	}{
		{"lists of modules", r.sboms},
		{"images", r.images},
		{"Helm chart and OLM bundle", r.charts},
		{"manifest of the kubectl plug-in", r.krew},
	} {
		r.say("%s", step.what)
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
	}
	return nil
}

// seal writes the provenance, then the checksums of everything, then their signature.
func (r *release) seal(ctx context.Context, sign func([]byte) []byte) error {
	r.say("provenance and checksums")
	if err := r.provenance(ctx); err != nil {
		return fmt.Errorf("provenance: %w", err)
	}
	return r.checksums(sign)
}

func (r *release) say(format string, a ...any) { fmt.Fprintf(r.log, "release: "+format+"\n", a...) }

// file returns the path of a file of the release.
func (r *release) file(elem ...string) string {
	return filepath.Join(append([]string{r.out}, elem...)...)
}
