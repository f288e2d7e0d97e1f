// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"context"
	"crypto"
	"crypto/rsa"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

const (
	// maxKeySet is far above the size of a set, which is about 10 kB.
	maxKeySet = 256 << 10
	// keySetRetry is the minimum time between a fetch that failed and the next one.
	keySetRetry = 5 * time.Second
)

// KeySet has the keys that a provider publishes for its tokens (RFC 7517), which are fetched when needed:
//
//   - A key id of a fresh set is answered from memory.
//   - For a missing key id, and for a set that is no longer fresh, the set is fetched: once for all
//     callers that wait, and at most once in Interval (5 seconds after a failure). So a flood of tokens
//     with invented key ids causes no load at the provider.
//   - If the fetch fails, a key of the last set is valid for the time Stale.
//   - A missing key is DocumentUntrusted only if a fetch that began after the call did not return it.
//     Otherwise, it may be a new key. That is also so while the provider is unreachable. The result is
//     then ProviderUnavailable, and the node retries.
type KeySet struct {
	Name     string // for errors
	URL      string
	Client   *http.Client
	Caller   *Caller
	Parse    func([]byte) (map[string]*rsa.PublicKey, error)
	Fresh    func(http.Header) time.Duration // for how long an answer is fresh
	Stale    time.Duration
	Interval time.Duration

	mu    sync.Mutex
	set   map[string]*rsa.PublicKey
	fresh time.Time // until when the set is fresh
	tried time.Time // the last fetch
	err   error     // of the last fetch
	begun int       // the number of fetches that have started
	of    int       // the number of the fetch of set, from 1
}

// Key returns the key with that id. The id is untrusted and is only compared.
func (k *KeySet) Key(ctx context.Context, kid string) (crypto.PublicKey, error) {
	k.mu.Lock()
	before := k.begun
	k.mu.Unlock()
	if key, done, err := k.known(kid, before); done {
		return key, err
	}
	_, failed := Ask(ctx, k.Caller, "keys", k.URL, 0, func(ctx context.Context) (struct{}, error) {
		if _, done, _ := k.known(kid, before); done {
			return struct{}{}, nil // another caller was faster
		}
		return struct{}{}, k.refresh(ctx)
	})
	key, _, err := k.known(kid, before)
	if err != nil && failed != nil {
		return nil, k.unavailable(kid, failed)
	}
	return key, err
}

// known answers from the cached set. done means that no fetch could or may change the answer. before is
// the number of fetches that had started when the question was asked.
func (k *KeySet) known(kid string, before int) (_ crypto.PublicKey, done bool, _ error) {
	now := k.Caller.o.Now()
	k.mu.Lock()
	defer k.mu.Unlock()
	key := k.set[kid]
	wait := k.Interval
	if k.err != nil {
		wait = keySetRetry
	}
	mayNot := now.Before(k.tried.Add(wait)) && !now.Before(k.tried)
	switch {
	case key != nil && now.Before(k.fresh):
		return key, true, nil
	case key != nil && now.Before(k.fresh.Add(k.Stale)):
		return key, mayNot, nil
	case key != nil || k.err != nil:
		return nil, mayNot, k.unavailable(kid, k.err)
	case k.of <= before:
		return nil, mayNot, reason.Deny(reason.ProviderUnavailable,
			"%s have no key %.128q; the next fetch is allowed in %s", k.Name, kid, k.tried.Add(wait).Sub(now).Round(time.Second))
	default:
		return nil, mayNot, reason.Deny(reason.DocumentUntrusted, "%s have no key %.128q", k.Name, kid)
	}
}

func (k *KeySet) unavailable(kid string, err error) error {
	return reason.Wrap(reason.ProviderUnavailable, err, "%s, for the key %.128q", k.Name, kid)
}

// refresh fetches the set. It never runs concurrently.
func (k *KeySet) refresh(ctx context.Context) error {
	k.mu.Lock()
	k.begun++
	of := k.begun
	k.mu.Unlock()
	set, fresh, err := k.fetch(ctx)
	now := k.Caller.o.Now()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.tried, k.err = now, err
	if err == nil {
		k.set, k.fresh, k.of = set, now.Add(fresh), of
	}
	return err
}

func (k *KeySet) fetch(ctx context.Context) (map[string]*rsa.PublicKey, time.Duration, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, k.URL, nil)
	if err != nil {
		return nil, 0, err
	}
	r.Header.Set("Accept", "application/json")
	r.Header.Set("User-Agent", "mcs-attest-verifier")
	resp, err := k.Client.Do(r)
	if err != nil {
		return nil, 0, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxKeySet+1))
	switch {
	case err != nil:
		return nil, 0, err
	case resp.StatusCode != http.StatusOK:
		return nil, 0, fmt.Errorf("%s returned status %s", k.URL, resp.Status)
	case len(raw) > maxKeySet:
		return nil, 0, fmt.Errorf("%s returned more than %d bytes", k.URL, maxKeySet)
	}
	set, err := k.Parse(raw)
	if err != nil {
		return nil, 0, fmt.Errorf("%s: %w", k.URL, err)
	}
	return set, k.Fresh(resp.Header), nil
}
