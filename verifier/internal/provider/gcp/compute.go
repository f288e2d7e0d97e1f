// SPDX-License-Identifier: Apache-2.0

package gcp

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/outbound"
)

const (
	// ComputeURL is the URL of the Compute API.
	ComputeURL = "https://compute.googleapis.com"
	// readonly is the narrowest scope that the method accepts.
	readonly = "https://www.googleapis.com/auth/compute.readonly"
	// maxAnswer is far above the size of an answer: two keys, perhaps with two certificates.
	maxAnswer = 256 << 10
)

// Directory queries the EKs of Shielded VMs, with the Compute API's getShieldedInstanceIdentity. Its
// credentials need only compute.instances.getShieldedInstanceIdentity.
//
// It queries by project, zone and name, because a Machine's providerID consists of these, and the
// answer has no id. So the answer means that the instance that currently has this name has this TPM. If
// the name was reused, that is another instance. A policy that needs the id also requires gcp-identity,
// whose token has the numeric id and the time of creation. Answers are not cached, because a name is
// not an identity.
//
// Google's own library finds the credentials. The call is a plain GET: Google's client of the Compute
// API has thousands of methods, all of which the linker keeps, and would double the size of the
// verifier (47 to 105 MB). A test verifies that both get the same answers.
type Directory struct {
	projects []string
	caller   *outbound.Caller
	endpoint config.Endpoint

	client   *http.Client    // for the API
	exchange context.Context // for the token library; contains its client

	mu      sync.Mutex // never held during a call
	token   *oauth2.Token
	renewal *renewal // the active one
}

// renewal is shared by all callers that wait for it. Its result is valid after done is closed.
type renewal struct {
	done  chan struct{}
	token *oauth2.Token
	err   error
}

var _ tpm2.Directory = (*Directory)(nil)

// NewDirectory returns a directory for instances of some projects. Credentials are looked up for each
// access token, the first at the first query, so a cluster whose policies need no TPM of Google needs none.
func NewDirectory(projects []string, endpoint config.Endpoint, caller *outbound.Caller) (*Directory, error) {
	client, err := outbound.NewClient(endpoint.CA, maxAnswer)
	if err != nil {
		return nil, fmt.Errorf("gcp.compute: %w", err)
	}
	// Tokens come from other hosts than the API. For them, a configured CA is trusted in addition to
	// the system's, because a proxy that terminates TLS does so for all hosts.
	roots, err := x509.SystemCertPool()
	if err != nil {
		return nil, fmt.Errorf("gcp.compute: %w", err)
	}
	if endpoint.CA != "" {
		if err := outbound.AddCA(roots, endpoint.CA); err != nil {
			return nil, fmt.Errorf("gcp.compute: %w", err)
		}
	}
	return &Directory{
		projects: slices.Clone(projects), caller: caller, endpoint: endpoint, client: client,
		exchange: context.WithValue(context.Background(), oauth2.HTTPClient, outbound.NewClientOf(roots, maxAnswer)),
	}, nil
}

// The forms of names are checked before they are used in a URL.
var providerID = regexp.MustCompile(
	`^gce://((?:[a-z0-9.-]{1,253}:)?[a-z][a-z0-9-]{0,62})/([a-z][a-z0-9-]{0,62})/([a-z][a-z0-9-]{0,62})$`)

// EndorsementKeys implements [tpm2.Directory], with one call.
func (d *Directory) EndorsementKeys(ctx context.Context, id string, _ *tpm2.EK) (tpm2.ProviderKeys, error) {
	if !strings.HasPrefix(id, "gce://") {
		return tpm2.ProviderKeys{}, tpm2.ErrNotMine
	}
	m := providerID.FindStringSubmatch(id)
	if m == nil {
		return tpm2.ProviderKeys{}, reason.Deny(reason.InstanceNotFound, "%.300q is not gce://project/zone/name", id)
	}
	if !slices.Contains(d.projects, m[1]) {
		return tpm2.ProviderKeys{}, reason.Deny(reason.AccountNotAllowed, "instance of project %q", m[1])
	}
	return outbound.Ask(ctx, d.caller, "getShieldedInstanceIdentity", id, 0,
		func(ctx context.Context) (tpm2.ProviderKeys, error) {
			return d.ask(ctx, m[1], m[2], m[3])
		})
}

