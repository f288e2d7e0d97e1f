// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/vincent-petithory/dataurl"

	"github.com/mcs-attest/mcs-attest/agent/internal/client"
	"github.com/mcs-attest/mcs-attest/pkg/pointer"
)

// Cmdline is the kernel command line, split into words.
type Cmdline []string

// ParseCmdline splits s at white space outside double quotes, as the kernel does.
func ParseCmdline(s string) Cmdline {
	var words []string
	var word strings.Builder
	quoted := false
	for _, r := range s + " " {
		switch {
		case r == '"':
			quoted = !quoted
			word.WriteRune(r)
		case !quoted && (r == ' ' || r == '\t' || r == '\n'):
			if word.Len() > 0 {
				words = append(words, word.String())
				word.Reset()
			}
		default:
			word.WriteRune(r)
		}
	}
	if word.Len() > 0 {
		words = append(words, word.String())
	}
	return words
}

// Last returns the value of the last "key=value", as Ignition and systemd do.
func (c Cmdline) Last(key string) (value string, ok bool) {
	for _, w := range c {
		if k, v, found := strings.Cut(w, "="); found && strings.Trim(k, `"`) == key {
			value, ok = strings.Trim(v, `"`), true
		}
	}
	return value, ok
}

// configArguments are the arguments that make Ignition ignore a user.ign.
var configArguments = []string{"ignition.config.url", "ignition.config.device", "ignition.config.path"}

// Masked returns the command line without the arguments that name a config, and whether there were
// any.
func (c Cmdline) Masked() (line string, changed bool) {
	kept := slices.DeleteFunc(slices.Clone(c), func(w string) bool {
		key, _, _ := strings.Cut(w, "=")
		return slices.Contains(configArguments, strings.Trim(key, `"`))
	})
	return strings.Join(kept, " ") + "\n", len(kept) != len(c)
}

// cmdline reads the config that ignition.config.url names.
func cmdline(ctx context.Context, m Machine) (UserData, error) {
	raw, ok := m.Cmdline.Last("ignition.config.url")
	if !ok || raw == "" {
		if _, ok := m.Cmdline.Last("ignition.config.device"); ok {
			return UserData{}, fmt.Errorf("kernel argument ignition.config.device: %w", ErrUnsupported)
		}
		return UserData{}, ErrNone
	}
	const from = "kernel argument ignition.config.url"
	u, err := url.Parse(raw)
	if err != nil {
		return UserData{}, fmt.Errorf("%s: not a URL", from)
	}
	switch u.Scheme {
	case "data":
		data, err := dataurl.DecodeString(raw)
		if err != nil {
			return UserData{}, fmt.Errorf("%s: the data URL cannot be decoded", from)
		}
		return UserData{data.Data, from}, nil
	case "http", "https":
		body, err := m.fetch(ctx, from, u)
		if err != nil {
			return UserData{}, err
		}
		return UserData{body, from}, nil
	}
	return UserData{}, fmt.Errorf("%s with scheme %q: %w", from, u.Scheme, ErrUnsupported)
}

// statusError is an HTTP status other than 200.
type statusError int

func (s statusError) Error() string { return fmt.Sprintf("HTTP status %d", int(s)) }

// fetchTime limits one attempt. An attempt without any response ends much sooner.
const fetchTime = 5 * time.Minute

// fetch downloads a public config; from is for error messages. Like Ignition it trusts the system's
// authorities. It retries indefinitely after a network error, and after a status that is a temporary failure.
func (m Machine) fetch(ctx context.Context, from string, u *url.URL) ([]byte, error) {
	ctx, cancel := withWait(ctx, m.Wait)
	defer cancel()
	httpClient := client.PublicClient()
	for pause := 200 * time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
		body, again, err := fetchOnce(ctx, httpClient, u)
		if err == nil {
			return body, nil
		}
		err = fmt.Errorf("%s: %w", from, err)
		if !again || ctx.Err() != nil {
			return nil, err
		}
		m.waiting(err)
		wait := pause
		if client.Offline(err) {
			wait = min(wait, time.Second)
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(wait):
		}
	}
}

func fetchOnce(ctx context.Context, httpClient *http.Client, u *url.URL) (body []byte, again bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, false, err
	}
	req.Header.Set("Accept", client.IgnitionAccept)
	resp, err := httpClient.Do(req)
	if err != nil {
		return nil, true, fmt.Errorf("fetching from %s: %w", u.Host, client.Plain(err))
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		code := resp.StatusCode
		return nil, code >= 500 || client.Passing(code), fmt.Errorf("fetching from %s: %w", u.Host, statusError(code))
	}
	body, err = io.ReadAll(io.LimitReader(resp.Body, pointer.MaxSize+1))
	if err != nil {
		return nil, true, fmt.Errorf("fetching from %s: %w", u.Host, client.Plain(err))
	}
	if len(body) > pointer.MaxSize {
		return nil, false, fmt.Errorf("fetching from %s: more than %d bytes", u.Host, pointer.MaxSize)
	}
	return body, false, nil
}
