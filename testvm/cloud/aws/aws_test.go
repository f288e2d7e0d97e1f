// SPDX-License-Identifier: Apache-2.0

package aws_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/smithy-go"

	"github.com/mcs-attest/mcs-attest/testvm/cloud/aws"
)

func metadata(t *testing.T, c *aws.Cloud, id string) *imds.Client {
	s := httptest.NewServer(c.Metadata(id))
	t.Cleanup(s.Close)
	// Without the limits of the SDK's own client: 500 ms until the answer, and 5 s for all of it.
	return imds.New(imds.Options{Endpoint: s.URL, EnableFallback: sdk.FalseTernary, Retryer: sdk.NopRetryer{},
		HTTPClient: s.Client(), DisableDefaultTimeout: true})
}

func api(t *testing.T, c *aws.Cloud) (string, *http.Client) {
	e, err := c.Serve()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(e.CA)
	return e.URL, &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots},
		ForceAttemptHTTP2: true}}
}

func provider(c aws.Credentials) sdk.CredentialsProvider {
	return credentials.NewStaticCredentialsProvider(c.AccessKeyID, c.SecretAccessKey, c.SessionToken)
}

func TestMetadata_AnswersTheRealClient(t *testing.T) {
	c := aws.New(aws.Options{})
	i := c.Add(aws.Instance{Role: "worker", UserData: []byte(`{"ignition":{}}`), Tags: map[string]string{"Name": "w"}})
	m := metadata(t, c, i.ID)
	read := func(get func() (io.ReadCloser, error)) string {
		t.Helper()
		body, err := get()
		if err != nil {
			t.Fatal(err)
		}
		defer body.Close()
		out, err := io.ReadAll(body)
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	path := func(p string) string {
		return read(func() (io.ReadCloser, error) {
			o, err := m.GetMetadata(t.Context(), &imds.GetMetadataInput{Path: p})
			if err != nil {
				return nil, err
			}
			return o.Content, nil
		})
	}
	for p, want := range map[string]string{"instance-id": i.ID, "placement/availability-zone": i.Zone,
		"iam/security-credentials/": "worker", "iam": "info\nsecurity-credentials/"} {
		if got := path(p); got != want {
			t.Errorf("%s is %q, want %q", p, got, want)
		}
	}
	if r, err := m.GetRegion(t.Context(), nil); err != nil || r.Region != "eu-central-1" {
		t.Errorf("region: %v, %v", r, err)
	}
	d, err := m.GetInstanceIdentityDocument(t.Context(), nil)
	if err != nil || d.InstanceID != i.ID || d.AccountID != i.Account || !d.PendingTime.Equal(i.Launch) {
		t.Errorf("document: %+v, %v", d, err)
	}
	if u, err := m.GetUserData(t.Context(), nil); err != nil ||
		read(func() (io.ReadCloser, error) { return u.Content, nil }) != `{"ignition":{}}` {
		t.Errorf("user data: %v", err)
	}
	if p := path("iam/security-credentials/worker"); !strings.Contains(p, `"AccessKeyId": "ASIA`) {
		t.Error(p)
	}
}

func TestMetadata_RequiresAToken(t *testing.T) {
	c := aws.New(aws.Options{})
	i := c.Add(aws.Instance{})
	s := httptest.NewServer(c.Metadata(i.ID))
	defer s.Close()
	ask := func(method, path string, headers ...string) (*http.Response, string) {
		t.Helper()
		r, _ := http.NewRequest(method, s.URL+path, nil)
		for n := 0; n < len(headers); n += 2 {
			r.Header.Set(headers[n], headers[n+1])
		}
		a, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer a.Body.Close()
		body, _ := io.ReadAll(a.Body)
		return a, string(body)
	}
	const id, ttl, token = "/latest/meta-data/instance-id", "X-aws-ec2-metadata-token-ttl-seconds",
		"X-aws-ec2-metadata-token"
	a, held := ask("PUT", "/latest/api/token", ttl, "300")
	if a.StatusCode != 200 || a.Header.Get(ttl) != "300" {
		t.Fatalf("PUT: %d %v", a.StatusCode, a.Header)
	}
	if a, body := ask("GET", id, token, held); a.StatusCode != 200 || body != i.ID || a.Header.Get(ttl) == "" {
		t.Errorf("GET: %d %q", a.StatusCode, body)
	}
	for name, r := range map[string]struct {
		method, path string
		headers      []string
		want         int
	}{
		"without a token":            {"GET", id, nil, 401},
		"with another token":         {"GET", id, []string{token, "x"}, 401},
		"PUT without a TTL":          {"PUT", "/latest/api/token", nil, 400},
		"PUT with too long a TTL":    {"PUT", "/latest/api/token", []string{ttl, "21601"}, 400},
		"PUT through a proxy":        {"PUT", "/latest/api/token", []string{ttl, "60", "X-Forwarded-For", "10.0.0.1"}, 403},
		"an unknown path":            {"GET", "/latest/nothing", []string{token, held}, 404},
		"user data where there is 0": {"GET", "/2019-10-01/user-data", []string{token, held}, 404},
		"POST":                       {"POST", id, []string{token, held}, 405},
	} {
		if a, _ := ask(r.method, r.path, r.headers...); a.StatusCode != r.want {
			t.Errorf("%s: %d, want %d", name, a.StatusCode, r.want)
		}
	}
	c.Change(i.ID, func(i *aws.Instance) { i.Faults.Busy = 1 })
	if a, _ := ask("GET", id, token, held); a.StatusCode != 429 {
		t.Errorf("busy: %d", a.StatusCode)
	}
	if a, _ := ask("GET", id, token, held); a.StatusCode != 200 {
		t.Errorf("busy once: %d", a.StatusCode)
	}
	c.Change(i.ID, func(i *aws.Instance) { i.Faults = aws.Faults{HopLimit: true} })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	r, _ := http.NewRequestWithContext(ctx, "PUT", s.URL+"/latest/api/token", nil)
	if _, err := http.DefaultClient.Do(r); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("hop limit: %v", err)
	}
}

