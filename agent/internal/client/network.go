// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
)

const resolvConf = "/etc/resolv.conf"

// Offline reports whether err arose because this machine's network is not up yet: it has no address
// except loopback and link-local ones, none of the server's family, or no route to the server. Or a name
// cannot be resolved because no name server is configured. Such an attempt sent nothing to a server.
func Offline(err error) bool {
	addresses, addressErr := net.InterfaceAddrs()
	return addressErr == nil && offline(err, addresses, nameServers(resolvConf))
}

func offline(err error, addresses []net.Addr, servers []string) bool {
	if err == nil {
		return false
	}
	if errors.Is(err, errNoAddress) || errors.Is(err, syscall.ENETUNREACH) {
		return true
	}
	if _, ok := errors.AsType[*net.DNSError](err); ok && len(servers) == 0 {
		return true
	}
	for _, a := range addresses {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
			return false
		}
	}
	return true
}

// newDialer returns a dialer for TCP.
func newDialer() *net.Dialer {
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		dialer := &net.Dialer{ControlContext: requireAddress}
		return dialer.DialContext(ctx, network, nameServer(address, nameServers(resolvConf)))
	}}
	return &net.Dialer{Timeout: dialTime, Resolver: resolver, ControlContext: requireAddress}
}

var errNoAddress = errors.New("this machine has no IPv4 address yet")

// requireAddress prevents a connection from 0.0.0.0. While NetworkManager checks that no other machine has
// a static IPv4 address, the route to the network exists, and the address does not.
func requireAddress(_ context.Context, _, destination string, _ syscall.RawConn) error {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return nil // the connection itself then fails, or not
	}
	return sendable(destination, addresses)
}

func sendable(destination string, addresses []net.Addr) error {
	to, err := netip.ParseAddrPort(destination)
	if err != nil || to.Addr().IsLoopback() || !to.Addr().Unmap().Is4() {
		return nil
	}
	for _, a := range addresses {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && !n.IP.IsLoopback() {
			return nil
		}
	}
	return errNoAddress
}

// nameServer returns the address to query instead of address. Package net reads resolv.conf at most
// every five seconds, and queries this machine while the file does not exist. In an initramfs the
// file appears while the agent runs.
func nameServer(address string, servers []string) string {
	if len(servers) == 0 {
		return address
	}
	switch address { // the default of package net, in its order
	case "127.0.0.1:53":
		return servers[0]
	case "[::1]:53":
		return servers[len(servers)-1]
	}
	return address
}

// nameServers returns the name servers in a resolv.conf(5), with their port.
func nameServers(file string) []string {
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	var servers []string
	for line := range strings.Lines(string(raw)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "nameserver" {
			servers = append(servers, net.JoinHostPort(f[1], "53"))
		}
	}
	return servers
}
