package metadata

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
)

// AWS is EC2's instance metadata service, version 2 alone: each request shows a
// token that was asked for with PUT, so that nothing which merely forwards GET
// requests can be used to read it. There is no way back to version 1.
type AWS struct {
	*service
	imds atomic.Pointer[imds.Client]
}

// The things asked for, as the console names them.
const (
	awsUserData    = "the user data"
	awsDocument    = "the instance identity document"
	awsSigned      = "the signed instance identity document"
	awsRole        = "the name of the instance's role"
	awsCredentials = "the role's credentials"
)

const (
	awsTokenPath = "/latest/api/token"
	awsRolePath  = "iam/security-credentials/"
)

// NewAWS asks the service at base, "http://169.254.169.254".
func NewAWS(base string, p Patience) (*AWS, error) {
	s, err := newService("AWS", base, p)
	if err != nil {
		return nil, err
	}
	s.explain, s.timeout = explainAWS, timeoutAWS
	a := &AWS{service: s}
	a.renew()
	return a, nil
}

// renew forgets the token.
func (a *AWS) renew() {
	a.imds.Store(imds.New(imds.Options{
		// The address is the transport's; the environment has no say.
		Endpoint:              "http://169.254.169.254",
		HTTPClient:            a.client(),
		Retryer:               aws.NopRetryer{},
		ClientEnableState:     imds.ClientEnabled,
		EnableFallback:        aws.FalseTernary,
		DisableDefaultTimeout: true,
	}))
}

func timeoutAWS(path string) *Fault {
	if path != awsTokenPath {
		return nil
	}
	return &Fault{
		Problem: "the PUT for an IMDSv2 token was not answered in time",
		Hint: "the metadata service is off for this instance, or the hop limit of its answers is 1 and something " +
			"stands between (a bridge, a container, a VPN)",
	}
}

func explainAWS(path string, status int) *Fault {
	token := path == awsTokenPath
	switch {
	case token && status == http.StatusForbidden:
		return &Fault{
			Problem: "it gives no IMDSv2 token (HTTP status 403)",
			Hint: "the metadata service is turned off for this instance: modify-instance-metadata-options --http-endpoint " +
				"enabled",
		}
	case token && (status == http.StatusNotFound || status == http.StatusMethodNotAllowed):
		return &Fault{
			Problem: fmt.Sprintf("it has no IMDSv2 tokens (HTTP status %d)", status),
			Hint:    "only IMDSv2 is used; something else, or a proxy, answers at the metadata service's address",
		}
	case status == http.StatusNotFound && strings.HasSuffix(path, awsRolePath):
		return noRole()
	case status == http.StatusNotFound && strings.Contains(path, awsRolePath):
		return &Fault{Problem: "there are none yet (HTTP status 404)", Hint: awsTrust, Temporary: true, Late: true,
			Absent: true}
	case !token && status == http.StatusUnauthorized:
		// The token expired, or the service was restarted: the next try has a new one.
		return &Fault{Problem: "it did not accept its own IMDSv2 token (HTTP status 401)", Temporary: true}
	case !token && status == http.StatusForbidden:
		return &Fault{
			Problem: "access is refused (HTTP status 403)",
			Hint: "the metadata service is turned off for this instance: " +
				"modify-instance-metadata-options --http-endpoint enabled",
		}
	}
	return nil
}

// get asks for a path below "dynamic" or "meta-data".
func (a *AWS) get(ctx context.Context, what string,
	call func(context.Context, *imds.Client) (io.ReadCloser, error)) ([]byte, error) {
	return a.ask(ctx, what, func(ctx context.Context) ([]byte, error) {
		content, err := call(ctx, a.imds.Load())
		if err != nil {
			a.renew() // it costs one request, and helps against a stale token
			return nil, err
		}
		defer func() { _ = content.Close() }()
		return io.ReadAll(content)
	})
}

func (a *AWS) dynamic(ctx context.Context, what, path string) ([]byte, error) {
	return a.get(ctx, what, func(ctx context.Context, c *imds.Client) (io.ReadCloser, error) {
		out, err := c.GetDynamicData(ctx, &imds.GetDynamicDataInput{Path: path})
		if err != nil {
			return nil, err
		}
		return out.Content, nil
	})
}

func (a *AWS) metadata(ctx context.Context, what, path string) ([]byte, error) {
	return a.get(ctx, what, func(ctx context.Context, c *imds.Client) (io.ReadCloser, error) {
		out, err := c.GetMetadata(ctx, &imds.GetMetadataInput{Path: path})
		if err != nil {
			return nil, err
		}
		return out.Content, nil
	})
}

