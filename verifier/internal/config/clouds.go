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
	// URL, https; empty: the cloud's own.
	URL string `yaml:"url,omitempty"`
	// CA is a PEM file with the authorities that its certificate must lead to;
	// empty: the system's. For private endpoints and for proxies that end TLS.
	CA string `yaml:"ca,omitempty"`
}

// AWS is what machines of Amazon EC2 must be, and how AWS is asked about them.
// Credentials are found as every AWS SDK finds them.
//
// For tpm2 by itself EC2 is asked for the instance's EK and for nothing else. Of
// what is below Regions alone counts then: the instance is one that a Machine names,
// in the account of the credentials.
type AWS struct {
	// Accounts are the account ids, 12 digits each, for aws-iid and aws-sts. Required.
	Accounts []string `yaml:"accounts"`
	// Regions are where machines may be. Required.
	Regions []string `yaml:"regions"`
	// VPCs are where EC2 must say that the instance is, for aws-iid. Empty: anywhere
	// in the account.
	VPCs []string `yaml:"vpcs,omitempty"`
	// Infrastructure is the cluster's infrastructure name; the instance must have
	// the tag kubernetes.io/cluster/<name>, for aws-iid. Empty: no tag is asked for.
	Infrastructure string `yaml:"infrastructure,omitempty"`
	// Roles are the names of the IAM roles that machines have, for aws-sts. Only
	// EC2 may be able to assume them. Empty: aws-sts is refused.
	Roles []string `yaml:"roles,omitempty"`
	// Offline leaves EC2 unasked: aws-iid is accepted on its signature alone, and
	// no TPM is endorsed by AWS.
	Offline bool     `yaml:"offline,omitempty"`
	EC2     Endpoint `yaml:"ec2,omitempty"`
	STS     Endpoint `yaml:"sts,omitempty"`
}

// GCP is what machines of Google Compute Engine must be. Credentials are Google's
// application default credentials.
type GCP struct {
	// Projects are the project ids. Required.
	Projects []string `yaml:"projects"`
	// Zones are where machines may be. Empty: anywhere in the projects.
	Zones []string `yaml:"zones,omitempty"`
	// Offline fetches no keys and asks no API: only keys from the folder count,
	// and no TPM is endorsed by Google's API.
	Offline bool     `yaml:"offline,omitempty"`
	Keys    Endpoint `yaml:"keys,omitempty"`
	Compute Endpoint `yaml:"compute,omitempty"`
}

// Azure is what machines of Azure must be. Credentials are found as Azure's SDK
// finds them (environment, workload identity, managed identity).
type Azure struct {
	// Subscriptions are the subscription ids. Required.
	Subscriptions []string `yaml:"subscriptions"`
	// ResourceGroups are where machines may be. Empty: anywhere in the subscriptions.
	ResourceGroups []string `yaml:"resourceGroups,omitempty"`
	// Cloud is Public, USGovernment or China. Default Public.
	Cloud string `yaml:"cloud,omitempty"`
	// ManagedIdentity asks for a token of the machine's managed identity, too.
	ManagedIdentity *ManagedIdentity `yaml:"managedIdentity,omitempty"`
	ARM             Endpoint         `yaml:"arm,omitempty"`
	Login           Endpoint         `yaml:"login,omitempty"`
}

// ManagedIdentity is the second factor of azure-attested.
type ManagedIdentity struct {
	// Tenant that issues the token, its id.
	Tenant string `yaml:"tenant"`
	// Resource is the token's audience: an application that was registered for
	// this, so that the token opens nothing else. An agent requests tokens only for
	// the resource that its own image names.
	Resource string `yaml:"resource"`
}

// VSphere is how vCenters are asked for the endorsement keys of virtual TPMs.
type VSphere struct {
	Servers []VCenter `yaml:"servers"`
}

// VCenter is one of them.
type VCenter struct {
	Endpoint `yaml:",inline"` // URL is required: https://host/sdk
	// Username and PasswordFile are of an account that may read virtual machines.
	Username     string `yaml:"username"`
	PasswordFile string `yaml:"passwordFile"`
}

// AzureTokenResource is for which resource machines show a token of their managed
// identity; empty: for none.
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

// nouns say what a value of a list should be.
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
		// The path of a request is part of what was signed.
		if (name == "aws.ec2" || name == "aws.sts") && u.Path != "" && u.Path != "/" {
			return fmt.Errorf("%s.url: %q has a path; AWS's signatures are for https://%s/ alone", name, e.URL, u.Host)
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
			return errors.New("azure.managedIdentity: tenant (an id) and resource are both needed")
		}
	}
	for _, n := range all {
		if n.required && len(n.values) == 0 {
			return fmt.Errorf("%s: name at least one; every instance of the cloud would be accepted otherwise", n.field)
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
				return fmt.Errorf("vsphere.servers[%d]: %s is there twice; all its machines would look like clones", i, s.URL)
			}
			seen[s.URL] = true
			if s.URL == "" || s.Username == "" || s.PasswordFile == "" {
				return fmt.Errorf("vsphere.servers[%d]: url, username and passwordFile are needed", i)
			}
		}
	}
	return nil
}
