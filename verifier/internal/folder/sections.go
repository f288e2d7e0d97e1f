// SPDX-License-Identifier: Apache-2.0

package folder

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/anchors"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/manifest"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot"
	"github.com/mcs-attest/mcs-attest/pkg/policy"
	"github.com/mcs-attest/mcs-attest/pkg/specversion"
	"github.com/mcs-attest/mcs-attest/verifier/internal/trust"
)

// content is the content of a file. The field in use depends on its section.
type content struct {
	manifests  machine.Manifests
	policies   []policy.Parsed
	references []measuredboot.ReferenceValues
	anchors    []anchors.Anchor
	trust      trust.File
	pool       string
	config     []byte
}

// section is one folder of files of one kind.
type section struct {
	dir     string
	endings []string
	parse   func(path string, raw []byte, modified time.Time) (content, []manifest.Problem)
}

const (
	policiesDir   = "policies"
	referencesDir = "reference-values"
)

var yamlEndings = []string{".yaml", ".yml", ".json"}

var sections = append([]section{
	{"machines", yamlEndings, parseMachines},
	{"attestations", yamlEndings, parseMachines},
	{policiesDir, yamlEndings, parsePolicies},
	{referencesDir, yamlEndings, parseReferences},
	{"ek-roots", []string{".pem", ".crt"}, parseAnchors},
	{"configs", []string{".ign"}, parseConfig},
}, allTrusted()...)

// allTrusted returns the folders of anchors.
func allTrusted() (all []section) {
	for _, s := range slices.Sorted(maps.Keys(trust.Sections)) {
		all = append(all, trusted(s))
	}
	return all
}

func trusted(s trust.Section) section {
	return section{string(s), trust.Sections[s],
		func(path string, raw []byte, _ time.Time) (c content, problems []manifest.Problem) {
			c.trust, problems = trust.Parse(s, path, raw)
			return c, problems
		}}
}

func parseMachines(path string, raw []byte, modified time.Time) (c content, problems []manifest.Problem) {
	c.manifests, problems = machine.Parse(path, raw, modified)
	return c, notEmpty(path, raw, problems)
}

func parsePolicies(path string, raw []byte, _ time.Time) (c content, problems []manifest.Problem) {
	c.policies, problems = policy.Parse(path, raw)
	return c, problems
}

// notEmpty rejects a file without any document.
func notEmpty(path string, raw []byte, problems []manifest.Problem) []manifest.Problem {
	if docs, _ := manifest.Split(path, raw); len(docs) > 0 || len(problems) > 0 {
		return problems
	}
	return []manifest.Problem{manifest.Empty(path)}
}

func parseReferences(path string, raw []byte, _ time.Time) (c content, problems []manifest.Problem) {
	c.references, problems = ParseReferences(path, raw)
	return c, problems
}

// ParseReferences parses a file of ReferenceValues, or a key of a ConfigMap.
func ParseReferences(path string, raw []byte) (references []measuredboot.ReferenceValues, problems []manifest.Problem) {
	docs, problems := manifest.Split(path, raw)
	for _, doc := range docs {
		if doc.APIVersion != measuredboot.APIVersion || doc.Kind != measuredboot.Kind {
			problems = append(problems, doc.Problem("kind", fmt.Sprintf("a %s of %s does not belong here", doc.Kind,
				doc.APIVersion), measuredboot.Kind+" of "+measuredboot.APIVersion))
			continue
		}
		var r measuredboot.ReferenceValues
		wrong := doc.Decode(&r)
		if len(wrong) == 0 {
			if err := r.Validate(); err != nil {
				field, _, _ := strings.Cut(err.Error(), ":")
				wrong = append(wrong, doc.Problem(field, err.Error(), "compute them from the image: mcs-attest-verifier refvals"))
			}
		}
		problems = append(problems, wrong...)
		references = append(references, r)
	}
	return references, notEmpty(path, raw, problems)
}

func parseAnchors(path string, raw []byte, _ time.Time) (c content, problems []manifest.Problem) {
	c.anchors, problems = ParseAnchors(path, raw)
	return c, problems
}

// ParseAnchors parses a file of certificates, or a key of a ConfigMap.
func ParseAnchors(path string, raw []byte) ([]anchors.Anchor, []manifest.Problem) {
	all, err := anchors.Parse(path, raw)
	if err != nil {
		return nil, []manifest.Problem{trust.Problem(path, err)}
	}
	return all, nil
}

// parseConfig checks that the bytes are an Ignition config. With other content, a node would provision
// nothing.
func parseConfig(path string, raw []byte, _ time.Time) (content, []manifest.Problem) {
	if _, err := specversion.Of(raw); err != nil {
		return content{}, []manifest.Problem{{File: path, What: err.Error(),
			Want: "a rendered Ignition config; butane makes one from YAML"}}
	}
	return content{pool: strings.TrimSuffix(filepath.Base(path), filepath.Ext(path)), config: raw}, nil
}
