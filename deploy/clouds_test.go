// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/policy"
	"github.com/mcs-attest/mcs-attest/testvm/cluster"
)

// defaults are the shipped policies by platform: the alternatives in order of preference,
// and the endorsements of a TPM.
var defaults = map[string]struct {
	sets         string
	endorsements string
}{
	"aws":     {"aws-iid+tpm2 aws-iid+aws-sts", "provider"},
	"azure":   {"azure-attested+tpm2 azure-attested", "ak-certificate enrolled"},
	"gcp":     {"gcp-identity+tpm2 gcp-identity", "provider ak-certificate"},
	"metal":   {"tpm2", "enrolled"},
	"none":    {"provisioning-token", "enrolled"},
	"vsphere": {"tpm2", "provider"},
}

func policyFile(t *testing.T, platform string) string {
	t.Helper()
	raw, err := os.ReadFile("policies/" + platform + ".yaml")
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func TestDefaultPolicies_HaveTheExpectedContent(t *testing.T) {
	files, err := filepath.Glob("policies/*")
	if err != nil || len(files) != len(defaults)+1 { // and audit.yaml, which is for all platforms
		t.Errorf("in policies: %v (%v)", files, err)
	}
	for platform, want := range defaults {
		file := policy.File{Name: platform + ".yaml", Raw: []byte(policyFile(t, platform))}
		for _, p := range policy.Check(file) {
			t.Error(p)
		}
		var parsed v1alpha1.AttestationPolicy
		if err := yaml.UnmarshalStrict(file.Raw, &parsed); err != nil {
			t.Fatal(err)
		}
		set, err := policy.Compile(parsed)
		if err != nil {
			continue
		}
		p, err := set.For("worker")
		if err != nil {
			t.Errorf("%s: %v", platform, err)
			continue
		}
		var sets, endorsements []string
		for _, all := range p.Alternatives {
			var kinds []string
			for _, k := range all {
				kinds = append(kinds, k.String())
			}
			slices.Sort(kinds)
			sets = append(sets, strings.Join(kinds, "+"))
		}
		for _, e := range p.Endorsements {
			endorsements = append(endorsements, string(e))
		}
		if got := strings.Join(sets, " "); got != want.sets {
			t.Errorf("%s: takes %s, not %s", platform, got, want.sets)
		}
		if got := strings.Join(endorsements, " "); got != want.endorsements {
			t.Errorf("%s: endorsed by %s, not %s", platform, got, want.endorsements)
		}
		if p.Mode != v1alpha1.ModeEnforce || p.Unattested != v1alpha1.UnattestedDeny || p.Wildcard {
			t.Errorf("%s: mode %s, unattested %s, every pool %t", platform, p.Mode, p.Unattested, p.Wildcard)
		}
		// docs/deploying.md starts with a changed copy of it.
		if audit := strings.Replace(policyFile(t, platform), "mode: Enforce", "mode: Audit", 1); strings.Count(audit,
			"\n  mode: Audit\n") != 1 {
			t.Errorf("%s: the page's sed does not make it Audit", platform)
		}
	}
}

// withComponent returns the OpenShift overlay with a cloud's component, as in a cluster's
// own overlay.
func withComponent(t *testing.T, component string) []*unstructured.Unstructured {
	t.Helper()
	return kustomize(t, "openshift", []string{component}, nil)
}

func daemonSetOf(t *testing.T, objects []*unstructured.Unstructured) *apps.DaemonSet {
	t.Helper()
	var ds apps.DaemonSet
	o := find(t, objects, "DaemonSet", "mcs-attest-verifier")
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, &ds, true); err != nil {
		t.Fatal(err)
	}
	return &ds
}

// permissions are all permissions of the verifier in each cloud.
var permissions = map[string]struct {
	where []string // below providerSpec
	want  []string
	env   []string
}{
	"aws": {[]string{"statementEntries"}, []string{"ec2:DescribeInstances", "ec2:GetInstanceTpmEkPub"},
		[]string{"AWS_SHARED_CREDENTIALS_FILE"}},
	"gcp": {[]string{"permissions"}, []string{"compute.instances.getShieldedInstanceIdentity"},
		[]string{"GOOGLE_APPLICATION_CREDENTIALS"}},
	"azure": {[]string{"permissions"}, []string{"Microsoft.Compute/virtualMachines/read"},
		[]string{"AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET", "AZURE_FEDERATED_TOKEN_FILE", "AZURE_TENANT_ID"}},
}

