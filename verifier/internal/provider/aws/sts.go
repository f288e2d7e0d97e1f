// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/awssts"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/awssts/request"
	"github.com/mcs-attest/mcs-attest/verifier/internal/outbound"
)

type caller struct{ p *Provider }

type stsAnswer struct {
	status      int
	contentType string
	body        []byte
}

// GetCallerIdentity sends a request that package awssts built to its own host, or to the configured
// endpoint with that host in its Host header, because the host is part of the signed data. It does not
// use this process's own credentials.
func (c caller) GetCallerIdentity(ctx context.Context, q awssts.Request) (int, string, []byte, error) {
	a, err := outbound.Ask(ctx, c.p.sts, "GetCallerIdentity", whole(q), 0, func(ctx context.Context) (stsAnswer, error) {
		return c.send(ctx, q)
	})
	return a.status, a.contentType, a.body, err
}

func (c caller) send(ctx context.Context, q awssts.Request) (stsAnswer, error) {
	var none stsAnswer
	if host, ok := request.Host(q.Region); !ok || host != q.Host {
		return none, fmt.Errorf("host %.128q is not that of region %.32q", q.Host, q.Region)
	}
	url := "https://" + q.Host + "/"
	if c.p.stsURL != "" {
		url = c.p.stsURL
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(request.Body))
	if err != nil {
		return none, err
	}
	r.Host = q.Host
	for name, value := range q.Headers {
		r.Header.Set(name, value)
	}
	r.Header.Set("User-Agent", "mcs-attest-verifier")
	answer, err := c.p.relay.Do(r)
	if err != nil {
		return none, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, awssts.MaxAnswer+1))
	if err != nil {
		return none, err
	}
	if answer.StatusCode >= 500 || answer.StatusCode == http.StatusTooManyRequests {
		return none, fmt.Errorf("STS returned status %s", answer.Status)
	}
	return stsAnswer{answer.StatusCode, answer.Header.Get("Content-Type"), body}, nil
}

// whole returns a key that identifies a request completely.
func whole(q awssts.Request) string {
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(q.Headers)) {
		fmt.Fprintf(h, "%q: %q\n", name, q.Headers[name])
	}
	return q.Region + "\x00" + q.Host + "\x00" + string(h.Sum(nil))
}
