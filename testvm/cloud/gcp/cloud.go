// SPDX-License-Identifier: Apache-2.0

// Package gcp emulates the parts of Google Cloud that a node and a verifier use, with test keys:
// the metadata server, the keys that sign identity tokens, the OAuth2 token endpoints, and the
// method of the Compute API that returns a virtual TPM's keys.
//
// Paths, headers, status codes and the form of every response are the real ones, as far as Google
// documents them: https://cloud.google.com/compute/docs/metadata/overview,
// https://cloud.google.com/compute/docs/instances/verifying-instance-identity,
// https://cloud.google.com/compute/docs/reference/rest/v1/instances/getShieldedInstanceIdentity.
// The keys are created at run time and are not Google's.
//
//	cloud, err := gcp.New(gcp.Options{})
//	id := cloud.Add(gcp.Instance{Project: "demo", Zone: "europe-west1-b", Name: "worker-a", UserData: pointer})
//	node := cloud.Metadata(id)              // an http.Handler: 169.254.169.254 of that instance
//	api, err := cloud.Serve(directory)      // HTTPS, for the verifier
package gcp

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"encoding/hex"
	"fmt"
	"math/big"
	"strconv"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/json"
)

// Issuer is the iss of every identity token.
const Issuer = "https://accounts.google.com"

// tokenLife is the lifetime of Google's identity tokens.
const tokenLife = time.Hour

// Instance is a virtual machine.
type Instance struct {
	Project       string
	ProjectNumber int64
	Zone          string
	Name          string
	// ID is never reused. If it is zero, Add sets it.
	ID uint64
	// Created is when the instance was created; zero means now.
	Created time.Time
	// UserData is the metadata value "user-data"; nil means that it has none.
	UserData []byte
	// ServiceAccount is its e-mail address. "-" means none, empty the default of the project.
	ServiceAccount string
	// EKs are the endorsement keys of its virtual TPM: an *rsa.PublicKey, an *ecdsa.PublicKey on
	// P-256, or both. Without keys it is not a Shielded VM.
	EKs []crypto.PublicKey
	// Confidential is stated in the instance's tokens.
	Confidential bool
}

// ProviderID returns the spec.providerID of its Machine.
func (i Instance) ProviderID() string {
	return "gce://" + i.Project + "/" + i.Zone + "/" + i.Name
}

// Options configure the emulator. The zero value works.
type Options struct {
	// Now is the cloud's clock; nil means the machine's.
	Now func() time.Time
	// MaxAge is that of the key set's Cache-Control; zero means 6 hours, Google's maximum.
	MaxAge time.Duration
}

// Cloud is the emulator. It is safe for concurrent use.
type Cloud struct {
	o       Options
	account *rsa.PrivateKey // of the verifier's service account

	mu        sync.Mutex
	instances map[uint64]Instance
	keys      []key // the last one signs
	faults    map[Route]*Fault
	calls     map[Route]int
	access    map[string]time.Time // the verifier's access tokens and their expiry
}

type key struct {
	id      string
	private *rsa.PrivateKey
}

