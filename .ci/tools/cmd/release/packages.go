// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // the formats register themselves
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm"
)

// packages makes an RPM and a deb of each file deploy/packages/*.yaml.
func (r *release) packages(_ context.Context, arch string) error {
	specs, err := filepath.Glob(filepath.Join(r.source, "deploy/packages/*.yaml"))
	if err != nil {
		return err
	}
	for _, file := range specs {
		for _, format := range []string{"deb", "rpm"} {
			if err := r.pack(file, format, arch); err != nil {
				return fmt.Errorf("%s: %s: %w", filepath.Base(file), format, err)
			}
		}
	}
	return nil
}

func (r *release) pack(file, format, arch string) error {
	variables := map[string]string{
		"VERSION": r.version, "ARCH": arch, "AGENT": r.binary(agent, arch), "VERIFIER": r.binary(verifier, arch),
		"DOCS": r.docs,
	}
	config, err := nfpm.ParseFileWithEnvMapping(file, func(name string) string { return variables[name] })
	if err != nil {
		return err
	}
	info, err := config.Get(format)
	if err != nil {
		return err
	}
	// Paths in the file are those of the source tree.
	for _, c := range info.Contents {
		if c.Type != files.TypeSymlink {
			r.locate(&c.Source)
		}
	}
	for _, script := range []*string{&info.Scripts.PostInstall, &info.Scripts.PreRemove, &info.Scripts.PostRemove} {
		r.locate(script)
	}
	// Nothing comes from the build machine.
	info.MTime, info.RPM.BuildHost = r.date, "localhost"
	info = nfpm.WithDefaults(info)
	packager, err := nfpm.Get(format)
	if err != nil {
		return err
	}
	f, err := os.Create(r.file(packager.ConventionalFileName(info)))
	if err != nil {
		return err
	}
	return errors.Join(packager.Package(info, f), f.Close())
}

// locate makes a path of the source tree absolute.
func (r *release) locate(path *string) {
	if *path != "" && !filepath.IsAbs(*path) {
		*path = filepath.Join(r.source, *path)
	}
}
