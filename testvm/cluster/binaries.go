// SPDX-License-Identifier: Apache-2.0

package cluster

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

// tools are the programs of a cluster that come from Debian packages, with their package
// (.ci/packages.txt). The others are built.
var tools = map[string]string{
	"etcd":    "etcd-server",
	"etcdctl": "etcd-client",
	"haproxy": "haproxy",
}

func needTools() error {
	var missing []string
	for tool, pkg := range tools {
		if _, err := lookPath(tool); err != nil {
			missing = append(missing, fmt.Sprintf("%s (package %s)", tool, pkg))
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("not installed: %s\nhint: make deps", strings.Join(missing, ", "))
	}
	return nil
}

// lookPath also searches Debian's folders for daemons, which the PATH of an ordinary user does not
// have.
func lookPath(tool string) (string, error) {
	path, err := exec.LookPath(tool)
	if err == nil {
		return path, nil
	}
	if path, err := exec.LookPath(filepath.Join("/usr/sbin", tool)); err == nil {
		return path, nil
	}
	return "", err
}

// Binaries returns the folder with kube-apiserver, kube-controller-manager, kubectl, the kubelet
// and "cri", a container runtime that runs no containers.
func Binaries(logf func(format string, a ...any)) (string, error) {
	return build(source{
		folder: "kubernetes", module: "k8s.io/kubernetes", name: "Kubernetes", files: []string{"cri/main.go"},
		commands: func(version string) ([]command, error) {
			ldflags, err := versionFlags(version)
			return []command{{args: []string{"-ldflags", ldflags, "tool", "./cri"}}}, err
		},
	}, logf)
}

// Containers returns the folder with containerd, its shim, ctr and runc: a container runtime for
// [rig.Kubelet]. runc needs cgo, because it enters namespaces before Go's runtime starts.
func Containers(logf func(format string, a ...any)) (string, error) {
	const containerd = "github.com/containerd/containerd/v2"
	return build(source{
		folder: "containers", module: containerd, name: "containerd",
		commands: func(string) ([]command, error) {
			return []command{
				{args: []string{"-ldflags", "-s -w", "-tags", "no_btrfs no_devmapper no_tracing no_zfs",
					containerd + "/cmd/containerd", containerd + "/cmd/containerd-shim-runc-v2", containerd + "/cmd/ctr"}},
				{cgo: true, args: []string{"-ldflags", "-s -w -extldflags -static", "-tags", "netgo osusergo runc_nocriu seccomp",
					"github.com/opencontainers/runc"}},
			}, nil
		},
	}, logf)
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
func build(s source, logf func(format string, a ...any)) (string, error) {
	repo, err := findRepo()
	if err != nil {
		return "", err
	}
	module := filepath.Join(repo, "testvm", s.folder)
	version, err := output(module, "go", "list", "-m", "-f", "{{.Version}}", s.module)
	if err != nil {
		return "", err
	}
	compiler, err := output(module, "go", "env", "GOVERSION")
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

// output runs a command outside of any workspace and returns its one line.
func output(dir, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	b, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, stderr.String())
	}
	return strings.TrimSpace(string(b)), nil
}

// findRepo returns the root of the source tree that contains the working folder.
func findRepo() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for d := dir; d != "/"; d = filepath.Dir(d) {
		if _, err := os.Stat(filepath.Join(d, "testvm", "kubernetes", "go.mod")); err == nil {
			return d, nil
		}
	}
	return "", fmt.Errorf("%s is not inside the source tree", dir)
}
