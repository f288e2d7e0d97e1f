// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"cmp"
	"context"
	"crypto/sha256"
	"net/http"
	"net/url"
	"strconv"

	"k8s.io/utils/lru"

	"github.com/mcs-attest/mcs-attest/pkg/credential"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/specversion"
)

// answer is a response that was read in full and checked.
type answer struct {
	parts       [][]byte // of the body; shared, so read-only
	contentType string
	passed      *Rendered
	slot        *credential.Slot // place of the machine's own credential, or nil
}

// size returns the size of the body in bytes.
func (a *answer) size() (n int) {
	for _, part := range a.parts {
		n += len(part)
	}
	return n
}

func (a *answer) send(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", a.contentType)
	h.Set("Content-Length", strconv.Itoa(a.size()))
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return
	}
	for _, part := range a.parts {
		_, _ = w.Write(part) // an error means that the client disconnected
	}
}

// forwarded are the request headers that affect the upstream's response. The gate
// forwards no others, in particular not the token.
var forwarded = []string{"Accept", "User-Agent"}

// fetch requests the pool's config from the upstream and checks the response. If a HEAD
// request recently fetched the same config, fetch returns that response. The checks, in
// order:
//
//   - it arrived in time: UpstreamUnavailable
//   - it is not larger than MaxConfig: UpstreamInvalid, as for all others below
//   - its status is 200. A Machine Config Server answers 400 if it rejects the Accept
//     header: Malformed
//   - it has as many bytes as announced, and no content coding
//   - it is one whole Ignition config, of a version that the client supports
func (g *gate) fetch(r *request, upstream http.Handler) (*answer, error) {
	q := cacheKeyOf(r)
	if res := g.cache.get(q, g.Now()); res != nil {
		return res, nil
	}
	ctx, cancel := context.WithTimeout(r.Context(), g.UpstreamTimeout)
	defer cancel()
	needed := []chan struct{}{g.slots}
	switch {
	case !r.proven():
		needed = []chan struct{}{g.strangers, g.unattested, g.slots}
	case r.claims == nil:
		needed = []chan struct{}{g.unattested, g.slots}
	}
	for _, slots := range needed {
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
		case <-ctx.Done():
			return nil, reason.Deny(reason.RateLimited, "%d responses are being read", cap(slots))
		}
	}
	// Another request may have fetched it meanwhile.
	if res := g.cache.get(q, g.Now()); res != nil {
		return res, nil
	}
	// Inside a server, a reverse proxy panics on a truncated body. Here that is an invalid
	// response.
	ctx = context.WithValue(ctx, http.ServerContextKey, nil)
	out := (&http.Request{
		Method: http.MethodGet, URL: &url.URL{Path: prefix + r.pool}, Host: r.Host, RemoteAddr: r.RemoteAddr,
		Header: http.Header{}, Body: http.NoBody,
	}).WithContext(ctx)
	for _, name := range forwarded {
		out.Header[name] = r.Header.Values(name)
	}
	rec := &recorder{header: http.Header{}, max: g.MaxConfig}
	upstream.ServeHTTP(rec, out)
	if ctx.Err() != nil && r.Context().Err() == nil {
		return nil, reason.Deny(reason.UpstreamUnavailable, "no response within %v", g.UpstreamTimeout)
	}
	own := rec.rendered != nil // a Source's config is in memory already
	accept := specversion.ParseAccept(r.Header.Get("Accept"))
	if err := rec.check(accept, g.known); err != nil {
		return nil, err
	}
	res := &answer{parts: [][]byte{rec.body}, contentType: rec.header.Get("Content-Type"), passed: rec.rendered}
	res.contentType = cmp.Or(res.contentType, "application/json")
	if r.Method == http.MethodHead && !own {
		g.cache.put(q, g.Now(), res)
	}
	return res, nil
}

// recorder records a response, up to a maximum size.
type recorder struct {
	header http.Header
	status int
	body   []byte
	max    int
	over   bool
	err    error // from Proxy

	// Results of a Source. They are not headers, because the Machine Config Server could
	// send those.
	rendered *Rendered // the config was checked when it was read
	denied   error     // why there is no config
}

