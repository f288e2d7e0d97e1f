// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"os"

	"sigs.k8s.io/yaml"
)

// krewPlugin is the manifest that krew reads: https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest/.
type krewPlugin struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Metadata   map[string]string `json:"metadata"`
	Spec       krewSpec          `json:"spec"`
}

type krewSpec struct {
	Version          string         `json:"version"`
	Homepage         string         `json:"homepage"`
	ShortDescription string         `json:"shortDescription"`
	Description      string         `json:"description"`
	Platforms        []krewPlatform `json:"platforms"`
}

type krewPlatform struct {
	Selector krewSelector        `json:"selector"`
	URI      string              `json:"uri"`
	SHA256   string              `json:"sha256"`
	Bin      string              `json:"bin"`
	Files    []map[string]string `json:"files"`
}

type krewSelector struct {
	MatchLabels map[string]string `json:"matchLabels"`
}

// krew writes attest.yaml: the plug-in "attest" of this version.
func (r *release) krew(context.Context) error {
	m := krewPlugin{
		APIVersion: "krew.googlecontainertools.github.com/v1alpha2", Kind: "Plugin",
		Metadata: map[string]string{"name": "attest"},
		Spec: krewSpec{
			Version: r.version, Homepage: repository,
			ShortDescription: "Show and control which machines attested",
			Description: "Shows which machines of a cluster attested before they received their Ignition\n" +
				"config, which did not and why. Enrolls, approves and quarantines machines.\n" +
				"It needs mcs-attest in the cluster.\n",
		},
	}
	for _, arch := range r.architectures {
		file := pluginFile(arch)
		raw, err := os.ReadFile(r.file(file))
		if err != nil {
			return err
		}
		digest := sha256.Sum256(raw)
		m.Spec.Platforms = append(m.Spec.Platforms, krewPlatform{
			Selector: krewSelector{MatchLabels: map[string]string{"os": "linux", "arch": arch}},
			URI:      repository + "/releases/download/" + r.version + "/" + file,
			SHA256:   hex.EncodeToString(digest[:]), Bin: plugin,
			Files: []map[string]string{{"from": plugin, "to": "."}, {"from": "LICENSE", "to": "."}},
		})
	}
	raw, err := yaml.Marshal(m)
	if err != nil {
		return err
	}
	return os.WriteFile(r.file("attest.yaml"), raw, 0o644)
}
