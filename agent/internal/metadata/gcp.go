// SPDX-License-Identifier: Apache-2.0

package metadata

import (
	"context"
	"errors"
	"net/url"

	gce "cloud.google.com/go/compute/metadata"
)

// GCP is a client of Google Compute Engine's metadata server.
type GCP struct {
	*service
	gce *gce.Client
}

const (
	gcpUserData = "the attribute user-data"
	gcpIdentity = "an identity token"
	gcpName     = "the instance's name"
)

// NewGCP returns a client of the server at base, for example "http://169.254.169.254".
func NewGCP(base string, p Patience) (*GCP, error) {
	s, err := newService("Google Cloud", base, p)
	if err != nil {
		return nil, err
	}
	// A response without this header is not from the metadata server. Google's documentation asks
	// clients to check.
	s.headerName, s.headerValue = "Metadata-Flavor", "Google"
	return &GCP{service: s, gce: gce.NewClient(s.client())}, nil
}

func (g *GCP) get(ctx context.Context, what, suffix string) ([]byte, error) {
	return g.ask(ctx, what, func(ctx context.Context) ([]byte, error) {
		text, err := g.gce.GetWithContext(ctx, suffix)
		return []byte(text), err
	})
}

// UserData returns the instance's unmodified attribute user-data, or a Fault with Absent set if it
// has none.
func (g *GCP) UserData(ctx context.Context) ([]byte, error) {
	return g.get(ctx, gcpUserData, "instance/attributes/user-data")
}

// IdentityToken returns a JWT that names the instance, for the given audience.
func (g *GCP) IdentityToken(ctx context.Context, audience string) ([]byte, error) {
	query := url.Values{"audience": {audience}, "format": {"full"}}
	raw, err := g.get(ctx, gcpIdentity, "instance/service-accounts/default/identity?"+query.Encode())
	if f, ok := errors.AsType[*Fault](err); ok && f.Absent {
		f.Problem = "the instance has no service account (HTTP status 404)"
		f.Hint = "give the instance a service account; it needs no roles and no scopes"
	}
	if err != nil {
		return nil, err
	}
	if !isToken(string(raw)) {
		return nil, g.wrong(gcpIdentity, "the answer is not a token")
	}
	return raw, nil
}

// ProviderID returns the instance's id in the format of a Machine's spec.providerID. It is
// self-asserted.
func (g *GCP) ProviderID(ctx context.Context) (string, error) {
	id := "gce:/"
	for _, suffix := range []string{"project/project-id", "instance/zone", "instance/name"} {
		raw, err := g.get(ctx, gcpName, suffix)
		if err != nil {
			return "", err
		}
		name := lastElement(string(raw)) // a zone is projects/NUMBER/zones/NAME
		if !isName(name) {
			return "", g.wrong(gcpName, "its %s is not a name: %.40q", lastElement(suffix), name)
		}
		id += "/" + name
	}
	return id, nil
}
