// SPDX-License-Identifier: Apache-2.0

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

// AWS is a client of EC2's instance metadata service, version 2 only. Each request presents a token
// that was requested with PUT, so a proxy that forwards only GET requests cannot be abused to read
// the service. The client never falls back to version 1.
type AWS struct {
	*service
	imds atomic.Pointer[imds.Client]
}

// The requested items, as the console names them.
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

// NewAWS returns a client of the service at base, for example "http://169.254.169.254".
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

// renew discards the token.
func (a *AWS) renew() {
	a.imds.Store(imds.New(imds.Options{
		// The transport sets the address; the environment is ignored.
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
		Hint: "the metadata service is turned off for this instance, or its hop limit is 1 and a bridge, a " +
			"container or a VPN is in between",
	}
}

func explainAWS(path string, status int) *Fault {
	token := path == awsTokenPath
	switch {
	case token && status == http.StatusForbidden:
		return &Fault{
			Problem: "it denies the request for an IMDSv2 token (HTTP status 403)",
			Hint: "the metadata service is turned off for this instance: modify-instance-metadata-options --http-endpoint " +
				"enabled",
		}
	case token && (status == http.StatusNotFound || status == http.StatusMethodNotAllowed):
		return &Fault{
			Problem: fmt.Sprintf("it does not support IMDSv2 (HTTP status %d)", status),
			Hint:    "only IMDSv2 is used; something else, or a proxy, answers at the metadata service's address",
		}
	case status == http.StatusNotFound && strings.HasSuffix(path, awsRolePath):
		return noRole()
	case status == http.StatusNotFound && strings.Contains(path, awsRolePath):
		return &Fault{Problem: "there are none yet (HTTP status 404)", Hint: awsTrust, Temporary: true, Late: true,
			Absent: true}
	case !token && status == http.StatusUnauthorized:
		// The token expired or the service restarted. The next attempt requests a new token.
		return &Fault{Problem: "it rejected its own IMDSv2 token (HTTP status 401)", Temporary: true}
	case !token && status == http.StatusForbidden:
		return &Fault{
			Problem: "access is denied (HTTP status 403)",
			Hint: "the metadata service is turned off for this instance: " +
				"modify-instance-metadata-options --http-endpoint enabled",
		}
	}
	return nil
}

// get reads a path below "dynamic" or "meta-data".
func (a *AWS) get(ctx context.Context, what string,
	call func(context.Context, *imds.Client) (io.ReadCloser, error)) ([]byte, error) {
	return a.ask(ctx, what, func(ctx context.Context) ([]byte, error) {
		content, err := call(ctx, a.imds.Load())
		if err != nil {
			a.renew() // one more request, but it replaces a stale token
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

// UserData returns the instance's unmodified user data, or a Fault with Absent set if it has none.
func (a *AWS) UserData(ctx context.Context) ([]byte, error) {
	return a.get(ctx, awsUserData, func(ctx context.Context, c *imds.Client) (io.ReadCloser, error) {
		out, err := c.GetUserData(ctx, &imds.GetUserDataInput{})
		if err != nil {
			return nil, err
		}
		return out.Content, nil
	})
}

// AWSInstance is the content of the unsigned identity document.
type AWSInstance struct {
	Region, Zone, ID string
}

// ProviderID returns the instance's id in the format of a Machine's spec.providerID.
func (i AWSInstance) ProviderID() string { return "aws:///" + i.Zone + "/" + i.ID }

// Instance reads the identity document without its signature, so the result is self-asserted.
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
		return AWSInstance{}, a.wrong(awsDocument, "the answer is not valid JSON of the expected form")
	}
	for name, value := range map[string]string{"region": document.Region, "availabilityZone": document.Zone,
		"instanceId": document.InstanceID} {
		if !isName(value) {
			return AWSInstance{}, a.wrong(awsDocument, "its %s is not a name: %.40q", name, value)
		}
	}
	return AWSInstance{document.Region, document.Zone, document.InstanceID}, nil
}

// SignedIdentity returns the identity document as PKCS #7 with an RSA-2048 signature.
func (a *AWS) SignedIdentity(ctx context.Context) ([]byte, error) {
	raw, err := a.dynamic(ctx, awsSigned, "instance-identity/rsa2048")
	if err != nil {
		return nil, err
	}
	return a.pkcs7(awsSigned, raw)
}

// noRole is the fault for a missing role. EC2 publishes an instance profile some seconds after it
// was attached.
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

// AWSCredentials are the instance role's credentials. They are valid for some hours.
type AWSCredentials struct {
	AccessKeyID, SecretAccessKey, SessionToken string
	// Now is the service's time.
	Now time.Time
}

// Credentials returns the credentials of the instance's role.
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
		return AWSCredentials{}, a.wrong(awsCredentials, "the answer is not valid JSON of the expected form")
	}
	if document.Code != "Success" {
		f := a.wrong(awsCredentials, "there are none: %.60q", document.Code)
		f.Hint = awsTrust
		f.Temporary, f.Late = true, true // the role may be new
		return AWSCredentials{}, f
	}
	for _, value := range []string{document.AccessKeyID, document.SecretAccessKey, document.Token} {
		if !isToken(value) {
			return AWSCredentials{}, a.wrong(awsCredentials, "the answer is incomplete")
		}
	}
	return AWSCredentials{AccessKeyID: document.AccessKeyID, SecretAccessKey: document.SecretAccessKey,
		SessionToken: document.Token}, nil
}
