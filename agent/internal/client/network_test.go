// SPDX-License-Identifier: Apache-2.0

package client

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
)

func address(t *testing.T, s string) net.Addr {
	t.Helper()
	ip, n, err := net.ParseCIDR(s)
	if err != nil {
		t.Fatal(err)
	}
	return &net.IPNet{IP: ip, Mask: n.Mask}
}

func TestOffline_UntilThereIsAnAddressAndANameServer(t *testing.T) {
	address := func(s string) net.Addr { return address(t, s) }
	loopback := []net.Addr{address("127.0.0.1/8"), address("::1/128")}
	linkLocal := append(slices.Clone(loopback), address("fe80::1/64"), address("169.254.3.4/16"))
	leased := append(slices.Clone(linkLocal), address("10.0.2.15/24"))
	dns := fmt.Errorf("proxy: %w", &net.DNSError{Err: "connection refused", Name: "api-int.example.com"})
	for _, c := range []struct {
		name      string
		err       error
		addresses []net.Addr
		servers   []string
		want      bool
	}{
		{"success", nil, nil, nil, false},
		{"no link", errors.New("network is unreachable"), loopback, nil, true},
		{"a link without a lease", errors.New("network is unreachable"), linkLocal, nil, true},
		{"a lease, and the server is down", errors.New("connection refused"), leased, nil, false},
		{"only IPv6, and the server is down", errors.New("connection refused"), []net.Addr{address("2001:db8::1/64")}, nil,
			false},
		{"a lease of another network, no route yet",
			&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ENETUNREACH)}, leased, nil, true},
		{"IPv6, and the server has an IPv4 address", &net.OpError{Op: "dial", Err: errNoAddress},
			[]net.Addr{address("2001:db8::1/64")}, nil, true},
		{"a lease, no name server yet", dns, leased, nil, true},
		{"a lease, and the name does not exist", dns, leased, []string{"10.0.2.3:53"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := offline(c.err, c.addresses, c.servers); got != c.want {
				t.Errorf("offline: %t", got)
			}
		})
	}
}

func TestDialer_SendsNothingFromAnUnspecifiedIPv4Address(t *testing.T) {
	linkOnly := []net.Addr{address(t, "127.0.0.1/8"), address(t, "::1/128"), address(t, "fe80::1/64"),
		address(t, "2001:db8::1/64")}
	for _, c := range []struct {
		destination string
		addresses   []net.Addr
		want        error
	}{
		{"192.0.2.1:22623", linkOnly, errNoAddress},
		{"192.0.2.1:22623", append(linkOnly, address(t, "192.0.2.7/24")), nil},
		{"169.254.169.254:80", append(linkOnly, address(t, "169.254.3.4/16")), nil},
		{"127.0.0.1:22623", linkOnly, nil},
		{"[2001:db8::2]:22623", linkOnly, nil},
	} {
		if err := sendable(c.destination, slices.Clone(c.addresses)); !errors.Is(err, c.want) {
			t.Errorf("to %s from %v: %v", c.destination, c.addresses, err)
		}
	}
}

// Package net does not notice for up to five seconds that the file exists.
func TestNameServer_IsReadFromAFileThatAppearsLater(t *testing.T) {
	file := filepath.Join(t.TempDir(), "resolv.conf")
	ask := func(address string) string { return nameServer(address, nameServers(file)) }
	if got := ask("127.0.0.1:53"); got != "127.0.0.1:53" {
		t.Errorf("without the file: %s", got)
	}
	conf := "# by a network manager\nsearch example.com\nnameserver 10.0.2.3\nnameserver fec0::3\noptions ndots:1\n"
	if err := os.WriteFile(file, []byte(conf), 0o644); err != nil {
		t.Fatal(err)
	}
	for address, want := range map[string]string{
		"127.0.0.1:53": "10.0.2.3:53", "[::1]:53": "[fec0::3]:53", "192.0.2.1:53": "192.0.2.1:53",
	} {
		if got := ask(address); got != want {
			t.Errorf("%s: %s", address, got)
		}
	}
}