// OpenSSL checks independently that the blob is a CMS message of the region.
func TestOpenSSLVerifiesTheDocument(t *testing.T) {
	openssl, err := exec.LookPath("openssl")
	if err != nil {
		t.Fatal("openssl is needed: ", err)
	}
	c := aws.New(aws.Options{})
	i := c.Add(aws.Instance{})
	m := metadata(t, c, i.ID)
	o, err := m.GetDynamicData(t.Context(), &imds.GetDynamicDataInput{Path: "instance-identity/rsa2048"})
	if err != nil {
		t.Fatal(err)
	}
	text, _ := io.ReadAll(o.Content)
	if strings.HasSuffix(string(text), "\n") || len(strings.Split(string(text), "\n")[0]) != 76 {
		t.Errorf("the lines are not as the metadata service's: %q", text[:100])
	}
	blob, err := base64.StdEncoding.DecodeString(strings.ReplaceAll(string(text), "\n", ""))
	if err != nil {
		t.Fatal(err)
	}
	verify := func(region string, blob []byte) (string, error) {
		dir := t.TempDir()
		os.WriteFile(filepath.Join(dir, "ca"), c.RegionCertificates(region), 0o600)
		os.WriteFile(filepath.Join(dir, "blob"), blob, 0o600)
		out, err := exec.Command(openssl, "cms", "-verify", "-inform", "DER", "-in", filepath.Join(dir, "blob"), "-certfile",
			filepath.Join(dir, "ca"),
			"-CAfile", filepath.Join(dir, "ca"), "-purpose", "any", "-binary").Output()
		return string(out), err
	}
	if got, err := verify("eu-central-1", blob); err != nil || got != string(c.IdentityDocument(i.ID)) {
		t.Errorf("%v: %s", err, got)
	}
	if _, err := verify("us-east-1", blob); err == nil {
		t.Error("another region's certificate verified it")
	}
	if block, _ := pem.Decode(c.RegionCertificates("eu-central-1")); block == nil {
		t.Error("no certificate")
	}
}

