// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"context"
	"encoding/base64"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/testvm/binaries"
)

// example returns the block of docs/deploying.md that begins with a line.
func example(t *testing.T, page, first string) string {
	t.Helper()
	for _, m := range regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$").FindAllStringSubmatch(page, -1) {
		if strings.HasPrefix(m[1], first) {
			return m[1]
		}
	}
	t.Fatalf("docs/deploying.md has no example that begins with %q", first)
	return ""
}

func deploying(t *testing.T) string {
	t.Helper()
	raw, err := os.ReadFile("../docs/deploying.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func TestOverlay_OfAnAdministratorRenders(t *testing.T) {
	bin, err := binaries.Kubernetes(t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	// In a copy, as on the page.
	dir := t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "deploy"), os.DirFS(".")); err != nil {
		t.Fatal(err)
	}
	mine := filepath.Join(dir, "my-cluster")
	if err := os.Mkdir(mine, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"kustomization.yaml": example(t, deploying(t), "# my-cluster/kustomization.yaml"),
		"mcs-attest.yaml":    "origins: [https://api-int.mine.example.com:22623]\n",
	} {
		if err := os.WriteFile(filepath.Join(mine, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join(bin, "kubectl"), "kustomize", mine).CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl kustomize: %v\n%s", err, out)
	}
	for _, want := range []string{"image: registry.cluster.example.com/infra/mcs-attest-verifier:v0.3.0",
		"https://api-int.mine.example.com:22623", "name: mcs-attest-config"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("rendered without %q", want)
		}
	}
	if strings.Contains(string(out), "api-int.cluster.example.com") {
		t.Error("the overlay's own configuration is still there")
	}
	objects, err := parse(out)
	if err != nil {
		t.Fatal(err)
	}
	if want := len(Objects(t, "openshift")); len(objects) != want {
		t.Errorf("%d objects instead of %d", len(objects), want)
	}
}

func TestNftablesAdditions_MatchThePage(t *testing.T) {
	text := example(t, deploying(t), "apiVersion: machineconfiguration.openshift.io/v1")
	m := regexp.MustCompile(
		`(?m)# (add element inet mcs_attest (\w+) .*)\n\s+source: data:;base64,(\S+)$`).FindStringSubmatch(text)
	if m == nil {
		t.Fatal("the example adds nothing")
	}
	plain, err := base64.StdEncoding.DecodeString(m[3])
	if err != nil || string(plain) != m[1]+"\n" {
		t.Errorf("the source has %q (%v), the comment %q", plain, err, m[1])
	}
	rules := source(t, "mcs-attest.nft")
	for _, set := range []string{m[2], "plain4", "plain6"} {
		if !strings.Contains(rules, "set "+set+" {") || !strings.Contains(deploying(t), set) {
			t.Errorf("no set %s in the rules, or on the page", set)
		}
	}
	if path := regexp.MustCompile(`path: (/\S+)/[^/\n]+\n`).FindStringSubmatch(text); path == nil ||
		!strings.Contains(source(t, "mcs-attest-nftables.service"), " "+path[1]+"/*.nft;") {
		t.Errorf("the unit does not load %v", path)
	}
	for _, address := range []string{"127.22.62.3:22644"} {
		host, port, _ := strings.Cut(address, ":")
		if !strings.Contains(rules, host+" tcp dport "+port) || !strings.Contains(deploying(t), address) {
			t.Errorf("the verifier's way to the MCS is not %s", address)
		}
	}
}

// The virtual IP of on-premises clusters follows a container of this name, so only the
// Machine Config Server may have it.
func TestDoorProbe_FindsOnlyTheMachineConfigServer(t *testing.T) {
	for _, overlay := range Overlays {
		for _, c := range podSpec(t, overlay).Containers {
			if strings.Contains(c.Name, "machine-config-server") {
				t.Errorf("%s: a container is called %s", overlay, c.Name)
			}
		}
		if got := daemonSet(t, overlay).Spec.Template.Labels["k8s-app"]; got != "" {
			t.Errorf("%s: its pods are labeled k8s-app=%s", overlay, got)
		}
	}
}
