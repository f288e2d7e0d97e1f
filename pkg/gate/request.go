// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"fmt"
	"net/http"
	"path"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// Pool returns the pool of a request's path, decoded as in [net/url.URL.Path]. Like the
// Machine Config Server it uses the last element, regardless of those before. So
// /config/worker/master, /config/worker%2fmaster and /config/master/ are the pool master.
// Case matters.
//
// The pool must be a valid name of a MachineConfigPool, a DNS-1123 subdomain. No other
// text reaches a log, a label or the upstream.
func Pool(urlPath string) (pool string, ok bool) {
	pool = path.Base(urlPath)
	if len(validation.IsDNS1123Subdomain(pool)) > 0 {
		return "", false
	}
	return pool, true
}

// maxBearer is the maximum size of a token; attestation tokens have about 1.2 kB.
const maxBearer = 4096

// bearer reads the token of the Authorization header (RFC 6750, section 2.1). It does not
// read the body or the query, because Ignition and every proxy on the path log URLs. Only
// a provisioning token may be in the URL, if the policy allows it; see parameter.
func bearer(h http.Header) ([]byte, error) {
	values := h["Authorization"]
	if len(values) == 0 {
		return nil, reason.Deny(reason.TokenMissing, "no Authorization header")
	}
	scheme, raw, _ := strings.Cut(values[0], " ")
	if len(values) > 1 || !strings.EqualFold(scheme, "Bearer") || raw == "" || len(raw) > maxBearer ||
		strings.ContainsFunc(raw, notToken68) {
		return nil, reason.Deny(reason.TokenInvalid,
			"%d Authorization headers; exactly one of the form \"Bearer token\" is required",
			len(values))
	}
	return []byte(raw), nil
}

// notToken68 reports whether r is not in the alphabet of token68 (RFC 9110, section 11.2).
func notToken68(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-._~+/=", r)
}

// accessLine returns the Machine Config Server's log line for a request. The assisted
// installer reads client and User-Agent from it to track a host's progress. All values are
// quoted. The path is omitted, because a caller may have put a token into it.
func accessLine(pool, source string, r *http.Request) string {
	return fmt.Sprintf("Pool %q requested by address:%q User-Agent:%q Accept-Header: %q",
		pool, source, clip(r.Header.Get("User-Agent")), clip(r.Header.Get("Accept")))
}

// maxLogged is the maximum size of a header in the log. Ignition's headers are shorter.
const maxLogged = 64

// clip limits the size of a header and replaces the characters that %q would expand.
func clip(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || r == '"' || r == '\\' {
			return '?'
		}
		return r
	}, s[:min(len(s), maxLogged)])
}
