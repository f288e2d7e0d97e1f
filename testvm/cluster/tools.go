// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
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
