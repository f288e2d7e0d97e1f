// SPDX-License-Identifier: Apache-2.0

// Package page is the read-only web page of a verifier's process: which machines boot and how far they are, which
// wait for approval, what was denied and why, when keys and certificates end, and the state of the process.
//
// The listener that serves the page authenticates its readers. The page has nothing that changes anything, and no
// secret. It is complete without script. A script replaces parts of it that the server sends over an event stream.
//
// All readers share one snapshot, which is computed only while a reader asks, and at most once a second. The number of
// streams is bounded. A stream ends after a minute. The browser then opens another one, which is authenticated again.
package page

import (
	"bytes"
	"context"
	"crypto/tls"
	"embed"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/a-h/templ"

	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
	"github.com/mcs-attest/mcs-attest/pkg/seal"
	"github.com/mcs-attest/mcs-attest/pkg/token"
	"github.com/mcs-attest/mcs-attest/verifier/internal/admin"
	"github.com/mcs-attest/mcs-attest/verifier/internal/metrics"
)

// Path is the page's own path. What it loads is below it.
const Path = "/page"

const (
	interval   = time.Second
	maxStreams = 16
	streamLife = time.Minute
	stateTime  = 10 * time.Second // for one snapshot
	writeTime  = 10 * time.Second // for one event
	timeEvery  = 5 * time.Second  // the reader sees that the stream is alive
)

// Source is what the page shows of a process. A backend that serves and the controller process implement it.
type Source interface {
	// State is what status shows.
	State(context.Context) (*admin.State, error)
	TokenKeys() token.KeySet
	SealKeys() seal.Ring
	Provisioning() provisioning.View
}

// Options are what a page needs. All fields are required.
type Options struct {
	Source Source
	// Metrics have when certificates end, and the states of the doors.
	Metrics     *metrics.Metrics
	Certificate func() *tls.Certificate
	// Problems returns why this process is not ready.
	Problems func() []string
	// Name is that of this process among the replicas.
	Name, Version string
	Now           func() time.Time
}

// Page serves the page. It is safe for concurrent use.
type Page struct {
	o       Options
	mux     *http.ServeMux
	streams chan struct{} // one element for each open stream

	mu   sync.Mutex
	last *snapshot
}

// snapshot is the page at one moment, as all readers see it.
type snapshot struct {
	at    time.Time
	took  time.Duration
	parts []part
}

// part is a section of the page that an event replaces.
type part struct {
	ID   string `json:"id"`
	HTML string `json:"html"`
}

//go:embed static
var static embed.FS

// New returns a page.
func New(o Options) *Page {
	p := &Page{o: o, mux: http.NewServeMux(), streams: make(chan struct{}, maxStreams)}
	p.mux.HandleFunc("GET "+Path, p.document)
	p.mux.HandleFunc("GET "+Path+"/events", p.events)
	for _, name := range []string{"page.css", "page.js"} {
		p.mux.HandleFunc("GET "+Path+"/"+name, func(w http.ResponseWriter, r *http.Request) {
			http.ServeFileFS(w, r, static, "static/"+name)
		})
	}
	return p
}

// headers are those of every answer. There is no inline script or style, and nothing of another origin.
var headers = map[string]string{
	"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; " +
		"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
	"X-Content-Type-Options":       "nosniff",
	"X-Frame-Options":              "DENY",
	"Referrer-Policy":              "no-referrer",
	"Cross-Origin-Resource-Policy": "same-origin",
	"Cross-Origin-Opener-Policy":   "same-origin",
	"Cache-Control":                "no-store",
}

// ServeHTTP implements http.Handler.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for name, value := range headers {
		w.Header().Set(name, value)
	}
	// Another site may link to the page. It may not load parts of it with the reader's credentials.
	site := r.Header.Get("Sec-Fetch-Site")
	if (site == "cross-site" || site == "same-site") && r.Header.Get("Sec-Fetch-Mode") != "navigate" {
		http.Error(w, "request of another site", http.StatusForbidden)
		return
	}
	p.mux.ServeHTTP(w, r)
}

func (p *Page) document(w http.ResponseWriter, r *http.Request) {
	s, err := p.snapshot(r.Context())
	var out bytes.Buffer
	if err == nil {
		//nolint:contextcheck // Render has the context
		err = document(s.at, clean(p.o.Version), s.parts).Render(r.Context(), &out)
	}
	if err != nil { // the reader did not wait
		http.Error(w, "the page cannot be made now", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(out.Bytes())
}

// events sends each part of the page that changed, as server-sent events.
func (p *Page) events(w http.ResponseWriter, r *http.Request) {
	select {
	case p.streams <- struct{}{}:
		defer func() { <-p.streams }()
	default:
		w.Header().Set("Retry-After", "10")
		http.Error(w, "too many pages are open", http.StatusServiceUnavailable)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), streamLife)
	defer cancel()
	c := http.NewResponseController(w)
	_ = c.SetReadDeadline(time.Time{}) // the server's own would end the request
	w.Header().Set("Content-Type", "text/event-stream")
	sent := map[string]string{}
	var lastTime time.Time
	for tick := time.NewTicker(interval); ; {
		var out bytes.Buffer
		if s, err := p.snapshot(ctx); err == nil {
			for _, one := range s.parts {
				if sent[one.ID] != one.HTML {
					sent[one.ID] = one.HTML
					event(&out, "part", one)
				}
			}
			if age := s.at.Sub(lastTime); out.Len() > 0 || age < 0 || age >= timeEvery {
				event(&out, "time", s.at.UTC().Format(time.RFC3339))
				lastTime = s.at
			}
		}
		_ = c.SetWriteDeadline(time.Now().Add(writeTime))
		if _, err := w.Write(out.Bytes()); err != nil || c.Flush() != nil {
			return
		}
		select {
		case <-ctx.Done():
			tick.Stop()
			return
		case <-tick.C:
		}
	}
}

// event writes data as JSON, so that no text can end the line and forge an event.
func event(out *bytes.Buffer, name string, data any) {
	raw, err := json.Marshal(data)
	if err == nil {
		fmt.Fprintf(out, "event: %s\ndata: %s\n\n", name, raw)
	}
}

// snapshot returns the last snapshot while it is new enough, else another one. One that took long to compute is used
// for longer.
func (p *Page) snapshot(ctx context.Context) (*snapshot, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.o.Now()
	if p.last != nil {
		if age := now.Sub(p.last.at); age >= 0 && age < max(interval, 10*p.last.took) {
			return p.last, nil
		}
	}
	// Others use it, too, when this reader has gone.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stateTime)
	defer cancel()
	began := time.Now()
	state, err := p.o.Source.State(ctx)
	if err != nil {
		state = &admin.State{Problems: []string{"read the state: " + err.Error()}}
	}
	m := p.model(state, now)
	s := &snapshot{at: now}
	for _, one := range []struct {
		id      string
		content templ.Component
	}{
		//nolint:contextcheck // Render has the context
		{"summary", summary(m)}, {"problems", problems(m)}, {"boots", boots(m)}, {"waiting", waitingList(m)},
		//nolint:contextcheck // Render has the context
		{"denials", denials(m)}, {"pools", pools(m)}, {"ends", ends(m)}, {"replicas", replicas(m)},
	} {
		var out strings.Builder
		if err := one.content.Render(ctx, &out); err != nil {
			return nil, fmt.Errorf("render %s: %w", one.id, err)
		}
		s.parts = append(s.parts, part{one.id, out.String()})
	}
	s.took = time.Since(began)
	p.last = s
	return s, nil
}
