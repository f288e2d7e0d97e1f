// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"

	_ "github.com/Azure/azure-sdk-for-go/sdk/azcore/arm/runtime" // it knows Resource Manager's hosts
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/cloud"
	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/awssts/request"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/provider/gcp"
)

func deploying(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("../../../docs/deploying.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

// The sections of clouds in docs/deploying.md are ones that the verifier takes.
func TestDocs_CloudSectionsAreValid(t *testing.T) {
	found := map[string]bool{}
	for _, m := range regexp.MustCompile("(?ms)^```yaml\n((aws|gcp|azure|vsphere):\n.*?)^```$").FindAllStringSubmatch(
		deploying(t), -1) {
		found[m[2]] = true
		if _, err := config.Parse("page", []byte("origins: [https://10.0.0.1:22623]\n"+m[1]), "/etc/mcs-attest"); err != nil {
			t.Errorf("%s: %v", m[2], err)
		}
	}
	if len(found) != 4 {
		t.Errorf("sections found: %v", found)
	}
}

// The hosts that the page has opened are those that are called.
func TestDocs_NameTheHostsThatAreCalled(t *testing.T) {
	row := func(platform string) string {
		m := regexp.MustCompile("(?m)^\\| `" + platform + "` \\|.*$").FindString(deploying(t))
		if m == "" {
			t.Fatalf("docs/deploying.md has no row for %s", platform)
		}
		return m
	}
	want := func(platform, address, host string) {
		if u, err := url.Parse(address); err == nil && u.Host != "" {
			host = u.Host
		}
		if host == "" || !strings.Contains(row(platform), "`"+host+"`") {
			t.Errorf("docs/deploying.md: %s calls %q", platform, host)
		}
	}
	const region = "eu-central-1"
	at, err := ec2.NewDefaultEndpointResolverV2().ResolveEndpoint(t.Context(),
		ec2.EndpointParameters{Region: sdk.String(region)})
	if err != nil {
		t.Fatal(err)
	}
	want("aws", "", strings.Replace(at.URI.Host, region, "REGION", 1))
	host, ok := request.Host(region)
	if !ok {
		t.Fatal(region)
	}
	want("aws", "", strings.Replace(host, region, "REGION", 1))
	want("gcp", gcp.KeysURL, "")
	want("gcp", gcp.ComputeURL, "")
	for _, c := range []cloud.Configuration{cloud.AzurePublic, cloud.AzureGovernment, cloud.AzureChina} {
		want("azure", c.ActiveDirectoryAuthorityHost, "")
		want("azure", c.Services[cloud.ResourceManager].Endpoint, "")
	}
}
