// SPDX-License-Identifier: Apache-2.0

package service

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/appraisal"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/policy"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/record"
	"github.com/mcs-attest/mcs-attest/pkg/seal"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
	"github.com/mcs-attest/mcs-attest/verifier/internal/listen"
)

const (
	maxCSR = 2 << 10
	// certifyTimeout is how long a call waits for the certificate. The client calls again.
	certifyTimeout = 8 * time.Second
	// The pauses between reads of the record.
	firstRead = 50 * time.Millisecond
	maxRead   = time.Second

	nodePrefix = "system:node:"
)

// nodeCertificate returns what a challenge states about the node's certificate. The provisioning
// token names no Machine, and an audit changes nothing.
func (s *Service) nodeCertificate(p policy.Policy, required []evidence.Kind) mcsattestv1.NodeCertificate {
	if p.Mode != v1alpha1.ModeEnforce || !slices.ContainsFunc(required,
		func(k evidence.Kind) bool { return k != evidence.ProvisioningToken }) {
		return mcsattestv1.NodeCertificate_NODE_CERTIFICATE_UNSPECIFIED
	}
	return s.NodeCertificate
}

// lacksKey denies a machine that attested no key although its certificate is required.
func (s *Service) lacksKey(p policy.Policy, challenge seal.Challenge, v *appraisal.Verdict) error {
	if v.CSRKeySHA256 == "" &&
		s.nodeCertificate(p, challenge.Required) == mcsattestv1.NodeCertificate_NODE_CERTIFICATE_REQUIRED {
		if v.Replayable {
			return unprovenKey()
		}
		return reason.Deny(reason.EvidenceMissing, "the machine attested no key for its node's certificate, which "+
			"credential.mode requires")
	}
	return nil
}

// unprovenKey denies a machine that can never get the certificate that the policy requires.
func unprovenKey() error {
	return reason.Deny(reason.EvidenceMissing, "no evidence that the policy requires is bound to this exchange, so the "+
		"key for the node's certificate is not proven; credential.mode requires the certificate")
}

// certifyTicket returns the ticket for [Service.certify], or "" if the machine gets no certificate.
func (s *Service) certifyTicket(c *call, p policy.Policy, challenge seal.Challenge,
	a record.Attestation) (string, error) {
	if a.CSRKeySHA256 == "" || a.TokenID == "" || s.nodeCertificate(p, challenge.Required) ==
		mcsattestv1.NodeCertificate_NODE_CERTIFICATE_UNSPECIFIED {
		return "", nil
	}
	return s.SealKeys().SealCertifyTicket(rand.Reader, c.start, seal.CertifyTicket{
		MachineUID: a.Machine.UID, TokenID: a.TokenID, KeySHA256: a.CSRKeySHA256, Exporter: challenge.Exporter,
		Expiry: a.TokenExpiry,
	})
}

