// SPDX-License-Identifier: Apache-2.0

package azureattested

import (
	"errors"
	"regexp"
	"strings"
)

// resource is a virtual machine, by its name in Azure Resource Manager. Names keep their spelling;
// Azure compares them without regard to case.
type resource struct {
	subscription string // lower case
	group, name  string
}

// String returns the resource id in Azure's form.
func (r resource) String() string {
	return "/subscriptions/" + r.subscription + "/resourceGroups/" + r.group +
		"/providers/Microsoft.Compute/virtualMachines/" + r.name
}

func (r resource) equal(o resource) bool {
	return r.subscription == o.subscription && strings.EqualFold(r.group, o.group) && strings.EqualFold(r.name, o.name)
}

// parseProviderID parses a Machine's spec.providerID.
func parseProviderID(s string) (resource, error) {
	id, ok := strings.CutPrefix(s, "azure://")
	if !ok {
		return resource{}, errors.New("not azure:///subscriptions/")
	}
	return parseResourceID(id)
}

// parseResourceID parses the resource id of a virtual machine. It accepts no other or additional
// text and no escapes. Azure itself writes "resourcegroups" in some places.
func parseResourceID(s string) (resource, error) {
	if len(s) > 512 {
		return resource{}, errors.New("a resource id that is too long")
	}
	parts := strings.Split(s, "/")
	if len(parts) != 9 || parts[0] != "" || !strings.EqualFold(parts[1], "subscriptions") ||
		!strings.EqualFold(parts[3], "resourceGroups") ||
		!strings.EqualFold(parts[5], "providers") || !strings.EqualFold(parts[6], "Microsoft.Compute") ||
		!strings.EqualFold(parts[7], "virtualMachines") {
		return resource{}, errors.New("not the resource id of a virtual machine")
	}
	subscription, ok := parseGUID(parts[2])
	if !ok {
		return resource{}, errors.New("a subscription that is not a GUID")
	}
	if !isGroup(parts[4]) || strings.HasSuffix(parts[4], ".") {
		return resource{}, errors.New("an invalid resource group")
	}
	if !isName(parts[8]) {
		return resource{}, errors.New("an invalid name of a virtual machine")
	}
	return resource{subscription, parts[4], parts[8]}, nil
}

// Names of ASCII letters, digits and others that begin with neither a dot nor a hyphen. Azure allows letters of other
// alphabets in resource groups. They are rejected, because Azure's case folding for them is unknown.
var (
	isGroup = regexp.MustCompile(`^[\w()][\w.()-]{0,89}$`).MatchString
	isName  = regexp.MustCompile(`^\w[\w.-]{0,79}$`).MatchString
)
