package service

import (
	"context"
	"crypto/rand"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/seal"
	"github.com/mcs-attest/mcs-attest/proto/mcsattest/v1/mcsattestv1connect"
	"github.com/mcs-attest/mcs-attest/verifier/internal/audit"
	"github.com/mcs-attest/mcs-attest/verifier/internal/listen"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
)

type updated struct {
	Records
	n int
}

func (u *updated) Update(context.Context, string, store.Change) error { u.n++; return nil }

func TestAttack_T61_StrangersWhoWaitForTurnsDoNotDelayAValidTicket(t *testing.T) {
	now := time.Now()
	keys, err := seal.Ring{}.Rotate(rand.Reader, now, 0, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	ticket, err := keys.SealTicket(rand.Reader, now, seal.Ticket{ID: "1", MachineUID: "m1", Expiry: now.Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	source := netip.MustParseAddr("127.0.0.1")
	records := &updated{}
	s := &Service{
		SealKeys: func() seal.Ring { return keys }, Records: records, Audit: audit.New(slog.New(slog.DiscardHandler)),
		Limiter: listen.NewLimiter(100), Source: func(*http.Request) netip.Addr { return source },
		Now:           func() time.Time { return now },
		ObserveTicket: func(bool) {},
	}
	_, handler := s.Handler()
	s.turns = listen.NewTurns(runtime.GOMAXPROCS(0), time.Millisecond)
	for range runtime.GOMAXPROCS(0) {
		done, err := s.turns.Take(t.Context(), source)
		if err != nil {
			t.Fatal(err)
		}
		defer done()
	}
	srv := httptest.NewTLSServer(handler)
	defer srv.Close()
	for shown, want := range map[string]int{ticket: http.StatusOK, "AAAA": http.StatusServiceUnavailable} {
		res, err := srv.Client().Post(srv.URL+mcsattestv1connect.AttestationReportProcedure, "application/json",
			strings.NewReader(`{"ticket":"`+shown+`"}`))
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("ticket %.8q: %d %s, want %d (%v for a stranger)", shown, res.StatusCode, text, want, reason.RateLimited)
		}
	}
	if records.n != 1 {
		t.Errorf("%d reports were recorded", records.n)
	}
}
