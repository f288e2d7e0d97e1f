// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
)

const resolvConf = "/etc/resolv.conf"

// Offline reports whether err arose because this machine's network is not up yet: it has no address
// except loopback and link-local ones, or a name cannot be resolved because no name server is
// configured. Such an attempt sent nothing to a server.
func Offline(err error) bool {
	addresses, addressErr := net.InterfaceAddrs()
	return addressErr == nil && offline(err, addresses, nameServers(resolvConf))
}

func offline(err error, addresses []net.Addr, servers []string) bool {
	if err == nil {
		return false
	}
	var name *net.DNSError
	if errors.As(err, &name) && len(servers) == 0 {
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
		return new(net.Dialer).DialContext(ctx, network, nameServer(address, nameServers(resolvConf)))
	}}
	return &net.Dialer{Timeout: dialTime, Resolver: resolver}
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
