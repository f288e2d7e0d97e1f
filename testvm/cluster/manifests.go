// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	// The manifests are in these folders of OpenShift's API module. The imports keep the module in
	// go.mod.
	_ "github.com/openshift/api/config/v1/zz_generated.crd-manifests"
	_ "github.com/openshift/api/machine/v1beta1/zz_generated.crd-manifests"
	_ "github.com/openshift/api/machineconfiguration/v1/zz_generated.crd-manifests"
	_ "github.com/openshift/api/operator/v1/zz_generated.crd-manifests"
	_ "github.com/openshift/api/security/v1/zz_generated.crd-manifests"

	"github.com/mcs-attest/mcs-attest/testvm/binaries"
)

// standardCRDs lists the CRDs of a standard OpenShift cluster by package.
var standardCRDs = map[string][]string{
	"github.com/openshift/api/config/v1/zz_generated.crd-manifests": {
		"0000_10_config-operator_01_authentications-Default.crd.yaml", // for the version before
	},
	"github.com/openshift/api/operator/v1/zz_generated.crd-manifests": {
		"0000_20_kube-apiserver_01_kubeapiservers-Default.crd.yaml",
	},
	"github.com/openshift/api/machine/v1beta1/zz_generated.crd-manifests": {
		"0000_10_machine-api_01_machines-Default.crd.yaml",
		"0000_10_machine-api_01_machinesets-Default.crd.yaml",
	},
	"github.com/openshift/api/machineconfiguration/v1/zz_generated.crd-manifests": {
		"0000_80_machine-config_01_machineconfigs.crd.yaml",
		"0000_80_machine-config_01_machineconfigpools-SelfManagedHA.crd.yaml",
		"0000_80_machine-config_01_controllerconfigs-Default.crd.yaml",
	},
	"github.com/openshift/api/security/v1/zz_generated.crd-manifests": {
		"0000_03_config-operator_01_securitycontextconstraints.crd.yaml",
	},
}

// manifestModule is a module whose zip contains manifests that no Go package embeds. It is fetched
// through the module proxy and verified with its checksum. Nothing is built from it.
type manifestModule struct {
	path, version, sum string
	files              []string
}

var (
	prometheusOperator = manifestModule{
		"github.com/prometheus-operator/prometheus-operator", "v0.88.0", "h1:3T/dCQdk7CUVRqVfwRHoC5g66fC/ML6XQQLtQVL6Q5o=",
		[]string{
			"example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml",
			"example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml",
		},
	}
	clusterAPI = manifestModule{
		"sigs.k8s.io/cluster-api", "v1.12.0", "h1:iFOz8b0LdrMJS5Df1Eb7wyvTkWqlTUM2LHFEHCeI6vA=",
		[]string{"config/crd/bases/cluster.x-k8s.io_machines.yaml"},
	}
)

// dir returns the module's folder in the module cache.
func (m manifestModule) dir() (string, error) {
	cmd := exec.Command("go", "mod", "download", "-json", m.path+"@"+m.version)
	// Outside of every module, so that no go.mod changes.
	cmd.Dir = os.TempDir()
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	out, err := cmd.Output()
	var answer struct{ Dir, Sum, Error string }
	if jerr := json.Unmarshal(out, &answer); jerr != nil || answer.Error != "" || err != nil {
		return "", fmt.Errorf("go mod download %s@%s: %w", m.path, m.version,
			errors.Join(err, jerr, errors.New(answer.Error)))
	}
	if answer.Sum != m.sum {
		return "", fmt.Errorf("%s@%s has the sum %s instead of %s", m.path, m.version, answer.Sum, m.sum)
	}
	return answer.Dir, nil
}

// InstallOpenShift installs the API of an OpenShift cluster: Machines, MachineConfigs,
// MachineConfigPools, ControllerConfigs, SecurityContextConstraints, the Authentication, the
// KubeAPIServer, the Prometheus operator's resources, and the relevant namespaces.
func (c *Cluster) InstallOpenShift(t TB) {
	t.Helper()
	var files []string
	for pkg, names := range standardCRDs {
		dir, err := binaries.Run(c.repo, "go", "list", "-f", "{{.Dir}}", pkg)
		if err != nil {
			t.Fatalf("cluster: %v", err)
		}
		for _, name := range names {
			files = append(files, filepath.Join(dir, name))
		}
	}
	c.installCRDs(t, append(files, c.modules(t, prometheusOperator)...))
	var namespaces strings.Builder
	for _, name := range []string{"openshift-machine-api", "openshift-machine-config-operator", "openshift-config",
		"openshift-config-managed"} {
		fmt.Fprintf(&namespaces, "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: %s}\n", name)
	}
	namespaces.WriteString(
		"---\napiVersion: operator.openshift.io/v1\nkind: KubeAPIServer\nmetadata: {name: cluster}\n" +
			"spec: {managementState: Managed}\n" +
			"---\napiVersion: config.openshift.io/v1\nkind: Authentication\nmetadata: {name: cluster}\nspec: {}\n")
	c.KubectlApply(t, namespaces.String())
}

// InstallClusterAPI installs the CRD of Cluster API's Machines.
func (c *Cluster) InstallClusterAPI(t TB) {
	t.Helper()
	c.installCRDs(t, c.modules(t, clusterAPI))
}

// bareMetalHosts is the CRD of metal3's hosts with the fields that are read here. The project's own
// CRD is in no available module.
const bareMetalHosts = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: baremetalhosts.metal3.io
spec:
  group: metal3.io
  names: {kind: BareMetalHost, listKind: BareMetalHostList,
    plural: baremetalhosts, singular: baremetalhost, shortNames: [bmh]}
  scope: Namespaced
  versions:
  - name: v1alpha1
    served: true
    storage: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            x-kubernetes-preserve-unknown-fields: true
            properties:
              online: {type: boolean}
              consumerRef:
                type: object
                properties:
                  apiVersion: {type: string}
                  kind: {type: string}
                  name: {type: string}
                  namespace: {type: string}
          status: {type: object, x-kubernetes-preserve-unknown-fields: true}
`

// InstallMetal3 installs a CRD for metal3's BareMetalHosts.
func (c *Cluster) InstallMetal3(t TB) {
	t.Helper()
	c.KubectlApply(t, bareMetalHosts)
	c.Kubectl(t, "wait", "--for=condition=Established", "--timeout=10m", "crd/baremetalhosts.metal3.io")
}

// InstallOwn installs this project's CRDs, deploy/base/crds.
func (c *Cluster) InstallOwn(t TB) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(c.repo, "deploy", "base", "crds", "*mcs-attest.dev_*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("cluster: no CRDs in deploy/base/crds (%v)", err)
	}
	c.installCRDs(t, files)
}

func (c *Cluster) modules(t TB, modules ...manifestModule) (files []string) {
	t.Helper()
	for _, m := range modules {
		dir, err := m.dir()
		if err != nil {
			t.Fatalf("cluster: %v", err)
		}
		for _, f := range m.files {
			files = append(files, filepath.Join(dir, f))
		}
	}
	return files
}

// installCRDs installs CRDs and returns when the API serves them.
func (c *Cluster) installCRDs(t TB, files []string) {
	t.Helper()
	// Server-side apply, because the annotation of a client-side apply would exceed the size limit
	// of an object.
	args := []string{"apply", "--server-side", "--force-conflicts", "-o", "name"}
	for _, f := range files {
		args = append(args, "-f", f)
	}
	names := strings.Fields(c.Kubectl(t, args...))
	c.Kubectl(t, append([]string{"wait", "--for=condition=Established", "--timeout=10m"}, names...)...)
}
