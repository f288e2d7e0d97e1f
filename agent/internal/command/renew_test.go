// SPDX-License-Identifier: Apache-2.0

package command

import (
	"bytes"
	"context"
	"crypto/x509"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/agent/internal/client"
	"github.com/mcs-attest/mcs-attest/agent/internal/console"
	"github.com/mcs-attest/mcs-attest/agent/internal/flow"
	"github.com/mcs-attest/mcs-attest/agent/internal/paths"
	"github.com/mcs-attest/mcs-attest/agent/internal/verifiertest"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
)

// The second server needs longer than the token of the first one is valid. Ignition would present that token.
func TestAttestTo_RenewsATokenThatGrewOld(t *testing.T) {
	denied := verifiertest.Denial(mcsattestv1.DenialClass_DENIAL_CLASS_MACHINE, false)
	for name, c := range map[string]struct {
		wait  time.Duration
		again error // the first server's answer to another attestation
		want  string
	}{
		"a short time":             {4 * time.Minute, nil, "token-1"},
		"a long time":              {6 * time.Minute, nil, "token-2"},
		"a denial the second time": {6 * time.Minute, denied, ""},
	} {
		t.Run(name, func(t *testing.T) {
			const imageToken = "AAAA-bbb_CCCC-ddd_EEEE-fff_GGGG-hhh_IIII-jjj"
			var clock atomic.Int64
			attests := 0
			required := []mcsattestv1.EvidenceKind{mcsattestv1.EvidenceKind_EVIDENCE_KIND_PROVISIONING_TOKEN}
			accepts := func(w http.ResponseWriter, _ *http.Request) bool { return w != nil }
			token := func(text string) *mcsattestv1.AttestResponse {
				return &mcsattestv1.AttestResponse{Token: text, TokenLifetimeSeconds: 600, ReportTicket: text}
			}
			first := &verifiertest.Verifier{Required: required, ProvisioningToken: imageToken, GateFunc: accepts,
				AttestFunc: func(*mcsattestv1.AttestRequest) (*mcsattestv1.AttestResponse, error) {
					if attests++; attests == 2 {
						return token("token-2"), c.again
					}
					return token("token-1"), nil
				}}
			second := &verifiertest.Verifier{Required: required, ProvisioningToken: imageToken, GateFunc: accepts,
				AttestFunc: func(*mcsattestv1.AttestRequest) (*mcsattestv1.AttestResponse, error) {
					if time.Duration(clock.Load()) < c.wait {
						return nil, verifiertest.Denial(mcsattestv1.DenialClass_DENIAL_CLASS_NOT_YET, true)
					}
					return token("other"), nil
				}}
			first.Start(t)
			second.Start(t)
			authorities := []*x509.Certificate{first.Authority, second.Authority}
			var out bytes.Buffer
			a := &agent{console: &console.Console{Out: &out, Err: &out},
				paths: paths.Paths{Run: filepath.Join(t.TempDir(), "mcs-attest")}}
			f := &flow.Flow{Console: a.console, Version: "test/1", Dialer: client.NewDialer(authorities),
				Claims:  func(context.Context) []byte { return []byte("{}") },
				Offline: func(error) bool { return false },
				Since:   func() time.Duration { return time.Duration(clock.Load()) },
				Sleep: func(_ context.Context, d time.Duration) error {
					clock.Add(int64(d))
					return nil
				}}
			var targets []flow.Target
			for _, v := range []*verifiertest.Verifier{first, second} {
				targets = append(targets, flow.Target{Origin: v.Origin, Pool: "worker", URL: v.Origin + "/config/worker",
					Provisioning: secret.New([]byte(imageToken))})
			}
			pointer := `{"ignition":{"version":"3.2.0","config":{"merge":[{"source":"` + targets[0].URL + `"},{"source":"` +
				targets[1].URL + `"}]}}}`
			got, err := a.attestTo(t.Context(), f, targets, authorities, []byte(pointer))
			if c.want == "" {
				if err == nil {
					t.Errorf("no error; the config is %s", got)
				}
				return
			}
			if err != nil {
				t.Fatalf("%v\n%s", err, &out)
			}
			if strings.Count(string(got), "Bearer "+c.want) != 1 || strings.Count(string(got), "Bearer other") != 1 ||
				strings.Count(string(got), "Bearer ") != 2 {
				t.Errorf("%s\n%s", got, &out)
			}
		})
	}
}
