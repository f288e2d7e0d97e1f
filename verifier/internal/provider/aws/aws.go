// Package aws asks Amazon about the machines that say they are its: EC2 about
// instances (for aws-iid) and the endorsement keys of their TPMs (for tpm2), and
// STS whose signature a request has (for aws-sts).
//
// Every question goes through package outbound, EC2's and STS's with a budget
// each: whether a signature for STS is any good only STS can tell, so that
// worthless ones must not use up what the others need.
//
//   - DescribeInstances: one for each aws-iid document that has passed everything
//     else, then none for two seconds, so that one who asks again costs nothing.
//     What EC2 says can change, but not so fast that it matters: its answers lag
//     behind by as much, and no instance stops and starts in that time.
//   - GetInstanceTpmEkPub: one for each instance and kind of EK, then none for
//     hours. The EK of an instance stays the same while the instance lives, and
//     its id is never used again.
//   - GetCallerIdentity: one for each aws-sts document. No good answer is kept:
//     each is of one signature.
//
// Answers are kept under partition, region and instance, and belong to one set of
// credentials, so to one account. EC2's answer has the account in it again where
// it matters (the owner, which awsiid compares).
//
// Nothing is followed anywhere: no redirects, and hosts come from the SDK or the
// configuration. Answers are bounded.
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
	// maxAnswer bounds an answer: an instance of EC2 is some 10 kB.
	maxAnswer = 1 << 20
	// keepInstance is for how long what EC2 says of an instance counts.
	keepInstance = 2 * time.Second
	// keepEK is for how long the EK of an instance is not asked for again.
	keepEK = 12 * time.Hour
)

// Provider asks AWS.
type Provider struct {
	ec2, sts *outbound.Caller
	regions  map[string]*ec2.Client
	relay    *http.Client
	stsURL   string // instead of the region's; empty: the region's
	offline  bool
	roles    bool
}

// New makes a provider. Credentials are looked up as every AWS SDK does it, when
// the first question is asked. Only the CA files are read now.
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
	// A region is named, so that the metadata service is not asked for one.
	base, err := sdkconfig.LoadDefaultConfig(context.Background(), sdkconfig.WithRegion(c.Regions[0]))
	if err != nil {
		return nil, fmt.Errorf("aws: %w", err)
	}
	for _, r := range c.Regions {
		p.regions[r] = ec2.NewFromConfig(base, func(o *ec2.Options) {
			o.Region, o.HTTPClient = r, asker
			// One call is one call: whoever asks comes again.
			o.Retryer = sdk.NopRetryer{}
			if c.EC2.URL != "" {
				o.BaseEndpoint = sdk.String(c.EC2.URL)
			}
		})
	}
	return p, nil
}

// Describer asks EC2 about instances; nil where EC2 must not be asked.
func (p *Provider) Describer() awsiid.Describer {
	if p.offline {
		return nil
	}
	return describer{p}
}

// Directory asks EC2 for endorsement keys; nil where EC2 must not be asked.
func (p *Provider) Directory() tpm2.Directory {
	if p.offline {
		return nil
	}
	return directory{p}
}

// Caller sends requests to STS; nil where no role is configured.
func (p *Provider) Caller() awssts.Caller {
	if !p.roles {
		return nil
	}
	return caller{p}
}

// copied sends its own copy of a request's body. With the SDK's (smithy-go 1.28.8,
// Go 1.26) the transport takes the end of the body for a failed write, and drops the
// connection, sometimes with the answer still on it.
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

// of is the client of a region, for a well-formed instance id.
func (p *Provider) of(region, id string) (*ec2.Client, error) {
	c, ok := p.regions[region]
	switch {
	case !ok:
		return nil, reason.Deny(reason.ProviderUnavailable, "region %.32q is none of aws.regions", region)
	case !instanceID.MatchString(id):
		return nil, reason.Deny(reason.InstanceNotFound, "%.40q is not an instance id", id)
	}
	return c, nil
}

// key names a question whole, within one account.
func key(region, id string, more ...string) string {
	p, _ := request.PartitionOf(region)
	out := p.Name + "\x00" + region + "\x00" + id
	for _, m := range more {
		out += "\x00" + m
	}
	return out
}

// understood makes a denial of the errors that say something of the instance. The
// others stay as they are: they are ours, or EC2's, and pass.
func understood(err error, id string) error {
	var a smithy.APIError
	if errors.As(err, &a) && slices.Contains([]string{"InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed"},
		a.ErrorCode()) {
		return reason.Deny(reason.InstanceNotFound, "EC2 knows no instance %s: %s", id, a.ErrorCode())
	}
	return err
}
