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
	// Certificates are the signers; nil: Defaults.
	Certificates func() *Certificates
	// Accounts and Regions are where instances may be. Where one of them is empty,
	// no document is accepted.
	Accounts, Regions []string
	// Requirements are what EC2 must say of an instance.
	Requirements
	// Describe asks EC2. Nil: nobody is asked, and the statement warns.
	Describe Describer
}

var _ evidence.Verifier = (*Verifier)(nil)

// Verify checks:
//   - nothing comes with the document, and it is one signed message as AWS makes
//     them: no certificates, signed attributes (DocumentInvalid);
//   - it names one of the configured certificates as its signer's, which is valid
//     at now (DocumentUntrusted);
//   - the signature (DocumentInvalid);
//   - the content is a whole, strict JSON object with well-formed account, region,
//     zone of that region, instance and time (DocumentInvalid);
//   - its region is the certificate's (DocumentUntrusted);
//   - account and region are allowed (AccountNotAllowed).
//
// Binding is not looked at: the document has none.
func (v *Verifier) Verify(_ context.Context, d evidence.Document, _ evidence.Binding,
	now time.Time) (evidence.Claim, error) {
	if len(d.Certificates) != 0 || len(d.Token) != 0 {
		return nil, reason.Deny(reason.DocumentInvalid, "aws-iid: certificates or a token beside the document")
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
			"aws-iid: signed by certificate %x, which is that of no configured region", m.Serial)
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
	return &claim{verifier: v, document: *doc}, nil
}

func (v *Verifier) certificates() *Certificates {
	if v.Certificates == nil {
		return Defaults()
	}
	return v.Certificates()
}

// claim is a document whose signature verified.
type claim struct {
	verifier *Verifier
	document document
}

// Statement is what the document says. The instance that it names is genuine;
// that it is the one that speaks is not shown.
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
//   - EC2, where it is asked, says the same of the same instance, and what it says
//     meets the requirements ([Requirements.Check]);
//   - the instance was not started again since the document was made (DocumentNotFresh).
//
// Created becomes EC2's launch time.
func (c *claim) Confirm(ctx context.Context, candidate evidence.Candidate) (evidence.Statement, error) {
	s, d := c.Statement(), &c.document
	if candidate.ProviderID != s.ProviderID {
		return evidence.Statement{}, reason.Deny(reason.EvidenceDisagrees, "aws-iid: the document is of %s, not of %.128q",
			s.ProviderID, candidate.ProviderID)
	}
	if c.verifier.Describe == nil {
		s.Warnings = append(s.Warnings, "EC2 was not asked whether the instance still exists and is the cluster's")
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
