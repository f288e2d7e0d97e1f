// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"sync"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// weather is what can fail between a process and the API server. Each number is a probability per request or event.
type weather struct {
	slow     float64 // it needs up to 8 s
	reset    float64 // the request does not arrive
	lost     float64 // the answer does not arrive
	throttle float64 // 429
	broken   float64 // 500 or 503
	cut      bool    // partition
}

// client is the network of one process. It implements http.RoundTripper.
type client struct {
	name    string
	server  *apiServer
	dice    *dice
	trace   *trace
	mcs     http.Handler // the Machine Config Server
	crashed chan struct{}

	mu      sync.Mutex
	weather weather
}

// RoundTrip implements http.RoundTripper.
func (c *client) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Host == mcsHost {
		return c.upstream(r)
	}
	// Clients hold a lock while they discover. A goroutine that waits for a lock stops the time of a bubble, so
	// discovery takes no time.
	if found := discover(r.URL.Path); found != nil {
		raw, err := json.Marshal(found)
		return response(r, http.StatusOK, io.NopCloser(bytes.NewReader(raw))), err
	}
	q, err := parse(c.name, r)
	if err != nil {
		return nil, err
	}
	if q == nil {
		code, raw := failure(apierrors.NewGenericServerResponse(http.StatusNotFound, r.Method,
			kinds[0].gr(), "", "the server could not find the requested resource", 0, true))
		return response(r, code, io.NopCloser(bytes.NewReader(raw))), nil
	}
	// Keys and ids come from one source of randomness for all goroutines, so their values are not the same in each run.
	name := fmt.Sprint(c.name, " ", q.verb, " ", drawn.ReplaceAllString(r.URL.Path, "*"), q.selectors())
	roll, now := c.dice.roll(name), c.now()
	if err := c.travel(r.Context(), nil, delay(roll, now)); err != nil {
		return nil, err
	}
	switch n := roll.Float64(); {
	case now.cut:
		return nil, c.unreachable(r.Context(), roll)
	case n < now.reset:
		return nil, refused("dial")
	case n < now.reset+now.throttle:
		code, raw := failure(apierrors.NewTooManyRequests("the model throttles", 1))
		c.trace.add(name, code)
		res := response(r, code, io.NopCloser(bytes.NewReader(raw)))
		res.Header.Set("Retry-After", "1")
		return res, nil
	case n < now.reset+now.throttle+now.broken:
		code, raw := failure(apierrors.NewServiceUnavailable("the model is broken"))
		c.trace.add(name, code)
		return response(r, code, io.NopCloser(bytes.NewReader(raw))), nil
	}
	if q.verb == "watch" {
		return c.watch(r, q, name)
	}
	code, raw := c.server.perform(q)
	c.trace.add(name, code)
	lost := roll.Float64() < now.lost || c.now().cut
	if err := c.travel(r.Context(), nil, delay(roll, now)); err != nil {
		return nil, err
	}
	if lost {
		return nil, refused("read")
	}
	return response(r, code, io.NopCloser(bytes.NewReader(raw))), nil
}

// drawn is a part of a name that is a key's digest or an id.
var drawn = regexp.MustCompile(`[0-9a-f]{16,}|bootstrap-token-.{6}`)

// watch answers a watch.
func (c *client) watch(r *http.Request, q *request, name string) (*http.Response, error) {
	version := q.query.Get("resourceVersion")
	from, err := strconv.ParseUint(version, 10, 64)
	var initial []*object
	if err != nil || from == 0 || q.query.Get("sendInitialEvents") == "true" {
		matches, err := q.matcher()
		if err != nil {
			code, raw := failure(err)
			return response(r, code, io.NopCloser(bytes.NewReader(raw))), nil
		}
		initial, from = c.server.list(matches)
	}
	c.server.store.mu.Lock()
	expired := from < c.server.compacted
	c.server.store.mu.Unlock()
	if expired {
		code, raw := failure(apierrors.NewResourceExpired("too old resource version"))
		c.trace.add(name, code)
		return response(r, code, io.NopCloser(bytes.NewReader(raw))), nil
	}
	s, err := c.open(r.Context(), q, from, initial)
	if err != nil {
		code, raw := failure(err)
		return response(r, code, io.NopCloser(bytes.NewReader(raw))), nil
	}
	c.trace.add(name, http.StatusOK)
	return response(r, http.StatusOK, s), nil
}

func (c *client) now() weather {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.weather
}

func (c *client) set(w weather) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.weather = w
}

// delay returns how long one way takes.
func delay(roll *rand.Rand, w weather) time.Duration {
	d := time.Millisecond + time.Duration(roll.Int64N(int64(4*time.Millisecond)))
	if roll.Float64() < w.slow {
		d += time.Duration(roll.Int64N(int64(8 * time.Second)))
	}
	return d
}

// deliver waits until an event of a watch has arrived. A partition ends the watch if it lasts longer than 30 s.
func (c *client) deliver(ctx context.Context, closed <-chan struct{}, name string, happened time.Time) error {
	roll, now := c.dice.roll(name), c.now()
	if err := c.travel(ctx, closed, time.Until(happened.Add(delay(roll, now)))); err != nil {
		return err
	}
	for range 30 {
		if now = c.now(); !now.cut {
			break
		}
		if err := c.travel(ctx, closed, time.Second); err != nil {
			return err
		}
	}
	if now.cut || roll.Float64() < now.reset/2 {
		return io.ErrUnexpectedEOF
	}
	return nil
}

// travel waits until a message has arrived.
func (c *client) travel(ctx context.Context, closed <-chan struct{}, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-closed:
		return io.ErrUnexpectedEOF
	case <-c.crashed:
		return refused("read")
	}
}

// unreachable is the outcome of a request in a partition: an error, or silence.
func (c *client) unreachable(ctx context.Context, roll *rand.Rand) error {
	if roll.IntN(2) == 0 {
		return refused("dial")
	}
	if err := c.travel(ctx, nil, 30*time.Second); err != nil {
		return err
	}
	return refused("read")
}

func refused(op string) error { return &net.OpError{Op: op, Net: "tcp", Err: syscall.ECONNRESET} }

func response(r *http.Request, code int, body io.ReadCloser) *http.Response {
	return &http.Response{
		StatusCode: code, Status: strconv.Itoa(code) + " " + http.StatusText(code), Proto: "HTTP/1.1", ProtoMajor: 1,
		ProtoMinor: 1, Header: http.Header{"Content-Type": {"application/json"}}, Body: body, ContentLength: -1, Request: r,
	}
}

// upstream is a request of the gate to the Machine Config Server.
func (c *client) upstream(r *http.Request) (*http.Response, error) {
	if err := c.travel(r.Context(), nil, delay(c.dice.roll(c.name+" "+r.URL.Path), weather{})); err != nil {
		return nil, err
	}
	if c.mcs == nil {
		return nil, errors.New("there is no Machine Config Server")
	}
	return served(c.mcs, r), nil
}
