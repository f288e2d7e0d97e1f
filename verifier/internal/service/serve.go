// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"crypto/sha256"
	"fmt"
	"mime"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
	"github.com/mcs-attest/mcs-attest/proto/mcsattest/v1/mcsattestv1connect"
	"github.com/mcs-attest/mcs-attest/verifier/internal/audit"
	"github.com/mcs-attest/mcs-attest/verifier/internal/listen"
)

// The maximum body size of each call, in bytes (proto/README.md, section 2).
const (
	MaxChallenge = 160 << 10
	MaxAttest    = 512 << 10
	MaxCertify   = 8 << 10
	MaxReport    = 32 << 10
)

// method is one call of the contract.
type method struct {
	event   string // for audit log and metrics
	limit   int    // of the body, in bytes
	request func() proto.Message
	// proof is the field with what this verifier issued to the caller before: the
	// sealed challenge or the ticket. It is "" if the call has none.
	proof protoreflect.Name
	// run performs the call.
	run func(s *Service, ctx context.Context, c *call, req proto.Message) (proto.Message, error)
}

var methods = map[string]*method{
	mcsattestv1connect.AttestationChallengeProcedure: {
		event: "challenge", limit: MaxChallenge, request: func() proto.Message { return &mcsattestv1.ChallengeRequest{} },
		run: func(s *Service, _ context.Context, c *call, req proto.Message) (proto.Message, error) {
			res, err := s.challenge(c, req.(*mcsattestv1.ChallengeRequest))
			if err == nil && len(res.GetSealed()) > 0 {
				c.conn.Challenged(owed(res))
			}
			return orNil(res, err)
		},
	},
	mcsattestv1connect.AttestationAttestProcedure: {
		event: "attest", limit: MaxAttest, proof: "sealed",
		request: func() proto.Message { return &mcsattestv1.AttestRequest{} },
		run: func(s *Service, ctx context.Context, c *call, req proto.Message) (proto.Message, error) {
			res, err := s.attest(ctx, c, req.(*mcsattestv1.AttestRequest))
			c.conn.Answered(res.GetCertifyTicket() != "")
			return orNil(res, err)
		},
	},
	mcsattestv1connect.AttestationCertifyProcedure: {
		event: "certify", limit: MaxCertify, proof: "ticket",
		request: func() proto.Message { return &mcsattestv1.CertifyRequest{} },
		run: func(s *Service, ctx context.Context, c *call, req proto.Message) (proto.Message, error) {
			res, err := s.certify(ctx, c, req.(*mcsattestv1.CertifyRequest))
			if len(res.GetCertificates()) > 0 || err != nil && !reason.From(err).Code.Temporary() {
				c.conn.Certified()
			}
			return orNil(res, err)
		},
	},
	mcsattestv1connect.AttestationRehearseChallengeProcedure: {
		event: "rehearse-challenge", limit: MaxChallenge, proof: "ticket",
		request: func() proto.Message { return &mcsattestv1.RehearseChallengeRequest{} },
		run: func(s *Service, ctx context.Context, c *call, req proto.Message) (proto.Message, error) {
			res, err := s.rehearseChallenge(ctx, c, req.(*mcsattestv1.RehearseChallengeRequest))
			if err == nil {
				c.conn.Challenged(0) // a shutdown does not wait for a rehearsal
			}
			return orNil(res, err)
		},
	},
	mcsattestv1connect.AttestationRehearseProcedure: {
		event: "rehearse", limit: MaxAttest, proof: "sealed",
		request: func() proto.Message { return &mcsattestv1.RehearseRequest{} },
		run: func(s *Service, ctx context.Context, c *call, req proto.Message) (proto.Message, error) {
			res, err := s.rehearse(ctx, c, req.(*mcsattestv1.RehearseRequest))
			return orNil(res, err)
		},
	},
	mcsattestv1connect.AttestationReportProcedure: {
		event: "report", limit: MaxReport, proof: "ticket",
		request: func() proto.Message { return &mcsattestv1.ReportRequest{} },
		run: func(s *Service, ctx context.Context, c *call, req proto.Message) (proto.Message, error) {
			err := s.report(ctx, c, req.(*mcsattestv1.ReportRequest))
			return &mcsattestv1.ReportResponse{CorrelationId: c.id}, err
		},
	},
}

// owed returns how long a challenge can be answered, or 0 if the answer needs no particular connection.
func owed(res *mcsattestv1.ChallengeResponse) time.Duration {
	if res.GetBinding() != mcsattestv1.BindingMode_BINDING_MODE_EXPORTER {
		return 0
	}
	return time.Duration(res.GetLifetimeSeconds()) * time.Second
}

