package gate

import (
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
)

// Via is what a gate adds to a request that it passes on (RFC 9110, 7.6.3). A gate
// that receives it is the upstream of a gate, perhaps of itself: it answers 508 and
// decides nothing, so that one request never becomes many.
const Via = "1.1 mcs-attest"

// looped reports whether a gate passed the request on.
func looped(r *http.Request) bool {
	for hop := range strings.SplitSeq(strings.Join(r.Header.Values("Via"), ","), ",") {
		if strings.Join(strings.Fields(hop), " ") == Via {
			return true
		}
	}
	return false
}

// Proxy is an upstream for [Config]: the Machine Config Server at base. The
// transport brings its trust anchors and must not compress; nil is an error of
// the caller's, since the default one trusts the public web.
//
// Redirects are not followed but refused with the rest of the answer.
func Proxy(base *url.URL, transport http.RoundTripper) http.Handler {
	return &httputil.ReverseProxy{
		Transport: transport,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(base)
			r.Out.Host = base.Host
			r.Out.Header.Set("Via", Via)
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			if rec, ok := w.(*recorder); ok {
				rec.err = err
			}
			w.WriteHeader(http.StatusBadGateway)
		},
		// What it has to say is in the decision.
		ErrorLog: log.New(io.Discard, "", 0),
	}
}
