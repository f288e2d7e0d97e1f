// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"regexp"
)

// Endpoint is one API of a cloud.
type Endpoint struct {
	// URL is an https URL. If empty, the cloud's own is used.
	URL string `yaml:"url,omitempty"`
	// CA is a PEM file with the CAs that may sign the endpoint's certificate. If empty, the system's
	// CAs are used. It is for private endpoints and for proxies that terminate TLS.
	CA string `yaml:"ca,omitempty"`
}

// AWS says what machines of Amazon EC2 must be, and how the verifier queries AWS about them.
// Credentials are found as in every AWS SDK.
//
// For tpm2 without a cloud document, the verifier only queries EC2 for the instance's EK. Then only
// Regions applies of the following fields. A Machine must name the instance, and it must be in the
// account of the credentials.
type AWS struct {
	// Accounts are the allowed account ids, 12 digits each, for aws-iid and aws-sts. Required.
	Accounts []string `yaml:"accounts"`
	// Regions are the allowed regions. Required.
	Regions []string `yaml:"regions"`
	// VPCs are the allowed VPCs, as reported by EC2, for aws-iid. If empty, any VPC of the account is
	// allowed.
	VPCs []string `yaml:"vpcs,omitempty"`
	// Infrastructure is the cluster's infrastructure name. For aws-iid, the instance must have the tag
	// kubernetes.io/cluster/<name>. If empty, no tag is required.
	Infrastructure string `yaml:"infrastructure,omitempty"`
	// Roles are the names of the allowed IAM roles, for aws-sts. Only EC2 may be able to assume them.
	// If empty, aws-sts is denied.
	Roles []string `yaml:"roles,omitempty"`
	// Offline disables calls to EC2: aws-iid is accepted on its signature, and AWS endorses no TPM.
	Offline bool     `yaml:"offline,omitempty"`
	EC2     Endpoint `yaml:"ec2,omitempty"`
	STS     Endpoint `yaml:"sts,omitempty"`
}

// GCP says what machines of Google Compute Engine must be. Credentials are Google's application default
// credentials.
type GCP struct {
	// Projects are the allowed project ids. Required.
	Projects []string `yaml:"projects"`
	// Zones are the allowed zones. If empty, any zone of the projects is allowed.
	Zones []string `yaml:"zones,omitempty"`
	// Offline disables calls to Google: only keys from the folder are valid, and Google's API endorses
	// no TPM.
	Offline bool     `yaml:"offline,omitempty"`
	Keys    Endpoint `yaml:"keys,omitempty"`
	Compute Endpoint `yaml:"compute,omitempty"`
}

// Azure says what machines of Azure must be. Credentials are found as in Azure's SDK (environment,
// workload identity, managed identity).
type Azure struct {
	// Subscriptions are the allowed subscription ids. Required.
	Subscriptions []string `yaml:"subscriptions"`
	// ResourceGroups are the allowed resource groups. If empty, any group of the subscriptions is
	// allowed.
	ResourceGroups []string `yaml:"resourceGroups,omitempty"`
	// Cloud is Public, USGovernment or China. Default Public.
	Cloud string `yaml:"cloud,omitempty"`
	// ManagedIdentity also requires a token of the machine's managed identity.
	ManagedIdentity *ManagedIdentity `yaml:"managedIdentity,omitempty"`
	ARM             Endpoint         `yaml:"arm,omitempty"`
	Login           Endpoint         `yaml:"login,omitempty"`
}

// ManagedIdentity is the second factor of azure-attested.
type ManagedIdentity struct {
	// Tenant is the id of the tenant that issues the token.
	Tenant string `yaml:"tenant"`
	// Resource is the token's audience: an application that was registered only for this purpose, so
	// that the token gives access to nothing else. An agent requests tokens only for the resource that
	// its own image names.
	Resource string `yaml:"resource"`
}

// VSphere lists the vCenters that are queried for the endorsement keys of virtual TPMs.
type VSphere struct {
	Servers []VCenter `yaml:"servers"`
}

// VCenter is one vCenter.
type VCenter struct {
	Endpoint `yaml:",inline"` // URL is required: https://host/sdk
	// Username and PasswordFile belong to an account that may read virtual machines.
	Username     string `yaml:"username"`
	PasswordFile string `yaml:"passwordFile"`
}

// AzureTokenResource returns the resource of the managed-identity token that machines must present, or
// "" if none is required.
func (c *Config) AzureTokenResource() string {
	if c.Azure == nil || c.Azure.ManagedIdentity == nil {
		return ""
	}
	return c.Azure.ManagedIdentity.Resource
}

