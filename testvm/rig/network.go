// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/mcs-attest/mcs-attest/testvm/freeport"
)

// Network is the network of a machine. The zero value is one interface with DHCP.
type Network struct {
	// Storage adds a first interface, to a network with DHCP and without a router and a name server.
	Storage bool
	// IPv6 is a network without IPv4; the verifier is then at [Host6].
	IPv6 bool
	// Unplugged has no link until [Node.Plug].
	Unplugged bool
	// Late has a link, and no DHCP server until [Node.Plug].
	Late bool
	// Name is a name that only the network's name server resolves, to [Host].
	Name string
}

func (n Network) waits() bool { return n.Unplugged || n.Late }

// Host6 is the host's loopback interface for a guest with IPv6.
const Host6 = "fec0::2"

// network returns QEMU's options for the network, and the program that starts QEMU.
func (n *Node) network(vm VM) (args, program []string) {
	n.r.t.Helper()
	if vm.Network.Storage {
		args = append(args, "-netdev", "user,id=storage,restrict=on,ipv6=off,net=10.9.0.0/24",
			"-device", "virtio-net-pci,romfile=,netdev=storage")
	}
	backend, device := n.netdev(vm.Metadata), "net"
	if vm.Network.IPv6 {
		backend = "user,id=net,ipv6=on,ipv4=off"
	}
	if vm.Kubelet != nil && vm.Kubelet.Containers != "" {
		backend += n.forward(vm.Kubelet)
	}
	args = append(args, "-netdev", backend)
	if vm.Network.Late {
		// The monitor disconnects the hub's other port.
		device = "port"
		args = append(args, "-netdev", "hubport,id=uplink,hubid=0,netdev=net", "-netdev", "hubport,id=port,hubid=0")
	}
	args = append(args, "-device", "virtio-net-pci,romfile=,netdev="+device)
	program = []string{"qemu-system-x86_64"}
	if vm.Network.Name != "" {
		program = append(n.withNameServer(n.nameServer(vm.Network.Name)), program...)
	}
	return args, program
}

// forward returns the options that make ports of a machine with pods reachable, and the API server for its pods.
func (n *Node) forward(k *Kubelet) (options string) {
	n.r.t.Helper()
	n.ports = map[int]string{}
	for _, port := range append([]int{kubeletPort}, k.Ports...) {
		here, err := freeport.Pick()
		n.r.fatal(err, "port")
		n.ports[port] = fmt.Sprintf("127.0.0.1:%d", here)
		options += fmt.Sprintf(",hostfwd=tcp:%s-:%d", n.ports[port], port)
	}
	if k.API != "" {
		host, port, err := net.SplitHostPort(k.API)
		n.r.fatal(err, "API server")
		options += fmt.Sprintf(",guestfwd=tcp:%s:443-cmd:busybox nc %s %s", k.PodAPI, host, port)
	}
	return options
}

// Address returns the address of this host that is forwarded to a port of a machine with pods, see
// [Kubelet.Ports]. The kubelet's port is 10250.
func (n *Node) Address(port int) string { return n.ports[port] }

// withNameServer returns a program that starts another one with its own resolv.conf. Slirp forwards the
// guest's queries to the server in that file.
func (n *Node) withNameServer(address string) []string {
	n.r.t.Helper()
	file := filepath.Join(n.dir, "resolv.conf")
	n.r.fatal(os.WriteFile(file, []byte("nameserver "+address+"\n"), 0o644), "name server")
	return []string{"unshare", "--mount", "sh", "-c", `mount --bind "$0" /etc/resolv.conf && exec "$@"`, file}
}

// nameServer starts a name server that resolves one name to [Host], and returns its address. The port is
// fixed, so each server has an address of the loopback network.
func (n *Node) nameServer(name string) string {
	n.r.t.Helper()
	address := net.IPv4(127, 0, 0, 0)
	_, err := rand.Read(address[13:])
	n.r.fatal(err, "name server")
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: address, Port: 53})
	n.r.fatal(err, "name server")
	n.r.t.Cleanup(func() { conn.Close() })
	go func() {
		buffer := make([]byte, 4096)
		for {
			size, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return // the test has ended
			}
			answer, err := resolve(buffer[:size], name+".")
			if err == nil {
				_, err = conn.WriteTo(answer, from)
			}
			if err != nil {
				n.r.t.Logf("rig: name server: %v", err)
			}
		}
	}()
	return address.String()
}

// resolve answers a query for name, which has an IPv4 address. No other name exists.
func resolve(query []byte, name string) ([]byte, error) {
	var m dnsmessage.Message
	if err := m.Unpack(query); err != nil {
		return nil, err
	}
	m.Response, m.RecursionAvailable, m.RCode = true, true, dnsmessage.RCodeNameError
	m.Additionals = nil
	for _, q := range m.Questions {
		if q.Name.String() != name {
			continue
		}
		m.RCode = dnsmessage.RCodeSuccess
		if q.Type == dnsmessage.TypeA {
			m.Answers = append(m.Answers, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 60},
				Body:   &dnsmessage.AResource{A: [4]byte(net.ParseIP(Host).To4())},
			})
		}
	}
	return m.Pack()
}
