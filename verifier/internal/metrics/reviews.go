// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	authentication "k8s.io/api/authentication/v1"
	authorization "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/mcs-attest/mcs-attest/verifier/internal/listen"
)

// Reviews authorizes readers of the metrics and of the web page with the API server: by a TokenReview of the bearer
// token, and a SubjectAccessReview of "get" on the path of the URL.
//
// A decision is cached for a minute. A token that was accepted before is reviewed without a rate limit.
// All other tokens share a rate limit, so that unknown callers cannot make the verifier flood the API
// server. While the API server does not answer, a token that was accepted stays valid for an hour,
// because metrics matter most during an outage.
type Reviews struct {
	Client kubernetes.Interface
	Now    func() time.Time
	Log    *slog.Logger

	once      sync.Once
	perSource *listen.Limiter
	inAll     *rate.Limiter

	mu       sync.Mutex
	accepted map[tokenKey]*access
	denied   map[tokenKey]denial
}

type tokenKey struct {
	token [sha256.Size]byte
	path  string
}

// access is the cached access of an accepted token. Its mutex is held during a review.
type access struct {
	mu       sync.Mutex
	reviewed time.Time
}

type denial struct {
	status int
	until  time.Time
}

const (
	reviewEvery  = time.Minute
	reviewGrace  = time.Hour
	reviewTime   = 5 * time.Second
	deniedFor    = 10 * time.Second
	maxToken     = 8 << 10
	maxDecisions = 256 // of each kind
)

// Protect returns h for callers that the API server authorizes.
func (r *Reviews) Protect(h http.Handler) http.Handler {
	return r.protect(h, func(req *http.Request) string { return req.URL.Path }, `Bearer realm="metrics"`, bearer)
}

// ProtectPage is Protect for the web page at path and below. A caller that may get path may get all of it. A
// browser asks for a name and a password. Any name will do, and the password is the token.
func (r *Reviews) ProtectPage(path string, h http.Handler) http.Handler {
	return r.protect(h, func(*http.Request) string { return path }, `Basic realm="mcs-attest", charset="UTF-8"`,
		func(req *http.Request) string {
			if _, password, ok := req.BasicAuth(); ok {
				return password
			}
			return bearer(req)
		})
}

// bearer returns the bearer token of a request; "" if there is none.
func bearer(req *http.Request) string {
	if scheme, token, _ := strings.Cut(req.Header.Get("Authorization"), " "); strings.EqualFold(scheme, "Bearer") {
		return token
	}
	return ""
}

// protect returns h for callers whose token may get a path.
func (r *Reviews) protect(
	h http.Handler, path func(*http.Request) string, challenge string, token func(*http.Request) string,
) http.Handler {
	r.once.Do(func() {
		r.perSource, r.inAll = listen.NewLimiterWithBurst(1, 10), rate.NewLimiter(10, 50)
		r.accepted, r.denied = map[tokenKey]*access{}, map[tokenKey]denial{}
	})
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		status := http.StatusUnauthorized
		if t := token(req); t != "" && len(t) <= maxToken {
			status = r.decide(req.Context(), t, path(req), listen.Source(req.RemoteAddr))
		}
		switch status {
		case http.StatusOK:
			h.ServeHTTP(w, req)
			return
		case http.StatusUnauthorized:
			w.Header().Set("WWW-Authenticate", challenge)
		case http.StatusTooManyRequests, http.StatusServiceUnavailable:
			w.Header().Set("Retry-After", "5")
		}
		http.Error(w, http.StatusText(status), status)
	})
}

// decide returns the status for a token: 200 if the token may read path.
func (r *Reviews) decide(ctx context.Context, token, path string, source netip.Addr) int {
	now, key := r.Now(), tokenKey{sha256.Sum256([]byte(token)), path}
	r.mu.Lock()
	known, no := r.accepted[key], r.denied[key]
	r.mu.Unlock()
	if known != nil {
		return r.again(ctx, known, token, key, now)
	}
	if now.Before(no.until) {
		return no.status
	}
	if !r.perSource.Allow(now, source) || !r.inAll.AllowN(now, 1) {
		return http.StatusTooManyRequests
	}
	status, err := r.review(ctx, token, path)
	r.note(key, status, err)
	return status
}

// again is decide for a token that was accepted before.
func (r *Reviews) again(ctx context.Context, known *access, token string, key tokenKey, now time.Time) int {
	known.mu.Lock()
	defer known.mu.Unlock()
	if now.Sub(known.reviewed) < reviewEvery {
		return http.StatusOK
	}
	status, err := r.review(ctx, token, key.path)
	switch {
	case err == nil && status == http.StatusOK:
		known.reviewed = r.Now()
	case err != nil && now.Sub(known.reviewed) < reviewGrace:
		r.Log.Debug("review a reader of metrics", "error", err)
		return http.StatusOK
	default:
		r.mu.Lock()
		delete(r.accepted, key)
		r.mu.Unlock()
		r.note(key, status, err)
	}
	return status
}

// note caches a decision. An error is not cached.
func (r *Reviews) note(key tokenKey, status int, err error) {
	if err != nil {
		r.Log.Debug("review a reader of metrics", "error", err)
		return
	}
	now := r.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if status == http.StatusOK {
		for old, a := range r.accepted {
			if len(r.accepted) < maxDecisions {
				break
			}
			if a.mu.TryLock() { // not under review
				delete(r.accepted, old)
				a.mu.Unlock()
			}
		}
		r.accepted[key] = &access{reviewed: now}
		return
	}
	if len(r.denied) >= maxDecisions {
		clear(r.denied)
	}
	r.denied[key] = denial{status, now.Add(deniedFor)}
}

// review requests the reviews. An error means that there is no decision; the status is then 503.
func (r *Reviews) review(ctx context.Context, token, path string) (int, error) {
	// A client that disconnects does not make the review fail, which would count as an outage of the API.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reviewTime)
	defer cancel()
	who, err := r.Client.AuthenticationV1().TokenReviews().Create(ctx, &authentication.TokenReview{
		Spec: authentication.TokenReviewSpec{Token: token},
	}, metav1.CreateOptions{})
	if err != nil {
		return http.StatusServiceUnavailable, fmt.Errorf("review a token: %w", err)
	}
	if !who.Status.Authenticated {
		return http.StatusUnauthorized, nil
	}
	user := who.Status.User
	extra := map[string]authorization.ExtraValue{}
	for k, v := range user.Extra {
		extra[k] = authorization.ExtraValue(v)
	}
	may, err := r.Client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorization.SubjectAccessReview{
		Spec: authorization.SubjectAccessReviewSpec{
			User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra,
			NonResourceAttributes: &authorization.NonResourceAttributes{Path: path, Verb: "get"},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return http.StatusServiceUnavailable, fmt.Errorf("review the access of %s: %w", user.Username, err)
	}
	if !may.Status.Allowed {
		return http.StatusForbidden, nil
	}
	return http.StatusOK, nil
}
