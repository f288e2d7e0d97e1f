// SPDX-License-Identifier: Apache-2.0

package gcp

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/gcpidentity"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
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
	// minRefresh is the minimum time between two fetches, because a caller can invent key ids. After a
	// failure it is minRetry.
	minRefresh, minRetry = 30 * time.Second, 5 * time.Second
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
	Now    func() time.Time
	// State, if set, receives the result of each fetch for metrics: the number of keys and until when
	// they are fresh, or the error.
	State func(keys int, fresh time.Time, err error)
}

// Keys are Google's keys, which are fetched when needed:
//
//   - A key id of a fresh set is answered from memory.
//   - For a missing key id, and for a set that is no longer fresh, the set is fetched: once for all
//     callers that wait, and at most every 30 seconds (5 after a failure). So a flood of tokens with
//     invented key ids causes no load at Google.
//   - If the fetch fails, a key of the last set is valid for another day.
//   - A missing key is DocumentUntrusted only if a fetch that began after the call did not return it.
//     Otherwise, it may be a new key. That is also so while Google is unreachable, and offline. The
//     result is then ProviderUnavailable, and the node retries.
//
// It implements gcpidentity.Keys.
type Keys struct {
	o      KeysOptions
	url    string
	client *http.Client

	mu    sync.Mutex
	set   gcpidentity.KeySet
	fresh time.Time // until when the set is fresh
	tried time.Time // the last fetch
	err   error     // of the last fetch
	begun int       // the number of fetches that have started
	of    int       // the number of the fetch of set, from 1
}

var _ gcpidentity.Keys = (*Keys)(nil)

// NewKeys returns Keys. It fetches nothing yet.
func NewKeys(o KeysOptions) (*Keys, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	k := &Keys{o: o, url: KeysURL}
	if o.Offline {
		return k, nil
	}
	if o.Endpoint.URL != "" {
		k.url = o.Endpoint.URL
	}
	var err error
	if k.client, err = outbound.NewClient(o.Endpoint.CA, gcpidentity.MaxKeySet); err != nil {
		return nil, fmt.Errorf("gcp.keys: %w", err)
	}
	return k, nil
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
	k.mu.Lock()
	before := k.begun
	k.mu.Unlock()
	if key, done, err := k.known(kid, before); done {
		return key, err
	}
	_, failed := outbound.Ask(ctx, k.o.Caller, "keys", k.url, 0, k.refresh)
	key, _, err = k.known(kid, before)
	if err != nil && failed != nil {
		return nil, reason.Wrap(reason.ProviderUnavailable, failed, "key %.128q of Google", kid)
	}
	return key, err
}

// known answers from the cached set. done means that no fetch could or may change the answer. before is
// the number of fetches that had started when the question was asked.
func (k *Keys) known(kid string, before int) (_ crypto.PublicKey, done bool, _ error) {
	now := k.o.Now()
	k.mu.Lock()
	defer k.mu.Unlock()
	key, there := k.set[kid]
	wait := minRefresh
	if k.err != nil {
		wait = minRetry
	}
	mayNot := !k.tried.IsZero() && now.Before(k.tried.Add(wait)) && !now.Before(k.tried)
	fresh := now.Before(k.fresh)
	switch {
	case there && fresh:
		return key, true, nil
	case there && now.Before(k.fresh.Add(staleIfError)):
		return key, mayNot, nil
	case k.err != nil || k.set == nil || there:
		return nil, mayNot, reason.Wrap(reason.ProviderUnavailable, k.err,
			"the keys of Google's identity tokens cannot be fetched")
	case k.of <= before:
		return nil, mayNot, reason.Deny(reason.ProviderUnavailable,
			"key %.128q is not one of Google's %d; the next fetch is allowed in %s", kid, len(k.set),
			k.tried.Add(wait).Sub(now).Round(time.Second))
	default:
		return nil, mayNot, reason.Deny(reason.DocumentUntrusted, "key %.128q is not one of Google's %d", kid, len(k.set))
	}
}

// refresh fetches the set. It never runs concurrently.
func (k *Keys) refresh(ctx context.Context) (struct{}, error) {
	k.mu.Lock()
	k.begun++
	of := k.begun
	k.mu.Unlock()
	set, fresh, err := k.fetch(ctx)
	now := k.o.Now()
	k.mu.Lock()
	k.tried, k.err = now, err
	if err == nil {
		k.set, k.fresh, k.of = set, now.Add(fresh), of
	}
	n, until := len(k.set), k.fresh
	k.mu.Unlock()
	if k.o.State != nil {
		k.o.State(n, until, err)
	}
	return struct{}{}, err
}

func (k *Keys) fetch(ctx context.Context) (gcpidentity.KeySet, time.Duration, error) {
	resp, raw, err := get(ctx, k.client, nil, k.url)
	if err != nil {
		return nil, 0, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, 0, fmt.Errorf("%s: status %s", k.url, resp.Status)
	}
	set, err := gcpidentity.ParseKeySet(raw)
	if err != nil {
		return nil, 0, fmt.Errorf("%s: %w", k.url, err)
	}
	return set, freshness(resp.Header), nil
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
