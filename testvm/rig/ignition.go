// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"os"
	"path/filepath"
	"strings"
)

// newerIgnition builds the Ignition of testvm/ignition/go.mod, which needs cgo and libblkid, and
// creates its dracut module. It takes some minutes once.
func (r *Rig) newerIgnition() string {
	r.t.Helper()
	module := filepath.Join(r.repo, "testvm", "ignition")
	in := r.inputs("ignition").tree(os.DirFS(module)).text(r.run(module, nil, "go", "env", "GOVERSION"))
	return r.cached("ignition", "a newer Ignition from its Go module (some minutes, once)", in, func(out string) {
		r.fatal(os.Mkdir(out, 0o755), "Ignition")
		const path = "github.com/coreos/ignition/v2"
		r.run(module, []string{"CGO_ENABLED=1", "GOWORK=off"}, "go", "build", "-trimpath", "-ldflags",
			"-s -w -X "+path+"/internal/distro.selinuxRelabel=false", "-o", filepath.Join(out, "ignition"), path+"/internal")
		source := strings.TrimSpace(r.run(module, []string{"GOWORK=off"}, "go", "list", "-m", "-f", "{{.Dir}}", path))
		files := filepath.Join(source, "dracut", "30ignition")
		entries, err := os.ReadDir(files)
		r.fatal(err, "Ignition's dracut module")
		for _, e := range entries {
			b, err := os.ReadFile(filepath.Join(files, e.Name()))
			r.fatal(err, "Ignition's dracut module")
			// The module zip does not preserve file modes. With a generator that is not executable,
			// a machine boots without Ignition.
			r.fatal(os.WriteFile(filepath.Join(out, e.Name()), b, scriptMode(b)), "Ignition's dracut module")
		}
	})
}
