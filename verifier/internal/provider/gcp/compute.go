package gcp

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"
	"google.golang.org/api/compute/v1"
	"google.golang.org/api/googleapi"
	"google.golang.org/api/option"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/outbound"
)

// maxAnswer is far above an answer: two keys, perhaps two certificates.
const maxAnswer = 256 << 10

// Directory knows the TPMs of Shielded VMs, by the Compute API's
// getShieldedInstanceIdentity. Its credentials need
// compute.instances.getShieldedInstanceIdentity, and nothing else.
//
// It asks by project, zone and name, since that is what a Machine's providerID has,
// and the answer has no id in it. So it says: the instance that has this name now has
// this TPM. After a name was used again that is another instance, and its Machine is
// another or none; whoever needs to know by id asks for gcp-identity in the same
// policy, whose token has the numeric id and the time of creation. An answer is not
// kept, since a name is less than an identity.
type Directory struct {
	projects []string
	caller   *outbound.Caller
	endpoint config.Endpoint

	mu      sync.Mutex
	service *compute.Service // made when it is first needed
}

var _ tpm2.Directory = (*Directory)(nil)

// NewDirectory prepares to ask about instances of some projects. Credentials are
// looked for when the first question is asked, so that a cluster whose policies need
// no TPM of Google's needs none.
func NewDirectory(projects []string, endpoint config.Endpoint, caller *outbound.Caller) (*Directory, error) {
	if endpoint.CA != "" {
		if err := addCA(x509.NewCertPool(), endpoint.CA); err != nil {
			return nil, fmt.Errorf("gcp.compute: %w", err)
		}
	}
	return &Directory{projects: slices.Clone(projects), caller: caller, endpoint: endpoint}, nil
}

// The forms of names are checked before they become part of a URL.
var providerID = regexp.MustCompile(`^gce://((?:[a-z0-9.-]{1,253}:)?[a-z][a-z0-9-]{0,62})/([a-z][a-z0-9-]{0,62})/([a-z][a-z0-9-]{0,62})$`)

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
	return outbound.Ask(ctx, d.caller, "getShieldedInstanceIdentity", id, 0, func(ctx context.Context) (tpm2.ProviderKeys, error) {
		return d.ask(ctx, m[1], m[2], m[3])
	})
}

func (d *Directory) ask(ctx context.Context, project, zone, name string) (tpm2.ProviderKeys, error) {
	var none tpm2.ProviderKeys
	service, err := d.connect()
	if err != nil {
		return none, err
	}
	identity, err := service.Instances.GetShieldedInstanceIdentity(project, zone, name).Context(ctx).Do()
	var answer *googleapi.Error
	switch {
	case errors.As(err, &answer) && answer.Code == http.StatusNotFound:
		return none, reason.Deny(reason.InstanceNotFound, "Google does not know an instance %q in %s of %s", name, zone, project)
	case errors.As(err, &answer):
		// The SDK's own text has the whole body.
		return none, fmt.Errorf("status %d: %.300s", answer.Code, answer.Message)
	case err != nil:
		return none, err
	}
	var keys tpm2.ProviderKeys
	for _, e := range []*compute.ShieldedInstanceIdentityEntry{identity.EncryptionKey, identity.EccP256EncryptionKey} {
		if e == nil || e.EkPub == "" {
			continue
		}
		spki, err := ekSPKI(e.EkPub)
		if err != nil {
			return none, fmt.Errorf("the EK of %q: %w", name, err)
		}
		keys.SPKI = append(keys.SPKI, spki)
	}
	if len(keys.SPKI) == 0 {
		return none, reason.Deny(reason.EKUntrusted, "Google names no EK for %q in %s of %s: no Shielded VM with a virtual TPM", name, zone, project)
	}
	return keys, nil
}

// ekSPKI reads an EK's public key in PEM and returns it in the one DER form.
func ekSPKI(text string) ([]byte, error) {
	block, rest := pem.Decode([]byte(text))
	if block == nil || block.Type != "PUBLIC KEY" || len(bytes.TrimSpace(rest)) > 0 {
		return nil, errors.New("not one public key in PEM")
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

// connect makes the SDK's client. What it lacks now may be there later, so a failure
// is not kept.
func (d *Directory) connect() (*compute.Service, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.service != nil {
		return d.service, nil
	}
	client, err := newClient(d.endpoint.CA, maxAnswer)
	if err != nil {
		return nil, err
	}
	// Tokens come from other hosts than the API. A configured CA counts for them
	// beside the system's: a proxy that ends TLS does it for all of them.
	roots, err := x509.SystemCertPool()
	if err != nil {
		return nil, err
	}
	if d.endpoint.CA != "" {
		if err := addCA(roots, d.endpoint.CA); err != nil {
			return nil, err
		}
	}
	// This context lives as long as the client: tokens are renewed with it. Each
	// exchange ends with the client's own time-outs.
	long := context.WithValue(context.Background(), oauth2.HTTPClient, clientOf(roots, maxAnswer))
	credentials, err := google.FindDefaultCredentials(long, compute.ComputeReadonlyScope)
	if err != nil {
		return nil, fmt.Errorf("credentials: %w", err)
	}
	client.Transport = &oauth2.Transport{Base: client.Transport, Source: credentials.TokenSource}
	options := []option.ClientOption{option.WithHTTPClient(client)}
	if d.endpoint.URL != "" {
		options = append(options, option.WithEndpoint(strings.TrimSuffix(strings.TrimSuffix(d.endpoint.URL, "/"), "/compute/v1")+"/compute/v1/"))
	}
	d.service, err = compute.NewService(long, options...)
	return d.service, err
}
