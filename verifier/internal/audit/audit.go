// SPDX-License-Identifier: Apache-2.0

// Package audit writes the verifier's audit log: one structured line for each decision about a machine.
//
// A line about a caller that proved which machine it is is always written. Lines about other callers
// have a budget, so that no flood fills a disk. Each source has a share of the budget that others
// cannot use up, and callers that answered their own challenge have a separate budget. The next line
// that is written has the number of omitted lines. Text from the network is truncated and stripped of
// control characters.
package audit

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"log/slog"
	"strings"
	"sync"
	"time"
	"unicode"

	"golang.org/x/time/rate"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/verifier/internal/listen"
)

const (
	// The rates and bursts of all sources together, of the shares of all sources together, and of the
	// share of one source.
	perSecond, burst             = 10, 100
	sharesPerSecond, sharesBurst = 10, 200
	sharePerSecond, shareBurst   = 0.1, 25

	maxText = 512
)

// Budget limits the lines about one kind of caller.
type Budget struct {
	all, shares *rate.Limiter
	share       *listen.KeyedLimiter[string]
}

// NewBudget returns a budget that is unused.
func NewBudget() Budget {
	return Budget{rate.NewLimiter(perSecond, burst), rate.NewLimiter(sharesPerSecond, sharesBurst),
		listen.NewKeyedLimiter[string](sharePerSecond, shareBurst)}
}

// Allow reports whether a line about a caller from source can be written.
func (b Budget) Allow(now time.Time, source string) bool {
	return b.share.Allow(now, source) && b.shares.AllowN(now, 1) || b.all.AllowN(now, 1)
}

// Log is the audit log.
type Log struct {
	out                *slog.Logger
	strangers, answers Budget
	// LeftOut, if not nil, is called for each omitted line.
	LeftOut func()

	recent Recent

	mu         sync.Mutex
	suppressed int
}

// New returns an audit log that writes to out.
func New(out *slog.Logger) *Log {
	return &Log{out: out.With("log", "audit"), strangers: NewBudget(), answers: NewBudget()}
}

// Decision is a decision about one call.
type Decision struct {
	Event         string // "challenge", "attest", "certify", "fetch", "report", "rehearse-challenge", "rehearse"
	Outcome       string // "allowed", "denied", "would-deny", "disconnected"
	Denial        *reason.Denial
	CorrelationID string
	Source        string // the client's address
	Pool          string
	Machine       string // "namespace/name" if known
	// Proven means that transcript-bound evidence or a token named the Machine, or that the caller
	// presented a valid provisioning token.
	Proven bool
	// EKSHA256 is the EK that the caller's TPM proved to have, in hex, or "".
	EKSHA256 string
	// Answered means that the caller answered a challenge that was issued on its own connection.
	Answered bool
	Extra    []slog.Attr // verified facts: digests, endorsement, token id
}

// Recent returns the latest denials, also those whose line was left out.
func (l *Log) Recent() []Denial { return l.recent.List() }

// Write writes d.
func (l *Log) Write(ctx context.Context, d Decision) {
	var left int
	if d.Denial != nil {
		l.recent.Add(time.Now(), d)
	}
	if !d.Proven {
		from := l.strangers
		if d.Answered {
			from = l.answers
		}
		allowed := from.Allow(time.Now(), d.Source)
		l.mu.Lock()
		if !allowed {
			l.suppressed++
			l.mu.Unlock()
			if l.LeftOut != nil {
				l.LeftOut()
			}
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
	if d.EKSHA256 != "" {
		attrs = append(attrs, slog.String("ek", d.EKSHA256))
	}
	attrs = append(attrs, d.Extra...)
	if left > 0 {
		attrs = append(attrs, slog.Int("suppressed", left))
	}
	l.out.LogAttrs(ctx, level, "decision", attrs...)
}

// Clean truncates text from the network and replaces unprintable characters.
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

// NewCorrelationID returns an id for one call in this log.
func NewCorrelationID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // crypto/rand.Read never fails
	return hex.EncodeToString(b[:])
}
