// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/x509"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"

	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	stsattester "github.com/mcs-attest/mcs-attest/pkg/evidence/awssts/attester"
	azureattester "github.com/mcs-attest/mcs-attest/pkg/evidence/azureattested/attester"
	gcpattester "github.com/mcs-attest/mcs-attest/pkg/evidence/gcpidentity/attester"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester/swtpmtest"
	"github.com/mcs-attest/mcs-attest/pkg/transcript"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
	"github.com/mcs-attest/mcs-attest/testvm/cloud/aws"
	"github.com/mcs-attest/mcs-attest/testvm/cloud/azure"
	"github.com/mcs-attest/mcs-attest/testvm/cloud/gcp"
)

// site is a whole verifier with an emulated cloud: its API over HTTPS and the
// cloud's real SDK in between.
type site struct {
	*verifier
	t *testing.T

	aws   *aws.Cloud
	gcp   *gcp.Cloud
	azure *azure.Cloud

	// add makes an instance, with the TPM if it has one, and returns its provider
	// id; gather makes its documents.
	add    func(name string, tpm *swtpmtest.TPM) string
	gather func(name string, k evidence.Kind, h transcript.Hash, c *mcsattestv1.CloudChallenge) *mcsattestv1.CloudEvidence
	offers []evidence.Kind
	// down takes the cloud's API away, up brings it back.
	down, up func()
	// calls is how often the API was asked about machines.
	calls func() int
}

