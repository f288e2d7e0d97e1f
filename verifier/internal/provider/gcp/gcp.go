// SPDX-License-Identifier: Apache-2.0

// Package gcp queries Google for the keys that sign identity tokens, and for the endorsement keys of an
// instance's virtual TPM.
//
//	what               where                                                     how often
//	keys of tokens     www.googleapis.com/oauth2/v3/certs                        once in some hours, see outbound.KeySet
//	a TPM's keys       compute.googleapis.com, getShieldedInstanceIdentity       once for an attestation that needs it
//	own credentials    as defined by Google's application default credentials    once in an hour
//
// Both endpoints and their CAs are configurable. Proxies come from the environment (HTTPS_PROXY,
// NO_PROXY). Redirects are not followed, and the size of answers is limited.
package gcp

import (
	"context"
	"io"
	"net/http"

	"golang.org/x/oauth2"
)

// get requests a document, and returns the answer whatever its status.
func get(ctx context.Context, c *http.Client, token *oauth2.Token, url string) (*http.Response, []byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, nil, err
	}
	r.Header.Set("Accept", "application/json")
	r.Header.Set("User-Agent", "mcs-attest-verifier")
	token.SetAuthHeader(r)
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
