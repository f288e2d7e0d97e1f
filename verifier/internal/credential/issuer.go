// SPDX-License-Identifier: Apache-2.0

// Package credential manages the bootstrap credential of one machine, for the first certificate signing
// request of its kubelet. An [Issuer] creates, publishes and revokes credentials in the controller
// process. A [Reader] reads the published ones in the process that serves configs. Its account can read
// Secrets of one namespace by name, and can create no credential.
//
// A token of a service account (ServiceAccountToken, for the API server and the approver of OpenShift)
// comes from a TokenRequest that is bound to a Secret of the machine, mcs-attest-bootstrap-UID in the
// namespace of the account. That Secret is empty. The token ends with its lifetime or with that Secret,
// whichever is first. The next token of the machine is bound to the same Secret. Two concurrent
// processes share it as well: the first one creates it, and the token itself contains the UID of the
// Secret.
//
// A bootstrap token (BootstrapToken, for clusters whose API server accepts them) is a separate Secret
// bootstrap-token-ID in kube-system.
//
// The caller must keep this order: create the credential, add its id to the record of the machine,
// publish it. So no client ever has a credential that no record names, and a crash leaves only
// credentials that no client has.
//
// A published credential is a Secret named by the UID of the machine, in a namespace of its own, which has other
// Secrets only if the platform adds them. It names the attestation token whose bearer may receive the credential.
//
// Every failure is reason CredentialUnavailable, which is temporary: a config that should have the
// credential of its machine is never served with the shared one.
package credential

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/mcs-attest/mcs-attest/pkg/credential"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
)

// Options configure an Issuer. Client, Config and Namespace are required.
type Options struct {
	// Client must have a rate limit that allows three calls for each machine that attests.
	Client kubernetes.Interface
	Config config.Credential
	// Namespace is the namespace of published credentials.
	Namespace string
	Now       func() time.Time // default time.Now
	Log       *slog.Logger     // default: none
	// Timeout bounds each method. Default 10 s.
	Timeout time.Duration
}

// Issuer creates, publishes and revokes credentials. It is safe for concurrent use.
type Issuer struct {
	Options
	namespace, account string // of the service account
}

// NewIssuer returns an Issuer. The configuration must be complete and valid.
func NewIssuer(o Options) (*Issuer, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	o.Timeout = cmp.Or(o.Timeout, 10*time.Second)
	namespace, account, err := config.SplitName(o.Config.ServiceAccount)
	if err != nil {
		return nil, err
	}
	return &Issuer{Options: o, namespace: namespace, account: account}, nil
}

// Issue creates a credential for the machine whose record has this UID.
func (i *Issuer) Issue(ctx context.Context, uid string) (*credential.Credential, error) {
	ctx, cancel := context.WithTimeout(ctx, i.Timeout)
	defer cancel()
	issue, what := i.accountToken, "a token of "+i.Config.ServiceAccount
	if i.Config.Kind == config.BootstrapToken {
		issue, what = i.bootstrapToken, "a bootstrap token"
	}
	own, err := issue(ctx, uid)
	if err != nil {
		return nil, reason.Wrap(reason.CredentialUnavailable, err, "%s for machine %s", what, uid)
	}
	return own, nil
}

// Discard deletes a credential that was not published. It does not delete the Secret of a service
// account's token: another token of the machine may be bound to it, and [Issuer.Revoke] finds it by its
// name.
func (i *Issuer) Discard(ctx context.Context, own *credential.Credential) {
	if i.Config.Kind != config.BootstrapToken {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, i.Timeout)
	defer cancel()
	if err := i.remove(ctx, own.Secret, own.SecretUID); err != nil {
		// The token expires, and no client has it.
		i.Log.Warn("a bootstrap token that was not published could not be deleted", "secret", own.Secret,
			"expires", own.Expiry,
			"error", err)
	}
}
