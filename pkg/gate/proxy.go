// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
)

// Via is the header value that a gate adds to a forwarded request (RFC 9110, section
// 7.6.3). A gate that receives it is the upstream of a gate, possibly of itself. It
// answers 508, so that no request loops.
const Via = "1.1 mcs-attest"

// looped reports whether a gate forwarded the request.
func looped(r *http.Request) bool {
	for hop := range strings.SplitSeq(strings.Join(r.Header.Values("Via"), ","), ",") {
		if strings.Join(strings.Fields(hop), " ") == Via {
			return true
		}
	}
	return false
}

// Proxy returns an upstream for [Config]: the Machine Config Server at base. transport has
// the trust anchors and must not request compression. It must not be nil, because the default
// transport trusts public authorities.
//
// The gate rejects redirects, it does not follow them.
func Proxy(base *url.URL, transport http.RoundTripper) http.Handler {
	return &httputil.ReverseProxy{
		Transport: transport,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(base)
			r.Out.Header.Set("Via", Via)
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			if rec, ok := w.(*recorder); ok {
				rec.err = err
			}
			w.WriteHeader(http.StatusBadGateway)
		},
		// The decision has the error.
		ErrorLog: log.New(io.Discard, "", 0),
	}
}
