// Package audit writes the verifier's audit log: one structured line for each
// decision about a machine.
//
// A line about a caller that proved which machine it is is always written. A
// line about anyone else comes from a budget, so that nobody fills a disk by
// knocking; how many were left out is said in the next line that is written.
// Text from the network is bounded and stripped of control characters.
package audit

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"log/slog"
	"strings"
	"sync"
	"unicode"

	"golang.org/x/time/rate"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

const (
	perSecond = 10
	burst     = 100
	maxText   = 512
)

// Log is the audit log.
type Log struct {
	out    *slog.Logger
	budget *rate.Limiter

	mu         sync.Mutex
	suppressed int
}

// New returns an audit log that writes to out.
func New(out *slog.Logger) *Log {
	return &Log{out: out.With("log", "audit"), budget: rate.NewLimiter(perSecond, burst)}
}

// Decision is one decision.
type Decision struct {
	Event         string // "challenge", "attest", "fetch", "report"
	Outcome       string // "allowed", "denied", "would-deny"
	Denial        *reason.Denial
	CorrelationID string
	Source        string // the client's address
	Pool          string
	Machine       string // "namespace/name" once known
	// Proven says that transcript-bound evidence or a token named the Machine, or
	// that a valid provisioning token was shown.
	Proven bool
	Extra  []slog.Attr // verified facts: digests, endorsement, token id
}

// Write writes d.
func (l *Log) Write(ctx context.Context, d Decision) {
	var left int
	if !d.Proven {
		l.mu.Lock()
		if !l.budget.Allow() {
			l.suppressed++
			l.mu.Unlock()
			return
		}
		left, l.suppressed = l.suppressed, 0
		l.mu.Unlock()
	}
	level := slog.LevelInfo
	attrs := []slog.Attr{
		slog.String("event", d.Event), slog.String("outcome", d.Outcome),
		slog.String("correlation_id", d.CorrelationID), slog.String("source", Clean(d.Source)),
		slog.String("pool", Clean(d.Pool)),
	}
	if d.Machine != "" {
		attrs = append(attrs, slog.String("machine", d.Machine))
	}
	if d.Denial != nil {
		level = slog.LevelWarn
		attrs = append(attrs, slog.String("reason", d.Denial.Code.String()),
			slog.Bool("temporary", d.Denial.Code.Temporary()), slog.String("detail", Clean(d.Denial.Error())))
	}
	attrs = append(attrs, d.Extra...)
	if left > 0 {
		attrs = append(attrs, slog.Int("suppressed", left))
	}
	l.out.LogAttrs(ctx, level, "decision", attrs...)
}

// Clean bounds text from the network and replaces what is not printable.
func Clean(s string) string {
	if len(s) > maxText {
		s = s[:maxText] + "..."
	}
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == unicode.ReplacementChar {
			return '?'
		}
		return r
	}, s)
}

// NewCorrelationID names one call in this log.
func NewCorrelationID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // crypto/rand.Read never fails
	return hex.EncodeToString(b[:])
}