func (c *Config) endpoints() map[string]*Endpoint {
	all := map[string]*Endpoint{}
	if a := c.AWS; a != nil {
		all["aws.ec2"], all["aws.sts"] = &a.EC2, &a.STS
	}
	if g := c.GCP; g != nil {
		all["gcp.keys"], all["gcp.compute"] = &g.Keys, &g.Compute
	}
	if a := c.Azure; a != nil {
		all["azure.arm"], all["azure.login"] = &a.ARM, &a.Login
	}
	if v := c.VSphere; v != nil {
		for i := range v.Servers {
			all[fmt.Sprintf("vsphere.servers[%d]", i)] = &v.Servers[i].Endpoint
		}
	}
	return all
}

func (c *Config) completeClouds(base string) {
	absolute := func(path *string) {
		if *path != "" && !filepath.IsAbs(*path) {
			*path = filepath.Join(base, *path)
		}
	}
	for _, e := range c.endpoints() {
		absolute(&e.CA)
	}
	if c.VSphere != nil {
		for i := range c.VSphere.Servers {
			absolute(&c.VSphere.Servers[i].PasswordFile)
		}
	}
	if c.Azure != nil {
		c.Azure.Cloud = cmp.Or(c.Azure.Cloud, "Public")
	}
}

var (
	account = regexp.MustCompile(`^[0-9]{12}$`)
	guid    = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)
	vpc     = regexp.MustCompile(`^vpc-[0-9a-z]+$`)
	project = regexp.MustCompile(`^[a-z][a-z0-9.:-]{2,62}$`)
	word    = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.:+=,@()-]{0,127}$`)
)

// nouns describe valid values of a list.
var nouns = map[string]string{
	"aws.accounts": "an account id: 12 digits, in quotes", "aws.regions": "a region, as eu-central-1",
	"aws.vpcs":     "the id of a VPC, as vpc-0123456789abcdef0",
	"aws.roles":    "the name of a role, without ARN and path",
	"gcp.projects": "the id of a project (a number is not its id)", "gcp.zones": "a zone, as europe-west1-b",
	"azure.subscriptions": "a subscription id (a GUID)", "azure.resourceGroups": "the name of a resource group",
}

func (c *Config) checkClouds() error {
	for name, e := range c.endpoints() {
		if e.URL == "" {
			continue
		}
		u, err := url.Parse(e.URL)
		if err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
			return fmt.Errorf("%s: %q is not https://host", name, e.URL)
		}
		// The path of a request is part of the signed data.
		if (name == "aws.ec2" || name == "aws.sts") && u.Path != "" && u.Path != "/" {
			return fmt.Errorf("%s.url: %q has a path; AWS's signatures require https://%s/", name, e.URL, u.Host)
		}
	}
	type names struct {
		field    string
		values   []string
		pattern  *regexp.Regexp
		required bool
	}
	var all []names
	if a := c.AWS; a != nil {
		all = append(all, names{"aws.accounts", a.Accounts, account, true}, names{"aws.regions", a.Regions, word, true},
			names{"aws.vpcs", a.VPCs, vpc, false}, names{"aws.roles", a.Roles, word, false})
	}
	if g := c.GCP; g != nil {
		all = append(all, names{"gcp.projects", g.Projects, project, true}, names{"gcp.zones", g.Zones, word, false})
	}
	if a := c.Azure; a != nil {
		all = append(all, names{"azure.subscriptions", a.Subscriptions, guid, true},
			names{"azure.resourceGroups", a.ResourceGroups, word, false})
		switch a.Cloud {
		case "Public", "USGovernment", "China":
		default:
			return fmt.Errorf("azure.cloud: %q is not Public, USGovernment or China", a.Cloud)
		}
		if m := a.ManagedIdentity; m != nil && (!guid.MatchString(m.Tenant) || m.Resource == "" || len(m.Resource) > 256) {
			return errors.New("azure.managedIdentity: tenant (an id) and resource are both required")
		}
	}
	for _, n := range all {
		if n.required && len(n.values) == 0 {
			return fmt.Errorf("%s: name at least one; otherwise every instance of the cloud would be accepted", n.field)
		}
		for _, v := range n.values {
			if !n.pattern.MatchString(v) {
				return fmt.Errorf("%s: %.80q is not %s", n.field, v, nouns[n.field])
			}
		}
	}
	if v := c.VSphere; v != nil {
		if len(v.Servers) == 0 {
			return errors.New("vsphere.servers: name at least one")
		}
		seen := map[string]bool{}
		for i, s := range v.Servers {
			if seen[s.URL] {
				return fmt.Errorf("vsphere.servers[%d]: %s is listed twice; all its machines would look like clones", i, s.URL)
			}
			seen[s.URL] = true
			if s.URL == "" || s.Username == "" || s.PasswordFile == "" {
				return fmt.Errorf("vsphere.servers[%d]: url, username and passwordFile are required", i)
			}
		}
	}
	return nil
}