func TestEC2_AnswersTheRealClient(t *testing.T) {
	c := aws.New(aws.Options{})
	ek := []byte("not a key, but bytes")
	i := c.Add(aws.Instance{Role: "worker", Tags: map[string]string{"kubernetes.io/cluster/demo": "owned"},
		EK: map[string][]byte{"rsa-2048": ek}})
	url, client := api(t, c)
	e := ec2.New(ec2.Options{Region: "eu-central-1", BaseEndpoint: &url, HTTPClient: client,
		Credentials: provider(c.Operator()), Retryer: sdk.NopRetryer{}})
	describe := func() (*ec2.DescribeInstancesOutput, error) {
		return e.DescribeInstances(t.Context(), &ec2.DescribeInstancesInput{InstanceIds: []string{i.ID}})
	}
	o, err := describe()
	if err != nil || len(o.Reservations) != 1 || len(o.Reservations[0].Instances) != 1 {
		t.Fatalf("%+v, %v", o, err)
	}
	if d := o.Reservations[0].Instances[0]; *d.InstanceId != i.ID || d.State.Name != types.InstanceStateNameRunning ||
		*d.VpcId != i.VPC ||
		!d.LaunchTime.Equal(i.Launch) || *d.Placement.AvailabilityZone != i.Zone ||
		*d.Tags[0].Key != "kubernetes.io/cluster/demo" || d.IamInstanceProfile == nil {
		t.Errorf("%+v", d)
	}
	k, err := e.GetInstanceTpmEkPub(t.Context(), &ec2.GetInstanceTpmEkPubInput{InstanceId: &i.ID,
		KeyType: types.EkPubKeyTypeRsa2048, KeyFormat: types.EkPubKeyFormatDer})
	if err != nil || *k.InstanceId != i.ID || *k.KeyValue != base64.StdEncoding.EncodeToString(ek) {
		t.Errorf("%+v, %v", k, err)
	}
	for name, f := range map[string]aws.Fault{"RequestLimitExceeded": {Status: 503, Code: "RequestLimitExceeded"},
		"UnauthorizedOperation": {Status: 403, Code: "UnauthorizedOperation"}} {
		c.Fail("DescribeInstances", f)
		var a smithy.APIError
		if _, err := describe(); !errors.As(err, &a) || a.ErrorCode() != name {
			t.Errorf("%s: %v", name, err)
		}
	}
	c.Fail("DescribeInstances", aws.Fault{Double: true, Times: 1})
	if o, err := describe(); err != nil || len(o.Reservations) != 2 {
		t.Errorf("double: %+v, %v", o, err)
	}
	if o, err := describe(); err != nil || len(o.Reservations) != 1 {
		t.Errorf("once only: %+v, %v", o, err)
	}
	c.Remove(i.ID)
	var a smithy.APIError
	if _, err := describe(); !errors.As(err, &a) || a.ErrorCode() != "InvalidInstanceID.NotFound" {
		t.Errorf("gone: %v", err)
	}
	if n := c.Calls("DescribeInstances"); n != 6 {
		t.Errorf("%d calls", n)
	}
}

func TestSTS_AnswersTheRealClient(t *testing.T) {
	c := aws.New(aws.Options{})
	i := c.Add(aws.Instance{Role: "worker"})
	url, client := api(t, c)
	made, _ := c.Credentials(i.ID)
	ask := func(k aws.Credentials) (*sts.GetCallerIdentityOutput, error) {
		return sts.New(sts.Options{Region: "eu-central-1", BaseEndpoint: &url, HTTPClient: client, Credentials: provider(k),
			Retryer: sdk.NopRetryer{}}).GetCallerIdentity(t.Context(), nil)
	}
	o, err := ask(made)
	if err != nil || *o.Account != i.Account || *o.UserId != i.RoleID+":"+i.ID ||
		*o.Arn != "arn:aws:sts::"+i.Account+":assumed-role/worker/"+i.ID {
		t.Errorf("%+v, %v", o, err)
	}
	for name, change := range map[string]func(*aws.Credentials){
		"SignatureDoesNotMatch": func(k *aws.Credentials) { k.SecretAccessKey = "other" },
		"InvalidClientTokenId":  func(k *aws.Credentials) { k.SessionToken = "other" },
	} {
		k := made
		change(&k)
		var a smithy.APIError
		if _, err := ask(k); !errors.As(err, &a) || a.ErrorCode() != name {
			t.Errorf("%s: %v", name, err)
		}
	}
}