func TestAttack_T49_CloudCredentialsHaveOnlyTheRequiredPermissions(t *testing.T) {
	page := deploying(t)
	for platform, want := range permissions {
		request := find(t, withComponent(t, platform), "CredentialsRequest", "mcs-attest-verifier")
		spec, _, err := unstructured.NestedMap(request.Object, "spec", "providerSpec")
		if err != nil {
			t.Fatal(err)
		}
		for _, roles := range []string{"predefinedRoles", "roleBindings", "dataPermissions", "policy"} {
			if list, _ := spec[roles].([]any); len(list) > 0 {
				t.Errorf("%s: %s: %v: more than the permissions", platform, roles, list)
			}
		}
		var got []string
		list, _, err := unstructured.NestedSlice(spec, want.where...)
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range list {
			if statement, ok := entry.(map[string]any); ok {
				actions, _, err := unstructured.NestedStringSlice(statement, "action")
				if err != nil || statement["effect"] != "Allow" {
					t.Errorf("%s: %v (%v)", platform, statement, err)
				}
				got = append(got, actions...)
				continue
			}
			got = append(got, entry.(string))
		}
		if slices.Sort(got); !slices.Equal(got, want.want) {
			t.Errorf("%s: may %v, needs %v", platform, got, want.want)
		}
		// The page lists the same.
		row := regexp.MustCompile("(?m)^\\| `" + platform + "` \\|([^|]*)\\|").FindStringSubmatch(page)
		if row == nil {
			t.Errorf("docs/deploying.md has no row with the permissions of %s", platform)
			continue
		}
		var said []string
		for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
			said = append(said, m[1])
		}
		if slices.Sort(said); !slices.Equal(said, want.want) {
			t.Errorf("docs/deploying.md: %s may %v, the file %v", platform, said, want.want)
		}
	}
}

