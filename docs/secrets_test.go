// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// block returns the lines of shell in a page that have a text.
func block(t *testing.T, page, has string) string {
	t.Helper()
	for _, m := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(read(t, page), -1) {
		if strings.Contains(m[1], has) {
			return m[1]
		}
	}
	t.Fatalf("%s has no shell with %q", page, has)
	return ""
}

// recording runs a script. Its PATH begins with programs of this name and shell, which first record their arguments.
func recording(t *testing.T, script string, programs map[string]string) (recorded string) {
	t.Helper()
	bin, log := t.TempDir(), filepath.Join(t.TempDir(), "arguments")
	for name, text := range programs {
		text = "#!/bin/sh\nprintf '%s\\n' \"" + name + " $*\" >>" + log + "\n" + text + "\n"
		if err := os.WriteFile(filepath.Join(bin, name), []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("sh", "-e", "-c", script)
	cmd.Env = append(os.Environ(), "PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	raw, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// Every user of a host can read the arguments of its processes, and sudo writes its own to the journal.
func TestPages_PassTokensOnStandardInput(t *testing.T) {
	const token = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJub2RlLWJvb3RzdHJhcHBlciJ9.c2lnbmF0dXJl-_x"
	t.Run("credential.md", func(t *testing.T) {
		kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
		before := "users:\n- name: kubelet\n  user:\n    token: \"expired\"\n"
		if err := os.WriteFile(kubeconfig, []byte(before), 0o600); err != nil {
			t.Fatal(err)
		}
		script := block(t, "docs/credential.md", "oc create token node-bootstrapper")
		recorded := recording(t, strings.ReplaceAll(script, "/etc/kubernetes/kubeconfig", kubeconfig), map[string]string{
			"oc":        `if [ "$1" = create ]; then echo ` + token + `; fi`,
			"ssh":       `shift; exec sh -c "$*"`,
			"sudo":      `exec "$@"`,
			"sed":       `PATH=${PATH#*:}; exec sed "$@"`,
			"systemctl": "",
		})
		if strings.Contains(recorded, token) || !strings.Contains(recorded, "\nsudo ") ||
			!strings.Contains(recorded, "systemctl restart kubelet") {
			t.Errorf("arguments:\n%s", recorded)
		}
		after, err := os.ReadFile(kubeconfig)
		if want := strings.Replace(before, "expired", token, 1); err != nil || string(after) != want {
			t.Errorf("%v, %s", err, after)
		}
	})
	t.Run("provisioning-token.md", func(t *testing.T) {
		created := filepath.Join(t.TempDir(), "token")
		recorded := recording(t, block(t, "docs/provisioning-token.md", "kubectl create secret generic machineconfig-auth"),
			map[string]string{
				"dd":      "echo 0123456789abcdef0123456789abcdef",
				"kubectl": "cat >" + created,
			})
		raw, err := os.ReadFile(created)
		const want = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWYK"
		if err != nil || strings.TrimSpace(string(raw)) != want || strings.Contains(recorded, want) ||
			!strings.Contains(recorded, "--from-file=token=/dev/stdin") {
			t.Errorf("%v, %q, arguments:\n%s", err, raw, recorded)
		}
	})
}
