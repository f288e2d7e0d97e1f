// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"net/url"
)

// OpenStackHosts returns a function that returns the hosts that would be dialed now and were not before.
func OpenStackHosts(base string, links func() []string) func() []string {
	addresses := openstackMetadata(base, links)
	return func() (hosts []string) {
		for _, b := range addresses() {
			u, err := url.Parse(b + "/" + openstackUserData)
			if err != nil {
				return []string{err.Error()}
			}
			hosts = append(hosts, u.Hostname())
		}
		return hosts
	}
}

// First calls Machine.first with one source, and with those that more returns.
func First(ctx context.Context, m Machine, source func(context.Context) (UserData, error),
	more func() []func(context.Context) (UserData, error)) (UserData, error) {
	as := func(f func(context.Context) (UserData, error)) provider {
		return func(ctx context.Context, _ Machine) (UserData, error) { return f(ctx) }
	}
	return m.first(ctx, []provider{as(source)}, func() (all []provider) {
		for _, f := range more() {
			all = append(all, as(f))
		}
		return all
	})
}

// LinksWithIPv6 calls linksWithIPv6.
func LinksWithIPv6() []string { return linksWithIPv6() }

// OVFProperties calls ovfProperties.
func OVFProperties(document string) (map[string]string, error) { return ovfProperties(document) }
