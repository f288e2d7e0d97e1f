// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/policy"
	"github.com/mcs-attest/mcs-attest/pkg/seal"
	"github.com/mcs-attest/mcs-attest/proto/mcsattest/v1/mcsattestv1connect"
	"github.com/mcs-attest/mcs-attest/verifier/internal/audit"
	"github.com/mcs-attest/mcs-attest/verifier/internal/listen"
	"github.com/mcs-attest/mcs-attest/verifier/internal/view"
)

// A server that stops waits for each Challenge in progress. Afterward it waits only if Attest must arrive on the same
// connection.
func TestDrain_WaitsOnlyForTheConnectionOfAnAnswer(t *testing.T) {
	frontEnd := sha256.Sum256([]byte("front end"))
	for binding, want := range map[v1alpha1.Binding]struct {
		keys []string
		owed bool
	}{
		v1alpha1.BindingExporter:   {nil, true},
		v1alpha1.BindingTerminated: {[]string{hex.EncodeToString(frontEnd[:])}, false},
	} {
		t.Run(string(binding), func(t *testing.T) {
			now := time.Now()
			keys, err := seal.Ring{}.Rotate(rand.Reader, now, 0, time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			var p v1alpha1.AttestationPolicy
			p.Name = "workers"
			p.Spec = v1alpha1.AttestationPolicySpec{
				Pools: []string{"worker"}, Evidence: []v1alpha1.EvidenceAlternative{{All: []string{"aws-iid"}}},
				Binding: binding, FrontEndKeys: want.keys,
			}
			policies, err := policy.Compile(p)
			if err != nil {
				t.Fatal(err)
			}
			srv := httptest.NewUnstartedServer(nil)
			limited := listen.Limit(srv.Listener, 10, nil)
			waits := func(most time.Duration) bool {
				ctx, cancel := context.WithTimeout(t.Context(), most)
				defer cancel()
				limited.Drain(ctx)
				return ctx.Err() != nil
			}
			active := make(chan bool, 1)
			s := &Service{
				View:     func() *view.View { return &view.View{Complete: true, Policies: policies} },
				SealKeys: func() seal.Ring { return keys }, Audit: audit.New(slog.New(slog.DiscardHandler)),
				Origins: func(string) bool { active <- waits(10 * time.Millisecond); return true },
				Limiter: listen.NewLimiter(100), Now: func() time.Time { return now },
				Source: func(*http.Request) netip.Addr { return netip.MustParseAddr("192.0.2.1") },
			}
			_, srv.Config.Handler = s.Handler()
			srv.Listener = limited
			listen.Track(srv.Config)
			srv.StartTLS()
			defer srv.Close()
			res, err := srv.Client().Post(srv.URL+mcsattestv1connect.AttestationChallengeProcedure, "application/json",
				strings.NewReader(`{"origin":"o","pool":"worker","offered":["EVIDENCE_KIND_AWS_IID"]}`))
			if err != nil {
				t.Fatal(err)
			}
			text, _ := io.ReadAll(res.Body)
			_ = res.Body.Close()
			if res.StatusCode != http.StatusOK {
				t.Fatalf("%d %s", res.StatusCode, text)
			}
			if !<-active {
				t.Error("it does not wait for a Challenge in progress")
			}
			most := time.Minute
			if want.owed {
				most = 10 * time.Millisecond
			}
			if got := waits(most); got != want.owed {
				t.Errorf("it waits for the answer: %v, want %v", got, want.owed)
			}
		})
	}
}
