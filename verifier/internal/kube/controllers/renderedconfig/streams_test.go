// SPDX-License-Identifier: Apache-2.0

package renderedconfig

import (
	"fmt"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/verifier/internal/poolconfig/poolconfigtest"
)

// streamsCRD is the kind OSImageStream with some versions; the first one is stored.
func streamsCRD(versions ...string) string {
	s := `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: osimagestreams.machineconfiguration.openshift.io
  annotations: {api-approved.kubernetes.io: "https://github.com/openshift/api"}
spec:
  group: machineconfiguration.openshift.io
  scope: Cluster
  names: {kind: OSImageStream, listKind: OSImageStreamList, plural: osimagestreams, singular: osimagestream}
  versions:
`
	for i, v := range versions {
		s += fmt.Sprintf("  - {name: %s, served: true, storage: %t, schema: {openAPIV3Schema: ", v, i == 0)
		s += "{type: object, x-kubernetes-preserve-unknown-fields: true}}}\n"
	}
	return s
}

func TestRendered_HasTheImagesOfTheOSImageStream(t *testing.T) {
	c, api := newOpenShift(t)
	c.KubectlApply(t, poolconfigtest.Pool+"---\n"+poolconfigtest.MachineConfig("00-base", "/etc/base", "base",
		poolconfigtest.Needed))
	t.Run("a cluster without the kind", func(t *testing.T) {
		s, logged := follow(t, api)
		has(t, s, false, "quay.test%2Fos%40", "quay.test%2Fstream")
		if got := logged.String(); !strings.Contains(got, "OSImageStream") {
			t.Errorf("the log does not say where the images come from:\n%s", got)
		}
	})
	for _, versions := range [][]string{{"v1alpha1"}, {"v1"}, {"v1", "v1alpha1"}} {
		t.Run(strings.Join(versions, " and "), func(t *testing.T) {
			const crd = "customresourcedefinition/osimagestreams.machineconfiguration.openshift.io"
			c.KubectlApply(t, streamsCRD(versions...))
			c.Kubectl(t, "wait", "--for=condition=Established", crd, "--timeout=10m")
			t.Cleanup(func() {
				c.Kubectl(t, "delete", crd)
			})
			s, _ := follow(t, api)
			for _, preApproved := range []bool{false, true} {
				poolconfigtest.Eventually(t, "without the object nothing renders", func() error {
					if got := fmt.Sprint(s.Findings()); !strings.Contains(got, "OSImageStream") {
						return fmt.Errorf("findings: %s", got)
					}
					if _, err := s.Config("worker", preApproved, poolconfigtest.Newest); err == nil {
						return fmt.Errorf("a config without the OSImageStream, pre-approved: %t", preApproved)
					}
					return nil
				})
			}
			c.KubectlApply(t, `apiVersion: machineconfiguration.openshift.io/`+versions[0]+`
kind: OSImageStream
metadata: {name: cluster, annotations: {machineconfiguration.openshift.io/release-image-version: abc}}
status:
  defaultStream: rhel-9
  availableStreams:
  - {name: rhel-9, osImage: "quay.test/stream@sha256:9", osExtensionsImage: "quay.test/stream-ext@sha256:9"}
`)
			has(t, s, false, "quay.test%2Fstream%40", "quay.test%2Fos%40")
			has(t, s, true, "quay.test%2Fstream%40", "quay.test%2Fos%40")
		})
	}
}

// An OSImageStream that cannot be read stops what is rendered here, not a rendered config.
func TestRendered_BrokenOSImageStreamKeepsRenderedConfigs(t *testing.T) {
	c, api := newOpenShift(t)
	c.KubectlApply(t, poolconfigtest.Pool+"---\n"+poolconfigtest.MachineConfig("00-base", "/etc/base", "base",
		poolconfigtest.Needed))
	c.KubectlApply(t, streamsCRD("v1"))
	c.Kubectl(t, "wait", "--for=condition=Established",
		"customresourcedefinition/osimagestreams.machineconfiguration.openshift.io",
		"--timeout=10m")
	c.KubectlApply(t, `apiVersion: machineconfiguration.openshift.io/v1
kind: OSImageStream
metadata: {name: cluster}
status: {defaultStream: 9, availableStreams: none}
`)
	rendered := strings.Replace(poolconfigtest.MachineConfig("rendered-worker-1", "/etc/of-the-operator", "1", ""),
		"  labels: {machineconfiguration.openshift.io/role: worker}\n", "", 1)
	c.KubectlApply(t, rendered)
	status(t, c, `{"status":{"machineCount":3,"updatedMachineCount":0,"readyMachineCount":0,"unavailableMachineCount":0,"degradedMachineCount":0,"configuration":{"name":"rendered-worker-1"}}}`)
	s, _ := follow(t, api)
	has(t, s, false, "/etc/of-the-operator", "")
	poolconfigtest.Eventually(t, "a finding", func() error {
		if got := fmt.Sprint(s.Findings()); !strings.Contains(got, "PreApprovedNotRendered") ||
			!strings.Contains(got, "OSImageStream") {
			return fmt.Errorf("%s", got)
		}
		return nil
	})
}
