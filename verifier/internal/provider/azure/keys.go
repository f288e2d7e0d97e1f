// SPDX-License-Identifier: Apache-2.0

package azure

import (
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/mcs-attest/mcs-attest/verifier/internal/outbound"
)

const (
	keysFresh    = time.Hour // a set is not fetched again during this time
	keysStale    = 23 * time.Hour
	keysInterval = 5 * time.Minute
	maxKeys      = 100
	minRSABits   = 2048
	maxRSABits   = 4096
	rsaExponent  = 65537
)

// newKeys returns the keys of a tenant, as its login endpoint publishes them.
func newKeys(client *http.Client, url string, o outbound.Options) *outbound.KeySet {
	return &outbound.KeySet{Name: "the tenant's keys", URL: url, Client: client, Caller: outbound.New("azure-login", o),
		Parse: parseKeys, Fresh: func(http.Header) time.Duration { return keysFresh }, Stale: keysStale,
		Interval: keysInterval}
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
