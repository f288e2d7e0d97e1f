// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mcs-attest/mcs-attest/agent/internal/client"
	"github.com/mcs-attest/mcs-attest/agent/internal/nodecert"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
)

// certifyWait is how long the flow waits for a certificate that the policy does not require, in all
// rounds together. The Machine may have no name yet, or another replica of the controller takes over,
// which may last more than two minutes (the lease of OpenShift's operators).
const certifyWait = 3 * time.Minute

// errWithoutCertificate reports that this machine continues without its node's certificate. A new
// round attests no key, so that the kubelet can make its own. It does not wrap the denial, which is
// not one of the attestation.
type errWithoutCertificate struct{ last error }

func (e *errWithoutCertificate) Error() string {
	return fmt.Sprintf("this machine continues without its node's certificate: %v", e.last)
}

// attestedKey returns the key to attest, or nil if the verifier issues no certificate, or the pointer
// config cannot carry one.
func (f *Flow) attestedKey(t Target, ch *mcsattestv1.ChallengeResponse) (*nodecert.Key, error) {
	if ch.GetNodeCertificate() == mcsattestv1.NodeCertificate_NODE_CERTIFICATE_UNSPECIFIED || !t.Certificate ||
		f.withoutCertificate {
		return nil, nil
	}
	if f.key == nil {
		key, err := nodecert.New()
		if err != nil {
			return nil, final{err}
		}
		f.key = key
	}
	return f.key, nil
}

// errRoundEnded reports that only another attestation can get the certificate. It does not wrap the
// cause: what is final for an attestation is not final for Certify.
type errRoundEnded struct{ cause error }

func (e *errRoundEnded) Error() string {
	return fmt.Sprintf("this machine attests again for its node's certificate: %v", e.cause)
}

// OtherHostname reports that this host's name chooses none of the node's names. A name from DHCP arrives after the
// address.
type OtherHostname struct {
	Nodes    []string
	Hostname string
}

func (e *OtherHostname) Error() string {
	return fmt.Sprintf("the Node of this machine may have the names %q, and its host name is %q",
		e.Nodes[:min(len(e.Nodes), 10)], e.Hostname)
}

// certify returns the kubelet's certificate and key. It waits while the Machine has no name, and while
// the cluster signs. For a required certificate it also waits, for a limited time, for the name of this
// host. All rounds of a boot share the time for an optional certificate.
func (f *Flow) certify(ctx context.Context, s *client.Session, ticket string, key *nodecert.Key,
	required bool) (secret.Bytes, error) {
	if f.certifyUntil == 0 {
		f.certifyUntil = f.now() + certifyWait
	}
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		pair, err := f.certifyOnce(ctx, s, ticket, key)
		if err == nil {
			f.Console.Step("received the node's certificate")
			return pair, nil
		}
		wait := pause
		denied, temporary := errors.AsType[*client.Denied](err)
		if temporary {
			temporary = denied.Temporary
			wait = max(wait, min(denied.RetryAfter, maxPause))
		}
		if _, ok := errors.AsType[*OtherHostname](err); ok {
			temporary = required && f.now() < f.certifyUntil
		}
		ended := ctx.Err() != nil || endsRound(err)
		switch {
		case !required && (f.now() >= f.certifyUntil || !temporary && !ended):
			f.withoutCertificate = true
			return secret.Bytes{}, &errWithoutCertificate{err}
		case ended:
			return secret.Bytes{}, &errRoundEnded{err}
		case !temporary:
			return secret.Bytes{}, final{err}
		}
		f.waiting(err, wait)
		if err := f.sleep(ctx, wait); err != nil {
			return secret.Bytes{}, err
		}
	}
}

// endsRound reports whether a failed Certify may succeed after another attestation. A denial of the
// ticket or token says nothing about this machine, which just attested: they expired, or a later
// attestation replaced them. Another kind of server, or a verifier without this call, may have answered.
func endsRound(err error) bool {
	if denied, ok := errors.AsType[*client.Denied](err); ok {
		return !denied.Temporary && denied.Class == mcsattestv1.DenialClass_DENIAL_CLASS_TOKEN
	}
	var unexpected *client.Unexpected
	return errors.As(err, &unexpected) || !isFinal(err)
}

func (f *Flow) certifyOnce(ctx context.Context, s *client.Session, ticket string, key *nodecert.Key) (
	secret.Bytes, error) {
	res, err := s.Certify(ctx, &mcsattestv1.CertifyRequest{Ticket: ticket})
	if err != nil {
		return secret.Bytes{}, err
	}
	hostname := ""
	if f.Hostname != nil {
		hostname = f.Hostname()
	}
	node, ok := nodecert.Choose(res.GetNodes(), hostname)
	if !ok {
		return secret.Bytes{}, final{&OtherHostname{res.GetNodes(), hostname}}
	}
	csr, err := key.Request(node)
	if err != nil {
		return secret.Bytes{}, final{err}
	}
	if res, err = s.Certify(ctx, &mcsattestv1.CertifyRequest{Ticket: ticket, Csr: csr}); err != nil {
		return secret.Bytes{}, err
	}
	pair, err := key.Pair(node, res.GetCertificates())
	if err != nil {
		return secret.Bytes{}, final{err}
	}
	return pair, nil
}
