// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"
)

// clientTime is slightly longer than the timeout of a call.
const clientTime = callTime + 2*time.Second

// NewClient returns a client for the API of one provider that uses the proxy of the environment. It
// does not follow redirects. An answer that is longer than limit ends with an error. ca is a PEM file
// with the only trusted CAs; if empty, the system's CAs are trusted.
func NewClient(ca string, limit int64) (*http.Client, error) {
	if ca == "" {
		return NewClientOf(nil, limit), nil
	}
	roots := x509.NewCertPool()
	if err := AddCA(roots, ca); err != nil {
		return nil, err
	}
	return NewClientOf(roots, limit), nil
}

// NewClientOf is NewClient with these CAs. If nil, the system's CAs are trusted.
func NewClientOf(roots *x509.CertPool, limit int64) *http.Client {
	return &http.Client{
		Timeout:       clientTime,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: Limit(&http.Transport{
			Proxy:                  http.ProxyFromEnvironment,
			DialContext:            (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
			TLSClientConfig:        &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
			TLSHandshakeTimeout:    5 * time.Second,
			ResponseHeaderTimeout:  clientTime,
			MaxResponseHeaderBytes: 64 << 10,
			MaxIdleConnsPerHost:    8,
			IdleConnTimeout:        90 * time.Second,
			ForceAttemptHTTP2:      true,
			// Within a call, so that the next one does not use a dead connection again.
			HTTP2:              &http.HTTP2Config{SendPingTimeout: 5 * time.Second, PingTimeout: 3 * time.Second},
			DisableCompression: true, // the limit applies to the bytes that are read
		}, limit),
	}
}

// AddCA adds the certificates of a PEM file to a pool.
func AddCA(pool *x509.CertPool, file string) error {
	raw, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if !pool.AppendCertsFromPEM(raw) {
		return fmt.Errorf("%s has no certificate in PEM", file)
	}
	return nil
}

// Limit returns a RoundTripper that ends each answer longer than limit with an error. It also protects
// the libraries that renew credentials.
func Limit(next http.RoundTripper, limit int64) http.RoundTripper { return limited{next, limit} }

type limited struct {
	next  http.RoundTripper
	limit int64
}

func (l limited) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := l.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	answer.Body = limitedBody{http.MaxBytesReader(nil, answer.Body, l.limit)}
	return answer, nil
}

// limitedBody names an answer in its error, where net/http names a request.
type limitedBody struct{ io.ReadCloser }

func (b limitedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
		err = errors.New("the answer is too large")
	}
	return n, err
}
