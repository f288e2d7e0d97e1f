// SPDX-License-Identifier: Apache-2.0

package pointer

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strings"
)

// Proxy returns the proxy through which Ignition will connect to that source, from ignition.proxy,
// or nil for a direct connection. Like Ignition it ignores environment variables and never uses a
// proxy for loopback addresses.
//
// Ignition uses golang.org/x/net/http/httpproxy, which contains 0.2 MB of tables for international
// names that a config does not have. This function implements its rules for other names, and a test
// compares it with that package.
func (c *Config) Proxy(s Source) (*url.URL, error) {
	target, err := url.Parse(s.URL)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Where, err)
	}
	p := c.parsed.Ignition.Proxy
	setting := p.HTTPProxy
	if target.Scheme == "https" {
		setting = p.HTTPSProxy
	}
	if setting == nil || *setting == "" || isLoopback(target.Hostname()) {
		return nil, nil
	}
	port := target.Port()
	port = cmp.Or(port, defaultPorts[target.Scheme])
	for _, item := range p.NoProxy {
		for entry := range strings.SplitSeq(string(item), ",") {
			if bypasses(strings.ToLower(strings.TrimSpace(entry)), strings.ToLower(target.Hostname()), port) {
				return nil, nil
			}
		}
	}
	// Parse has checked that this is a URL with a scheme.
	proxy, err := url.Parse(*setting)
	if err != nil {
		return nil, fmt.Errorf("ignition.proxy: %w", err)
	}
	return proxy, nil
}

func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.Unmap().IsLoopback()
}

// bypasses reports whether an entry of noProxy covers host and port. An entry is "*", a network, an
// address, or a name with or without a leading dot, which covers its subdomains. Address and name
// may have a port.
func bypasses(entry, host, port string) bool {
	if entry == "" {
		return false
	}
	if entry == "*" {
		return true
	}
	address, addressErr := netip.ParseAddr(host)
	if network, err := netip.ParsePrefix(entry); err == nil {
		return addressErr == nil && network.Contains(address.Unmap())
	}
	if name, p, err := net.SplitHostPort(entry); err == nil {
		if p != "" && p != port {
			return false
		}
		entry = name
	}
	if a, err := netip.ParseAddr(strings.Trim(entry, "[]")); err == nil {
		return addressErr == nil && a.Unmap() == address.Unmap()
	}
	if addressErr == nil || entry == "" {
		return false
	}
	if below, ok := strings.CutPrefix(entry, "*."); ok {
		entry = "." + below
	}
	if strings.HasPrefix(entry, ".") {
		return strings.HasSuffix(host, entry)
	}
	return host == entry || strings.HasSuffix(host, "."+entry)
}
