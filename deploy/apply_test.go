// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/mcs-attest/mcs-attest/testvm/cluster"
)

func find(t *testing.T, objects []*unstructured.Unstructured, kind, name string) *unstructured.Unstructured {
	t.Helper()
	for _, o := range objects {
		if o.GetKind() == kind && o.GetName() == name {
			return o
		}
	}
	t.Fatalf("no %s %s", kind, name)
	return nil
}

func TestOverlaysAreAcceptedByARealAPIServer(t *testing.T) {
	for _, overlay := range Overlays {
		t.Run(overlay, func(t *testing.T) {
			c := cluster.Start(t)
			if overlay == "openshift" {
				c.InstallOpenShift(t)
			}
			objects := Objects(t, overlay)
			dir := Dir(t) + "/overlays/" + overlay

			// On a new cluster, a server-side dry run cannot check objects in a
			// namespace, or of kinds, that do not exist yet: these two are applied
			// first, as in docs/deploying.md.
			c.KubectlApply(t, Prerequisites(objects))
			c.InstallOwn(t)
			out, err := c.KubectlAs("admin", "", "apply", "-k", dir, "--dry-run=server")
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Count(out, "(server dry run)"); got != len(objects) {
				t.Errorf("%d of %d objects\n%s", got, len(objects), out)
			}

			// The policy is not in the overlay, because an upgrade applies the overlay again.
			for _, o := range objects {
				if o.GetKind() == "AttestationPolicy" {
					t.Errorf("the overlay has the policy %s", o.GetName())
				}
			}

			// Then without a dry run, twice: the second time changes nothing.
			c.Kubectl(t, "apply", "-k", dir)
			budget := func() string {
				return c.Kubectl(t, "-n", Namespace, "get", "poddisruptionbudget", Controller,
					"-o", "jsonpath={.metadata.resourceVersion}")
			}
			before := budget()
			out = c.Kubectl(t, "apply", "-k", dir)
			for line := range strings.Lines(out) {
				// kubectl always sends the selector of a budget, and the API server changes nothing.
				if !strings.HasSuffix(line, " unchanged\n") && !strings.HasPrefix(line, "poddisruptionbudget.policy/") {
					t.Errorf("the second time: %s", line)
				}
			}
			if after := budget(); before == "" || after != before {
				t.Errorf("the second time the budget has version %s, not %s", after, before)
			}
			c.Kubectl(t, "create", "-f", Dir(t)+"/policies/audit.yaml")
			if got := strings.TrimSpace(c.Kubectl(t, "get", "attestationpolicies",
				"-o", "jsonpath={.items[*].spec.mode} {.items[*].spec.pools[*]}")); got != "Audit *" {
				t.Errorf("policies: %s", got)
			}

			admitted(t, c, overlay)

			// After the uninstallation of the page, none of its objects remains.
			const mco = "openshift-machine-config-operator"
			if overlay == "openshift" {
				c.KubectlApply(t, `{"apiVersion":"v1","kind":"Secret","metadata":{"namespace":"`+mco+
					`","name":"mcs-attest-bootstrap-u","labels":{"mcs-attest.dev/machine-uid":"u"}}}`)
				c.KubectlApply(t, `{"apiVersion":"v1","kind":"Secret","metadata":{"namespace":"`+mco+`","name":"another"}}`)
			}
			commands := regexp.MustCompile(
				`(?m)^       oc ((?:-n \S+ )?delete (?:-k my-cluster|secret) .*)$`).FindAllStringSubmatch(deploying(t), -1)
			if len(commands) != 2 {
				t.Fatalf("the page uninstalls with %q", commands)
			}
			for _, command := range commands {
				args := strings.Fields(strings.Replace(command[1], "my-cluster", dir, 1))
				if overlay == "openshift" || !strings.Contains(command[1], mco) {
					c.Kubectl(t, append(args, "--wait=false")...)
				}
			}
			if overlay == "openshift" {
				if out := c.Kubectl(t, "-n", mco, "get", "secrets", "-o", "name"); strings.Contains(out, "mcs-attest") ||
					!strings.Contains(out, "secret/another") {
					t.Errorf("Secrets: %s", out)
				}
			}
			for _, kind := range []string{"validatingadmissionpolicy", "validatingadmissionpolicybinding"} {
				if out := c.Kubectl(t, "get", kind, "-o", "name"); strings.Contains(out, "mcs-attest") {
					t.Errorf("left behind:\n%s", out)
				}
			}
			for _, kind := range []string{"clusterrole", "clusterrolebinding"} {
				if out := c.Kubectl(t, "get", kind, "-o", "name"); strings.Contains(out, "mcs-attest") {
					t.Errorf("left behind:\n%s", out)
				}
			}
			for _, kind := range []string{"role", "rolebinding"} {
				if out := c.Kubectl(t, "get", kind, "-A", "--field-selector=metadata.namespace!=mcs-attest",
					"-o", "name"); strings.Contains(out, "mcs-attest") {
					t.Errorf("left behind:\n%s", out)
				}
			}
		})
	}
}

