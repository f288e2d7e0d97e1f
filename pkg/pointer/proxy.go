// SPDX-License-Identifier: Apache-2.0

package pointer

import (
	"fmt"
	"net/url"
	"strings"

	"golang.org/x/net/http/httpproxy"
)

// Proxy returns the proxy through which Ignition will connect to that source, from ignition.proxy,
// or nil for a direct connection. Like Ignition it ignores environment variables and never uses a
// proxy for loopback addresses.
func (c *Config) Proxy(s Source) (*url.URL, error) {
	target, err := url.Parse(s.URL)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Where, err)
	}
	p := c.parsed.Ignition.Proxy
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