func (r *recorder) Header() http.Header { return r.header }

func (r *recorder) WriteHeader(status int) {
	if r.status == 0 && status >= 200 { // a 1xx is not final
		r.status = status
	}
}

func (r *recorder) Write(p []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	if len(r.body)+len(p) > r.max {
		r.over = true
		return 0, errTooLarge
	}
	if r.body == nil {
		n, _ := strconv.Atoi(r.header.Get("Content-Length"))
		r.body = make([]byte, 0, min(max(n, 0), r.max))
	}
	r.body = append(r.body, p...)
	return len(p), nil
}

// share records a checked config without copying it.
func (r *recorder) share(c *Rendered) {
	r.rendered = c
	r.WriteHeader(http.StatusOK)
	if len(c.raw) > r.max {
		r.over = true
		return
	}
	r.body = c.raw
}

type sizeError struct{}

func (sizeError) Error() string { return "the response is too large" }

var errTooLarge = sizeError{}

// check returns an error if the response must not be served.
func (r *recorder) check(accept specversion.Accept, known digests) error {
	invalid := func(format string, a ...any) error { return reason.Deny(reason.UpstreamInvalid, format, a...) }
	switch {
	case r.over:
		return invalid("the response has more than %d bytes", r.max)
	case r.err != nil:
		return reason.Wrap(reason.UpstreamUnavailable, r.err, "request the config")
	case r.denied != nil:
		return r.denied
	case r.status == 0:
		return reason.Deny(reason.UpstreamUnavailable, "no response")
	case r.status == http.StatusBadRequest:
		return reason.Deny(reason.Malformed, "the Machine Config Server answers status 400 to a client that accepts %v",
			accept)
	case r.status == http.StatusLoopDetected:
		return reason.Deny(reason.UpstreamUnavailable, "the upstream leads back to a gate")
	case r.status >= 500:
		return reason.Deny(reason.UpstreamUnavailable, "status %d", r.status)
	case r.status != http.StatusOK:
		return invalid("status %d", r.status)
	case r.header.Get("Content-Encoding") != "" && r.header.Get("Content-Encoding") != "identity":
		return invalid("content coding %.32q", r.header.Get("Content-Encoding"))
	}
	if n := r.header.Get("Content-Length"); n != "" && n != strconv.Itoa(len(r.body)) {
		return invalid("the response has %d bytes of %.20s", len(r.body), n)
	}
	passed := r.rendered
	if passed == nil {
		var err error
		if passed, err = known.pass(r.body); err != nil {
			return reason.Wrap(reason.UpstreamInvalid, err, "parse the response of %d bytes", len(r.body))
		}
		if len(accept) > 0 && !accept.Accepts(passed.version) {
			return invalid("the config has spec %s, but the client accepts %v", passed.version, accept)
		}
	}
	r.rendered = passed
	return nil
}

// find finds the place of the machine's own credential.
func (a *answer) find() (err error) {
	if a.slot, err = a.passed.credential(a.parts[0]); err != nil {
		// Without a replacement, the machine would receive the shared credential.
		return reason.Wrap(reason.UpstreamInvalid, err, "find the credential of the config's kubeconfig")
	}
	return nil
}

// digests caches the parsed properties of the last configs that passed, by digest,
// because parsing a config takes ten times as long as hashing it.
type digests struct{ *lru.Cache }

func newDigests() digests { return digests{lru.New(32)} }

// pass checks that config is an Ignition config, with the cache.
func (d digests) pass(config []byte) (*Rendered, error) {
	sum := sha256.Sum256(config)
	if passed, ok := d.Get(sum); ok {
		return passed.(*Rendered), nil
	}
	v, err := specversion.Of(config)
	if err != nil {
		return nil, err
	}
	passed := &Rendered{version: v} // without its text
	d.Add(sum, passed)
	return passed, nil
}
