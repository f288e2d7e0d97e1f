// Package credential is the bootstrap credential that only one machine has, for the first certificate signing
// request of its kubelet. An [Issuer] makes credentials, publishes and revokes them: that is
// the controller process. A [Reader] reads what was published: that is the process that serves configs. Its
// account can read Secrets of one namespace by name, and it can make no credential.
//
// A token of a service account (ServiceAccountToken, for the API server and the approver of OpenShift) comes from
// a TokenRequest that is bound to a Secret of the machine, mcs-attest-bootstrap-UID in the namespace of the
// account. That Secret is empty. The token ends with its time or with that Secret, whichever is first. The next
// token of the machine is bound to the same Secret. Two processes at the same moment share it, too: the first one
// makes it, and the UID of the Secret is read from the token itself.
//
// A bootstrap token (BootstrapToken, for clusters whose API server accepts them) is a Secret bootstrap-token-ID of
// its own in kube-system.
//
// The order of the steps is the caller's: make the credential, add its id to the record of the machine, publish it.
// So no client ever has a credential that no record names, and a crash leaves only what no client has.
//
// A published credential is a Secret with the UID of the machine as its name, in a namespace that holds nothing
// else. It names the attestation token whose bearer may receive the credential.
//
// Every failure is reason CredentialUnavailable, which is temporary: a config that should have the credential of
// its machine never goes out with the shared one.
package credential

import (
	"context"
	"log/slog"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/mcs-attest/mcs-attest/pkg/credential"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
)

// Options are what an Issuer needs. Client, Config and Namespace are required.
type Options struct {
	// Client's own rate limit must leave room for three calls for each machine that attests.
	Client kubernetes.Interface
	Config config.Credential
	// Namespace is where credentials are published.
	Namespace string
	Now       func() time.Time // default time.Now
	Log       *slog.Logger     // default none
	// Timeout bounds each method. Default 10 s.
	Timeout time.Duration
}

// Issuer makes credentials, publishes and revokes them. It is safe for concurrent use.
type Issuer struct {
	Options
	namespace, account string // of the service account
}

// NewIssuer returns an Issuer. The configuration must be complete and checked.
func NewIssuer(o Options) (*Issuer, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Timeout == 0 {
		o.Timeout = 10 * time.Second
	}
	namespace, account, err := config.SplitName(o.Config.ServiceAccount)
	if err != nil {
		return nil, err
	}
	return &Issuer{Options: o, namespace: namespace, account: account}, nil
}

// Issue makes a credential for the machine whose record has this UID.
func (i *Issuer) Issue(ctx context.Context, uid string) (*credential.Credential, error) {
	ctx, cancel := context.WithTimeout(ctx, i.Timeout)
	defer cancel()
	issue, what := i.accountToken, "a token of "+i.Config.ServiceAccount
	if i.Config.Kind == config.BootstrapToken {
		issue, what = i.bootstrapToken, "a bootstrap token"
	}
	own, err := issue(ctx, uid)
	if err != nil {
		return nil, reason.Wrap(reason.CredentialUnavailable, err, "%s for the machine %s", what, uid)
	}
	return own, nil
}

// Discard deletes a credential that was not published. The Secret of a service account's token stays: another
// token of the machine may be bound to it, and [Issuer.Revoke] finds it by its name.
func (i *Issuer) Discard(ctx context.Context, own *credential.Credential) {
	if i.Config.Kind != config.BootstrapToken {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, i.Timeout)
	defer cancel()
	if err := i.remove(ctx, own.Secret, own.SecretUID); err != nil {
		// It expires, and no client has it.
		i.Log.Warn("a bootstrap token that was not published could not be deleted", "secret", own.Secret,
			"expires", own.Expiry,
			"error", err)
	}
}
