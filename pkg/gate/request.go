package gate

import (
	"fmt"
	"net/http"
	"path"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// Pool reads the pool off a request's path, decoded as in [net/url.URL.Path]:
// it is the last element, as the Machine Config Server takes it, whatever stands
// before. So /config/worker/master and /config/worker%2fmaster are the pool
// master, and so is /config/master/. Case counts.
//
// It must be a MachineConfigPool's name, a DNS-1123 subdomain. Nothing else has
// a config, and nothing else gets into a log, a label or a path upstream.
func Pool(urlPath string) (pool string, ok bool) {
	pool = path.Base(urlPath)
	if len(validation.IsDNS1123Subdomain(pool)) > 0 {
		return "", false
	}
	return pool, true
}

// maxBearer bounds what is looked at; our tokens have about 1.2 kB.
const maxBearer = 4096

// bearer reads the token off the Authorization header (RFC 6750, section 2.1).
// The other two places of that document, body and query, are not looked at: a
// URL is logged by Ignition and by every proxy on the way. A provisioning token
// may stand there where the policy says so; see parameter.
func bearer(h http.Header) ([]byte, error) {
	values := h["Authorization"]
	if len(values) == 0 {
		return nil, reason.Deny(reason.TokenMissing, "no Authorization header")
	}
	scheme, raw, ok := strings.Cut(values[0], " ")
	if len(values) > 1 || !ok || !strings.EqualFold(scheme, "Bearer") || raw == "" || len(raw) > maxBearer ||
		strings.ContainsFunc(raw, notToken68) {
		return nil, reason.Deny(reason.TokenInvalid, "%d Authorization headers, or none of the form \"Bearer token\"",
			len(values))
	}
	return []byte(raw), nil
}

// notToken68 is the complement of token68's alphabet (RFC 9110, section 11.2).
func notToken68(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-._~+/=", r)
}

// accessLine is the Machine Config Server's own line for a request. The
// assisted installer reads client and User-Agent off it to see that a host has
// come this far. Everything is quoted; a path that is not a pool's is left out,
// since somebody may have put a token there.
func accessLine(pool, source string, r *http.Request) string {
	return fmt.Sprintf("Pool %q requested by address:%q User-Agent:%q Accept-Header: %q",
		pool, source, clip(r.Header.Get("User-Agent"), 256), clip(r.Header.Get("Accept"), 256))
}

func clip(s string, n int) string {
	if len(s) > n {
		return s[:n]
	}
	return s
}
