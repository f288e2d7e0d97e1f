// SPDX-License-Identifier: Apache-2.0

package request_test

import (
	"encoding/json"
	"testing"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sts"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/awssts/request"
)

// The result is compared with AWS's own table of endpoints.
func TestHost_EqualsTheSDK(t *testing.T) {
	for partition, regions := range map[string][]string{
		"aws": {"af-south-1", "ap-east-1", "ap-east-2", "ap-northeast-1", "ap-northeast-3", "ap-south-2", "ap-southeast-7",
			"ca-central-1", "ca-west-1",
			"eu-central-1", "eu-central-2", "eu-north-1", "eu-south-2", "eu-west-3", "il-central-1", "me-central-1",
			"mx-central-1", "sa-east-1", "us-east-1", "us-west-2"},
		"aws-cn":     {"cn-north-1", "cn-northwest-1"},
		"aws-us-gov": {"us-gov-east-1", "us-gov-west-1"},
		"aws-eusc":   {"eusc-de-east-1"},
		"aws-iso":    {"us-iso-east-1", "us-iso-west-1"},
		"aws-iso-b":  {"us-isob-east-1"},
		"aws-iso-e":  {"eu-isoe-west-1"},
		"aws-iso-f":  {"us-isof-south-1"},
	} {
		for _, r := range regions {
			host, ok := request.Host(r)
			e, err := sts.NewDefaultEndpointResolverV2().ResolveEndpoint(t.Context(), sts.EndpointParameters{
				Region: &r, UseDualStack: sdk.Bool(false), UseFIPS: sdk.Bool(false), UseGlobalEndpoint: sdk.Bool(false)})
			if err != nil || !ok || e.URI.Host != host {
				t.Errorf("%s: %q, the SDK has %q (%v)", r, host, e.URI.Host, err)
			}
			if p, _ := request.PartitionOf(r); p.Name != partition {
				t.Errorf("%s: partition %q, want %q", r, p.Name, partition)
			}
		}
	}
}

func TestHost_RejectsInvalidRegions(t *testing.T) {
	for _, r := range []string{"", "us", "us-east", "us-east-", "us-east-1.", "us-east-1a", "US-EAST-1", "us-east-1 ",
		"us-east-1\n", "us-east-1/x", "us-east-1.evil.example", "evil.example",
		"xx-east-1", "us-east-1@evil", "us-east-1:443", "us_east_1", "us-east-100", "us--east-1", "aws-global",
		"-us-east-1"} {
		if host, ok := request.Host(r); ok {
			t.Errorf("%q: %q", r, host)
		}
	}
}

func TestDocument_HasOneEncoding(t *testing.T) {
	d := request.Document{Region: "eu-central-1", AmzDate: "20261121T100000Z", SecurityToken: "AA+/==",
		Authorization: "AWS4-HMAC-SHA256 Credential=A/b, SignedHeaders=c;d, Signature=e"}
	const want = `{"region":"eu-central-1","amzDate":"20261121T100000Z","securityToken":"AA+/==","authorization":"AWS4-HMAC-SHA256 Credential=A/b, SignedHeaders=c;d, Signature=e"}`
	if got := string(d.Encode()); got != want {
		t.Errorf("%s", got)
	}
	var back request.Document
	if err := json.Unmarshal(d.Encode(), &back); err != nil || back != d {
		t.Errorf("%+v, %v", back, err)
	}
	if c := request.Challenge([32]byte{0xff, 0xfe}); len(c) != 43 || c[:3] != "__4" {
		t.Error(c)
	}
}
