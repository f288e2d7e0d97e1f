// SPDX-License-Identifier: Apache-2.0

package awsiid

import (
	"context"
	"slices"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/cms"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// Verifier verifies instance identity documents.
type Verifier struct {
	// Certificates returns the signers' certificates; nil means Defaults.
	Certificates func() *Certificates
	// Accounts and Regions are the allowed accounts and regions. If one of them is empty, no
	// document is accepted.
	Accounts, Regions []string
	// Requirements are what EC2 must return about an instance.
	Requirements
	// Describe asks EC2. If it is nil, EC2 is not asked, and the statement has a warning.
	Describe Describer
}

var _ evidence.Verifier = (*Verifier)(nil)

// Verify checks:
//   - the document comes without certificates or token, and is one signed message in AWS's form: no
//     certificates, signed attributes (DocumentInvalid);
//   - it names one of the configured certificates as its signer's, which is valid at now
//     (DocumentUntrusted);
//   - the signature verifies (DocumentInvalid);
//   - the content is one strict JSON object with well-formed account, region, zone of that region,
//     instance and time (DocumentInvalid);
//   - its region is that of the certificate (DocumentUntrusted);
//   - account and region are allowed (AccountNotAllowed);
//   - its pendingTime is not in the future, with a leeway of five minutes (Internal, because the
//     verifier's clock is then wrong).
//
// The binding is ignored, because the document has none.
func (v *Verifier) Verify(_ context.Context, d evidence.Document, _ evidence.Binding,
	now time.Time) (evidence.Claim, error) {
	if len(d.Certificates) != 0 || len(d.Token) != 0 {
		return nil, reason.Deny(reason.DocumentInvalid, "aws-iid: certificates or a token with the document")
	}
	m, err := cms.Parse(d.Raw, cms.Options{BER: true})
	if err != nil {
		return nil, reason.Wrap(reason.DocumentInvalid, err, "aws-iid")
	}
	if len(m.Certificates) != 0 {
		return nil, reason.Deny(reason.DocumentInvalid, "aws-iid: certificates in the document")
	}
	signer, ok := v.certificates().signer(m)
	if !ok {
		return nil, reason.Deny(reason.DocumentUntrusted,
			"aws-iid: signed by certificate %x, which belongs to no configured region", m.Serial)
	}
	if c := signer.Certificate; now.Before(c.NotBefore) || now.After(c.NotAfter) {
		return nil, reason.Deny(reason.DocumentUntrusted, "aws-iid: the certificate of region %s is valid from %s to %s",
			signer.Region, c.NotBefore.Format(time.DateOnly), c.NotAfter.Format(time.DateOnly))
	}
	content, err := m.Verify(signer.Certificate)
	if err != nil {
		return nil, reason.Wrap(reason.DocumentInvalid, err, "aws-iid: with the certificate of region %s", signer.Region)
	}
	doc, err := parseDocument(content)
	if err != nil {
		return nil, reason.Wrap(reason.DocumentInvalid, err, "aws-iid: signed in region %s", signer.Region)
	}
	if doc.region != signer.Region {
		return nil, reason.Deny(reason.DocumentUntrusted, "aws-iid: a document of region %s with the signature of region %s",
			doc.region, signer.Region)
	}
	if !slices.Contains(v.Accounts, doc.account) {
		return nil, reason.Deny(reason.AccountNotAllowed, "aws-iid: account %s", doc.account)
	}
	if !slices.Contains(v.Regions, doc.region) {
		return nil, reason.Deny(reason.AccountNotAllowed, "aws-iid: region %s", doc.region)
	}
	if doc.pending.After(now.Add(clockLeeway)) {
		return nil, reason.Deny(reason.Internal, "aws-iid: the instance was started at %s, in the future: "+
			"this clock differs from AWS's", doc.pending.UTC().Format(time.RFC3339))
	}
	return &claim{verifier: v, document: *doc}, nil
}

func (v *Verifier) certificates() *Certificates {
	if v.Certificates == nil {
		return Defaults()
	}
	return v.Certificates()
}

// claim is a document with a verified signature.
type claim struct {
	verifier *Verifier
	document document
}

// Statement returns the content of the document. The named instance is genuine, but the document
// does not prove that the caller is this instance.
func (c *claim) Statement() evidence.Statement {
	d := &c.document
	summary := map[string]string{"account": d.account, "region": d.region, "zone": d.zone,
		"started": d.pending.UTC().Format(time.RFC3339)}
	for name, value := range map[string]string{"type": d.instanceType, "image": d.image, "address": d.address} {
		if value != "" {
			summary[name] = value
		}
	}
	return evidence.Statement{
		Kind:       evidence.AWSIID,
		ProviderID: "aws:///" + d.zone + "/" + d.instance,
		InstanceID: "aws:" + d.instance,
		Created:    d.pending,
		Summary:    summary,
	}
}

// Confirm checks:
//   - the candidate is the instance of the document (EvidenceDisagrees);
//   - if EC2 is asked, its answer matches the document and meets the requirements
//     ([Requirements.Check]);
//   - the instance was not started again after the document was created (DocumentNotFresh).
//
// Created becomes EC2's launch time.
func (c *claim) Confirm(ctx context.Context, candidate evidence.Candidate) (evidence.Statement, error) {
	s, d := c.Statement(), &c.document
	if candidate.ProviderID != s.ProviderID {
		return evidence.Statement{}, reason.Deny(reason.EvidenceDisagrees, "aws-iid: the document is of %s, not of %.128q",
			s.ProviderID, candidate.ProviderID)
	}
	if c.verifier.Describe == nil {
		s.Warnings = append(s.Warnings, "EC2 was not asked whether the instance still exists and belongs to the cluster")
		return s, nil
	}
	i, err := c.verifier.Describe.Describe(ctx, d.region, d.instance)
	if err != nil {
		return evidence.Statement{}, err
	}
	if err := c.verifier.Check(i, d.account, d.zone, d.instance); err != nil {
		return evidence.Statement{}, err
	}
	if i.Launched.Sub(d.pending) > startSkew {
		return evidence.Statement{}, reason.Deny(reason.DocumentNotFresh,
			"aws-iid: the document is of the start at %s, and the instance was started again at %s", d.pending, i.Launched)
	}
	s.Created = i.Launched
	return s, nil
}
