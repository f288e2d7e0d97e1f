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

// Revoke ends every credential of a machine: those on its record, and what its
// service account's tokens are bound to even if the record has none of them. It also
// deletes the published one. Doing it again does nothing. What a credential was exchanged for, the kubelet's client
// certificate, stays valid: certificates cannot be revoked.
//
// A record that names a Secret that is none of ours revokes nothing by it: whoever
// may write records must not be able to have Secrets deleted.
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
		// Whichever UID it has: the one that the name has now is the machine's.
		remove(i.namespace+"/"+SecretPrefix+uid, "")
	}
	for _, c := range all {
		namespace, name, _ := strings.Cut(c.Secret, "/")
		switch {
		case c.Secret == "":
			// All that is left of a record: a bootstrap token's id is in its Secret's name.
			if id, ok := strings.CutPrefix(c.ID, bootstrapUser); ok && bootstrapID.MatchString(id) {
				remove(bootstrapNamespace+"/"+bootstrapPrefix+id, "")
			}
		case name == SecretPrefix+uid:
			remove(c.Secret, "")
		case namespace == bootstrapNamespace && strings.HasPrefix(name, bootstrapPrefix) && c.SecretUID != "":
			remove(c.Secret, c.SecretUID)
		default:
			i.Log.Warn("a record names a Secret that is no bootstrap credential's; it was left alone", "machine",
				uid, "secret", c.Secret)
		}
	}
	if len(failed) > 0 {
		return reason.Wrap(reason.CredentialUnavailable, errors.Join(failed...),
			"revoke the bootstrap credentials of the machine %s", uid)
	}
	return nil
}

// remove deletes a Secret, if it is the one with that UID. That it is gone, or that
// another one has its name, is as good.
func (i *Issuer) remove(ctx context.Context, secret, uid string) error {
	namespace, name, _ := strings.Cut(secret, "/")
	var o metav1.DeleteOptions
	if uid != "" {
		o = *metav1.NewPreconditionDeleteOptions(uid)
	}
	err := i.Client.CoreV1().Secrets(namespace).Delete(ctx, name, o)
	if err != nil && !kerrors.IsNotFound(err) && !(uid != "" && kerrors.IsConflict(err)) {
		return fmt.Errorf("delete the Secret %s: %w", secret, err)
	}
	return nil
}