func TestCloudCredentials_AreMounted(t *testing.T) {
	plain := podSpec(t, "openshift")
	for _, platform := range []string{"aws", "gcp", "azure", "vsphere"} {
		objects := withComponent(t, platform)
		p := &daemonSetOf(t, objects).Spec.Template.Spec
		c := &p.Containers[0]
		if asks := beyond(&hostnetworkV2, p); len(asks) > 0 {
			t.Errorf("%s: not admitted by hostnetwork-v2: %v", platform, asks)
		}
		if len(p.Containers) != 1 || len(c.Env) < len(plain.Containers[0].Env) ||
			len(c.VolumeMounts) <= len(plain.Containers[0].VolumeMounts) {
			t.Errorf("%s: the component removes something", platform)
		}
		plainSecrets := map[string]bool{}
		for _, v := range plain.Volumes {
			if v.Secret != nil {
				plainSecrets[v.Secret.SecretName] = true
			}
		}
		var secrets []string
		mounted := map[string]string{}
		for _, m := range c.VolumeMounts {
			if !m.ReadOnly {
				t.Errorf("%s: %s is not read only", platform, m.MountPath)
			}
			mounted[m.Name] = m.MountPath
		}
		token := ""
		for _, v := range p.Volumes {
			if mounted[v.Name] == "" {
				t.Errorf("%s: nothing mounts %s", platform, v.Name)
			}
			switch {
			case v.Secret != nil && plainSecrets[v.Secret.SecretName]:
			case v.Secret != nil:
				secrets = append(secrets, v.Secret.SecretName)
			case v.Projected != nil:
				s := v.Projected.Sources[0].ServiceAccountToken
				if len(v.Projected.Sources) != 1 || s == nil || s.Audience != "openshift" {
					t.Errorf("%s: projects %+v", platform, v.Projected.Sources)
					continue
				}
				token = mounted[v.Name] + "/" + s.Path
			}
		}
		var env []string
		for _, e := range c.Env {
			if slices.ContainsFunc(plain.Containers[0].Env, func(o core.EnvVar) bool { return o.Name == e.Name }) {
				continue
			}
			env = append(env, e.Name)
			if e.ValueFrom != nil {
				secrets = append(secrets, e.ValueFrom.SecretKeyRef.Name)
			} else if dir := mounted["cloud-credentials"]; dir == "" || filepath.Dir(e.Value) != dir {
				t.Errorf("%s: %s is %s, and that is nowhere", platform, e.Name, e.Value)
			}
		}
		if slices.Sort(env); !slices.Equal(env, permissions[platform].env) {
			t.Errorf("%s: adds %v to the environment", platform, env)
		}
		slices.Sort(secrets)
		if got := slices.Compact(secrets); !slices.Equal(got, []string{"mcs-attest-cloud-credentials"}) {
			t.Errorf("%s: the component adds the Secrets %v", platform, got)
		}
		if platform == "vsphere" {
			continue
		}
		request := find(t, objects, "CredentialsRequest", "mcs-attest-verifier")
		for want, path := range map[string][]string{
			"mcs-attest-cloud-credentials": {"spec", "secretRef", "name"},
			Namespace:                      {"spec", "secretRef", "namespace"},
			token:                          {"spec", "cloudTokenPath"},
		} {
			if got, _, _ := unstructured.NestedString(request.Object, path...); got != want {
				t.Errorf("%s: %v is %q, the pods have %q", platform, path, got, want)
			}
		}
		if accounts, _, _ := unstructured.NestedStringSlice(request.Object, "spec",
			"serviceAccountNames"); !slices.Equal(accounts, []string{ServiceAccount}) {
			t.Errorf("%s: for the service accounts %v", platform, accounts)
		}
	}
}

// credentialsRequests is the CRD of OpenShift's cloud credential operator, reduced to the
// fields that matter to the author of an object.
const credentialsRequests = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: credentialsrequests.cloudcredential.openshift.io
spec:
  group: cloudcredential.openshift.io
  names: {kind: CredentialsRequest, listKind: CredentialsRequestList,
    plural: credentialsrequests, singular: credentialsrequest}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        required: [spec]
        properties:
          spec:
            type: object
            required: [secretRef]
            properties:
              cloudTokenPath: {type: string}
              providerSpec: {type: object, x-kubernetes-preserve-unknown-fields: true}
              secretRef:
                type: object
                properties: {name: {type: string}, namespace: {type: string}}
              serviceAccountNames: {type: array, items: {type: string}}
---
apiVersion: v1
kind: Namespace
metadata: {name: openshift-cloud-credential-operator}
`

func TestDefaultPoliciesAndComponentsAreAcceptedByARealAPIServer(t *testing.T) {
	c := cluster.Start(t)
	c.InstallOpenShift(t)
	c.InstallOwn(t)
	c.KubectlApply(t, credentialsRequests)
	c.Kubectl(t, "wait", "--for=condition=Established", "--timeout=10m",
		"crd/credentialsrequests.cloudcredential.openshift.io")
	c.KubectlApply(t, Prerequisites(Objects(t, "openshift")))
	for platform := range defaults {
		if out, err := c.KubectlAs("admin", policyFile(t, platform), "apply", "--dry-run=server", "--validate=strict",
			"-f", "-"); err != nil {
			t.Errorf("%s: %v\n%s", platform, err, out)
		}
	}
	for _, platform := range []string{"aws", "gcp", "azure", "vsphere"} {
		for _, o := range withComponent(t, platform) {
			if kind := o.GetKind(); kind != "CredentialsRequest" && kind != "DaemonSet" {
				continue
			}
			raw, err := o.MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			if out, err := c.KubectlAs("admin", string(raw), "apply", "--dry-run=server", "--validate=strict", "-f",
				"-"); err != nil {
				t.Errorf("%s: %s: %v\n%s", platform, o.GetKind(), err, out)
			}
		}
	}
}
