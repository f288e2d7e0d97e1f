// SPDX-License-Identifier: Apache-2.0

// Package awssts verifies evidence of the kind aws-sts: a request to AWS's Security Token Service
// that an instance signed with its role's credentials. A signed header contains the transcript. AWS
// reports who signed.
//
// The node provides only four values of the request, and their form is checked. Package request
// fixes the rest. Verify checks, in this order:
//
//  1. the document: at most 12 KiB, in its one encoding, four strings;
//  2. a role and a caller are configured;
//  3. amzDate is a time, within 15 minutes of the verifier's;
//  4. the form of securityToken and authorization: algorithm, credential scope (the date of
//     amzDate, the region of the document, the service sts), exactly the signed headers of package
//     request, a signature;
//  5. the region is one of the configured regions, in a known partition.
//
// Verify sends no request and cannot verify the signature, because only AWS has the secret. The
// binding is part of the signed request that [Request] rebuilds, so a signature over another
// transcript is invalid. Confirm checks, in this order:
//
//  6. the candidate is an instance of AWS, in the document's region;
//  7. STS answers. A wrong signature is final. A wrong time, or an answer that cannot be parsed, is temporary;
//  8. the answer is one whole GetCallerIdentityResponse, with every element once;
//  9. account, ARN and user id are those of a role's session in the region's partition, and agree
//     with each other;
//  10. the account is one of the configured accounts, and the role one of the configured roles;
//  11. the name of the session is an instance id, and the candidate's.
//
// If only EC2 may assume the role, then only EC2 chooses the session names of its credentials. So
// this evidence depends on the trust policy of the role.
package awssts

