// SPDX-License-Identifier: Apache-2.0

package awsiid_test

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"errors"
	"math/big"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/cms/cmstest"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/awsiid"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

var now = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// signing is the key of one region of a cloud like AWS.
type signing struct {
	key         *rsa.PrivateKey
	certificate *x509.Certificate
}

func newSigning(serial int64, bits int) signing {
	key, err := rsa.GenerateKey(rand.Reader, bits)
	if err != nil {
		panic(err)
	}
	c, err := cmstest.Certificate(&x509.Certificate{
		SerialNumber: big.NewInt(serial),
		Subject: pkix.Name{Country: []string{"US"}, Province: []string{"Washington State"},
			Locality: []string{"Seattle"}, Organization: []string{"Test"}},
		NotBefore: time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC),
		NotAfter:  time.Date(2195, 1, 1, 0, 0, 0, 0, time.UTC),
	}, key)
	if err != nil {
		panic(err)
	}
	return signing{key, c}
}

// cloud has two regions, each with its own key.
var cloud = sync.OnceValue(func() map[string]signing {
	return map[string]signing{"eu-central-1": newSigning(11, 2048), "us-west-2": newSigning(12, 2048)}
})

func certificates() *awsiid.Certificates {
	var all []awsiid.RegionCertificate
	for name, s := range cloud() {
		all = append(all, awsiid.RegionCertificate{Region: name, Certificate: s.certificate})
	}
	return (*awsiid.Certificates)(nil).With(all...)
}

const (
	account    = "278576220453"
	instance   = "i-078517ca8a70a1dde"
	providerID = "aws:///eu-central-1a/" + instance
)

var started = time.Date(2026, 11, 21, 11, 55, 0, 0, time.UTC)

// content returns a valid document; pairs replace values, as JSON.
func content(pairs ...string) string {
	c := `{
  "accountId" : "278576220453",
  "architecture" : "x86_64",
  "availabilityZone" : "eu-central-1a",
  "billingProducts" : null,
  "devpayProductCodes" : null,
  "marketplaceProductCodes" : [ "1abc2defghijklm3nopqrs4tu" ],
  "imageId" : "ami-0fa9e1f64142cde17",
  "instanceId" : "i-078517ca8a70a1dde",
  "instanceType" : "m6i.xlarge",
  "kernelId" : null,
  "pendingTime" : "2026-11-21T11:55:00Z",
  "privateIp" : "10.0.0.209",
  "ramdiskId" : null,
  "region" : "eu-central-1",
  "version" : "2017-09-30"
}`
	return strings.NewReplacer(pairs...).Replace(c)
}

// signedIn returns a content with the signature of a region.
func signedIn(tb testing.TB, region, content string) []byte {
	tb.Helper()
	s := cloud()[region]
	raw, err := cmstest.AWS([]byte(content), s.certificate, s.key, started.Add(3*time.Second))
	if err != nil {
		tb.Fatal(err)
	}
	return raw
}

// ec2 is a Describer with a fixed answer that records its requests.
type ec2 struct {
	answer awsiid.Instance
	err    error
	asked  []string
}

func (e *ec2) Describe(_ context.Context, region, id string) (awsiid.Instance, error) {
	e.asked = append(e.asked, region+" "+id)
	return e.answer, e.err
}

func honestInstance() awsiid.Instance {
	return awsiid.Instance{
		ID: instance, Account: account, Zone: "eu-central-1a", State: "running", VPC: "vpc-1",
		Launched: started.Add(-time.Second),
		Tags:     map[string]string{"kubernetes.io/cluster/test-abcde": "owned", "Name": "worker"},
	}
}

func verifier(describe awsiid.Describer) *awsiid.Verifier {
	return &awsiid.Verifier{
		Certificates: certificates,
		Accounts:     []string{"111122223333", account},
		Regions:      []string{"eu-central-1"},
		Requirements: awsiid.Requirements{VPCs: []string{"vpc-1"}, Infrastructure: "test-abcde"},
		Describe:     describe,
	}
}

func document(raw []byte) evidence.Document {
	return evidence.Document{Kind: evidence.AWSIID, Raw: raw}
}

