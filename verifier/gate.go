package main

import (
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/verifier/internal/redeem"
	"github.com/mcs-attest/mcs-attest/verifier/internal/service"
)

func (s *server) ownConfigs() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		raw, ok := s.keeper.Snapshot().Configs[path.Base(r.URL.Path)]
		if !ok {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		_, _ = w.Write(raw)
	})
}

func (s *server) gate(upstream http.Handler) http.Handler {
	red := redeem.Redeemer{Records: s.records, Machines: func() *machine.Index { return s.keeper.World().Machines }, Now: time.Now}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		raw, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !ok {
			w.WriteHeader(401)
			return
		}
		c, err := s.tokens.Load().Verify(time.Now(), []byte(raw), service.Audience)
		if err == nil && c.Pool != path.Base(r.URL.Path) {
			err = reason.Deny(reason.TokenPool, "x")
		}
		if err == nil {
			if r.Method == http.MethodHead {
				err = red.Check(r.Context(), c)
			} else {
				err = red.Redeem(r.Context(), c)
			}
		}
		if err != nil {
			s.log.Warn("gate", "error", err)
			w.WriteHeader(reason.From(err).Code.Info().GateStatus)
			return
		}
		upstream.ServeHTTP(w, r)
	})
}
