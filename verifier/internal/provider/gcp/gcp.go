// Package gcp asks Google: for the keys that sign identity tokens, and for the
// endorsement keys of an instance's virtual TPM.
//
//	what               where                                                     how often
//	keys of tokens     www.googleapis.com/oauth2/v3/certs                        once in some hours, see Keys
//	a TPM's keys       compute.googleapis.com, getShieldedInstanceIdentity       once for an attestation that needs it
//	own credentials    as Google's application default credentials say           once in an hour
//
// Both endpoints and their authorities can be configured. Proxies are taken from the
// environment (HTTPS_PROXY, NO_PROXY). No redirect is followed, and no answer is
// read beyond a bound.
package gcp

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"golang.org/x/oauth2"
)

// errRedirect is of an API that sends us elsewhere. Google's never do.
var errRedirect = errors.New("a redirect, which is not followed")

// newClient makes a client for one endpoint. CA is a PEM file with the only
// authorities that count; empty: the system's.
func newClient(ca string, limit int64) (*http.Client, error) {
	var roots *x509.CertPool
	if ca != "" {
		roots = x509.NewCertPool()
		if err := addCA(roots, ca); err != nil {
			return nil, err
		}
	}
	return clientOf(roots, limit), nil
}

func addCA(pool *x509.CertPool, file string) error {
	raw, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if !pool.AppendCertsFromPEM(raw) {
		return fmt.Errorf("%s: no certificate in it", file)
	}
	return nil
}

func clientOf(roots *x509.CertPool, limit int64) *http.Client {
	return &http.Client{
		Timeout:       10 * time.Second, // with the body, however slowly it comes
		CheckRedirect: func(*http.Request, []*http.Request) error { return errRedirect },
		Transport: &limited{limit: limit, base: &http.Transport{
			Proxy:                  http.ProxyFromEnvironment,
			DialContext:            (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
			TLSClientConfig:        &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
			TLSHandshakeTimeout:    5 * time.Second,
			ResponseHeaderTimeout:  8 * time.Second,
			MaxResponseHeaderBytes: 64 << 10,
			IdleConnTimeout:        90 * time.Second,
			MaxIdleConnsPerHost:    4,
			ForceAttemptHTTP2:      true,
		}},
	}
}

// limited ends a body that is too long with an error, for whoever reads it, the
// libraries that renew credentials too.
type limited struct {
	base  http.RoundTripper
	limit int64
}

func (l *limited) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := l.base.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	resp.Body = &limitedBody{ReadCloser: resp.Body, left: l.limit}
	return resp, nil
}

type limitedBody struct {
	io.ReadCloser
	left int64
}

var errLong = errors.New("the answer is too long")

func (b *limitedBody) Read(p []byte) (int, error) {
	if int64(len(p)) > b.left+1 {
		p = p[:b.left+1]
	}
	n, err := b.ReadCloser.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, errLong
	}
	return n, err
}

// get asks for a document, and returns the answer whatever its status. Without a
// token it asks as nobody.
func get(ctx context.Context, c *http.Client, token *oauth2.Token, url string) (*http.Response, []byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, nil, err
	}
	r.Header.Set("Accept", "application/json")
	r.Header.Set("User-Agent", "mcs-attest-verifier")
	if token != nil {
		token.SetAuthHeader(r)
	}
	resp, err := c.Do(r)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, nil, err
	}
	return resp, raw, nil
}
