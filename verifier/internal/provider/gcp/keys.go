// SPDX-License-Identifier: Apache-2.0

package gcp

import (
	"cmp"
	"context"
	"crypto"
	"crypto/rsa"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/gcpidentity"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/outbound"
)

// KeysURL is where Google publishes the keys of its identity tokens: the jwks_uri of
// https://accounts.google.com/.well-known/openid-configuration.
const KeysURL = "https://www.googleapis.com/oauth2/v3/certs"

const (
	// A set is fresh for the time in its Cache-Control, within these limits.
	minFresh, defaultFresh, maxFresh = 5 * time.Minute, time.Hour, 24 * time.Hour
	// staleIfError is the time for which the keys of a set stay valid while Google is unreachable.
	// Google publishes a key for days.
	staleIfError = 24 * time.Hour
	// minRefresh is the minimum time between two fetches, because a caller can invent key ids.
	minRefresh = 30 * time.Second
)

// KeysOptions configure Keys.
type KeysOptions struct {
	Endpoint config.Endpoint // gcp.keys; the URL is the full address of the set
	// Static returns the keys of the folder google-keys, which are valid in addition to Google's. If
	// nil, there are none.
	Static func() *gcpidentity.StaticKeys
	// Offline disables fetches.
	Offline bool
	// Caller limits the fetches. Required unless Offline.
	Caller *outbound.Caller
}

// Keys are the keys of the folder and Google's. It implements gcpidentity.Keys.
type Keys struct {
	o       KeysOptions
	fetched *outbound.KeySet // nil if offline
}

var _ gcpidentity.Keys = (*Keys)(nil)

// NewKeys returns Keys. It fetches nothing yet.
func NewKeys(o KeysOptions) (*Keys, error) {
	if o.Offline {
		return &Keys{o: o}, nil
	}
	client, err := outbound.NewClient(o.Endpoint.CA, gcpidentity.MaxKeySet)
	if err != nil {
		return nil, fmt.Errorf("gcp.keys: %w", err)
	}
	return &Keys{o: o, fetched: &outbound.KeySet{
		Name: "Google's keys", URL: cmp.Or(o.Endpoint.URL, KeysURL), Client: client, Caller: o.Caller,
		Parse: func(raw []byte) (map[string]*rsa.PublicKey, error) { return gcpidentity.ParseKeySet(raw) },
		Fresh: freshness, Stale: staleIfError, Interval: minRefresh,
	}}, nil
}

// Key returns the key with that id.
func (k *Keys) Key(ctx context.Context, kid string) (crypto.PublicKey, error) {
	var static *gcpidentity.StaticKeys
	if k.o.Static != nil {
		static = k.o.Static()
	}
	key, err := static.Key(ctx, kid)
	if err == nil || k.o.Offline {
		return key, err
	}
	return k.fetched.Key(ctx, kid)
}

// freshness returns how long an answer is fresh (RFC 9111, 4.2), within the limits.
func freshness(h http.Header) time.Duration {
	age, ok := time.Duration(0), false
	for directive := range strings.SplitSeq(strings.Join(h.Values("Cache-Control"), ","), ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(directive), "=")
		switch strings.ToLower(name) {
		case "no-store", "no-cache":
			return minFresh
		case "max-age":
			if d, valid := deltaSeconds(strings.Trim(value, `"`)); valid {
				age, ok = d, true
			}
		}
	}
	if !ok {
		return defaultFresh
	}
	if already, valid := deltaSeconds(h.Get("Age")); valid {
		age -= already
	}
	return min(max(age, minFresh), maxFresh)
}

// deltaSeconds parses a number of seconds. One that is too large is the largest (RFC 9111, 1.2.2).
func deltaSeconds(s string) (time.Duration, bool) {
	n, err := strconv.ParseUint(s, 10, 31)
	return time.Duration(n) * time.Second, err == nil || errors.Is(err, strconv.ErrRange)
}