// appraise verifies and confirms a document.
func appraise(v *awsiid.Verifier, d evidence.Document) (evidence.Statement, error) {
	c, err := v.Verify(context.Background(), d, evidence.Binding{}, now)
	if err != nil {
		return evidence.Statement{}, err
	}
	return c.Confirm(context.Background(), evidence.Candidate{ProviderID: c.Statement().ProviderID})
}

func denied(t *testing.T, err error, code reason.Code) {
	t.Helper()
	var d *reason.Denial
	if !errors.As(err, &d) || d.Code != code {
		t.Errorf("got %v, want %v", err, code)
	}
}

func TestValidDocument(t *testing.T) {
	api := &ec2{answer: honestInstance()}
	got, err := appraise(verifier(api), document(signedIn(t, "eu-central-1", content())))
	if err != nil {
		t.Fatal(err)
	}
	want := evidence.Statement{
		Kind: evidence.AWSIID, ProviderID: providerID, InstanceID: "aws:" + instance, Created: started.Add(-time.Second),
		Summary: map[string]string{
			"account": account, "region": "eu-central-1", "zone": "eu-central-1a", "started": "2026-11-21T11:55:00Z",
			"type": "m6i.xlarge", "image": "ami-0fa9e1f64142cde17", "address": "10.0.0.209",
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if len(api.asked) != 1 || api.asked[0] != "eu-central-1 "+instance {
		t.Errorf("EC2 was asked %q", api.asked)
	}
}

func TestStatementWithoutAnAPIHasAWarning(t *testing.T) {
	got, err := appraise(verifier(nil), document(signedIn(t, "eu-central-1", content())))
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Warnings) != 1 || got.Created != started || got.Bound {
		t.Errorf("got %+v", got)
	}
}

// Documents that AWS created, with the built-in certificates.
func TestRealDocuments(t *testing.T) {
	for region, c := range map[string]struct{ account, providerID, started string }{
		"us-west-1": {"883474662888", "aws:///us-west-1c/i-01b940c45fd11fe74", "2021-09-11T00:14:18Z"},
		"us-west-2": {"278576220453", "aws:///us-west-2a/i-078517ca8a70a1dde", "2021-09-03T21:25:44Z"},
	} {
		raw := capture(t, "../../cms/testdata/aws-"+region+".b64")
		v := &awsiid.Verifier{Accounts: []string{c.account}, Regions: []string{region}}
		got, err := appraise(v, document(raw))
		if err != nil {
			t.Errorf("%s: %v", region, err)
			continue
		}
		if got.ProviderID != c.providerID || got.Created.Format(time.RFC3339) != c.started ||
			got.Summary["account"] != c.account {
			t.Errorf("%s: %+v", region, got)
		}
	}
}

func capture(tb testing.TB, name string) []byte {
	tb.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		tb.Fatal(err)
	}
	raw, err := base64.StdEncoding.DecodeString(strings.ReplaceAll(string(text), "\n", ""))
	if err != nil {
		tb.Fatal(err)
	}
	return raw
}

