// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"
)

const (
	metadataIPv4 = "http://169.254.169.254"
	// metadataIPv6 is the link-local IPv6 address of the same service; %s is the link.
	metadataIPv6 = "http://[fe80::a9fe:a9fe%%25%s]"
)

// noneGrace is how long the agent waits for the other sources after one of them has no user data.
// Ignition would accept the first answer, whichever it is.
const noneGrace = 5 * time.Second

// openstack asks the config drive and the metadata service in parallel, because a machine cannot
// know which of the two its cloud has.
func openstack(ctx context.Context, m Machine) (UserData, error) {
	sources := []provider{drives(openstackDrive, configDrive{"CONFIG-2", openstackUserData})}
	addresses := openstackMetadata(m.Paths.Metadata, linksWithIPv6)
	return m.first(ctx, sources, func() (services []provider) {
		for _, base := range addresses() {
			services = append(services, func(ctx context.Context, m Machine) (UserData, error) {
				return m.openstackService(ctx, base)
			})
		}
		return services
	})
}

// openstackMetadata returns a function that returns the service's addresses that it has not returned before:
// IPv4, and one IPv6 address for each link. The agent can start before a link has an IPv6 address. A configured
// base replaces all of them.
func openstackMetadata(base string, links func() []string) func() []string {
	bases, known := []string{base}, map[string]bool{}
	return func() []string {
		fresh := bases
		bases = nil
		if base != metadataIPv4 {
			return fresh
		}
		for _, link := range links() {
			if !known[link] {
				known[link] = true
				fresh = append(fresh, fmt.Sprintf(metadataIPv6, url.PathEscape(link)))
			}
		}
		return fresh
	}
}

// linksWithIPv6 returns the names of the links that are up and have an IPv6 address.
func linksWithIPv6() []string {
	var names []string
	links, err := net.Interfaces()
	if err != nil {
		return nil
	}
	for _, link := range links {
		if link.Flags&net.FlagUp == 0 || link.Flags&net.FlagLoopback != 0 {
			continue
		}
		addresses, err := link.Addrs()
		if err != nil {
			continue
		}
		for _, a := range addresses {
			if n, ok := a.(*net.IPNet); ok && n.IP.To4() == nil {
				names = append(names, link.Name)
				break
			}
		}
	}
	return names
}

func (m Machine) openstackService(ctx context.Context, base string) (UserData, error) {
	const from = "OpenStack's metadata service"
	u, err := url.Parse(base + "/" + openstackUserData)
	if err != nil {
		return UserData{}, fmt.Errorf("%s: its address is not a URL", from)
	}
	raw, err := m.fetch(ctx, from, u)
	var status statusError
	switch {
	case errors.As(err, &status) && status == http.StatusNotFound:
		return UserData{}, ErrNone
	case err != nil:
		return UserData{}, err
	}
	return UserData{raw, from}, nil
}

func (m Machine) grace() time.Duration {
	if m.Wait != 0 {
		return min(noneGrace, m.Wait)
	}
	return noneGrace
}

// first asks all sources in parallel and returns the first user data. More returns further sources, which may
// appear later. While a drive cannot be read, it may have user data that the other sources do not have.
func (m Machine) first(ctx context.Context, sources []provider, more func() []provider) (UserData, error) {
	ctx, cancel := context.WithCancel(ctx)
	var busy sync.WaitGroup
	ended := make(chan struct{})
	// The other sources stop here. Waiting for them ensures that no drive stays mounted, unless
	// reading it hangs.
	defer func() {
		cancel()
		close(ended)
		idle := make(chan struct{})
		go func() { busy.Wait(); close(idle) }()
		select {
		case <-idle:
		case <-time.After(noneGrace):
		}
	}()
	type answer struct {
		data UserData
		err  error
	}
	var unread atomic.Int32 // sources with a drive that could not be read yet
	answers := make(chan answer)
	open := 0
	ask := func(sources []provider) {
		for _, s := range sources {
			open++
			busy.Go(func() {
				own, counted := m, false
				own.Waiting = func(err error) {
					if !counted && errors.Is(err, ErrUnreadable) {
						counted = true
						unread.Add(1)
					}
					m.waiting(err)
				}
				data, err := s(ctx, own)
				select {
				case answers <- answer{data, err}:
				case <-ended:
				}
				if counted { // not before the answer was received
					unread.Add(-1)
				}
			})
		}
	}
	ask(sources)
	ask(more())
	var none <-chan time.Time
	var failed error
	for open > 0 {
		select {
		case <-time.After(pollInterval):
			ask(more())
		case a := <-answers:
			open--
			switch {
			case a.err == nil:
				return a.data, nil
			case !errors.Is(a.err, ErrNone):
				if failed == nil {
					failed = a.err
				} else {
					failed = fmt.Errorf("%w; %w", failed, a.err)
				}
				m.waiting(a.err) // for the others
			case none == nil:
				none = time.After(m.grace())
			}
		case <-none:
			switch {
			case unread.Load() > 0:
				none = time.After(pollInterval)
			case errors.Is(failed, ErrUnreadable):
				return UserData{}, failed
			default:
				return UserData{}, ErrNone
			}
		}
	}
	if none != nil && !errors.Is(failed, ErrUnreadable) {
		return UserData{}, ErrNone
	}
	return UserData{}, failed
}
