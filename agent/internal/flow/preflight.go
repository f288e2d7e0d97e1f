// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/mcs-attest/mcs-attest/agent/internal/client"
)

// gateRefusal reports that the gate rejected a token that the verifier just issued.
type gateRefusal struct{ status int }

func (g *gateRefusal) Error() string {
	return fmt.Sprintf("the gate rejected the token with HTTP status %d", g.status)
}

// gateAnswer is a response of the gate that ends the flow. It comes after the verifier attested the
// machine, so it never leads to [Unchanged].
type gateAnswer struct{ text string }

func (g *gateAnswer) Error() string { return g.text }

// accepts are Accept headers of Ignition, for a machine whose Ignition is unknown. A config with an option of a new
// specification does not exist in older ones, and an older Machine Config Server refuses to serve newer ones.
var accepts = []string{
	client.IgnitionAccept,
	"application/vnd.coreos.ignition+json;version=3.5.0, */*;q=0.1",
	"application/vnd.coreos.ignition+json;version=3.6.0, */*;q=0.1",
}

// errVersion reports that the gate has no config in the version of a request.
type errVersion struct{ gateAnswer }

// errStale reports that a token became too old before the gate checked it.
type errStale struct{ last error }

func (e errStale) Error() string { return fmt.Sprintf("%v; the token is too old", e.last) }

// preflight asks the gate with HEAD until it accepts the token. HEAD does not count as a use of the token. If the
// version that Ignition will request is unknown, each request is for another one. over reports when preflight no longer
// waits for an answer; the error is then errStale.
func (f *Flow) preflight(ctx context.Context, t Target, g *Grant, over func(*Grant) bool) error {
	httpClient := f.Dialer.HTTPClient()
	// A redirect would send the token to another server.
	httpClient.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	defer httpClient.CloseIdleConnections()
	accepts := accepts
	if f.Accept != "" {
		accepts = []string{f.Accept}
	}
	pause, refused := firstPause, 0 // versions
	for n := 0; ; n++ {
		again, err := f.head(ctx, httpClient, t, g, accepts[n%len(accepts)])
		if err == nil || !again {
			return err
		}
		var version *errVersion
		if errors.As(err, &version) {
			if refused++; refused == len(accepts) {
				return &version.gateAnswer
			}
			continue
		}
		refused = 0
		if over(g) {
			return errStale{err}
		}
		f.waiting(err, pause)
		if err := f.sleep(ctx, pause); err != nil {
			return err
		}
		pause = min(2*pause, maxPause)
	}
}

// resume uses a token until it expires, after a verifier denied another one: evidence that is not bound to a challenge
// is accepted only once. A denial does not replace the token.
func (f *Flow) resume(ctx context.Context, t Target, g *Grant, denial error) (*Grant, error) {
	f.Console.Step("%v; the earlier token is used until it expires", denial)
	expired := func(g *Grant) bool { return g.lifetime > 0 && f.now()-g.since >= g.lifetime }
	if err := f.preflight(ctx, t, g, expired); err != nil {
		return nil, fmt.Errorf("%w; with the earlier token: %w", denial, err)
	}
	return g, nil
}

// head sends one request. It returns again if a later request may have another result.
func (f *Flow) head(ctx context.Context, httpClient *http.Client, t Target, g *Grant, accept string) (again bool,
	err error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, t.URL, nil)
	if err != nil {
		return false, &gateAnswer{fmt.Sprintf("the pointer config's source: %v", client.Plain(err))}
	}
	req.Header.Set("Authorization", "Bearer "+string(g.Token.Expose()))
	req.Header.Set("User-Agent", f.Version)
	req.Header.Set("Accept", accept)
	resp, err := httpClient.Do(req)
	if err != nil {
		return true, fmt.Errorf("asking the gate: %w", client.Plain(err))
	}
	_ = resp.Body.Close()
	switch code := resp.StatusCode; {
	case code == http.StatusOK:
		f.Console.Step("the gate accepts the token; Ignition may fetch the config")
		return false, nil
	case code >= 500, client.Passing(code):
		return true, fmt.Errorf("the gate answered HTTP status %d", code)
	case code >= 300 && code < 400:
		return false, &gateAnswer{fmt.Sprintf("the gate answered with a redirect (HTTP status %d)", code)}
	case code == http.StatusBadRequest:
		// The token is not the cause, so a new one would not help.
		return true, &errVersion{gateAnswer{"the gate has no config in a version that this machine reads (HTTP status 400)"}}
	default:
		return false, &gateRefusal{code}
	}
}
