// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/credential"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
)

const (
	bootstrapNamespace = "kube-system"
	bootstrapPrefix    = "bootstrap-token-"
	// bootstrapUser is the prefix of the user name of a bootstrap token in spec.username of its
	// requests.
	bootstrapUser = "system:bootstrap:"
)

// bootstrapID matches the id of a bootstrap token (Kubernetes, "Authenticating with Bootstrap Tokens").
var bootstrapID = regexp.MustCompile(`^[a-z0-9]{6}$`)

// bootstrapToken creates a bootstrap token. It only authenticates, and does not sign the public
// cluster-info.
func (i *Issuer) bootstrapToken(ctx context.Context, machine string) (*credential.Credential, error) {
	for try := 1; ; try++ {
		id, key, issued := word(6), word(16), i.Now()
		expiry := issued.Add(time.Duration(i.Config.Lifetime)).Truncate(time.Second)
		data := map[string][]byte{
			"token-id":                       []byte(id),
			"token-secret":                   []byte(key),
			"expiration":                     []byte(expiry.UTC().Format(time.RFC3339)),
			"usage-bootstrap-authentication": []byte("true"),
		}
		if len(i.Config.Groups) > 0 {
			data["auth-extra-groups"] = []byte(strings.Join(i.Config.Groups, ","))
		}
		made, err := i.Client.CoreV1().Secrets(bootstrapNamespace).Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: bootstrapPrefix + id, Labels: map[string]string{LabelMachine: machine}},
			Type:       corev1.SecretTypeBootstrapToken, Data: data,
		}, metav1.CreateOptions{})
		switch {
		case kerrors.IsAlreadyExists(err) && try < 3:
			continue // the id exists; there are two billion
		case err != nil:
			return nil, fmt.Errorf("create the Secret of the token: %w", err)
		case made.UID == "":
			return nil, errors.New("the API server created a Secret without a UID")
		}
		return &credential.Credential{
			ID: bootstrapUser + id, Issued: issued, Expiry: expiry,
			Secret: bootstrapNamespace + "/" + made.Name, SecretUID: string(made.UID), Token: secret.New([]byte(id + "." + key)),
		}, nil
	}
}

// word returns n random characters of those that are valid in a bootstrap token, uniformly distributed.
func word(n int) string {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789"
	out := make([]byte, 0, n)
	for len(out) < n {
		var b [32]byte
		rand.Read(b[:])
		for _, c := range b {
			if int(c) < 256/len(letters)*len(letters) && len(out) < n {
				out = append(out, letters[int(c)%len(letters)])
			}
		}
	}
	return string(out)
}
