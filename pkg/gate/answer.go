// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
)

// problem is the body of a denial (RFC 9457). It names only the class of the reason.
// Administrators find the failed check by the correlation ID.
type problem struct {
	Type     string `json:"type"`
	Title    string `json:"title"`
	Status   int    `json:"status"`
	Detail   string `json:"detail"`
	Instance string `json:"instance,omitempty"`
}

// titles are the texts for callers, by class.
var titles = map[mcsattestv1.DenialClass]string{
	mcsattestv1.DenialClass_DENIAL_CLASS_MALFORMED:   "The request breaks the contract.",
	mcsattestv1.DenialClass_DENIAL_CLASS_CHALLENGE:   "The challenge cannot be used.",
	mcsattestv1.DenialClass_DENIAL_CLASS_EVIDENCE:    "The evidence does not prove what it should.",
	mcsattestv1.DenialClass_DENIAL_CLASS_MACHINE:     "No Machine may attest with this identity.",
	mcsattestv1.DenialClass_DENIAL_CLASS_TOKEN:       "A valid token for this pool is needed.",
	mcsattestv1.DenialClass_DENIAL_CLASS_NOT_YET:     "Not yet.",
	mcsattestv1.DenialClass_DENIAL_CLASS_UNAVAILABLE: "Temporarily unavailable.",
}

// deny writes the response for a denial. For a HEAD request, net/http omits the body.
func deny(w http.ResponseWriter, d *reason.Denial, correlationID string) {
	info := d.Code.Info()
	p := problem{Type: "about:blank", Title: titles[info.Class], Status: info.GateStatus}
	if info.BearerError != "" {
		// The caller must not learn which kind of token was expected.
		p.Title = titles[mcsattestv1.DenialClass_DENIAL_CLASS_TOKEN]
	}
	if info.Temporary {
		p.Detail = "Try again; Ignition does so by itself."
	} else {
		p.Detail = "Trying again will not help. The machine's console and 'mcs-attest-verifier explain' say more."
	}
	if correlationID != "" {
		p.Instance = "urn:mcs-attest:" + correlationID
	}
	body, err := json.Marshal(p)
	if err != nil {
		body = nil // impossible: strings and a number
	}
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Cache-Control", "no-store")
	switch info.GateStatus {
	case http.StatusUnauthorized, http.StatusForbidden:
		h.Set("WWW-Authenticate", challenge(info.BearerError))
	case http.StatusServiceUnavailable:
		h.Set("Retry-After", "5") // Ignition ignores it, other clients do not
	}
	w.WriteHeader(info.GateStatus)
	_, _ = w.Write(body) // an error means that the client disconnected
}

// challenge returns the WWW-Authenticate header (RFC 6750, section 3). If the request has no token,
// code is "".
func challenge(code string) string {
	parts := []string{`Bearer realm="mcs"`}
	if code != "" {
		parts = append(parts, `error="`+code+`"`)
	}
	return strings.Join(parts, ", ")
}

// empty writes a response without a body, like the Machine Config Server outside of /config/.
func empty(w http.ResponseWriter, status int) {
	w.Header().Set("Content-Length", "0")
	w.WriteHeader(status)
}
