// Package credential makes the bootstrap credential that a machine alone has, for
// its kubelet's first certificate signing request (DESIGN, section 11.1), and
// revokes it.
//
// A service account's token (ServiceAccountToken, what OpenShift's API server and
// approver know) comes from a TokenRequest that is bound to a Secret of the
// machine, mcs-attest-bootstrap-UID in the namespace of the account. The Secret is
// empty: the token is in no object of the API. It ends with its time or with that
// Secret, whichever is first. The machine's next token is bound to the same Secret.
// Replicas at the same moment share it, too: the Secret is made by whoever is first,
// and its UID is read from the token itself, so the verifier never reads Secrets.
//
// A bootstrap token (BootstrapToken, for clusters whose API server takes them) is a
// Secret bootstrap-token-ID of its own in kube-system.
//
// The record has the id and the Secret of each before the token goes out
// (DESIGN, section 19, rule 2): the gate records it with the use of the machine's
// token. What was made and did not go out is in nobody's hands.
//
// Every failure is reason CredentialUnavailable, which is temporary: a config that
// should have a credential of its own never goes out with the shared one.
package credential

import (
	"context"
	"log/slog"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/mcs-attest/mcs-attest/pkg/credential"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/record"
	"github.com/mcs-attest/mcs-attest/pkg/token"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
)

// Options are what an Issuer needs. Client and Config are required.
type Options struct {
	// Client's own rate limit must leave room for two calls for each config.
	Client kubernetes.Interface
	Config config.Credential
	// Owner is the UID of the Machine whose record is that of the Machine with this
	// one: while a machine is an object of both Machine APIs it has one record. Nil:
	// the same.
	Owner func(uid string) string
	Now   func() time.Time // default time.Now
	Log   *slog.Logger     // default none
	// Timeout bounds everything for one config, which Ignition waits 10 s for.
	// Default 4 s.
	Timeout time.Duration
}

// Issuer makes credentials, and revokes them. It is safe for concurrent use.
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
	if o.Owner == nil {
		o.Owner = func(uid string) string { return uid }
	}
	if o.Timeout == 0 {
		o.Timeout = 4 * time.Second
	}
	namespace, account, err := config.SplitName(o.Config.ServiceAccount)
	if err != nil {
		return nil, err
	}
	return &Issuer{Options: o, namespace: namespace, account: account}, nil
}

// For reports whether a token's bearer gets a credential: a break-glass token names
// no machine.
func (i *Issuer) For(c token.Claims) bool { return !record.IsBreakGlass(c.MachineUID) }

// Issue makes a credential for the machine of a token.
func (i *Issuer) Issue(ctx context.Context, c token.Claims) (*credential.Credential, error) {
	if c.MachineUID == "" || !i.For(c) {
		return nil, reason.Deny(reason.CredentialUnavailable, "the token names no machine")
	}
	ctx, cancel := context.WithTimeout(ctx, i.Timeout)
	defer cancel()
	issue, what := i.accountToken, "a token of "+i.Config.ServiceAccount
	if i.Config.Kind == config.BootstrapToken {
		issue, what = i.bootstrapToken, "a bootstrap token"
	}
	own, err := issue(ctx, i.Owner(c.MachineUID))
	if err != nil {
		return nil, reason.Wrap(reason.CredentialUnavailable, err, "%s for the machine %s", what, c.MachineUID)
	}
	return own, nil
}

// Withdraw takes back a credential that did not go out. The Secret of a service
// account's token stays: another request of the same machine, at this replica or
// another, may have a token that rests on it, and [Issuer.Revoke] finds it by its name.
func (i *Issuer) Withdraw(ctx context.Context, own *credential.Credential) {
	if own == nil || !own.Fresh {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, i.Timeout)
	defer cancel()
	if err := i.remove(ctx, own.Secret, own.SecretUID); err != nil {
		// It ends by itself, and nobody has it.
		i.Log.Warn("a bootstrap token that did not go out could not be deleted", "secret", own.Secret, "expires", own.Expiry,
			"error", err)
	}
}