// orNil returns a nil interface for a typed nil.
func orNil[M interface {
	comparable
	proto.Message
}](m M, err error) (proto.Message, error) {
	var zero M
	if m == zero {
		return nil, err
	}
	return m, err
}

// newTurns returns turns for as many concurrent requests as there are processors. The others wait
// at most 5 seconds, which is less than a client waits.
func newTurns() *listen.Turns { return listen.NewTurns(runtime.GOMAXPROCS(0), 5*time.Second) }

// maxBodies limits the memory of all bodies together, in bytes.
const maxBodies = 24 << 20

// Handler returns the path prefix of the API and its handler: unary calls of the Connect protocol over
// HTTP/1.1, as described in proto/README.md. It serves no other protocol.
func (s *Service) Handler() (string, http.Handler) {
	s.bodies, s.turns, s.provenTurns = listen.NewBodies(maxBodies), newTurns(), newTurns()
	s.proofs = listen.NewKeyedLimiter[[sha256.Size]byte](0.5, 3)
	s.attempts = listen.NewKeyedLimiter[attempt](0.5, 10)
	s.lookups = listen.NewKeyedLimiter[lookup](1, 20)
	s.rehearsals = s.newRehearsals()
	return "/" + mcsattestv1connect.AttestationName + "/", http.HandlerFunc(s.serve)
}

