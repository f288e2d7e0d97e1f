package gate

import (
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
)

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
