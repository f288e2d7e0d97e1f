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
	"io"
	"net/http"

	"golang.org/x/oauth2"
)

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
