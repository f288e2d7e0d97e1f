// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/mcs-attest/mcs-attest/testvm/binaries"
	"github.com/mcs-attest/mcs-attest/testvm/cluster"
)

// As docs/deploying.md describes it: the namespace, the installation, an upgrade, the end.
func TestChart_InstallsUpgradesAndUninstalls(t *testing.T) {
	c := cluster.Start(t)
	c.InstallOpenShift(t)
	objects := Objects(t, "openshift")
	c.KubectlApply(t, Prerequisites(slices.DeleteFunc(slices.Clone(objects), func(o *unstructured.Unstructured) bool {
		return o.GetNamespace() == Namespace
	})))
	old := filepath.Join(charts(t, "v0.3.0"), "mcs-attest")
	newer := filepath.Join(charts(t, "v0.4.0"), "mcs-attest")
	values := []string{"mcs-attest", "-n", "mcs-attest", "--set-file", "config=overlays/openshift/mcs-attest.yaml",
		"--set", "image.repository=registry.cluster.example.com/infra/mcs-attest-verifier"}
	run := func(command string, args ...string) string {
		t.Helper()
		out, err := helm(t, c, append(append([]string{command}, values...), args...)...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}

	exists := func(o *unstructured.Unstructured) bool {
		t.Helper()
		kind := o.GroupVersionKind()
		args := []string{"get", kind.Kind + "." + kind.Version + "." + kind.Group, o.GetName(), "--ignore-not-found",
			"-o", "name"}
		if ns := o.GetNamespace(); ns != "" {
			args = append(args, "-n", ns)
		}
		return c.Kubectl(t, args...) != ""
	}

	// OpenShift gives a namespace other users, which the nftables rules do not let through. Without its
	// CRD, an admission policy denies every Node.
	c.Kubectl(t, "create", "namespace", Namespace)
	for why, value := range map[string]string{"has other users": "cloud=", "has no CRDs": "crds.enabled=false"} {
		_, err := helm(t, c, append(append([]string{"install"}, values...), old, "--set", value)...)
		if err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%q: %v", why, err)
		}
	}
	c.KubectlApply(t, run("template", old, "--show-only", "templates/namespace-mcs-attest.yaml",
		"--set", "namespace.create=true"))
	notes := run("install", old)
	for _, want := range []string{"tar -xzOf mcs-attest-0.3.0.tgz mcs-attest/policies/audit.yaml", "blob/v0.3.0/docs"} {
		if !strings.Contains(notes, want) {
			t.Errorf("the notes have no %q:\n%s", want, notes)
		}
	}
	for _, o := range objects {
		if !exists(o) {
			t.Errorf("%s %s is not installed", o.GetKind(), o.GetName())
		}
	}
	admitted(t, c, "openshift")
	c.Kubectl(t, "create", "-f", filepath.Join(old, "policies", "audit.yaml"))

	// The upgrade restarts the processes for a new image, and for a new configuration.
	template := func() (image, checksum string) {
		t.Helper()
		image, checksum, _ = strings.Cut(c.Kubectl(t, "-n", Namespace, "get", "daemonset", ServiceAccount, "-o",
			`jsonpath={.spec.template.spec.containers[0].image} {.spec.template.metadata.annotations.checksum/config}`), " ")
		return image, checksum
	}
	image, before := template()
	if want := "registry.cluster.example.com/infra/mcs-attest-verifier:v0.3.0"; image != want {
		t.Errorf("the image is %s, not %s", image, want)
	}
	config := filepath.Join(t.TempDir(), "mcs-attest.yaml")
	if err := os.WriteFile(config, []byte("origins: [https://api-int.mine.example.com:22623]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	run("upgrade", newer, "--set-file", "config="+config, "--set", "components.render=true")
	image, after := template()
	if !strings.HasSuffix(image, ":v0.4.0") || before == "" || after == "" || after == before {
		t.Errorf("after the upgrade: image %s, checksum %q, before %q", image, after, before)
	}
	const component = "mcs-attest-verifier-render"
	c.Kubectl(t, "get", "clusterrole", component)
	run("upgrade", newer)
	if out, err := c.KubectlAs("admin", "", "get", "clusterrole", component); err == nil {
		t.Errorf("the permissions of a component that is off: %s", out)
	}
	if got := c.Kubectl(t, "get", "attestationpolicies", "-o", "name"); !strings.Contains(got, "audit-everything") {
		t.Errorf("policies: %q", got)
	}

	// A downgrade leaves the CRDs as they are, and the next upgrade updates them.
	crd := func() string {
		t.Helper()
		return c.Kubectl(t, "get", "crd", "attestationpolicies.mcs-attest.dev", "-o",
			"jsonpath={.metadata.uid} {.metadata.resourceVersion}")
	}
	installed := crd()
	run("upgrade", old, "--set", "crds.enabled=false")
	if got := crd(); got != installed {
		t.Errorf("after the downgrade the CRD is %s, not %s", got, installed)
	}
	run("upgrade", newer)

	// What remains is the administrator's: the namespace with the keys, the CRDs with the records.
	if _, err := helm(t, c, "uninstall", "mcs-attest", "-n", Namespace); err != nil {
		t.Fatal(err)
	}
	c.Kubectl(t, "get", "namespace", Namespace)
	if got := c.Kubectl(t, "get", "attestationpolicies", "-o", "name"); !strings.Contains(got, "audit-everything") {
		t.Errorf("policies after the uninstallation: %q", got)
	}
	for _, o := range objects {
		if kind := o.GetKind(); kind == "Namespace" || kind == "CustomResourceDefinition" {
			continue
		}
		if exists(o) {
			t.Errorf("%s %s is left behind", o.GetKind(), o.GetName())
		}
	}

	// An installation with kustomize becomes one of Helm: here with the CRDs of the one before.
	c.KubectlApply(t, string(Rendered(t, "openshift")))
	run("install", newer, "--take-ownership", "--force-conflicts")
	if image, _ := template(); !strings.HasSuffix(image, ":v0.4.0") {
		t.Errorf("after kustomize: image %s", image)
	}
}

// An administrator follows the page as it is, up to a dry run of the installation.
func TestChart_RendersWithTheCommandsOfThePage(t *testing.T) {
	dir := t.TempDir()
	if _, err := helm(t, nil, "package", filepath.Join(charts(t, "v0.3.0"), "mcs-attest"), "-d", dir); err != nil {
		t.Fatal(err)
	}
	values := example(t, deploying(t), "# values.yaml")
	if err := os.WriteFile(filepath.Join(dir, "values.yaml"), []byte(values), 0o600); err != nil {
		t.Fatal(err)
	}
	program, err := binaries.Helm(t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	var out string
	form := regexp.MustCompile(`(?m)^    (?:tar -x|helm (?:template|install) )(?:.*\\\n)*.*$`)
	commands := form.FindAllString(deploying(t), -1)
	for _, command := range commands {
		command, _, _ = strings.Cut(command, " | oc apply")
		if strings.Contains(command, "helm install") {
			command += " --dry-run=client"
		}
		cmd := exec.CommandContext(t.Context(), "bash", "-ec", command)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "HOME="+dir, "KUBECONFIG=/dev/null",
			"PATH="+filepath.Dir(program)+":"+os.Getenv("PATH"))
		raw, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", command, err, raw)
		}
		if strings.Contains(command, "helm template") {
			if objects := parsed(t, raw); len(objects) != 1 || objects[0].GetKind() != "Namespace" {
				t.Errorf("the namespace is %s", raw)
			}
		}
		out += string(raw)
	}
	if len(commands) != 3 {
		t.Errorf("the page has the commands %q", commands)
	}
	for _, want := range []string{
		"image: registry.cluster.example.com/infra/mcs-attest-verifier:v0.3.0", "kind: CredentialsRequest",
		"name: mcs-attest-verifier-approver", "https://api-int.cluster.example.com:22623",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("rendered without %q", want)
		}
	}
}