func TestOtherValidDocuments(t *testing.T) {
	for name, pairs := range map[string][]string{
		"an instance from before 2016":  {instance, "i-f79fe56c"},
		"a local zone":                  {"eu-central-1a", "eu-central-1-ham-1a"},
		"a key that AWS adds":           {`"kernelId"`, `"aNewKey" : { "a" : [ 1, true, {} ] }, "kernelId"`},
		"no key that is only described": {`"instanceType" : "m6i.xlarge",`, "", `"10.0.0.209"`, "null"},
		"no spaces":                     {" ", "", "\n", ""},
	} {
		if _, err := appraise(verifier(nil), document(signedIn(t, "eu-central-1", content(pairs...)))); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A creation time ahead of the clock would pass every comparison with the age of a Machine.
func TestVerify_AStartInTheFutureIsATemporaryDenial(t *testing.T) {
	for pending, want := range map[string]reason.Code{
		"2026-11-21T12:04:59Z": 0,
		"2026-11-21T12:05:01Z": reason.Internal,
		"2126-11-21T11:55:00Z": reason.Internal,
	} {
		raw := signedIn(t, "eu-central-1", content("2026-11-21T11:55:00Z", pending))
		for name, api := range map[string]awsiid.Describer{"with": &ec2{answer: honestInstance()}, "without": nil} {
			t.Run(pending+" "+name+" EC2", func(t *testing.T) {
				_, err := appraise(verifier(api), document(raw))
				if want == 0 {
					if err != nil {
						t.Error(err)
					}
					return
				}
				denied(t, err, want)
				if d := reason.From(err); d != nil && !d.Code.Temporary() {
					t.Error("the denial is permanent")
				}
			})
		}
	}
}

func TestAttack_T04_EC2ContradictsTheDocument(t *testing.T) {
	raw := signedIn(t, "eu-central-1", content())
	unavailable := reason.Deny(reason.ProviderUnavailable, "no answer")
	for name, c := range map[string]struct {
		change func(*ec2)
		want   reason.Code
	}{
		"EC2 has no such instance": {func(e *ec2) { e.err = reason.Deny(reason.InstanceNotFound, "none") },
			reason.InstanceNotFound},
		"EC2 does not answer": {func(e *ec2) { e.err = unavailable }, reason.ProviderUnavailable},
		"an answer about another instance": {func(e *ec2) { e.answer.ID = "i-00000000000000000" },
			reason.InstanceUnacceptable},
		"an empty answer":                {func(e *ec2) { e.answer = awsiid.Instance{} }, reason.InstanceUnacceptable},
		"an instance of another account": {func(e *ec2) { e.answer.Account = "111122223333" }, reason.InstanceUnacceptable},
		"an instance in another zone":    {func(e *ec2) { e.answer.Zone = "eu-central-1b" }, reason.InstanceUnacceptable},
		"an instance that is stopping":   {func(e *ec2) { e.answer.State = "stopping" }, reason.InstanceUnacceptable},
		"a terminated instance":          {func(e *ec2) { e.answer.State = "terminated" }, reason.InstanceUnacceptable},
		"no state":                       {func(e *ec2) { e.answer.State = "" }, reason.InstanceUnacceptable},
		"another VPC":                    {func(e *ec2) { e.answer.VPC = "vpc-2" }, reason.InstanceUnacceptable},
		"no VPC":                         {func(e *ec2) { e.answer.VPC = "" }, reason.InstanceUnacceptable},
		"no tag":                         {func(e *ec2) { e.answer.Tags = nil }, reason.InstanceUnacceptable},
		"another cluster's tag": {func(e *ec2) {
			e.answer.Tags = map[string]string{"kubernetes.io/cluster/other": "owned"}
		}, reason.InstanceUnacceptable},
		"no launch time": {func(e *ec2) { e.answer.Launched = time.Time{} }, reason.InstanceUnacceptable},
		"the document of an earlier start": {func(e *ec2) { e.answer.Launched = started.Add(time.Hour) },
			reason.DocumentNotFresh},
		"valid: a document from after the start": {func(e *ec2) { e.answer.Launched = started.Add(-time.Hour) }, 0},
		"valid: pending":                         {func(e *ec2) { e.answer.State = "pending" }, 0},
		"valid: a launch time 2 minutes later":   {func(e *ec2) { e.answer.Launched = started.Add(2 * time.Minute) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			e := &ec2{answer: honestInstance()}
			c.change(e)
			_, err := appraise(verifier(e), document(raw))
			if c.want != 0 {
				denied(t, err, c.want)
			} else if err != nil {
				t.Error(err)
			}
		})
	}
}

func TestRequirementsAreOptional(t *testing.T) {
	i := honestInstance()
	i.VPC, i.Tags = "", nil
	if err := (awsiid.Requirements{}).Check(i, account, "", instance); err != nil {
		t.Error(err)
	}
}

// The verifier never asks about an instance that is not the candidate.
func TestAttack_T14_DocumentOfAnotherMachineCausesNoRequest(t *testing.T) {
	e := &ec2{answer: honestInstance()}
	c, err := verifier(e).Verify(context.Background(), document(signedIn(t, "eu-central-1", content())),
		evidence.Binding{}, now)
	if err != nil {
		t.Fatal(err)
	}
	for _, other := range []string{"", "aws:///eu-central-1b/" + instance, "aws:///eu-central-1a/i-0", providerID + "/",
		"AWS" + providerID[3:]} {
		_, err := c.Confirm(context.Background(), evidence.Candidate{ProviderID: other})
		denied(t, err, reason.EvidenceDisagrees)
	}
	if len(e.asked) != 0 {
		t.Errorf("EC2 was asked %q", e.asked)
	}
}
