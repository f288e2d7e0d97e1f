// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
)

// manuals writes the manual pages, compressed, and the shell completions to a temporary folder. They are the
// same for each architecture.
func (r *release) manuals(ctx context.Context) (dir string, err error) {
	if dir, err = os.MkdirTemp("", "release-"); err != nil {
		return "", err
	}
	env := append(buildEnv(runtime.GOARCH), fmt.Sprintf("SOURCE_DATE_EPOCH=%d", r.date.Unix()), "TZ=UTC")
	_, err = output(ctx, r.source, env, "go", "run", "-trimpath", "-buildvcs=false", "./verifier/cmd/gendocs",
		"-version", r.version, dir)
	if err != nil {
		return dir, err
	}
	pages, err := filepath.Glob(filepath.Join(dir, "man1", "*.1"))
	if err != nil {
		return dir, err
	}
	_, err = output(ctx, "", nil, "gzip", append([]string{"-9n"}, pages...)...)
	return dir, err
}
