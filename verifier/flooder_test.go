// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	tpm "github.com/google/go-tpm/tpm2"

	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
	"github.com/mcs-attest/mcs-attest/proto/mcsattest/v1/mcsattestv1connect"
)

// flood sends perSecond hostile requests, of all kinds in turn, until stop is
// called, which returns how many were sent. At most 64 are active at one time.
func flood(t testing.TB, v *verifier, perSecond int) (stop func() int) {
	t.Helper()
	keys, err := newSoftKeys()
	if err != nil {
		t.Fatal(err)
	}
	ek, ak, _, _ := keys.public()
	ctx, cancel := context.WithCancel(context.Background())
	client := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", v.addr)
		},
		TLSClientConfig: &tls.Config{RootCAs: v.roots}, DisableKeepAlives: true,
	}}
	post := func(call string, body []byte) {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, testOrigin+apiPath+call, bytes.NewReader(body))
		if err != nil {
			return
		}
		req.Header.Set("Content-Type", "application/json")
		discard(client.Do(req))
	}
	get := func(path, bearer string) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, testOrigin+path, nil)
		if err != nil {
			return
		}
		if bearer != "" {
			req.Header.Set("Authorization", "Bearer "+bearer)
		}
		discard(client.Do(req))
	}
	large := []byte(`{"cloud":[` + strings.Repeat("{},", 100000) + "{}]}")
	kinds := []func(){
		func() { get("/config/worker", "") },
		func() { get("/config/worker", "eyJhbGciOiJFUzI1NiJ9.e30."+strings.Repeat("A", 86)) },
		func() { post("Challenge", []byte(`{"pool":`)) },
		func() { post("Attest", []byte(`{"sealed":"AAAA"}`)) },
		func() { post("Attest", large) },
		func() { post("Report", []byte(`{"ticket":"AAAA"}`)) },
		func() { // a challenge that is answered, and then silence
			_, _ = mcsattestv1connect.NewAttestationClient(client, testOrigin).Challenge(ctx,
				connect.NewRequest(&mcsattestv1.ChallengeRequest{
					Pool: "worker", Origin: testOrigin,
					Offered: []mcsattestv1.EvidenceKind{mcsattestv1.EvidenceKind_EVIDENCE_KIND_TPM2},
					Tpm:     &mcsattestv1.TpmIdentity{EkPublic: ek, AkPublic: ak, Banks: []uint32{uint32(tpm.TPMAlgSHA256)}},
				}))
		},
		func() { // a connection that stays silent
			if c, err := (&net.Dialer{}).DialContext(ctx, "tcp", v.addr); err == nil {
				context.AfterFunc(ctx, func() { _ = c.Close() })
			}
		},
	}
	var sent atomic.Int64
	var wg sync.WaitGroup
	slots := make(chan struct{}, 64)
	wg.Go(func() {
		tick := time.NewTicker(time.Second / time.Duration(perSecond))
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			select {
			case <-ctx.Done():
				return
			case slots <- struct{}{}:
			}
			wg.Go(func() {
				defer func() { <-slots }()
				kinds[i%len(kinds)]()
				sent.Add(1)
			})
		}
	})
	return sync.OnceValue(func() int {
		cancel()
		wg.Wait()
		return int(sent.Load())
	})
}

func discard(res *http.Response, err error) {
	if err == nil {
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
	}
}

// provision is what an honest machine does: one attestation, then one fetch.
func provision(ctx context.Context, v *verifier, n *loadNode) error {
	token, _, err := n.attest(ctx)
	if err != nil {
		return fmt.Errorf("attest: %w", err)
	}
	return collect(ctx, v, token)
}

// collect fetches the config with a token.
func collect(ctx context.Context, v *verifier, token string) error {
	client := &http.Client{Transport: v.transport()}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, testOrigin+"/config/worker", nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("fetch: %w", err)
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		return fmt.Errorf("fetch: %s: %w", res.Status, err)
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("fetch: %s", res.Status)
	}
	return nil
}