func (s *Service) serve(w http.ResponseWriter, r *http.Request) {
	m := methods[r.URL.Path]
	switch {
	case m == nil:
		w.WriteHeader(http.StatusNotFound)
		return
	case r.Method != http.MethodPost:
		w.Header().Set("Allow", http.MethodPost)
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	c := &call{tls: r.TLS, conn: listen.FromContext(r.Context()), source: s.Source(r), id: audit.NewCorrelationID(),
		start: s.Now()}
	contentType, binary, known := encodingOf(r.Header)
	if !known {
		_ = s.finish(r.Context(), m.event, c,
			reason.Deny(reason.Malformed, "content type %q", truncate(r.Header.Get("Content-Type"))))
		w.Header().Set("Accept-Post", "application/json, application/proto")
		w.Header().Set("Connection", "close")
		w.WriteHeader(http.StatusUnsupportedMediaType)
		return
	}
	ctx, cancel := withTimeout(r.Context(), r.Header.Get("Connect-Timeout-Ms"))
	defer cancel()
	res, err := s.call(ctx, m, c, w, r, binary)
	if err = s.finish(ctx, m.event, c, err); err != nil {
		_ = connect.NewErrorWriter().Write(w, r, err) // this fails if the client has disconnected
		return
	}
	var out []byte
	if binary {
		out, err = proto.Marshal(res)
	} else {
		out, err = protojson.Marshal(res)
	}
	if err != nil {
		w.WriteHeader(http.StatusInternalServerError) // impossible for a message of the verifier
		return
	}
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Content-Length", strconv.Itoa(len(out)))
	_, _ = w.Write(out)
}

// call admits a request, then parses it, then runs it. The checks, the cheapest first, are:
//
//   - the connection uses TLS 1.3: TLSRequired
//   - a Challenge arrives before the server shuts down: ShuttingDown
//   - the body is no larger than the call needs, arrives in time, and there is room for it: TooLarge,
//     RateLimited
//   - the caller presents a valid seal or ticket, or its source is below the rate
//     limit: RateLimited. A valid proof is not subject to the rate limit of its source
//   - the message has few enough parts to be parsed: TooLarge
//   - the call gets a turn, from a separate queue for a valid seal or ticket:
//     RateLimited
//   - the message parses: Malformed
//
// The call keeps its turn until it waits for the API, the disk or a cloud.
func (s *Service) call(ctx context.Context, m *method, c *call, w http.ResponseWriter, r *http.Request,
	binary bool) (proto.Message, error) {
	if err := tls13(c); err != nil {
		w.Header().Set("Connection", "close")
		return nil, err
	}
	if m.event == "challenge" {
		c.conn.Challenging(true) // before Stopping, so that Drain misses no challenge
		defer c.conn.Challenging(false)
		if s.Stopping != nil && s.Stopping() {
			w.Header().Set("Connection", "close")
			return nil, reason.Deny(reason.ShuttingDown, "no new attestation")
		}
	}
	body, release, err := s.bodies.Read(w, r, c.source, m.limit)
	if err != nil {
		w.Header().Set("Connection", "close")
		return nil, err
	}
	defer release()
	req := m.request()
	proof, tooMany := scan(body, binary, req.ProtoReflect().Descriptor(), m.proof)
	proven, err := s.admit(m, c, proof)
	if err != nil {
		return nil, err
	}
	if tooMany != nil {
		return nil, tooMany
	}
	turns := s.turns
	if proven {
		turns = s.provenTurns // unproven callers of the same address fill the other queue
	}
	if c.yield, err = turns.Acquire(ctx, c.source); err != nil {
		return nil, err
	}
	defer c.yield()
	if binary {
		err = proto.Unmarshal(body, req)
	} else {
		err = protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(body, req)
	}
	if err != nil {
		// A client that sends such a body may send more, so each one costs it a
		// connection.
		w.Header().Set("Connection", "close")
		if m.proof == "ticket" {
			// The parser quotes what it cannot parse, which may be the ticket.
			return nil, reason.Deny(reason.Malformed, "body of %d bytes", len(body))
		}
		return nil, reason.Wrap(reason.Malformed, err, "body of %d bytes", len(body))
	}
	return m.run(s, ctx, c, req)
}

// admit denies a source that sends too many requests, unless the caller presents a proof that only this
// verifier issues: a seal or a ticket for its own connection, or a report ticket. An administrator's ticket for a
// rehearsal is a proof, too. The first Challenge of a connection is not counted, because it waits for its turn.
// admit reports whether the caller presented such a proof.
func (s *Service) admit(m *method, c *call, proof []byte) (proven bool, err error) {
	switch {
	case m.event == "challenge" && c.conn != nil && c.conn.FirstChallenge():
		return false, nil
	// Each proof admits only a few requests, so that its holder cannot flood the verifier with
	// it.
	case m.event == "attest" && s.ownSeal(c, proof):
		c.answered = true
		if s.proofs.Allow(c.start, sha256.Sum256(proof)) {
			return true, nil
		}
	case m.event == "certify" && s.ownCertifyTicket(c, proof), m.event == "report" && s.ownTicket(c, proof),
		m.event == "rehearse-challenge" && s.rehearsals.Valid(c.start, proof):
		if s.proofs.Allow(c.start, sha256.Sum256(proof)) {
			return true, nil
		}
	}
	if m.event == "rehearse" {
		// All challenges of a ticket share its bucket.
		if ticket, own := s.rehearsals.Own(c.start, listen.Exporter(c.tls), proof); own {
			c.answered = true
			if s.proofs.Allow(c.start, ticket) {
				return true, nil
			}
		}
	}
	if !s.Limiter.Allow(c.start, c.source) {
		return false, reason.Deny(reason.RateLimited, "source %s", c.source)
	}
	return false, nil
}

// ownSeal reports whether sealed is a challenge of this verifier, is fresh and, if the policy binds it,
// was issued on this connection.
func (s *Service) ownSeal(c *call, sealed []byte) bool {
	challenge, err := s.SealKeys().Open(sealed)
	if err != nil {
		return false
	}
	p, err := s.View().Policies.For(challenge.Pool)
	if err != nil || challenge.Fresh(c.start, p.ChallengeLifetime) != nil {
		return false
	}
	return p.Binding != v1alpha1.BindingExporter || string(challenge.Exporter) == string(listen.Exporter(c.tls))
}

func (s *Service) ownTicket(c *call, ticket []byte) bool {
	_, err := s.SealKeys().OpenTicket(c.start, string(ticket))
	return err == nil
}

func (s *Service) ownCertifyTicket(c *call, ticket []byte) bool {
	_, err := s.openCertifyTicket(c, string(ticket))
	return err == nil
}

// encodingOf returns the encoding of a message from its headers.
func encodingOf(h http.Header) (contentType string, binary, known bool) {
	if v := h.Get("Connect-Protocol-Version"); v != "" && v != "1" {
		return "", false, false
	}
	if v := h.Get("Content-Encoding"); v != "" && v != "identity" {
		// A compressed body could expand a hundredfold, and no client needs one.
		return "", false, false
	}
	media, params, err := mime.ParseMediaType(h.Get("Content-Type"))
	if err != nil {
		return "", false, false
	}
	charset := params["charset"]
	switch {
	case media == "application/proto" && len(params) == 0:
		return media, true, true
	case media == "application/json" && (charset == "" || strings.EqualFold(charset, "utf-8")):
		return media, false, true
	}
	return "", false, false
}

// withTimeout returns a request's context with the timeout in milliseconds that the client sent.
func withTimeout(ctx context.Context, limit string) (context.Context, context.CancelFunc) {
	ms, err := strconv.ParseUint(limit, 10, 32)
	if err != nil || ms == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, time.Duration(ms)*time.Millisecond,
		fmt.Errorf("the client waits for %d ms", ms))
}
