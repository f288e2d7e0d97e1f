// SPDX-License-Identifier: Apache-2.0

package gcp

import (
	"net/http"
	"strconv"
	"time"
)

// Route is a part of the emulator that has its own faults and counter.
type Route string

// The routes.
const (
	Metadata Route = "metadata" // the metadata server, except for Identity
	Identity Route = "identity" // .../service-accounts/*/identity
	Keys     Route = "keys"     // the key set of identity tokens
	Token    Route = "token"    // OAuth2
	Compute  Route = "compute"  // the Compute API
)

// Fault replaces the normal response of a route. Delay comes first; then the first of Off,
// Redirect, Status and Body that is set.
type Fault struct {
	Delay      time.Duration
	Off        bool   // close the connection without a response
	Redirect   string // 302 to this URL
	Status     int    // an error in Google's form
	RetryAfter string // with Status
	Body       []byte // this body, with status 200
	// Times is how many requests it affects; zero means all, until Heal.
	Times int
}

// Fail sets the fault of a route and replaces an earlier one.
func (c *Cloud) Fail(r Route, f Fault) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults[r] = &f
}

// Heal removes a route's fault.
func (c *Cloud) Heal(r Route) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.faults, r)
}

// Calls returns how many requests a route received, including those with faults.
func (c *Cloud) Calls(r Route) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls[r]
}

// met counts a request, and reports whether a fault has answered it. fail is how the route writes
// an error.
func (c *Cloud) met(w http.ResponseWriter, r *http.Request, route Route,
	fail func(http.ResponseWriter, int, string)) bool {
	c.mu.Lock()
	c.calls[route]++
	f, ok := c.faults[route]
	var fault Fault
	if ok {
		fault = *f
		if f.Times > 0 {
			if f.Times--; f.Times == 0 {
				delete(c.faults, route)
			}
		}
	}
	c.mu.Unlock()
	if fault.Delay > 0 {
		select {
		case <-time.After(fault.Delay):
		case <-r.Context().Done():
			panic(http.ErrAbortHandler) // the client has disconnected
		}
	}
	switch {
	case fault.Off:
		panic(http.ErrAbortHandler) // net/http closes the connection
	case fault.Redirect != "":
		http.Redirect(w, r, fault.Redirect, http.StatusFound)
	case fault.Status != 0:
		if fault.RetryAfter != "" {
			w.Header().Set("Retry-After", fault.RetryAfter)
		}
		fail(w, fault.Status, http.StatusText(fault.Status))
	case fault.Body != nil:
		w.Header().Set("Content-Length", strconv.Itoa(len(fault.Body)))
		_, _ = w.Write(fault.Body)
	default:
		return false
	}
	return true
}
