// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"context"
	"errors"
	"fmt"
	"strings"

	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/record"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
)

// Revoke ends every credential of a machine: those on its record, and the Secret to which its service
// account's tokens are bound, even if the record names none of them. It also deletes the published one.
// A repeated call changes nothing. The kubelet's client certificate that was issued for a credential
// stays valid, because certificates cannot be revoked.
//
// If a record names a Secret that is not of this package, that Secret is not deleted: an account that
// may write records must not be able to delete Secrets. It can name the id of another machine's bootstrap token, where
// these are in use; the component's admission policy permits no deletion of other tokens.
func (i *Issuer) Revoke(ctx context.Context, uid string, all []v1alpha1.CredentialStatus) error {
	if uid == "" || record.IsBreakGlass(uid) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, i.Timeout)
	defer cancel()
	done := map[string]bool{}
	var failed []error
	remove := func(secret, secretUID string) {
		if done[secret] {
			return
		}
		done[secret] = true
		if err := i.remove(ctx, secret, secretUID); err != nil {
			failed = append(failed, err)
		}
	}
	remove(i.Namespace+"/"+uid, "")
	if i.Config.Kind != config.BootstrapToken {
		// The UID does not matter: the Secret that currently has the name belongs to the machine.
		remove(i.namespace+"/"+SecretPrefix+uid, "")
	}
	for _, c := range all {
		namespace, name, _ := strings.Cut(c.Secret, "/")
		switch {
		case c.Secret == "":
			// The id of a bootstrap token, which may be all that is left of a record, is in its
			// Secret's name.
			id, ok := strings.CutPrefix(c.ID, bootstrapUser)
			if ok && i.Config.Kind == config.BootstrapToken && bootstrapID.MatchString(id) {
				remove(bootstrapNamespace+"/"+bootstrapPrefix+id, "")
			}
		case name == SecretPrefix+uid:
			remove(c.Secret, "")
		case namespace == bootstrapNamespace && strings.HasPrefix(name, bootstrapPrefix) && c.SecretUID != "":
			remove(c.Secret, c.SecretUID)
		default:
			i.Log.Warn("a record names a Secret that is not a bootstrap credential; it is not deleted", "machine",
				uid, "secret", c.Secret)
		}
	}
	if len(failed) > 0 {
		return reason.Wrap(reason.CredentialUnavailable, errors.Join(failed...),
			"revoke the bootstrap credentials of machine %s", uid)
	}
	return nil
}

// remove deletes a Secret if it has that UID. It is no error if the Secret does not exist, or another
// one has its name.
func (i *Issuer) remove(ctx context.Context, secret, uid string) error {
	namespace, name, _ := strings.Cut(secret, "/")
	var o metav1.DeleteOptions
	if uid != "" {
		o = *metav1.NewPreconditionDeleteOptions(uid)
	}
	err := i.Client.CoreV1().Secrets(namespace).Delete(ctx, name, o)
	if kerrors.IsForbidden(err) && namespace == bootstrapNamespace && i.Config.Kind != config.BootstrapToken {
		i.Log.Warn("a record names a bootstrap token, which this cluster does not use; it is not deleted", "secret", secret)
		return nil
	}
	if err != nil && !kerrors.IsNotFound(err) && !(uid != "" && kerrors.IsConflict(err)) {
		return fmt.Errorf("delete Secret %s: %w", secret, err)
	}
	return nil
}
