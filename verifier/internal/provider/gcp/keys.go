package gcp

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"log/slog"
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
	// A set counts for as long as its Cache-Control says, within these bounds.
	minFresh, defaultFresh, maxFresh = 5 * time.Minute, time.Hour, 24 * time.Hour
	// staleIfError is how long a set still counts for the keys in it while Google
	// cannot be reached. Google publishes a key for days.
	staleIfError = 24 * time.Hour
	// minRefresh lies between two fetches, whoever asks for whatever: a kid is free
	// to invent. After a failure it is shorter.
	minRefresh, minRetry = 30 * time.Second, 5 * time.Second
)

// KeysOptions are how keys are had.
type KeysOptions struct {
	Endpoint config.Endpoint // gcp.keys; the URL is the whole address of the set
	// Static are the keys of the folder google-keys; they count beside Google's. Nil: none.
	Static func() *gcpidentity.StaticKeys
	// Offline leaves Google unasked.
	Offline bool
	// Caller bounds the fetches; required unless Offline.
	Caller *outbound.Caller
	Now    func() time.Time
	Log    *slog.Logger
	// State is told of each fetch: the keys that there are and until when they are
	// fresh, or the error. For metrics.
	State func(keys int, fresh time.Time, err error)
}

// Keys are Google's keys, fetched when they are needed:
//
//   - A kid of a set that is fresh is answered from memory.
//   - For one that is not in it, and for a set that is no longer fresh, the set is
//     fetched: once for all who wait, and not more often than every 30 seconds (5
//     after a failure). So a flood of tokens with invented kids costs Google nothing.
//   - If it cannot be fetched, a key of the last set counts for another day.
//   - A kid that is not there is DocumentUntrusted only if Google was asked for this
//     very question, in a fetch that began after it was put. In the time between two
//     fetches, while Google cannot be reached, and offline it may be a key that is
//     new: ProviderUnavailable, and the node comes again.
//
// It implements gcpidentity.Keys.
type Keys struct {
	o      KeysOptions
	url    string
	client *http.Client

	mu    sync.Mutex
	set   gcpidentity.KeySet
	fresh time.Time // until when
	tried time.Time // the last fetch
	err   error     // of the last fetch
	begun int       // fetches that were begun
	of    int       // the fetch that set is of, counted from 1
}

var _ gcpidentity.Keys = (*Keys)(nil)

// NewKeys prepares to fetch; it fetches nothing yet.
func NewKeys(o KeysOptions) (*Keys, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
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

// Key returns the key of that id.
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
		return nil, reason.Wrap(reason.ProviderUnavailable, failed, "key %.128q of Google's", kid)
	}
	return key, err
}

// known answers from what is there. It is done if no fetch could, or may, change that.
// Before is how many fetches had begun when the question was put.
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
			"the keys of Google's identity tokens cannot be had")
	case k.of <= before:
		return nil, mayNot, reason.Deny(reason.ProviderUnavailable,
			"key %.128q is none of Google's %d; they may be asked for again in %s", kid, len(k.set),
			k.tried.Add(wait).Sub(now).Round(time.Second))
	default:
		return nil, mayNot, reason.Deny(reason.DocumentUntrusted, "key %.128q is none of Google's %d", kid, len(k.set))
	}
}

// refresh fetches the set. It runs once at a time.
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

// freshness is how long an answer counts (RFC 9111, 4.2), within our bounds.
func freshness(h http.Header) time.Duration {
	age, ok := time.Duration(0), false
	for directive := range strings.SplitSeq(strings.Join(h.Values("Cache-Control"), ","), ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(directive), "=")
		switch strings.ToLower(name) {
		case "no-store", "no-cache":
			return minFresh
		case "max-age":
			seconds, err := strconv.ParseUint(strings.Trim(value, `"`), 10, 31)
			if err != nil && !errors.Is(err, strconv.ErrRange) {
				continue
			}
			age, ok = time.Duration(seconds)*time.Second, true
		}
	}
	if !ok {
		return defaultFresh
	}
	if already, err := strconv.ParseUint(h.Get("Age"), 10, 31); err == nil {
		age -= time.Duration(already) * time.Second
	}
	return min(max(age, minFresh), maxFresh)
}
