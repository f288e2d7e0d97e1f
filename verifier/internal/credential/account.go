// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mcs-attest/mcs-attest/pkg/credential"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
)

const (
	// SecretPrefix is the prefix of the names of the Secrets to which tokens are bound.
	SecretPrefix = "mcs-attest-bootstrap-"
	// LabelMachine on each Secret of this package is the UID of its machine.
	LabelMachine = "mcs-attest.dev/machine-uid"
)

// accountToken requests a token that is bound to the machine's Secret, and creates that Secret if it
// does not exist.
func (i *Issuer) accountToken(ctx context.Context, machine string) (*credential.Credential, error) {
	name := SecretPrefix + machine
	if err := i.makeSecret(ctx, name, machine); err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		answer, err := i.Client.CoreV1().ServiceAccounts(i.namespace).CreateToken(ctx, i.account, i.request(name),
			metav1.CreateOptions{})
		switch {
		// The Secret or the account does not exist. The attempt to create the Secret shows which.
		case kerrors.IsNotFound(err) && try == 1:
			if err := i.makeSecret(ctx, name, machine); err != nil {
				return nil, err
			}
		case err != nil:
			return nil, fmt.Errorf("request a token: %w", err)
		default:
			return i.read(answer.Status.Token, name)
		}
	}
}

func (i *Issuer) makeSecret(ctx context.Context, name, machine string) error {
	yes := true
	_, err := i.Client.CoreV1().Secrets(i.namespace).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{LabelMachine: machine}},
		Type:       corev1.SecretTypeOpaque, Immutable: &yes,
	}, metav1.CreateOptions{})
	if err != nil && !kerrors.IsAlreadyExists(err) {
		return fmt.Errorf("create the Secret to which the token is bound: %w", err)
	}
	return nil
}

// request names no UID: the Secret that currently has the name belongs to the machine, and the token
// contains its UID.
func (i *Issuer) request(name string) *authenticationv1.TokenRequest {
	seconds := int64(time.Duration(i.Config.Lifetime).Seconds())
	return &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: &seconds,
		BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Secret", Name: name},
	}}
}

// jwt is the content of a service account's token.
type jwt struct {
	JTI        string `json:"jti"`
	Issued     int64  `json:"iat"`
	Expiry     int64  `json:"exp"`
	Kubernetes struct {
		Namespace string
		Secret    struct {
			Name string
			UID  types.UID
		}
	} `json:"kubernetes.io"`
}

var errNoJWT = errors.New("the token is not a JWT")

// parse parses a token of a service account. It does not verify the signature. Its errors contain no
// part of the token.
func parse(raw string) (c jwt, err error) {
	parts := strings.Split(raw, ".")
	if len(parts) != 3 {
		return c, errNoJWT
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || json.Unmarshal(payload, &c) != nil {
		return c, errNoJWT
	}
	if c.JTI == "" {
		return c, errors.New("the API server's tokens have no id (jti), which would identify the requests of this " +
			"machine; Kubernetes 1.30 and later have it")
	}
	return c, nil
}

// idOf returns the id of a credential. A certificate signing request that was created with the
// credential has this id.
func idOf(raw string) (string, error) {
	if id, _, ok := strings.Cut(raw, "."); ok && bootstrapID.MatchString(id) && strings.Count(raw, ".") == 1 {
		return bootstrapUser + id, nil
	}
	c, err := parse(raw)
	if err != nil {
		return "", err
	}
	return jtiPrefix + c.JTI, nil
}

// jtiPrefix precedes the id of a token in the extra information of a user.
const jtiPrefix = "JTI="

// read returns a token with the fields for the record. The token comes from the API server over TLS, so
// its signature is not verified.
func (i *Issuer) read(raw, name string) (*credential.Credential, error) {
	switch c, err := parse(raw); {
	case err != nil:
		return nil, err
	case c.Kubernetes.Namespace != i.namespace || c.Kubernetes.Secret.Name != name || c.Kubernetes.Secret.UID == "":
		return nil, fmt.Errorf("the API server's token is not bound to the Secret %s/%s", i.namespace, name)
	case c.Issued <= 0 || c.Expiry <= c.Issued:
		return nil, errors.New("the API server's token has no expiry")
	default:
		return &credential.Credential{
			ID: jtiPrefix + c.JTI, Issued: time.Unix(c.Issued, 0), Expiry: time.Unix(c.Expiry, 0),
			Secret: i.namespace + "/" + name, SecretUID: string(c.Kubernetes.Secret.UID), Token: secret.New([]byte(raw)),
		}, nil
	}
}
