// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"bytes"
	"os"
	"testing"

	"k8s.io/client-go/util/jsonpath"
	"sigs.k8s.io/yaml"
)

// kubectl get prints why a machine may not attest. Some conditions are False when all is well.
func TestColumns_TheReasonIsThatOfTheAttestation(t *testing.T) {
	raw, err := os.ReadFile("base/crds/mcs-attest.dev_machineattestations.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var crd struct {
		Spec struct {
			Versions []struct {
				Columns []struct{ Name, JSONPath string } `json:"additionalPrinterColumns"`
			}
		}
	}
	if err := yaml.Unmarshal(raw, &crd); err != nil {
		t.Fatal(err)
	}
	record := map[string]any{"status": map[string]any{"conditions": []any{
		map[string]any{"type": "FirstBootFailed", "status": "False", "reason": "AttestedAgain"},
		map[string]any{"type": "Attested", "status": "False", "reason": "PCRCapped"},
		map[string]any{"type": "Quarantined", "status": "False", "reason": "SpecSaysSo"},
	}}}
	for _, column := range crd.Spec.Versions[0].Columns {
		if column.Name != "Reason" {
			continue
		}
		path, out := jsonpath.New(column.Name).AllowMissingKeys(true), &bytes.Buffer{}
		if err := path.Parse("{" + column.JSONPath + "}"); err != nil {
			t.Fatal(err)
		}
		if err := path.Execute(out, record); err != nil || out.String() != "PCRCapped" {
			t.Errorf("%q, %v", out, err)
		}
		return
	}
	t.Error("no column Reason")
}