// policies are those that ship, by cloud.
func shipped(t *testing.T, cloud string) string {
	t.Helper()
	raw, err := os.ReadFile("../deploy/policies/" + cloud + ".yaml")
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func put(t *testing.T, dir, name string, content []byte) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// newSite starts a verifier with the policy that ships for the cloud.
func newSite(t *testing.T, cloud string) *site {
	t.Helper()
	s := &site{t: t}
	var section string
	files := map[string][]byte{"policies/default.yaml": []byte(shipped(t, cloud))}
	switch cloud {
	case "aws":
		section = s.newAWS(files)
	case "gcp":
		section = s.newGCP(files)
	case "azure":
		section = s.newAzure(files)
	}
	s.verifier = newVerifier(t, func(dir string) {
		for name, content := range files {
			put(t, dir, name, content)
		}
		raw, err := os.ReadFile(filepath.Join(dir, "mcs-attest.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		put(t, dir, "mcs-attest.yaml", append(raw, section...))
	})
	return s
}

// EK of a TPM as SubjectPublicKeyInfo, with its type.
func spkiOf(t *testing.T, tpm *swtpmtest.TPM) (der []byte, rsa bool) {
	t.Helper()
	a, err := attester.Open(tpm.Dial(), attester.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = a.Close() }()
	ek, err := tpm2.ParseEK(a.Identity().EKPublic)
	if err != nil {
		t.Fatal(err)
	}
	if der, err = x509.MarshalPKIXPublicKey(ek.PublicKey()); err != nil {
		t.Fatal(err)
	}
	return der, strings.Contains(ek.Describe(), "rsa")
}

func (s *site) newAWS(files map[string][]byte) string {
	s.aws = aws.New(aws.Options{})
	api, err := s.aws.Serve()
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(api.Close)
	operator := s.aws.Operator()
	s.t.Setenv("AWS_ACCESS_KEY_ID", operator.AccessKeyID)
	s.t.Setenv("AWS_SECRET_ACCESS_KEY", operator.SecretAccessKey)
	s.t.Setenv("AWS_SESSION_TOKEN", operator.SessionToken)
	files["api-ca.pem"] = api.CA
	files["aws-certificates/test.pem"] = s.aws.RegionCertificates("eu-central-1")
	ids := map[string]string{}
	s.offers = []evidence.Kind{evidence.AWSIID, evidence.AWSSTS}
	s.add = func(name string, tpm *swtpmtest.TPM) string {
		i := aws.Instance{Zone: "eu-central-1a", Account: "123456789012", VPC: "vpc-1", Role: "demo-worker-role",
			Tags: map[string]string{"kubernetes.io/cluster/demo": "owned"}}
		if tpm != nil {
			der, rsa := spkiOf(s.t, tpm)
			i.EK = map[string][]byte{map[bool]string{true: "rsa-2048", false: "ecc-sec-p384"}[rsa]: der}
		}
		i = s.aws.Add(i)
		ids[name] = i.ID
		return i.ProviderID()
	}
	s.gather = func(name string, k evidence.Kind, h transcript.Hash,
		_ *mcsattestv1.CloudChallenge) *mcsattestv1.CloudEvidence {
		if k == evidence.AWSIID {
			return &mcsattestv1.CloudEvidence{Kind: mcsattestv1.EvidenceKind(k), Document: s.aws.RSA2048(ids[name])}
		}
		c, _ := s.aws.Credentials(ids[name])
		raw, err := stsattester.Document(s.t.Context(),
			awssdk.Credentials{AccessKeyID: c.AccessKeyID, SecretAccessKey: c.SecretAccessKey, SessionToken: c.SessionToken},
			"eu-central-1", h, time.Now())
		if err != nil {
			s.t.Fatal(err)
		}
		return &mcsattestv1.CloudEvidence{Kind: mcsattestv1.EvidenceKind(k), Document: raw}
	}
	operations := []string{"DescribeInstances", "GetInstanceTpmEkPub", "GetCallerIdentity"}
	s.down = func() {
		for _, o := range operations {
			s.aws.Fail(o, aws.Fault{Status: 503, Code: "ServiceUnavailable"})
		}
	}
	s.up = func() {
		for _, o := range operations {
			s.aws.Fail(o, aws.Fault{})
		}
	}
	s.calls = func() int { return s.aws.Calls("") }
	return fmt.Sprintf(`
aws:
  accounts: ["123456789012"]
  regions: [eu-central-1]
  vpcs: [vpc-1]
  infrastructure: demo
  roles: [demo-worker-role]
  ec2: {url: %q, ca: api-ca.pem}
  sts: {url: %q, ca: api-ca.pem}
`, api.URL, api.URL)
}

func (s *site) newGCP(files map[string][]byte) string {
	var err error
	if s.gcp, err = gcp.New(gcp.Options{}); err != nil {
		s.t.Fatal(err)
	}
	dir := s.t.TempDir()
	api, err := s.gcp.Serve(dir)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(api.Close)
	s.t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", api.Credentials)
	ids := map[string]uint64{}
	s.offers = []evidence.Kind{evidence.GCPIdentity}
	s.add = func(name string, tpm *swtpmtest.TPM) string {
		i := gcp.Instance{Project: "demo", Zone: "europe-west1-b", Name: name}
		if tpm != nil {
			der, _ := spkiOf(s.t, tpm)
			key, err := x509.ParsePKIXPublicKey(der)
			if err != nil {
				s.t.Fatal(err)
			}
			i.EKs = append(i.EKs, key)
		}
		ids[name] = s.gcp.Add(i)
		return i.ProviderID()
	}
	s.gather = func(name string, k evidence.Kind, h transcript.Hash,
		_ *mcsattestv1.CloudChallenge) *mcsattestv1.CloudEvidence {
		token, err := s.gcp.IdentityToken(ids[name], gcpattester.Audience(testOrigin, h))
		if err != nil {
			s.t.Fatal(err)
		}
		return &mcsattestv1.CloudEvidence{Kind: mcsattestv1.EvidenceKind(k), Document: []byte(token)}
	}
	s.down = func() { s.gcp.Fail(gcp.Compute, gcp.Fault{Status: 503}); s.gcp.Fail(gcp.Keys, gcp.Fault{Status: 503}) }
	s.up = func() { s.gcp.Heal(gcp.Compute); s.gcp.Heal(gcp.Keys) }
	s.calls = func() int { return s.gcp.Calls(gcp.Compute) }
	return fmt.Sprintf(`
gcp:
  projects: [demo]
  zones: [europe-west1-b]
  keys: {url: %q, ca: %q}
  compute: {url: %q, ca: %q}
`, api.KeysURL, api.CAFile, api.ComputeURL, api.CAFile)
}

func (s *site) newAzure(files map[string][]byte) string {
	var err error
	if s.azure, err = azure.New(); err != nil {
		s.t.Fatal(err)
	}
	api, err := s.azure.Serve()
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(api.Close)
	s.t.Setenv("AZURE_TENANT_ID", s.azure.Tenant)
	s.t.Setenv("AZURE_CLIENT_ID", s.azure.ClientID)
	s.t.Setenv("AZURE_CLIENT_SECRET", s.azure.ClientSecret)
	files["api-ca.pem"] = api.CA
	files["azure-roots/test.pem"] = s.azure.AnchorsPEM()
	machines := map[string]*azure.Instance{}
	s.offers = []evidence.Kind{evidence.AzureAttested}
	s.add = func(name string, _ *swtpmtest.TPM) string {
		i := &azure.Instance{Name: name, ResourceGroup: "demo-rg",
			VMID: fmt.Sprintf("%08x-0000-4000-8000-000000000000", len(machines)+1), Identity: "system"}
		if err := s.azure.Add(i); err != nil {
			s.t.Fatal(err)
		}
		machines[name] = i
		return i.ProviderID()
	}
	s.gather = func(name string, k evidence.Kind, h transcript.Hash,
		_ *mcsattestv1.CloudChallenge) *mcsattestv1.CloudEvidence {
		raw, err := s.azure.Document(machines[name], azureattester.Nonce(h))
		if err != nil {
			s.t.Fatal(err)
		}
		return &mcsattestv1.CloudEvidence{Kind: mcsattestv1.EvidenceKind(k), Document: raw}
	}
	s.down = func() { s.azure.Fail(azure.Faults{Status: 503}) }
	s.up = func() { s.azure.Fail(azure.Faults{}) }
	s.calls = func() int { return s.azure.Calls("vm") }
	return fmt.Sprintf(`
azure:
  subscriptions: [%q]
  resourceGroups: [demo-rg]
  arm: {url: %q, ca: api-ca.pem}
  login: {url: %q, ca: api-ca.pem}
`, s.azure.Subscription, api.URL, api.URL)
}

// machine writes a Machine of the Machine API.
func (s *site) machine(name, providerID string, change ...string) {
	s.t.Helper()
	text := fmt.Sprintf(`apiVersion: machine.openshift.io/v1beta1
kind: Machine
metadata: {namespace: openshift-machine-api, name: %s, uid: uid-%s, creationTimestamp: %q,
  labels: {machine.openshift.io/cluster-api-machine-role: worker}}
spec: {providerID: %q}
`, name, name, s.now().Add(-time.Minute).UTC().Format(time.RFC3339), providerID)
	for i := 0; i+1 < len(change); i += 2 {
		text = strings.Replace(text, change[i], change[i+1], 1)
	}
	put(s.t, s.dir, "machines/"+name+".yaml", []byte(text))
	s.refresh()
}

// node is the instance called name, or something on it.
func (s *site) node(name, providerID string, tpm *swtpmtest.TPM) *node {
	s.t.Helper()
	n := newNode(s.t, s.verifier, tpm)
	n.offers = s.offers
	says, err := json.Marshal(map[string]string{"hostname": name, "providerID": providerID})
	if err != nil {
		s.t.Fatal(err)
	}
	n.says = string(says)
	n.gather = func(k evidence.Kind, h transcript.Hash, c *mcsattestv1.CloudChallenge) *mcsattestv1.CloudEvidence {
		return s.gather(name, k, h, c)
	}
	return n
}

var cloudNames = []string{"aws", "gcp", "azure"}

// Under the policies that ship, a machine without a TPM gets in by what its cloud
// says, bound to this conversation.
func TestCloudIdentityOpensTheGate(t *testing.T) {
	for _, cloud := range cloudNames {
		t.Run(cloud, func(t *testing.T) {
			s := newSite(t, cloud)
			id := s.add("worker-0", nil)
			s.machine("worker-0", id)
			n := s.node("worker-0", id, nil)
			res, err := n.attest()
			if err != nil {
				t.Fatalf("%v; %s", err, s.log.everything())
			}
			if status, _, body := s.fetch("GET", "/config/worker", res.GetToken()); status != 200 || body != fullConfig {
				t.Fatalf("the gate: %d %s", status, body)
			}
			m := s.verifier.machine("openshift-machine-api/worker-0")
			if m.Record.Identity.ProviderID != id || !strings.HasPrefix(m.Record.Identity.InstanceID, cloud+":") {
				t.Errorf("recorded %+v", m.Record.Identity)
			}
		})
	}
}

// What was saved is appraised again without asking the cloud.
func TestSavedCloudEvidenceIsAppraisedAgain(t *testing.T) {
	for _, cloud := range cloudNames {
		t.Run(cloud, func(t *testing.T) {
			s := newSite(t, cloud)
			id := s.add("worker-0", nil)
			s.machine("worker-0", id)
			if _, err := s.node("worker-0", id, nil).attest(); err != nil {
				t.Fatal(err)
			}
			saved, err := filepath.Glob(filepath.Join(s.dir, "state", "evidence", "*"))
			if err != nil || len(saved) != 1 {
				t.Fatalf("saved %v %v", saved, err)
			}
			calls := s.calls()
			var out strings.Builder
			cmd := command("appraise", "--config", filepath.Join(s.dir, "mcs-attest.yaml"), saved[0])
			cmd.SetOut(&out)
			cmd.SetErr(&out)
			if err := cmd.ExecuteContext(t.Context()); err != nil || !strings.Contains(out.String(), "accepted") ||
				!strings.Contains(out.String(), id) {
				t.Errorf("%v %s", err, out.String())
			}
			if s.calls() != calls {
				t.Error("the cloud was asked")
			}
		})
	}
}

// A policy that no machine can satisfy is reported once.
func TestReport_NamesAnUnconfiguredCloudOnce(t *testing.T) {
	s := newSite(t, "gcp")
	s.policy("  evidence: [{all: [aws-iid, tpm2]}]\n")
	for range 2 {
		s.server.Clouds.Report(s.server.Log, s.server.View().Policies)
	}
	const want = "pool *: aws-iid is never accepted: the configuration has no section for that cloud"
	if n := strings.Count(s.log.everything(), want); n != 1 {
		t.Errorf("said %d times", n)
	}
	if all := s.server.Clouds.Unusable(s.server.View().Policies); len(all) != 1 {
		t.Errorf("%q", all)
	}
	azure := newSite(t, "azure")
	azure.policy("  evidence: [{all: [azure-attested, tpm2]}]\n  tpm2: {endorsements: [provider, enrolled]}\n")
	if all := azure.server.Clouds.Unusable(azure.server.View().Policies); len(all) != 1 ||
		!strings.Contains(all[0], "no provider endorses a TPM") {
		t.Errorf("%q", all)
	}
}
