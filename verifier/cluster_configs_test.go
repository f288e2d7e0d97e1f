// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/testvm/cluster"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/front"
)

// In a cluster, in front of its Machine Config Server (B5, B12): anyone receives the
// part that was rendered from the cluster's MachineConfigs, an attested machine what
// the Machine Config Server gives. A MachineConfig that breaks takes nothing away, and
// is named in Degraded and in an Event. B10: what the operator wrote is as it was.
func TestClusterServesThePreApprovedPartOfItsMachineConfigs(t *testing.T) {
	t.Parallel()
	rs := newReplicas(t, cluster.Start(t), 0)
	rs.install("render")
	rs.cluster.KubectlApply(t, object(v1alpha1.APIVersion, v1alpha1.KindAttestationPolicy, "", "audit-everything",
		map[string]any{"spec": map[string]any{"pools": []any{"*"}, "unattested": "PreApproved"}}))
	dir := t.TempDir()
	for _, name := range []string{"machineconfigs", "policies", "configs"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	renderedFrom("  {}\n", nil)(dir)
	for _, name := range []string{"pool", "00-worker", "01-worker-kubelet", "99-site", "99-ordinary"} {
		raw, err := os.ReadFile(filepath.Join(dir, "machineconfigs", name+".yaml"))
		if err != nil {
			t.Fatal(err)
		}
		rs.cluster.KubectlApply(t, string(raw))
	}
	rs.cluster.KubectlApply(t, controllerConfig)
	versions := func() string {
		return rs.cluster.Kubectl(t, "get", "machineconfigs,machineconfigpools", "-o", `jsonpath={range .items[*]}{.metadata.name}={.metadata.resourceVersion}{"\n"}{end}`)
	}
	before := versions()
	p := rs.serve(0, "render: {}\n")

	var body string
	anonymous := func(want string) {
		t.Helper()
		eventually(t, func() bool {
			status, text, err := rs.fetch(t.Context(), p.addr, "/config/worker", "")
			body = text
			return err == nil && status == http.StatusOK && strings.Contains(unpacked(text), want)
		}, func() string {
			return fmt.Sprintf("no %s in %s; %v", want, body, p.server.Backend.(*front.Front).Findings())
		})
	}
	anonymous("01-worker-kubelet.service")
	for what, secret := range planted {
		if strings.Contains(unpacked(body), secret) {
			t.Errorf("anyone receives %s", what)
		}
	}
	keys := soft(t)
	rs.machine("pre-approved", keys.spki)
	if status, text := p.fetch(p.attests(p.node(keys))); status != http.StatusOK || text != fullConfig {
		t.Errorf("attested: %d %s", status, text)
	}
	if after := versions(); after != before {
		t.Errorf("the operator's objects changed:\n%s\n%s", before, after)
	}

	bad := "apiVersion: machineconfiguration.openshift.io/v1\nkind: MachineConfig\n" +
		"metadata: {name: 70-broken, labels: {machineconfiguration.openshift.io/role: worker}}\n" +
		"spec: {config: {ignition: {version: 3.2.0}, storage: {files: [{path: not-absolute}]}}}\n"
	rs.cluster.KubectlApply(t, bad)
	eventually(t, func() bool {
		list, err := rs.client.Resource(eventsResource).Namespace("default").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return false
		}
		for _, e := range list.Items {
			about, _ := e.Object["involvedObject"].(map[string]any)
			if about["kind"] == "MachineConfig" && about["name"] == "70-broken" && e.Object["type"] == "Warning" {
				return true
			}
		}
		return false
	}, func() string { return "no Event at the MachineConfig" })
	anonymous("01-worker-kubelet.service")
	// The holder of the lease looks once a minute.
	eventually(t, func() bool { return rs.degraded("70-broken") },
		func() string { return fmt.Sprint("not Degraded: ", p.server.Backend.(*front.Front).Findings()) })
}

// controllerConfig is what the operator makes of a cluster, as far as it matters.
const controllerConfig = `---
apiVersion: machineconfiguration.openshift.io/v1
kind: ControllerConfig
metadata:
  name: machine-config-controller
  annotations: {machineconfiguration.openshift.io/generated-by-version: v4.20.0}
spec:
  additionalTrustBundle: cm9vdA==
  baseOSContainerImage: quay.test/os@sha256:1
  cloudProviderCAData: Y2xvdWQtY2E=
  cloudProviderConfig: ""
  clusterDNSIP: 172.30.0.10
  images: {}
  ipFamilies: IPv4
  kubeAPIServerServingCAData: a3ViZWxldC1jYQ==
  network: {mtuMigration: {}}
  proxy: {}
  releaseImage: quay.test/release
  rootCAData: cm9vdA==
  dns: {apiVersion: config.openshift.io/v1, kind: DNS, metadata: {name: cluster}, spec: {baseDomain: test}, status: {}}
  infra:
    apiVersion: config.openshift.io/v1
    kind: Infrastructure
    metadata: {name: cluster}
    spec: {cloudConfig: {name: ""}, platformSpec: {}}
    status:
      apiServerInternalURI: "https://api-int.test:6443"
      apiServerURL: "https://api.test:6443"
      controlPlaneTopology: HighlyAvailable
      cpuPartitioning: None
      etcdDiscoveryDomain: ""
      infrastructureName: test
      infrastructureTopology: HighlyAvailable
`