// certify returns the certificate for the key that a machine attested. It checks that
//
//   - the ticket is the verifier's own, and was issued on this connection: CertifyTicketInvalid
//   - this replica issues certificates: CredentialUnavailable
//   - the Machine has a name for its Node: NodeNameUnknown
//   - the request has the attested key, and is signed with it: CSRMalformed, CSRKeyChanged
//   - it is for a name that the Machine has: CSRContent
//   - the record allows it, as [record.RequestCertificate] says
//   - the Machine may have a config now, as the gate checks
//
// It writes the request to the record and waits until the controller has added the certificate.
// This process creates no certificate signing request, and decides nothing about it.
func (s *Service) certify(ctx context.Context, c *call,
	req *mcsattestv1.CertifyRequest) (*mcsattestv1.CertifyResponse, error) {
	if len(req.GetCsr()) > maxCSR {
		return nil, reason.Deny(reason.TooLarge, "request of %d bytes", len(req.GetCsr()))
	}
	ticket, err := s.openCertifyTicket(c, req.GetTicket())
	if err != nil {
		return nil, err
	}
	c.proven = true
	c.extra = append(c.extra, slog.String("machine_uid", ticket.MachineUID), slog.String("token", ticket.TokenID))
	if s.NodeNames == nil {
		// Another replica issued the ticket, while credential.mode changes.
		return nil, reason.Deny(reason.CredentialUnavailable, "credential.mode of this replica issues no certificates")
	}
	c.yield()
	ctx, cancel := context.WithTimeout(ctx, certifyTimeout)
	defer cancel()
	names, err := s.NodeNames(ctx, ticket.MachineUID)
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, reason.Deny(reason.NodeNameUnknown, "the Machine has no InternalDNS address")
	}
	res := &mcsattestv1.CertifyResponse{Nodes: names, CorrelationId: c.id}
	if len(req.GetCsr()) == 0 {
		return res, nil
	}
	key, err := checkCSR(req.GetCsr(), names)
	if err != nil {
		return nil, err
	}
	if key != ticket.KeySHA256 {
		return nil, reason.Deny(reason.CSRKeyChanged, "the machine attested the key %s, but the request has %s",
			ticket.KeySHA256, key)
	}
	pool, chain, err := s.issued(ctx, ticket, req.GetCsr())
	if err != nil {
		return nil, err
	}
	// This replica may know more than the record.
	if err := s.Redeemable(ctx, ticket.MachineUID, pool); err != nil {
		return nil, err
	}
	for block, rest := pem.Decode(chain); block != nil; block, rest = pem.Decode(rest) {
		res.Certificates = append(res.Certificates, block.Bytes)
	}
	return res, nil
}

// openCertifyTicket opens a ticket that was issued on the connection of the call.
func (s *Service) openCertifyTicket(c *call, text string) (seal.CertifyTicket, error) {
	ticket, err := s.SealKeys().OpenCertifyTicket(c.start, text)
	if err != nil {
		return ticket, err
	}
	if len(ticket.Exporter) > 0 && !bytes.Equal(ticket.Exporter, listen.Exporter(c.tls)) {
		return seal.CertifyTicket{}, reason.Deny(reason.CertifyTicketInvalid, "the ticket belongs to another connection")
	}
	return ticket, nil
}

// checkCSR returns the hash of a request's public key. The approver checks the whole content later;
// these checks keep other requests from the record.
func checkCSR(der []byte, names []string) (keySHA256 string, err error) {
	csr, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return "", reason.Wrap(reason.CSRMalformed, err, "the request does not parse")
	}
	if _, ok := csr.PublicKey.(*ecdsa.PublicKey); !ok {
		return "", reason.Deny(reason.CSRMalformed, "the key has an unsupported type (%T)", csr.PublicKey)
	}
	if err := csr.CheckSignature(); err != nil {
		return "", reason.Wrap(reason.CSRMalformed, err, "the request is not signed with its own key")
	}
	if node, ok := strings.CutPrefix(csr.Subject.CommonName, nodePrefix); !ok || !slices.Contains(names, node) {
		return "", reason.Deny(reason.CSRContent, "the common name is %.253q; the Node may be %q", csr.Subject.CommonName,
			names)
	}
	sum := sha256.Sum256(csr.RawSubjectPublicKeyInfo)
	return hex.EncodeToString(sum[:]), nil
}

// issued writes a request to the record, and returns the certificate that the controller adds to it, and the pool of
// the attestation.
func (s *Service) issued(ctx context.Context, ticket seal.CertifyTicket, der []byte) (pool string, chain []byte,
	err error) {
	for pause := firstRead; ; pause = min(2*pause, maxRead) {
		err := s.Records.Update(ctx, ticket.MachineUID,
			func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
				next, err := record.RequestCertificate(rec, ticket.TokenID, der, ticket.KeySHA256, s.Now())
				if err == nil && next == nil && record.Certified(rec, ticket.TokenID, s.Now()) == ticket.KeySHA256 {
					pool, chain = rec.Status.Pool, rec.Status.Certificate.Issued
				}
				return next, err
			})
		if err != nil || len(chain) > 0 {
			return pool, chain, err
		}
		select {
		case <-ctx.Done():
			return "", nil, reason.Deny(reason.CredentialUnavailable, "the controller has not added the certificate yet")
		case <-time.After(pause):
		}
	}
}
