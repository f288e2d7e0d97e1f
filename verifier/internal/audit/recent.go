// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"slices"
	"sync"
	"time"
)

const (
	// maxRecent bounds the denials that are kept of each kind of caller.
	maxRecent = 512
	// maxIDs bounds the correlation ids of one denial. A machine that waits asks four times a minute.
	maxIDs = 32
)

// Denial summarizes the calls of one caller that were denied for the same reason. Administrators see it
// when a machine does not boot. Its texts are truncated and printable.
type Denial struct {
	Event     string `json:"event"`
	Outcome   string `json:"outcome"`
	Reason    string `json:"reason"`
	Temporary bool   `json:"temporary"`
	// Detail is that of the last call.
	Detail  string `json:"detail,omitempty"`
	Source  string `json:"source"`
	Pool    string `json:"pool,omitempty"`
	Machine string `json:"machine,omitempty"`
	// EKSHA256 is the EK that the caller's TPM proved to have.
	EKSHA256 string    `json:"ekSHA256,omitempty"`
	First    time.Time `json:"first"`
	Last     time.Time `json:"last"`
	Count    int       `json:"count"`
	// CorrelationIDs are those of the last calls, the newest last.
	CorrelationIDs []string `json:"correlationIDs"`
}

// Recent keeps the latest denials in memory. It is safe for concurrent use.
//
// Calls that differ only in time are one denial. The number of denials is limited: at the limit, the
// source with the most denials loses its oldest one. So a caller that floods from few addresses
// displaces only its own denials. Callers that answered a challenge, or proved more, have a separate
// limit.
type Recent struct {
	mu                  sync.Mutex
	answered, strangers shelf
}

// shelf has the denials of one kind of caller.
type shelf struct {
	denials map[denialKey]*Denial
	sources map[string]int // how many denials each source has
}

type denialKey struct{ event, reason, source, pool, machine, ek string }

// Add adds a decision that was a denial.
func (r *Recent) Add(now time.Time, d Decision) {
	next := Denial{
		Event: d.Event, Outcome: d.Outcome, Reason: d.Denial.Code.String(), Temporary: d.Denial.Code.Temporary(),
		Detail: Clean(d.Denial.Error()), Source: Clean(d.Source), Pool: Clean(d.Pool), Machine: d.Machine,
		EKSHA256: d.EKSHA256, First: now, Last: now, Count: 1,
	}
	if d.CorrelationID != "" {
		next.CorrelationIDs = []string{d.CorrelationID}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if d.Answered || d.Proven {
		r.answered.add(next)
	} else {
		r.strangers.add(next)
	}
}

// Merge adds a denial that was written to a log. A caller whose line has an EK or a Machine has answered a challenge.
func (r *Recent) Merge(d Denial) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if d.EKSHA256 != "" || d.Machine != "" {
		r.answered.add(d)
	} else {
		r.strangers.add(d)
	}
}

// List returns the denials, the newest first.
func (r *Recent) List() []Denial {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []Denial
	for _, s := range []shelf{r.answered, r.strangers} {
		for _, d := range s.denials {
			kept := *d
			kept.CorrelationIDs = slices.Clone(d.CorrelationIDs)
			all = append(all, kept)
		}
	}
	slices.SortFunc(all, func(a, b Denial) int { return b.Last.Compare(a.Last) })
	return all
}

func (s *shelf) add(next Denial) {
	if s.denials == nil {
		s.denials, s.sources = map[denialKey]*Denial{}, map[string]int{}
	}
	key := denialKey{next.Event, next.Reason, next.Source, next.Pool, next.Machine, next.EKSHA256}
	if d := s.denials[key]; d != nil {
		if next.Last.After(d.Last) {
			d.Outcome, d.Detail, d.Last = next.Outcome, next.Detail, next.Last
		}
		d.Count++
		d.CorrelationIDs = append(d.CorrelationIDs, next.CorrelationIDs...)
		d.CorrelationIDs = d.CorrelationIDs[max(0, len(d.CorrelationIDs)-maxIDs):]
		return
	}
	if len(s.denials) >= maxRecent {
		s.evict()
	}
	s.denials[key] = &next
	s.sources[next.Source]++
}

// evict drops the oldest denial of the source with the most.
func (s *shelf) evict() {
	var worst denialKey
	var found *Denial
	for key, d := range s.denials {
		more := 0
		if found != nil {
			more = s.sources[d.Source] - s.sources[found.Source]
		}
		if found == nil || more > 0 || more == 0 && d.Last.Before(found.Last) {
			worst, found = key, d
		}
	}
	delete(s.denials, worst)
	if s.sources[found.Source]--; s.sources[found.Source] == 0 {
		delete(s.sources, found.Source)
	}
}
