// SPDX-License-Identifier: Apache-2.0

package clouds

import (
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/x509"
	"fmt"
	"net/http"

	"github.com/mcs-attest/mcs-attest/testvm/cloud/aws"
	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

const (
	awsAccount        = "123456789012"
	awsRegion         = "eu-central-1"
	awsVPC            = "vpc-0a1b2c3d4e5f60718"
	awsInfrastructure = "demo-x7k2p"
	awsRole           = "demo-x7k2p-worker-role"
)

type amazon struct{ cloud *aws.Cloud }

func newAWS() provider { return amazon{aws.New(aws.Options{})} }

func (a amazon) section(t rig.TB, _ string) (string, map[string]string, []string) {
	t.Helper()
	api, err := a.cloud.Serve()
	if err != nil {
		t.Fatalf("emulated AWS: %v", err)
	}
	t.Cleanup(api.Close)
	text := fmt.Sprintf(`
aws:
  accounts: [%q]
  regions: [%s]
  vpcs: [%s]
  infrastructure: %s
  roles: [%s]
  ec2: {url: %q, ca: aws-api.crt}
  sts: {url: %q, ca: aws-api.crt}
`, awsAccount, awsRegion, awsVPC, awsInfrastructure, awsRole, api.URL, api.URL)
	k := a.cloud.Operator()
	return text, map[string]string{
			"aws-api.crt":                   string(api.CA),
			"aws-certificates/emulated.pem": string(a.cloud.RegionCertificates(awsRegion)),
		}, []string{
			"AWS_ACCESS_KEY_ID=" + k.AccessKeyID, "AWS_SECRET_ACCESS_KEY=" + k.SecretAccessKey, "AWS_EC2_METADATA_DISABLED=true",
		}
}

func (a amazon) add(t rig.TB, name string, userData []byte, tpm *rig.TPM) (string, http.Handler) {
	t.Helper()
	eks := map[string][]byte{}
	if tpm != nil {
		for _, k := range tpm.EndorsementKeys() {
			der, err := x509.MarshalPKIXPublicKey(k)
			if err != nil {
				t.Fatalf("endorsement key: %v", err)
			}
			switch k.(type) {
			case *rsa.PublicKey:
				eks["rsa-2048"] = der
			case *ecdsa.PublicKey:
				eks["ecc-sec-p384"] = der
			}
		}
	}
	i := a.cloud.Add(aws.Instance{
		Zone: awsRegion + "a", Account: awsAccount, VPC: awsVPC, Role: awsRole, UserData: userData, EK: eks,
		Tags: map[string]string{"Name": name, "kubernetes.io/cluster/" + awsInfrastructure: "owned"},
	})
	return i.ProviderID(), a.cloud.Metadata(i.ID)
}