// identity has the relevant part of the answer
// (https://cloud.google.com/compute/docs/reference/rest/v1/instances/getShieldedInstanceIdentity).
type identity struct {
	RSA   entry `json:"encryptionKey"`
	Curve entry `json:"eccP256EncryptionKey"`
}

type entry struct {
	EKPub string `json:"ekPub"`
}

func (d *Directory) ask(ctx context.Context, project, zone, name string) (tpm2.ProviderKeys, error) {
	var none tpm2.ProviderKeys
	token, err := d.authorized(ctx)
	if err != nil {
		return none, err
	}
	base := strings.TrimSuffix(strings.TrimSuffix(cmp.Or(d.endpoint.URL, ComputeURL), "/"), "/compute/v1")
	status, raw, err := get(ctx, d.client, token, base+"/compute/v1/projects/"+url.PathEscape(project)+"/zones/"+zone+
		"/instances/"+name+"/getShieldedInstanceIdentity")
	switch {
	case err != nil:
		return none, err
	case status.StatusCode == http.StatusNotFound:
		return none, reason.Deny(reason.InstanceNotFound, "Google has no instance %q in %s of %s", name,
			zone, project)
	case status.StatusCode != http.StatusOK:
		return none, fmt.Errorf("status %s: %.300s", status.Status, message(raw))
	}
	var answer identity
	if err := json.Unmarshal(raw, &answer); err != nil {
		return none, err
	}
	var keys tpm2.ProviderKeys
	for _, e := range []entry{answer.RSA, answer.Curve} {
		if e.EKPub == "" {
			continue
		}
		spki, err := ekSPKI(e.EKPub)
		if err != nil {
			return none, fmt.Errorf("the EK of %q: %w", name, err)
		}
		keys.SPKI = append(keys.SPKI, spki)
	}
	if len(keys.SPKI) == 0 {
		return none, reason.Deny(reason.EKUntrusted,
			"Google has no EK of %q in %s of %s: it is not a Shielded VM with a virtual TPM", name, zone, project)
	}
	return keys, nil
}

// message returns the message of an error of Google's APIs.
func message(raw []byte) string {
	var e struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	if json.Unmarshal(raw, &e) != nil {
		return ""
	}
	return e.Error.Message
}

// ekSPKI parses an EK's public key in PEM and returns it in the canonical DER form.
func ekSPKI(text string) ([]byte, error) {
	block, rest := pem.Decode([]byte(text))
	if block == nil || block.Type != "PUBLIC KEY" || len(bytes.TrimSpace(rest)) > 0 {
		return nil, errors.New("the text is not one public key in PEM")
	}
	key, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	switch k := key.(type) {
	case *rsa.PublicKey:
		if bits := k.N.BitLen(); bits < 2048 || bits > 4096 {
			return nil, fmt.Errorf("RSA of %d bits", bits)
		}
	case *ecdsa.PublicKey:
		if k.Curve != elliptic.P256() && k.Curve != elliptic.P384() {
			return nil, fmt.Errorf("a point on %s", k.Curve.Params().Name)
		}
	default:
		return nil, fmt.Errorf("a key of type %T", key)
	}
	return x509.MarshalPKIXPublicKey(key)
}

// authorized returns an access token. If a new one is needed, it starts a renewal or waits for the
// active one, until ctx ends.
func (d *Directory) authorized(ctx context.Context) (*oauth2.Token, error) {
	d.mu.Lock()
	if d.token.Valid() {
		defer d.mu.Unlock()
		return d.token, nil
	}
	r := d.renewal
	if r == nil {
		r = &renewal{done: make(chan struct{})}
		d.renewal = r
		// The renewal runs in a separate goroutine, because the library accepts no context, neither to
		// find credentials nor for an exchange. Both end with their own timeouts.
		go d.renew(r)
	}
	d.mu.Unlock()
	select {
	case <-ctx.Done():
		return nil, fmt.Errorf("credentials: %w", context.Cause(ctx))
	case <-r.done:
		return r.token, r.err
	}
}

// renew gets a token. It never runs concurrently. It looks up the credentials again each time, because
// an administrator may have replaced them. A failure is not cached, because what is missing may appear
// later.
func (d *Directory) renew(r *renewal) {
	found, err := google.FindDefaultCredentials(d.exchange, readonly)
	if err == nil {
		r.token, err = found.TokenSource.Token()
	}
	if err != nil {
		r.err = fmt.Errorf("credentials: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.token, d.renewal = r.token, nil
	close(r.done)
}
