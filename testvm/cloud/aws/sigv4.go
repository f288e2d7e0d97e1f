// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

// The errors have the form "Code: message", as in STS.
var (
	errIncomplete = errors.New("IncompleteSignature: the request is not signed by Signature Version 4")
	errUnknown    = errors.New("InvalidClientTokenId: The security token included in the request is invalid")
	errSession    = errors.New("ExpiredToken: The security token included in the request is expired")
	errExpired    = errors.New("SignatureDoesNotMatch: Signature expired or not yet current")
	errSignature  = errors.New(
		"SignatureDoesNotMatch: The request signature we calculated does not match the signature you provided")
	errUnsigned = errors.New("SignatureDoesNotMatch: 'host' and every X-Amz header must be signed")
)

var authorization = regexp.MustCompile(`^AWS4-HMAC-SHA256 Credential=([A-Z0-9]+)/([0-9]{8})/([a-z0-9-]+)/([a-z0-9]+)/aws4_request, ?SignedHeaders=([a-z0-9;-]+), ?Signature=([0-9a-f]{64})$`)

type signer struct {
	key
	region string
}

// authenticate computes the request's signature again with the SDK's own signer, over exactly the
// headers in the list of signed headers.
func (c *Cloud) authenticate(r *http.Request, body []byte, service string) (*signer, error) {
	m := authorization.FindStringSubmatch(r.Header.Get("Authorization"))
	if m == nil || m[4] != service {
		return nil, errIncomplete
	}
	at, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
	if err != nil || at.Format("20060102") != m[2] {
		return nil, errIncomplete
	}
	c.mu.Lock()
	k, ok := c.keys[m[1]]
	c.mu.Unlock()
	now := c.now()
	switch {
	case !ok || r.Header.Get("X-Amz-Security-Token") != k.SessionToken:
		return nil, errUnknown
	case !k.expires.IsZero() && now.After(k.expires):
		return nil, errSession
	case now.Sub(at).Abs() > 15*time.Minute:
		return nil, errExpired
	}
	names := strings.Split(m[5], ";")
	again, err := http.NewRequestWithContext(r.Context(), r.Method, "https://"+r.Host+r.URL.RequestURI(),
		bytes.NewReader(body))
	if err != nil {
		return nil, errIncomplete
	}
	if !slices.Contains(names, "content-length") {
		again.ContentLength = 0
	}
	for name, values := range r.Header {
		lower := strings.ToLower(name)
		switch {
		case slices.Contains(names, lower):
			again.Header[name] = values
		case strings.HasPrefix(lower, "x-amz-"):
			return nil, errUnsigned
		}
	}
	digest := sha256.Sum256(body)
	credentials := aws.Credentials{AccessKeyID: k.AccessKeyID, SecretAccessKey: k.SecretAccessKey,
		SessionToken: k.SessionToken}
	if err := v4.NewSigner().SignHTTP(r.Context(), credentials, again, hex.EncodeToString(digest[:]), service,
		m[3], at); err != nil {
		return nil, errSignature
	}
	want := authorization.FindStringSubmatch(again.Header.Get("Authorization"))
	if want == nil || want[5] != m[5] || want[6] != m[6] {
		return nil, errSignature
	}
	return &signer{k, m[3]}, nil
}