// New returns a cloud without instances, with two keys as Google usually has.
func New(o Options) (*Cloud, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.MaxAge == 0 {
		o.MaxAge = 6 * time.Hour
	}
	account, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, err
	}
	c := &Cloud{o: o, account: account, instances: map[uint64]Instance{}, faults: map[Route]*Fault{},
		calls: map[Route]int{}, access: map[string]time.Time{}}
	for range 2 {
		if err := c.Rotate(); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// Add adds an instance, or changes the one with that ID, and returns its ID.
func (c *Cloud) Add(i Instance) uint64 {
	if i.ID == 0 {
		n, _ := rand.Int(rand.Reader, big.NewInt(9e18)) // crypto/rand never fails
		i.ID = n.Uint64() + 1e17
	}
	if i.ProjectNumber == 0 {
		i.ProjectNumber = 123456789012
	}
	if i.Created.IsZero() {
		i.Created = c.o.Now()
	}
	if i.ServiceAccount == "" {
		i.ServiceAccount = strconv.FormatInt(i.ProjectNumber, 10) + "-compute@developer.gserviceaccount.com"
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.instances[i.ID] = i
	return i.ID
}

// Remove deletes an instance. Its name may be reused, its ID may not.
func (c *Cloud) Remove(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.instances, id)
}

// Instance returns the current state of an instance.
func (c *Cloud) Instance(id uint64) (Instance, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i, ok := c.instances[id]
	return i, ok
}

// find returns an instance by its name or its ID, like the API.
func (c *Cloud) find(project, zone, name string) (Instance, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, i := range c.instances {
		if i.Project == project && i.Zone == zone && (i.Name == name || strconv.FormatUint(i.ID, 10) == name) {
			return i, true
		}
	}
	return Instance{}, false
}

// Rotate creates a key that signs from now on. The previous key stays published; older ones do not.
func (c *Cloud) Rotate() error {
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	id := make([]byte, 20)
	_, _ = rand.Read(id) // crypto/rand never fails
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keys = append(c.keys, key{id: hex.EncodeToString(id), private: private})
	c.keys = c.keys[max(0, len(c.keys)-2):]
	return nil
}

// Keys returns the published set, as at https://www.googleapis.com/oauth2/v3/certs. It is also the
// content of google-keys/.
func (c *Cloud) Keys() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	var set jose.JSONWebKeySet
	for _, k := range c.keys {
		set.Keys = append(set.Keys, jose.JSONWebKey{Key: &k.private.PublicKey, KeyID: k.id, Algorithm: string(jose.RS256),
			Use: "sig"})
	}
	raw, _ := json.MarshalIndent(set, "", "  ") // new keys always encode
	return raw
}

// SigningKey returns the key that signs identity tokens, with its kid, for tests that create tokens
// in forms that Google never uses.
func (c *Cloud) SigningKey() (kid string, private *rsa.PrivateKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.keys[len(c.keys)-1]
	return k.id, k.private
}

// Claims returns the claims of an instance's identity token at this moment.
func (c *Cloud) Claims(i Instance, audience string, full bool) map[string]any {
	now := c.o.Now().Unix()
	const subject = "112233445566778899001"
	claims := map[string]any{
		"aud": audience, "azp": subject, "sub": subject, "iss": Issuer,
		"iat": now, "exp": now + int64(tokenLife/time.Second),
		"email": i.ServiceAccount, "email_verified": true,
	}
	if full {
		engine := map[string]any{
			"project_id": i.Project, "project_number": i.ProjectNumber, "zone": i.Zone,
			"instance_id": strconv.FormatUint(i.ID, 10), "instance_name": i.Name,
			"instance_creation_timestamp": i.Created.Unix(),
		}
		if i.Confidential {
			engine["instance_confidentiality"] = 1
		}
		claims["google"] = map[string]any{"compute_engine": engine}
	}
	return claims
}

// IdentityToken returns the token that the metadata server gives to an instance.
func (c *Cloud) IdentityToken(id uint64, audience string) (string, error) {
	i, ok := c.Instance(id)
	if !ok {
		return "", fmt.Errorf("no instance %d", id)
	}
	return c.Sign(c.Claims(i, audience, true))
}

// Sign signs any claims with the current key, in the form of Google's tokens.
func (c *Cloud) Sign(claims map[string]any) (string, error) {
	kid, private := c.SigningKey()
	payload, err := json.Marshal(claims)
	if err != nil {
		return "", err
	}
	options := (&jose.SignerOptions{}).WithType("JWT").WithHeader("kid", kid)
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.RS256, Key: private}, options)
	if err != nil {
		return "", err
	}
	jws, err := signer.Sign(payload)
	if err != nil {
		return "", err
	}
	return jws.CompactSerialize()
}
