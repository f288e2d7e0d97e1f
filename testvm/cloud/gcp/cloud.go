// Package gcp emulates what of Google Cloud a node and a verifier see, with test
// keys: the metadata server, the keys that sign identity tokens, the OAuth2 token
// endpoints, and the one method of the Compute API that names a virtual TPM's keys.
//
// Paths, headers, status codes and the form of every answer are the real ones, as
// far as Google documents them:
// https://cloud.google.com/compute/docs/metadata/overview,
// https://cloud.google.com/compute/docs/instances/verifying-instance-identity,
// https://cloud.google.com/compute/docs/reference/rest/v1/instances/getShieldedInstanceIdentity.
// Nothing of it is Google's, and no key in it is known to anybody but the process
// that made it.
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

// tokenLife is how long Google's identity tokens live.
const tokenLife = time.Hour

// Instance is a virtual machine.
type Instance struct {
	Project       string
	ProjectNumber int64
	Zone          string
	Name          string
	// ID is never used again; zero: Add makes one.
	ID uint64
	// Created is when the instance was made; zero: now.
	Created time.Time
	// UserData is the metadata value "user-data"; nil: it has none.
	UserData []byte
	// ServiceAccount is its e-mail address; "-": the instance has none. Empty: the
	// project's default.
	ServiceAccount string
	// EKs are the endorsement keys of its virtual TPM: an *rsa.PublicKey, an
	// *ecdsa.PublicKey on P-256, or both. None: it is no Shielded VM.
	EKs []crypto.PublicKey
	// Confidential instances say so in their tokens.
	Confidential bool
}

// ProviderID is the form of a Machine's spec.providerID.
func (i Instance) ProviderID() string {
	return "gce://" + i.Project + "/" + i.Zone + "/" + i.Name
}

// Options are how the emulator works. The zero value does.
type Options struct {
	// Now is the cloud's clock; nil: the machine's.
	Now func() time.Time
	// MaxAge is what the key set's Cache-Control says; zero: 6 hours, as Google's do at most.
	MaxAge time.Duration
}

// Cloud is the emulator. Its methods may be called at the same time.
type Cloud struct {
	o       Options
	account *rsa.PrivateKey // of the verifier's service account

	mu        sync.Mutex
	instances map[uint64]Instance
	keys      []key // the last one signs
	faults    map[Route]*Fault
	calls     map[Route]int
	access    map[string]time.Time // access tokens of the verifier and their ends
}

type key struct {
	id      string
	private *rsa.PrivateKey
}

// New makes a cloud without instances, with two keys as Google mostly has.
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

// Add makes an instance, or changes the one of that ID, and returns its ID.
func (c *Cloud) Add(i Instance) uint64 {
	if i.ID == 0 {
		n, _ := rand.Int(rand.Reader, big.NewInt(9e18)) // crypto/rand does not fail
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

// Remove deletes an instance. Its name may be used again, its ID is not.
func (c *Cloud) Remove(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.instances, id)
}

// Instance returns an instance as it is.
func (c *Cloud) Instance(id uint64) (Instance, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i, ok := c.instances[id]
	return i, ok
}

// find returns an instance by its name or its ID, as the API does.
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

// Rotate makes a key that signs from now on. The one before is still published,
// those before that are not.
func (c *Cloud) Rotate() error {
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	id := make([]byte, 20)
	_, _ = rand.Read(id) // crypto/rand does not fail
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keys = append(c.keys, key{id: hex.EncodeToString(id), private: private})
	c.keys = c.keys[max(0, len(c.keys)-2):]
	return nil
}

// Keys is the published set, as at https://www.googleapis.com/oauth2/v3/certs.
// It is also what an operator puts into google-keys/.
func (c *Cloud) Keys() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	var set jose.JSONWebKeySet
	for _, k := range c.keys {
		set.Keys = append(set.Keys, jose.JSONWebKey{Key: &k.private.PublicKey, KeyID: k.id, Algorithm: string(jose.RS256),
			Use: "sig"})
	}
	raw, _ := json.MarshalIndent(set, "", "  ") // keys that were just made
	return raw
}

// SigningKey is the key that signs identity tokens, with its kid, for tests that
// make tokens which Google never would.
func (c *Cloud) SigningKey() (kid string, private *rsa.PrivateKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.keys[len(c.keys)-1]
	return k.id, k.private
}

// Claims are those of an instance's identity token, made now.
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

// IdentityToken is what the metadata server gives to an instance.
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
