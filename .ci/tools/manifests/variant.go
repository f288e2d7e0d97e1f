// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"fmt"
	"slices"
	"strings"
)

// variant is one way to set the values of the chart: a platform with a cloud, or with one component.
type variant struct{ platform, cloud, component string }

// clouds are the values of the chart's "cloud". Each is a folder in deploy/components.
var clouds = []string{"", "aws", "azure", "gcp", "vsphere"}

// component is a value components.NAME of the chart. Folder is what it adds on a platform, in deploy/components.
type component struct {
	value  string
	folder map[string]string
}

// The overlay openshift includes monitoring and node-roles.
var components = []component{
	{"approver", map[string]string{openshift: "approver", kubernetes: "approver-kubernetes"}},
	{"cap", map[string]string{openshift: "cap"}},
	{"certificates", map[string]string{openshift: "certificates"}},
	{"credential", map[string]string{openshift: "credential", kubernetes: "credential-kubernetes"}},
	{"monitoring", map[string]string{kubernetes: "monitoring"}},
	{"nodeCertificate", map[string]string{openshift: "node-certificate", kubernetes: "node-certificate"}},
	{"render", map[string]string{openshift: "render"}},
	{"userData", map[string]string{openshift: "user-data"}},
}

// variants returns every variant.
func variants() (all []variant) {
	for _, platform := range []string{openshift, kubernetes} {
		for _, cloud := range clouds {
			all = append(all, variant{platform: platform, cloud: cloud})
		}
		for _, c := range components {
			if c.folder[platform] != "" {
				all = append(all, variant{platform: platform, component: c.value})
			}
		}
	}
	return all
}

// renderVariant returns the objects of a variant.
func (t tree) renderVariant(v variant) ([]object, error) {
	for _, c := range components {
		if c.value == v.component {
			return t.render(v.platform, []string{"components/" + c.folder[v.platform]}, nil)
		}
	}
	switch {
	case v.cloud == "":
		return t.render(v.platform, nil, nil)
	case v.platform == openshift:
		return t.render(v.platform, []string{"components/" + v.cloud}, nil)
	}
	// Only OpenShift has CredentialsRequests.
	return t.render(v.platform, nil, []string{"components/" + v.cloud + "/daemonset.yaml"})
}

// set is a set of variants: one bit for each, in the order of variants.
type set uint64

// line is a line of a template, and the variants that have it.
type line struct {
	text string
	in   set
}

// merge adds the lines of one variant to a template. Lines of a longest common subsequence are shared.
func merge(template []line, text []string, in set) []line {
	// length[i][j] is the length of a longest common subsequence of template[i:] and text[j:].
	length := make([][]int, len(template)+1)
	length[len(template)] = make([]int, len(text)+1)
	for i := len(template) - 1; i >= 0; i-- {
		length[i] = make([]int, len(text)+1)
		for j := len(text) - 1; j >= 0; j-- {
			if template[i].text == text[j] {
				length[i][j] = length[i+1][j+1] + 1
			} else {
				length[i][j] = max(length[i+1][j], length[i][j+1])
			}
		}
	}
	var merged []line
	for i, j := 0, 0; i < len(template) || j < len(text); {
		switch {
		case i < len(template) && j < len(text) && template[i].text == text[j]:
			merged = append(merged, line{text[j], template[i].in | in})
			i, j = i+1, j+1
		case j == len(text) || i < len(template) && length[i+1][j] >= length[i][j+1]:
			merged = append(merged, template[i])
			i++
		default:
			merged = append(merged, line{text[j], in})
			j++
		}
	}
	return merged
}

// always is the condition of what every variant has.
const always = "true"

// condition returns the expression of Helm that is true for the variants of a set, and for each of their
// combinations.
func condition(s set) (string, error) {
	on := map[string]string{}
	for _, platform := range []string{openshift, kubernetes} {
		expression, err := onPlatform(s, platform)
		if err != nil {
			return "", err
		}
		on[platform] = expression
	}
	if on[openshift] == on[kubernetes] {
		return on[openshift], nil
	}
	var either []string
	for _, platform := range []string{openshift, kubernetes} {
		is := fmt.Sprintf("eq .Values.platform %q", platform)
		switch on[platform] {
		case "":
		case always:
			either = append(either, is)
		default:
			either = append(either, fmt.Sprintf("and (%s) (%s)", is, on[platform]))
		}
	}
	return anyOf(either), nil
}

// onPlatform is the condition on one platform: empty if no variant of it is in the set.
func onPlatform(s set, platform string) (string, error) {
	var cloud, component []string
	var allClouds, allComponents = true, true
	for i, v := range variants() {
		if v.platform != platform {
			continue
		}
		in := s&(1<<i) != 0
		switch {
		case v.component == "" && in:
			cloud = append(cloud, fmt.Sprintf("%q", v.cloud))
		case v.component == "":
			allClouds = false
		case in:
			component = append(component, ".Values.components."+v.component)
		default:
			allComponents = false
		}
	}
	plain := slices.Contains(cloud, `""`)
	switch {
	case plain && !allComponents:
		return "", fmt.Errorf("a component changes what the overlay %s has, which the chart cannot express", platform)
	case plain && allClouds:
		return always, nil
	case plain:
		component = nil
	}
	switch len(cloud) {
	case 0:
	case 1:
		component = append(component, "eq .Values.cloud "+cloud[0])
	default:
		component = append(component, "has .Values.cloud (list "+strings.Join(cloud, " ")+")")
	}
	return anyOf(component), nil
}

// anyOf joins conditions.
func anyOf(conditions []string) string {
	if len(conditions) < 2 {
		return strings.Join(conditions, "")
	}
	return "or (" + strings.Join(conditions, ") (") + ")"
}
