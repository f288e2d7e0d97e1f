// SPDX-License-Identifier: Apache-2.0

// Package aws queries Amazon about its machines: EC2 about instances (for aws-iid) and the endorsement
// keys of their TPMs (for tpm2), and STS about the signer of a request (for aws-sts).
//
// Every query goes through package outbound. EC2 and STS have separate budgets: only STS can verify a
// signature for STS, so invalid ones must not use up the budget of the others.
//
//   - DescribeInstances: one call for each aws-iid document that has passed all other checks, and at
//     most one in two seconds, so that repeated requests cost nothing. EC2's answers lag by as much,
//     and no instance stops and starts in that time.
//   - GetInstanceTpmEkPub: one call for each instance and kind of EK in some hours. The EK of an
//     instance is constant while the instance exists, and instance ids are never reused.
//   - GetCallerIdentity: one call for each aws-sts document. Good answers are not cached, because each
//     belongs to one signature.
//
// Answers are cached by partition, region and instance. They belong to one set of credentials, and so
// to one account. Where the account matters, EC2's answer contains it (the owner, which awsiid
// compares).
//
// Redirects are not followed, and hosts come only from the SDK or the configuration. The size of
// answers is limited.
package aws

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	sdkconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/smithy-go"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/awsiid"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/awssts"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/awssts/request"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/outbound"
)

const (
	// maxAnswer is the maximum size of an answer. That for an EC2 instance has about 10 kB.
	maxAnswer = 1 << 20
	// keepInstance is the time for which EC2's answer about an instance is cached.
	keepInstance = 2 * time.Second
	// keepEK is the time for which the EK of an instance is cached.
	keepEK = 12 * time.Hour
	// keepCredentials is the time for which static credentials are cached.
	keepCredentials = 5 * time.Minute
	// credentialsTime is the limit of a request for credentials.
	credentialsTime = 10 * time.Second
)

// Provider queries AWS.
type Provider struct {
	ec2, sts *outbound.Caller
	regions  map[string]*ec2.Client
	relay    *http.Client
	stsURL   string // if set, replaces the region's
	offline  bool
	roles    bool
}

// New returns a provider. Credentials are looked up, as in every AWS SDK, at the first query. Only the
// CA files are read immediately.
func New(c config.AWS, o outbound.Options) (*Provider, error) {
	p := &Provider{ec2: outbound.New("aws", o), sts: outbound.New("aws-sts", o), regions: map[string]*ec2.Client{},
		stsURL: c.STS.URL, offline: c.Offline, roles: len(c.Roles) > 0}
	for _, r := range c.Regions {
		if _, ok := request.PartitionOf(r); !ok {
			return nil, fmt.Errorf("aws.regions: %q is not a region of AWS", r)
		}
	}
	var err error
	if p.relay, err = outbound.NewClient(c.STS.CA, maxAnswer); err != nil {
		return nil, fmt.Errorf("aws.sts: %w", err)
	}
	if c.Offline {
		return p, nil
	}
	asker, err := outbound.NewClient(c.EC2.CA, maxAnswer)
	if err != nil {
		return nil, fmt.Errorf("aws.ec2: %w", err)
	}
	asker.Transport = copied{asker.Transport}
	// With a region, the SDK does not query the metadata service for one.
	base, err := sdkconfig.LoadDefaultConfig(context.Background(), sdkconfig.WithRegion(c.Regions[0]))
	if err != nil {
		return nil, fmt.Errorf("aws: %w", err)
	}
	base.Credentials = credentials(c.Regions[0], credentialsTime)
	for _, r := range c.Regions {
		p.regions[r] = ec2.NewFromConfig(base, func(o *ec2.Options) {
			o.Region, o.HTTPClient = r, asker
			// The SDK must not retry, because callers retry.
			o.Retryer = sdk.NopRetryer{}
			if c.EC2.URL != "" {
				o.BaseEndpoint = sdk.String(c.EC2.URL)
			}
		})
	}
	return p, nil
}

// credentials returns the credentials of the SDK, looked up again when they expire. The SDK reads static
// ones only once; here they expire too, because an administrator may replace them. Each request for them
// takes at most limit, because all callers wait for the same one, which does not end with any of them.
func credentials(region string, limit time.Duration) sdk.CredentialsProvider {
	client := awshttp.NewBuildableClient().WithTimeout(limit)
	return sdk.NewCredentialsCache(sdk.CredentialsProviderFunc(func(ctx context.Context) (sdk.Credentials, error) {
		base, err := sdkconfig.LoadDefaultConfig(ctx, sdkconfig.WithRegion(region), sdkconfig.WithHTTPClient(client))
		if err != nil {
			return sdk.Credentials{}, err
		}
		found, err := base.Credentials.Retrieve(ctx)
		if !found.CanExpire {
			found.CanExpire, found.Expires = true, time.Now().Add(keepCredentials)
		}
		return found, err
	}))
}

// Describer returns the access to EC2's instances, or nil if EC2 must not be queried.
func (p *Provider) Describer() awsiid.Describer {
	if p.offline {
		return nil
	}
	return describer{p}
}

// Directory returns the access to EC2's endorsement keys, or nil if EC2 must not be queried.
func (p *Provider) Directory() tpm2.Directory {
	if p.offline {
		return nil
	}
	return directory{p}
}

// Caller returns a sender of requests to STS, or nil if no role is configured.
func (p *Provider) Caller() awssts.Caller {
	if !p.roles {
		return nil
	}
	return caller{p}
}

// copied sends a copy of a request's body. With the SDK's own body (smithy-go 1.28.8, Go 1.26), the
// transport treats the end of the body as a failed write. It then drops the connection, sometimes
// before the answer is read.
type copied struct{ next http.RoundTripper }

func (c copied) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		body, err := io.ReadAll(r.Body)
		r.Body.Close()
		if err != nil {
			return nil, err
		}
		r = r.Clone(r.Context())
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	return c.next.RoundTrip(r)
}

var instanceID = regexp.MustCompile(`^i-([0-9a-f]{8}|[0-9a-f]{17})$`)

// of returns the client of a region, for a well-formed instance id.
func (p *Provider) of(region, id string) (*ec2.Client, error) {
	c, ok := p.regions[region]
	switch {
	case !ok:
		return nil, reason.Deny(reason.ProviderUnavailable, "region %.32q is not in aws.regions", region)
	case !instanceID.MatchString(id):
		return nil, reason.Deny(reason.InstanceNotFound, "%.40q is not an instance id", id)
	}
	return c, nil
}

// key returns a key that identifies a question completely, within one account.
func key(region, id string, more ...string) string {
	p, _ := request.PartitionOf(region)
	out := p.Name + "\x00" + region + "\x00" + id
	for _, m := range more {
		out += "\x00" + m
	}
	return out
}

// understood turns errors that concern the instance into denials. Other errors are returned unchanged:
// they are temporary errors of the verifier or of EC2.
func understood(err error, id string) error {
	var a smithy.APIError
	if errors.As(err, &a) && slices.Contains([]string{"InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed"},
		a.ErrorCode()) {
		return reason.Deny(reason.InstanceNotFound, "EC2 has no instance %s: %s", id, a.ErrorCode())
	}
	return err
}