import (
	"bytes"
	"context"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/awssts/request"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

const (
	maxDocument = 12 << 10
	maxToken    = 8 << 10
	// AWS accepts a signature for some minutes around its date. Outside of that the verifier does
	// not need to ask. The denial is Internal, which is temporary, because the verifier's clock may
	// be wrong.
	clockTolerance = 15 * time.Minute
)

// Caller sends requests to STS.
type Caller interface {
	// GetCallerIdentity sends the request unmodified. It contacts only the request's own host, or
	// the configured replacement. It follows no redirect and limits the size of the response. The
	// error means that there is no response.
	GetCallerIdentity(ctx context.Context, r Request) (status int, contentType string, body []byte, err error)
}

// Request is a rebuilt request: a POST of request.Body to "/" of Host over TLS.
type Request struct {
	Region, Host string
	// Headers are all headers of the request except Host and Content-Length.
	Headers map[string]string
}

// Verifier verifies documents of this kind.
type Verifier struct {
	Caller   Caller   // nil: the kind is denied
	Accounts []string // 12 digits each
	Regions  []string
	Roles    []string // names, without path; empty: the kind is denied
}

var _ evidence.Verifier = (*Verifier)(nil)

var (
	token         = regexp.MustCompile(`^[A-Za-z0-9+/]+={0,2}$`)
	authorization = regexp.MustCompile(`^AWS4-HMAC-SHA256 Credential=([A-Z0-9]{16,128})/([0-9]{8})/([a-z0-9-]{1,32})/([a-z0-9]{1,16})/aws4_request, SignedHeaders=([a-z0-9;-]{1,256}), Signature=([0-9a-f]{64})$`)
)

// Verify performs checks 1 to 5. The whole document is untrusted.
func (v *Verifier) Verify(_ context.Context, d evidence.Document, b evidence.Binding,
	now time.Time) (evidence.Claim, error) {
	var doc request.Document
	switch {
	case len(d.Raw) > maxDocument:
		return nil, reason.Deny(reason.DocumentInvalid, "aws-sts: %d bytes, the limit is %d", len(d.Raw), maxDocument)
	case len(d.Certificates) != 0 || len(d.Token) != 0:
		return nil, reason.Deny(reason.DocumentInvalid, "aws-sts: certificates or a token with the document")
	case json.Unmarshal(d.Raw, &doc) != nil || !bytes.Equal(doc.Encode(), d.Raw):
		// The one encoding excludes duplicates, other spellings of a name, and trailing bytes.
		return nil, reason.Deny(reason.DocumentInvalid,
			"aws-sts: not the JSON object of region, amzDate, securityToken and authorization, in this order and without "+
				"white space")
	case v.Caller == nil || len(v.Roles) == 0:
		return nil, reason.Deny(reason.DocumentUntrusted, "aws-sts: no role is configured (aws.roles)")
	}
	at, _ := time.Parse(request.TimeFormat, doc.AmzDate)
	if at.Format(request.TimeFormat) != doc.AmzDate {
		return nil, reason.Deny(reason.DocumentInvalid, "aws-sts: amzDate %.32q is not of the form %s", doc.AmzDate,
			request.TimeFormat)
	}
	if now.Sub(at).Abs() > clockTolerance {
		return nil, reason.Deny(reason.Internal,
			"aws-sts: signed at %s, which is %s away from this clock: one of the two times is wrong", doc.AmzDate,
			now.Sub(at).Abs().Round(time.Second))
	}
	if len(doc.SecurityToken) > maxToken || !token.MatchString(doc.SecurityToken) {
		return nil, reason.Deny(reason.DocumentInvalid,
			"aws-sts: securityToken is not base64 of at most %d characters", maxToken)
	}
	if err := checkAuthorization(doc); err != nil {
		return nil, err
	}
	host, ok := request.Host(doc.Region)
	if !ok || !slices.Contains(v.Regions, doc.Region) {
		return nil, reason.Deny(reason.AccountNotAllowed, "aws-sts: region %.32q is not configured", doc.Region)
	}
	return &claim{v: v, region: doc.Region, request: Request{Region: doc.Region, Host: host, Headers: map[string]string{
		"Content-Type":          request.ContentType,
		"X-Amz-Date":            doc.AmzDate,
		"X-Amz-Security-Token":  doc.SecurityToken,
		request.ChallengeHeader: request.Challenge(b.Transcript),
		"Authorization":         doc.Authorization,
	}}}, nil
}

func checkAuthorization(doc request.Document) error {
	m := authorization.FindStringSubmatch(doc.Authorization)
	if m == nil {
		return reason.Deny(reason.DocumentInvalid, "aws-sts: authorization is not of the form of Signature Version 4: %.64q",
			doc.Authorization)
	}
	switch date, region, service, headers := m[2], m[3], m[4], m[5]; {
	case date != doc.AmzDate[:len(date)]:
		return reason.Deny(reason.DocumentInvalid, "aws-sts: the credential's scope is of %s, amzDate of %s", date,
			doc.AmzDate)
	case region != doc.Region:
		return reason.Deny(reason.DocumentInvalid, "aws-sts: the credential's scope is of region %q, the document of %.32q",
			region, doc.Region)
	case service != request.Service:
		return reason.Deny(reason.DocumentInvalid, "aws-sts: the credential's scope is of service %q", service)
	// The lists are compared, not searched, so "x-mcs-attest-challenge-2" does not match.
	case !slices.Equal(strings.Split(headers, ";"), strings.Split(request.SignedHeaders, ";")):
		return reason.Deny(reason.DocumentInvalid, "aws-sts: the signed headers are %q; they must be %q", headers,
			request.SignedHeaders)
	}
	return nil
}

type claim struct {
	v       *Verifier
	region  string
	request Request
}

// Statement is empty until AWS has been asked.
func (c *claim) Statement() evidence.Statement {
	return evidence.Statement{Kind: evidence.AWSSTS, Bound: true, Summary: map[string]string{"region": c.region}}
}

// Confirm performs checks 6 to 11. Created stays empty, because STS does not return it. It is not
// needed: the Machine's provider id contains the instance id, which AWS never reuses.
func (c *claim) Confirm(ctx context.Context, candidate evidence.Candidate) (evidence.Statement, error) {
	var none evidence.Statement
	instance, ok := ParseProviderID(candidate.ProviderID)
	if !ok || !instance.In(c.region) {
		return none, reason.Deny(reason.EvidenceDisagrees, "aws-sts: the Machine is %.128q, the document of region %s",
			candidate.ProviderID, c.region)
	}
	status, contentType, body, err := c.v.Caller.GetCallerIdentity(ctx, c.request)
	if err != nil {
		return none, unavailable(err)
	}
	id, err := read(status, contentType, body)
	if err != nil {
		return none, err
	}
	session, err := id.session(c.region)
	if err != nil {
		return none, err
	}
	switch {
	case !slices.Contains(c.v.Accounts, id.Account):
		return none, reason.Deny(reason.AccountNotAllowed, "aws-sts: account %s is not configured", id.Account)
	case !slices.Contains(c.v.Roles, session.role):
		return none, reason.Deny(reason.InstanceUnacceptable, "aws-sts: role %q is not configured", session.role)
	case !instanceID.MatchString(session.name):
		return none, reason.Deny(reason.DocumentInvalid, "aws-sts: the session %q of role %q is not an instance's",
			session.name, session.role)
	case session.name != instance.ID:
		return none, reason.Deny(reason.EvidenceDisagrees, "aws-sts: signed by %s, the Machine is %s", session.name,
			instance.ID)
	}
	s := c.Statement()
	s.ProviderID, s.InstanceID = candidate.ProviderID, "aws:"+instance.ID
	s.Summary["account"], s.Summary["instance"], s.Summary["role"], s.Summary["roleID"] = id.Account, instance.ID,
		session.role, session.roleID
	return s, nil
}

func unavailable(err error) error {
	if d := reason.From(err); d.Code != reason.Internal {
		return err // it already has a reason
	}
	return reason.Wrap(reason.ProviderUnavailable, err, "aws-sts: ask STS")
}
