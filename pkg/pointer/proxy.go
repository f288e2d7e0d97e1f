// SPDX-License-Identifier: Apache-2.0

package pointer

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/coreos/ignition/v2/config/v3_6"
	"github.com/coreos/ignition/v2/config/v3_6/types"
	"golang.org/x/net/http/httpproxy"
)

// setProxies notes with which proxy Ignition fetches each source. fetched is the proxy of its last fetch. After each
// source in merge, Ignition has the proxy of the config merged so far, and of the new one (RenderConfig in its package
// exec). setProxies returns the proxy of the whole config.
func (c *Config) setProxies(fetched *types.Proxy) types.Proxy {
	own := types.Config{Ignition: types.Ignition{Proxy: c.parsed.Ignition.Proxy}}
	for i := range c.refs {
		r := &c.refs[i]
		r.proxy = *fetched
		if r.inner == nil { // as if the config that it names had no proxy
			*fetched = own.Ignition.Proxy
			continue
		}
		inner := types.Config{Ignition: types.Ignition{Proxy: r.inner.parsed.Ignition.Proxy}}
		if r.replaces {
			own = types.Config{}
		}
		*fetched = v3_6.Merge(own, inner).Ignition.Proxy
		inner.Ignition.Proxy = r.inner.setProxies(fetched)
		if own = v3_6.Merge(own, inner); r.replaces {
			break // Ignition ignores merge
		}
	}
	return own.Ignition.Proxy
}

// reference returns the reference of a source, or nil.
func (c *Config) reference(where string) *reference {
	for i := range c.refs {
		r := &c.refs[i]
		if r.where == where {
			return r
		}
		if r.inner != nil {
			if found := r.inner.reference(where); found != nil {
				return found
			}
		}
	}
	return nil
}

// Proxy returns the proxy through which Ignition will connect to that source, from ignition.proxy,
// or nil for a direct connection. Like Ignition it ignores environment variables and never uses a
// proxy for loopback addresses.
func (c *Config) Proxy(s Source) (*url.URL, error) {
	target, err := url.Parse(s.URL)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Where, err)
	}
	r := c.reference(s.Where)
	if r == nil {
		return nil, fmt.Errorf("%s: no such source", s.Where)
	}
	p := r.proxy
	var none []string
	for _, item := range p.NoProxy {
		none = append(none, string(item))
	}
	config := httpproxy.Config{NoProxy: strings.Join(none, ",")}
	if p.HTTPProxy != nil {
		config.HTTPProxy = *p.HTTPProxy
	}
	if p.HTTPSProxy != nil {
		config.HTTPSProxy = *p.HTTPSProxy
	}
	proxy, err := config.ProxyFunc()(target)
	if err != nil {
		return nil, fmt.Errorf("ignition.proxy: %w", err)
	}
	return proxy, nil
}