// UserData is the instance's, as it is; a Fault that is Absent if there is none.
func (a *AWS) UserData(ctx context.Context) ([]byte, error) {
	return a.get(ctx, awsUserData, func(ctx context.Context, c *imds.Client) (io.ReadCloser, error) {
		out, err := c.GetUserData(ctx, &imds.GetUserDataInput{})
		if err != nil {
			return nil, err
		}
		return out.Content, nil
	})
}

// AWSInstance is what the unsigned identity document says.
type AWSInstance struct {
	Region, Zone, ID string
}

// ProviderID is the instance as a Machine names it.
func (i AWSInstance) ProviderID() string { return "aws:///" + i.Zone + "/" + i.ID }

// Instance reads the identity document without its signature: self-asserted.
func (a *AWS) Instance(ctx context.Context) (AWSInstance, error) {
	raw, err := a.dynamic(ctx, awsDocument, "instance-identity/document")
	if err != nil {
		return AWSInstance{}, err
	}
	return a.parseInstance(raw)
}

func (a *AWS) parseInstance(raw []byte) (AWSInstance, error) {
	var document struct {
		Region     string `json:"region"`
		Zone       string `json:"availabilityZone"`
		InstanceID string `json:"instanceId"`
	}
	if json.Unmarshal(raw, &document) != nil {
		return AWSInstance{}, a.wrong(awsDocument, "the answer is not JSON of that kind")
	}
	for name, value := range map[string]string{"region": document.Region, "availabilityZone": document.Zone,
		"instanceId": document.InstanceID} {
		if !isName(value) {
			return AWSInstance{}, a.wrong(awsDocument, "its %s is not a name: %.40q", name, value)
		}
	}
	return AWSInstance{document.Region, document.Zone, document.InstanceID}, nil
}

// SignedIdentity is the identity document as PKCS #7 with an RSA-2048 signature.
func (a *AWS) SignedIdentity(ctx context.Context) ([]byte, error) {
	raw, err := a.dynamic(ctx, awsSigned, "instance-identity/rsa2048")
	if err != nil {
		return nil, err
	}
	return a.pkcs7(awsSigned, raw)
}

// noRole: EC2 shows an instance profile some seconds after it was attached.
func noRole() *Fault {
	return &Fault{
		Problem:   "the instance has no IAM role (HTTP status 404)",
		Hint:      "give the instance an instance profile; its role needs no permissions",
		Temporary: true, Late: true, Absent: true,
	}
}

const awsTrust = "the trust policy of the instance's role must let ec2.amazonaws.com assume it"

func (a *AWS) role(ctx context.Context) (string, error) {
	raw, err := a.metadata(ctx, awsRole, awsRolePath)
	if err != nil {
		return "", err
	}
	role, _, _ := strings.Cut(strings.TrimSpace(string(raw)), "\n")
	if role == "" {
		f := noRole()
		f.Cloud, f.What, f.Problem = a.cloud, awsRole, "the instance has no IAM role"
		return "", f
	}
	if !isName(role) {
		return "", a.wrong(awsRole, "it is not a name: %.40q", role)
	}
	return role, nil
}

// AWSCredentials are the role's, for some hours.
type AWSCredentials struct {
	AccessKeyID, SecretAccessKey, SessionToken string
	// Now is the service's time.
	Now time.Time
}

// Credentials are the instance role's.
func (a *AWS) Credentials(ctx context.Context) (AWSCredentials, error) {
	role, err := a.role(ctx)
	if err != nil {
		return AWSCredentials{}, err
	}
	raw, err := a.metadata(ctx, awsCredentials, awsRolePath+role)
	if err != nil {
		return AWSCredentials{}, err
	}
	c, err := a.parseCredentials(raw)
	if err != nil {
		return AWSCredentials{}, err
	}
	if c.Now = a.lastDate(); c.Now.IsZero() {
		return AWSCredentials{}, a.wrong(awsCredentials, "the answer has no date")
	}
	return c, nil
}

func (a *AWS) parseCredentials(raw []byte) (AWSCredentials, error) {
	var document struct {
		Code            string
		AccessKeyID     string `json:"AccessKeyId"`
		SecretAccessKey string
		Token           string
	}
	if json.Unmarshal(raw, &document) != nil {
		return AWSCredentials{}, a.wrong(awsCredentials, "the answer is not JSON of that kind")
	}
	if document.Code != "Success" {
		f := a.wrong(awsCredentials, "there are none: %.60q", document.Code)
		f.Hint = awsTrust
		f.Temporary, f.Late = true, true // a role that was made a moment ago
		return AWSCredentials{}, f
	}
	for _, value := range []string{document.AccessKeyID, document.SecretAccessKey, document.Token} {
		if !isToken(value) {
			return AWSCredentials{}, a.wrong(awsCredentials, "the answer lacks a part of them")
		}
	}
	return AWSCredentials{AccessKeyID: document.AccessKeyID, SecretAccessKey: document.SecretAccessKey,
		SessionToken: document.Token}, nil
}
