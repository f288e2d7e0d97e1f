package pointer

import (
	"fmt"
	"net/url"
	"strings"

	"golang.org/x/net/http/httpproxy"
)

// Proxy is the proxy through which Ignition will reach that source, from
// ignition.proxy; nil if it goes there directly. Like Ignition it reads no
// environment variables and never sends loopback addresses to a proxy.
func (c *Config) Proxy(s Source) (*url.URL, error) {
	p := c.parsed.Ignition.Proxy
	var config httpproxy.Config
	if p.HTTPProxy != nil {
		config.HTTPProxy = *p.HTTPProxy
	}
	if p.HTTPSProxy != nil {
		config.HTTPSProxy = *p.HTTPSProxy
	}
	none := make([]string, len(p.NoProxy))
	for i, item := range p.NoProxy {
		none[i] = string(item)
	}
	config.NoProxy = strings.Join(none, ",")
	target, err := url.Parse(s.URL)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Where, err)
	}
	proxy, err := config.ProxyFunc()(target)
	if err != nil {
		return nil, fmt.Errorf("ignition.proxy: %w", err)
	}
	return proxy, nil
}