// The ports of the DaemonSet are those of the configuration. The parser's own tests check
// that the verifier accepts the configuration.
func TestConfigurationAndDaemonSetHaveTheSamePorts(t *testing.T) {
	for _, overlay := range Overlays {
		data, _, err := unstructured.NestedString(find(t, Objects(t, overlay), "ConfigMap", "mcs-attest-config").Object,
			"data", "mcs-attest.yaml")
		if err != nil {
			t.Fatal(err)
		}
		var c struct{ Listen, HealthListen, MetricsListen string }
		if err := yaml.Unmarshal([]byte(data), &c); err != nil {
			t.Fatal(err)
		}
		ports := map[string]string{}
		for _, p := range podSpec(t, overlay).Containers[0].Ports {
			if p.HostPort != p.ContainerPort {
				t.Errorf("%s: port %s is another on the host", overlay, p.Name)
			}
			ports[p.Name] = fmt.Sprintf("%s:%d", p.HostIP, p.ContainerPort)
		}
		for _, p := range deployment(t, overlay).Spec.Template.Spec.Containers[0].Ports {
			// The defaults of the command controller.
			if want := map[string]string{"health": "127.0.0.1:22682", "metrics": ":9623"}[p.Name]; want !=
				fmt.Sprintf("%s:%d", p.HostIP, p.ContainerPort) {
				t.Errorf("%s: the controller's port %s is %d, and listens on %s", overlay, p.Name, p.ContainerPort, want)
			}
		}
		health := cmp.Or(c.HealthListen, "127.0.0.1:22681")
		if ports["attest"] != c.Listen || ports["metrics"] != c.MetricsListen || ports["health"] != health {
			t.Errorf("%s: the DaemonSet has %v, the configuration %s, %s and %s", overlay, ports, c.Listen,
				c.MetricsListen, health)
		}
	}
}

// The probes use a listener that no other host reaches. The metrics use a port that
// OpenShift's firewall rules open between nodes.
func TestAttack_T61_ProbesUseThePortOnTheLoopback(t *testing.T) {
	for _, overlay := range Overlays {
		ports := map[int32]string{}
		for account, template := range templates(t, overlay) {
			c := template.Spec.Containers[0]
			for _, p := range c.Ports {
				if other := ports[p.HostPort]; other != "" || p.HostPort != p.ContainerPort {
					t.Errorf("%s: port %d of %s and %s", overlay, p.HostPort, account, other)
				}
				ports[p.HostPort] = account
				if p.Name == "health" && p.HostIP != "127.0.0.1" {
					t.Errorf("%s: health is on %q", overlay, p.HostIP)
				}
				if p.Name == "metrics" && (p.HostPort < 9000 || p.HostPort > 9999) {
					t.Errorf("%s: metrics are on port %d", overlay, p.HostPort)
				}
			}
			for _, probe := range []*core.Probe{c.StartupProbe, c.ReadinessProbe, c.LivenessProbe} {
				if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Host != "127.0.0.1" ||
					probe.HTTPGet.Port.String() != "health" {
					t.Errorf("%s, %s: probe %+v", overlay, account, probe)
				}
			}
			if probe := c.StartupProbe; probe != nil && probe.TimeoutSeconds < 5 { // Kubernetes' default is 1
				t.Errorf("%s, %s: the startup probe waits for %d s", overlay, account, probe.TimeoutSeconds)
			}
		}
	}
}

// admitted creates the pods of the workloads, up to the API server's admission: in their
// own namespace, and in one that warns about everything beyond "restricted". The only
// warning must be the host's network.
func admitted(t *testing.T, c *cluster.Cluster, overlay string) {
	t.Helper()
	for account, template := range templates(t, overlay) {
		admittedPod(t, c, overlay, account, template)
	}
}

func admittedPod(t *testing.T, c *cluster.Cluster, overlay, account string, template *core.PodTemplateSpec) {
	t.Helper()
	pod, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Pod", "spec": template.Spec,
		"metadata": map[string]any{"generateName": account + "-", "annotations": template.Annotations},
	})
	if err != nil {
		t.Fatal(err)
	}
	if out, err := c.KubectlAs("admin", string(pod), "create", "-n", Namespace, "--dry-run=server",
		"-f", "-"); err != nil {
		t.Errorf("not admitted: %v\n%s", err, out)
	}
	c.KubectlApply(t, `
apiVersion: v1
kind: Namespace
metadata: {name: restricted, labels: {pod-security.kubernetes.io/enforce: restricted}}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: `+account+`, namespace: restricted}
`)
	_, err = c.KubectlAs("admin", string(pod), "create", "-n", "restricted", "--dry-run=server", "-f", "-")
	if err == nil {
		t.Fatal("a pod on the host's network is \"restricted\"")
	}
	_, violations, found := strings.Cut(err.Error(), `violates PodSecurity "restricted:latest": `)
	if !found {
		t.Fatal(err)
	}
	for _, v := range strings.Split(strings.TrimSpace(violations), "), ") {
		kind, _, _ := strings.Cut(v, " (")
		if kind != "host namespaces" && kind != "hostPort" && kind != "probe or lifecycle host" {
			t.Errorf("%s: beyond the host's network: %s", overlay, v)
		}
	}
}
