// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/operator-framework/api/pkg/manifests"
	"github.com/operator-framework/api/pkg/operators/v1alpha1"
	"github.com/operator-framework/api/pkg/validation"
	"github.com/operator-framework/api/pkg/validation/errors"
	validators "github.com/operator-framework/api/pkg/validation/interfaces"
	"sigs.k8s.io/yaml"
)

const (
	source = "../../.."
	digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
)

// validate returns what OLM's library finds in a bundle.
func validate(t *testing.T, files map[string][]byte) (found []string) {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	bundle, err := manifests.GetBundleFromDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	objects := []any{bundle, bundle.CSV}
	for _, crd := range bundle.V1CRDs {
		objects = append(objects, crd)
	}
	all := append(validators.Validators{
		validation.OperatorHubV2Validator, validation.StandardCategoriesValidator, validation.StandardCapabilitiesValidator,
		validation.ObjectValidator, validation.GoodPracticesValidator,
	}, validation.DefaultBundleValidators...)
	for _, result := range all.Validate(objects...) {
		for _, e := range slices.Concat(result.Errors, result.Warnings) {
			found = append(found, e.Error())
		}
	}
	return found
}

func TestBundle_IsValidForOLM(t *testing.T) {
	b, err := MakeBundle(source, "v0.3.0-rc.1", Digests{Verifier: digest, MustGather: digest})
	if err != nil {
		t.Fatal(err)
	}
	for _, finding := range validate(t, b.Files) {
		// Administrators do not create these, and the project has no icon.
		if strings.HasPrefix(finding, string(errors.LevelWarn)) && (strings.Contains(finding, "example annotation") ||
			strings.Contains(finding, "csv.Spec.Icon not specified")) {
			continue
		}
		t.Error(finding)
	}
	var typed v1alpha1.ClusterServiceVersion
	if err := yaml.UnmarshalStrict(b.Files["manifests/mcs-attest.clusterserviceversion.yaml"], &typed); err != nil {
		t.Error(err)
	}
	csv := string(b.Files["manifests/mcs-attest.clusterserviceversion.yaml"])
	for _, want := range []string{
		"name: mcs-attest.v0.3.0-rc.1\n", "version: 0.3.0-rc.1\n",
		"image: registry.example.com/mcs-attest/mcs-attest-verifier@" + digest + "\n",
		"operators.openshift.io/must-gather-image: registry.example.com/mcs-attest/mcs-attest-must-gather@" + digest + "\n",
		"- image: registry.example.com/mcs-attest/mcs-attest-must-gather@" + digest + "\n    name: must-gather\n",
	} {
		if !strings.Contains(csv, want) {
			t.Errorf("no %q", want)
		}
	}
	without, err := MakeBundle(source, "v0.3.0-rc.1", Digests{Verifier: digest})
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(without.Files["manifests/mcs-attest.clusterserviceversion.yaml"]), "must-gather") {
		t.Error("a release without the image for must-gather names one")
	}
	// The validation does find something.
	delete(b.Files, "manifests/customresourcedefinition-identityclaims.mcs-attest.dev.yaml")
	if !slices.ContainsFunc(validate(t, b.Files), func(f string) bool { return strings.Contains(f, "IdentityClaim") }) {
		t.Error("a bundle without a CRD is valid")
	}
}
