// SPDX-License-Identifier: Apache-2.0

package azure

import (
	"context"
	"crypto"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/verifier/internal/outbound"
)

const (
	keysFresh   = time.Hour       // a set is not fetched again during this time
	keysAtMost  = 5 * time.Minute // the minimum interval for a key that is missing
	keysRetry   = 5 * time.Second // the minimum interval after a failure
	keysStale   = 24 * time.Hour  // a set that cannot be refreshed is valid for this time
	maxKeySet   = 256 << 10
	maxKeys     = 100
	minRSABits  = 2048
	maxRSABits  = 4096
	rsaExponent = 65537
)

// Keys are the keys of a tenant, as its login endpoint publishes them (RFC 7517). It is an
// azureattested.IdentityKeys.
type Keys struct {
	client *http.Client
	url    string
	caller *outbound.Caller
	now    func() time.Time

	mu      sync.Mutex
	known   map[string]*rsa.PublicKey
	fetched time.Time // when known was fetched
	tried   time.Time
	failed  error // of the last fetch
	begun   int   // the number of fetches that have started
	of      int   // the number of the fetch of known, from 1
}

func newKeys(client *http.Client, url string, o outbound.Options) *Keys {
	now := o.Now
	if now == nil {
		now = time.Now
	}
	return &Keys{client: client, url: url, caller: outbound.New("azure-login", o), now: now}
}

// Key returns the key with an id. The id is untrusted and is only compared. A missing key is
// DocumentUntrusted only if a fetch that began after this call did not return it. Otherwise, it may be
// a new key, and the result is ProviderUnavailable.
func (k *Keys) Key(ctx context.Context, kid string) (crypto.PublicKey, error) {
	k.mu.Lock()
	before := k.begun
	k.mu.Unlock()
	key, ask := k.find(kid)
	var err error
	if ask {
		_, err = outbound.Ask(ctx, k.caller, "keys", k.url, 0, func(ctx context.Context) (struct{}, error) {
			if _, still := k.find(kid); !still {
				return struct{}{}, nil // another caller was faster
			}
			k.mu.Lock()
			k.begun++
			of := k.begun
			k.mu.Unlock()
			set, err := k.fetch(ctx)
			k.store(of, set, err)
			return struct{}{}, err
		})
		key, _ = k.find(kid)
	}
	if key != nil {
		return key, nil // even if the set could not be refreshed
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if err == nil {
		err = k.failed
	}
	if err != nil {
		return nil, reason.Wrap(reason.ProviderUnavailable, err, "the tenant's keys, for the key %.64q", kid)
	}
	if k.of <= before {
		return nil, reason.Deny(reason.ProviderUnavailable,
			"the tenant had no key %.64q %s ago; the next fetch is allowed %s after that", kid,
			k.now().Sub(k.fetched).Round(time.Second), keysAtMost)
	}
	return nil, reason.Deny(reason.DocumentUntrusted, "the tenant has no key %.64q", kid)
}

// find returns a cached key, and whether the set should be fetched.
func (k *Keys) find(kid string) (*rsa.PublicKey, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.now()
	age, since := now.Sub(k.fetched), now.Sub(k.tried)
	key := k.known[kid]
	if age >= keysStale {
		key = nil
	}
	switch {
	case k.tried.IsZero():
		return nil, true
	case k.failed != nil:
		return key, since >= keysRetry
	case key == nil:
		return nil, since >= keysAtMost
	}
	return key, age >= keysFresh
}

func (k *Keys) store(of int, set map[string]*rsa.PublicKey, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.now()
	k.tried, k.failed = now, err
	if err == nil {
		k.known, k.fetched, k.of = set, now, of
	}
}

func (k *Keys) fetch(ctx context.Context) (map[string]*rsa.PublicKey, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, k.url, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Accept", "application/json")
	a, err := k.client.Do(r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = a.Body.Close() }()
	raw, err := io.ReadAll(io.LimitReader(a.Body, maxKeySet+1))
	switch {
	case err != nil:
		return nil, err
	case a.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%s returned status %d", k.url, a.StatusCode)
	case len(raw) > maxKeySet:
		return nil, fmt.Errorf("%s returned more than %d bytes", k.url, maxKeySet)
	}
	return parseKeys(raw)
}

// parseKeys parses a key set. It ignores keys that cannot sign tokens (of another type or size, or not
// for signatures), because new kinds may appear.
func parseKeys(raw []byte) (map[string]*rsa.PublicKey, error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(raw, &set); err != nil {
		return nil, fmt.Errorf("the key set: %w", err)
	}
	if len(set.Keys) > maxKeys {
		return nil, fmt.Errorf("the key set has %d keys; at most %d", len(set.Keys), maxKeys)
	}
	all := map[string]*rsa.PublicKey{}
	for _, one := range set.Keys {
		var k jose.JSONWebKey
		if err := k.UnmarshalJSON(one); err != nil || k.KeyID == "" || k.Use != "" && k.Use != "sig" || k.Algorithm != "" &&
			k.Algorithm != "RS256" {
			continue
		}
		public, ok := k.Key.(*rsa.PublicKey)
		if !ok || public.N.BitLen() < minRSABits || public.N.BitLen() > maxRSABits || public.E != rsaExponent {
			continue
		}
		if _, twice := all[k.KeyID]; twice {
			return nil, fmt.Errorf("the key set has %.64q twice", k.KeyID)
		}
		all[k.KeyID] = public
	}
	if len(all) == 0 {
		return nil, errors.New("the key set has no key for signatures")
	}
	return all, nil
}
