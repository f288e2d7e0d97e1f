// SPDX-License-Identifier: Apache-2.0

package binaries

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/mcs-attest/mcs-attest/testvm/buildcache"
)

// Kubernetes returns the folder with kube-apiserver, kube-controller-manager, kubectl, the kubelet
// and "cri", a container runtime that runs no containers.
func Kubernetes(logf buildcache.Logf) (string, error) {
	return source{
		folder: "kubernetes", module: "k8s.io/kubernetes", name: "Kubernetes", files: []string{"cri/main.go"},
		commands: func(version string) ([]command, error) {
			ldflags, err := versionFlags(version)
			return []command{{args: []string{"-ldflags", ldflags, "tool", "./cri"}}}, err
		},
	}.build(logf)
}

// Containers returns the folder with containerd, its shim, ctr and runc: a container runtime for
// a kubelet of the rig. runc needs cgo, because it enters namespaces before Go's runtime starts.
func Containers(logf buildcache.Logf) (string, error) {
	const containerd = "github.com/containerd/containerd/v2"
	return source{
		folder: "containers", module: containerd, name: "containerd",
		commands: func(string) ([]command, error) {
			return []command{
				{args: []string{"-ldflags", "-s -w", "-tags", "no_btrfs no_devmapper no_tracing no_zfs",
					containerd + "/cmd/containerd", containerd + "/cmd/containerd-shim-runc-v2", containerd + "/cmd/ctr"}},
				{cgo: true, args: []string{"-ldflags", "-s -w -extldflags -static", "-tags", "netgo osusergo runc_nocriu seccomp",
					"github.com/opencontainers/runc"}},
			}, nil
		},
	}.build(logf)
}

// Helm returns the path of the program helm.
func Helm(logf buildcache.Logf) (string, error) {
	dir, err := source{
		folder: "helm", module: "helm.sh/helm/v4", name: "Helm",
		commands: func(string) ([]command, error) { return []command{{args: []string{"-ldflags", "-s -w", "tool"}}}, nil },
	}.build(logf)
	return filepath.Join(dir, "helm"), err
}

// source is a module of testvm that has only programs of others.
type source struct {
	folder string   // of testvm
	module string   // the programs' own
	name   string   // in progress lines
	files  []string // own files of the folder
	// commands returns the commands that build the programs of a version.
	commands func(version string) ([]command, error)
}

// command is a run of "go build".
type command struct {
	args []string
	cgo  bool
}

// build builds programs, which takes some minutes once. The cache keeps the result and the
// compiler's intermediate results.
func (s source) build(logf buildcache.Logf) (string, error) {
	repo, err := Root()
	if err != nil {
		return "", err
	}
	module := filepath.Join(repo, "testvm", s.folder)
	version, err := Run(module, "go", "list", "-m", "-f", "{{.Version}}", s.module)
	if err != nil {
		return "", err
	}
	compiler, err := Run(module, "go", "env", "GOVERSION")
	if err != nil {
		return "", err
	}
	commands, err := s.commands(version)
	if err != nil {
		return "", err
	}
	key := sha256.New()
	fmt.Fprintln(key, version, compiler, commands)
	for _, name := range append([]string{"go.mod", "go.sum"}, s.files...) {
		b, err := os.ReadFile(filepath.Join(module, name))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(key, "%s %d\n%s", name, len(b), b)
	}
	cache, err := buildcache.Dir()
	if err != nil {
		return "", err
	}
	what := s.name + " " + version + " from its Go module (some minutes, once)"
	return buildcache.Result(cache, s.folder, hex.EncodeToString(key.Sum(nil))[:24], what, logf,
		func(out string) error {
			if err := os.Mkdir(out, 0o755); err != nil {
				return err
			}
			for _, c := range commands {
				cmd := exec.Command("go", append([]string{"build", "-trimpath", "-buildvcs=false", "-o", out + "/"}, c.args...)...)
				cmd.Dir = module
				cgo := "CGO_ENABLED=0"
				if c.cgo {
					cgo = "CGO_ENABLED=1"
				}
				cmd.Env = append(os.Environ(), cgo, "GOWORK=off")
				if b, err := cmd.CombinedOutput(); err != nil {
					return fmt.Errorf("go build: %w\n%s", err, b)
				}
			}
			return nil
		})
}

// versionFlags sets the version of the programs, like a release. A client and a server without a
// version report a mismatch.
func versionFlags(version string) (string, error) {
	number := strings.Split(strings.TrimPrefix(version, "v"), ".")
	if len(number) != 3 {
		return "", fmt.Errorf("k8s.io/kubernetes has the version %q", version)
	}
	flags := "-s -w"
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		for _, v := range [][2]string{
			{"gitVersion", version}, {"gitMajor", number[0]}, {"gitMinor", number[1]},
			{"gitTreeState", "clean"}, {"gitCommit", "unknown"},
		} {
			flags += fmt.Sprintf(" -X %s.%s=%s", pkg, v[0], v[1])
		}
	}
	return flags, nil
}
