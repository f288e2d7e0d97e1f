// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/credential"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/record"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	"github.com/mcs-attest/mcs-attest/pkg/token"
)

const (
	// SecretType is the type of a published credential. A type is immutable, so the admission policy of
	// deploy/components can distinguish these Secrets from all others.
	SecretType corev1.SecretType = "mcs-attest.dev/bootstrap-credential"
	// AnnotationToken is the id of the attestation token whose bearer may receive the credential.
	AnnotationToken = "mcs-attest.dev/attestation-token"
	// AnnotationCredential is the id of the credential, as on the record.
	AnnotationCredential = "mcs-attest.dev/credential"

	keyToken = "token"
)

// Publish makes a credential available to the bearer of an attestation token. It replaces nothing: if
// another credential of the machine is published, it returns an error.
func (i *Issuer) Publish(ctx context.Context, uid, tokenID string, own *credential.Credential) error {
	ctx, cancel := context.WithTimeout(ctx, i.Timeout)
	defer cancel()
	_, err := i.Client.CoreV1().Secrets(i.Namespace).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name: uid, Labels: map[string]string{LabelMachine: uid},
			Annotations: map[string]string{AnnotationToken: tokenID, AnnotationCredential: own.ID},
		},
		Type: SecretType, Immutable: ptr.To(true), Data: map[string][]byte{keyToken: own.Token.Expose()},
	}, metav1.CreateOptions{})
	if err != nil {
		return reason.Wrap(reason.CredentialUnavailable, err, "publish the credential of machine %s", uid)
	}
	return nil
}

// Withdraw deletes the published credential of a machine, if it is in the Secret with that UID. The
// credential itself stays valid.
func (i *Issuer) Withdraw(ctx context.Context, uid, secretUID string) error {
	ctx, cancel := context.WithTimeout(ctx, i.Timeout)
	defer cancel()
	return i.remove(ctx, i.Namespace+"/"+uid, secretUID)
}

// ReaderOptions configure a Reader. Client and Namespace are required.
type ReaderOptions struct {
	// Client must have a rate limit that allows several calls for each config.
	Client kubernetes.Interface
	// Namespace is the namespace of published credentials.
	Namespace string
	// Owner returns the UID of the Machine that has the record of this Machine. A machine that is an
	// object of both Machine APIs has one record. If nil, it is the same UID.
	Owner func(uid string) string
	// Record reads the record of a Machine. If nil, no machine has its node's certificate from the
	// verifier.
	Record func(ctx context.Context, uid string) (*v1alpha1.MachineAttestation, error)
	Now    func() time.Time // default time.Now
	// Timeout is the maximum time that a caller waits for its credential. Ignition waits 10 s for a
	// config. Default 4 s.
	Timeout time.Duration
}

// Reader reads published credentials. It is safe for concurrent use.
type Reader struct{ o ReaderOptions }

// NewReader returns a Reader.
func NewReader(o ReaderOptions) *Reader {
	if o.Owner == nil {
		o.Owner = func(uid string) string { return uid }
	}
	o.Timeout = cmp.Or(o.Timeout, 4*time.Second)
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Reader{o}
}

// For reports whether the bearer of a token receives a credential. A break-glass token names no
// machine.
func (r *Reader) For(c token.Claims) bool { return !record.IsBreakGlass(c.MachineUID) }

// pauses are the pauses between reads while the controller creates the credential.
var pauses = wait.Backoff{Duration: 50 * time.Millisecond, Factor: 1.5, Jitter: 0.2, Steps: 10, Cap: time.Second}

// Get returns the credential that was published for a token, with its id and its text. It waits a short
// time for it. If the machine has its node's certificate instead, it returns only the key of that. The
// caller must check that the record has this credential; see [record.Redeem].
func (r *Reader) Get(ctx context.Context, c token.Claims) (*credential.Credential, error) {
	if c.MachineUID == "" || !r.For(c) {
		return nil, reason.Deny(reason.CredentialUnavailable, "the token names no machine")
	}
	ctx, cancel := context.WithTimeout(ctx, r.o.Timeout)
	defer cancel()
	if r.o.Record != nil {
		rec, err := r.o.Record(ctx, c.MachineUID)
		if err != nil {
			return nil, err
		}
		if key := record.Certified(rec, c.ID, r.o.Now()); key != "" {
			return &credential.Credential{Key: key}, nil
		}
	}
	uid := r.o.Owner(c.MachineUID)
	var own *credential.Credential
	var pending error
	err := pauses.DelayFunc().Until(ctx, true, false, func(ctx context.Context) (bool, error) {
		s, err := r.o.Client.CoreV1().Secrets(r.o.Namespace).Get(ctx, uid, metav1.GetOptions{})
		switch {
		case kerrors.IsNotFound(err):
			pending = errNotPublished
			return false, nil
		case err != nil:
			return false, err
		case s.Annotations[AnnotationToken] != c.ID:
			pending = errOtherToken // of an earlier attestation; the controller replaces it
			return false, nil
		}
		own, err = published(s)
		return true, err
	})
	if err != nil {
		if pending != nil && ctx.Err() != nil {
			err = pending
		}
		return nil, reason.Wrap(reason.CredentialUnavailable, err, "credential of machine %s", uid)
	}
	return own, nil
}

var (
	errNotPublished = errors.New("the controller has not published it")
	errOtherToken   = errors.New("the controller has not published it for this token")
)

// published reads a credential from its Secret. The id is computed from the text itself.
func published(s *corev1.Secret) (*credential.Credential, error) {
	raw := string(s.Data[keyToken])
	id, err := idOf(raw)
	switch {
	case s.Type != SecretType:
		return nil, fmt.Errorf("published credential: Secret %s/%s has the type %s", s.Namespace, s.Name, s.Type)
	case err != nil:
		return nil, fmt.Errorf("published credential: Secret %s/%s: %w", s.Namespace, s.Name, err)
	case id != s.Annotations[AnnotationCredential]:
		return nil, fmt.Errorf("published credential: Secret %s/%s does not have the credential that it names",
			s.Namespace, s.Name)
	}
	return &credential.Credential{ID: id, Token: secret.New([]byte(raw))}, nil
}
