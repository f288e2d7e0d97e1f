// SPDX-License-Identifier: Apache-2.0

package sidedoor

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// The hosts and their networks:
//
//	cp ── machine network ── node
//	│                          │
//	pod                      far (a pod on the node, masqueraded)
const (
	cp   = "cp"
	node = "node"
	pod  = "pod"
	far  = "far"
)

// Addresses of the control-plane host.
const (
	cp4     = "192.0.2.10"
	cp6     = "2001:db8:1::10"
	vip4    = "192.0.2.5" // api-int, moved around by keepalived
	podGate = "10.128.0.1"
	// Of Services, translated to the control-plane host.
	service4 = "172.30.0.55"
	service6 = "2001:db8:30::55"
	// Of a balancer that does not translate.
	balancer4 = "203.0.113.7"
	balancer6 = "2001:db8:203::7"
)

// network is a set of namespaces with unique names.
type network struct {
	t *testing.T
}

func (n network) ns(host string) string { return fmt.Sprintf("mcsa-%d-%s", os.Getpid(), host) }

func newNetwork(t *testing.T) network {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("network namespaces need root\nhint: run the tests as root, or `sudo go test ./testvm/sidedoor`")
	}
	n := network{t}
	for _, host := range []string{cp, node, pod, far} {
		n.run("ip", "netns", "add", n.ns(host))
		t.Cleanup(func() { n.run("ip", "netns", "del", n.ns(host)) })
		n.in(host, "ip link set lo up")
	}
	n.link(cp, node, cp4, "192.0.2.20", cp6, "2001:db8:1::20")
	n.link(cp, pod, podGate, "10.128.0.2", "2001:db8:128::1", "2001:db8:128::2")
	n.link(node, far, "10.129.0.1", "10.129.0.2", "2001:db8:129::1", "2001:db8:129::2")
	n.in(cp, "ip addr add "+vip4+"/32 dev to-node")
	for _, host := range []string{cp, node} {
		n.in(host, "echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding")
	}
	n.in(cp, "ip route add default via 192.0.2.20; ip -6 route add default via 2001:db8:1::20")
	n.in(pod, "ip route add default via "+podGate+"; ip -6 route add default via 2001:db8:128::1")
	n.in(far, "ip route add default via 10.129.0.1; ip -6 route add default via 2001:db8:129::1")
	n.in(node, "ip route add 172.30.0.0/16 via "+cp4+"; ip route add "+balancer4+" via "+cp4)
	n.in(node, "ip route add 10.128.0.0/24 via "+cp4+"; ip -6 route add 2001:db8:128::/64 via "+cp6+"; ip -6 route add "+
		balancer6+" via "+cp6)
	n.nft(node, `table inet plugin {
		chain out { type nat hook postrouting priority srcnat; oifname "to-cp" masquerade; }
	}`)
	return n
}

// link connects two hosts; each end is named after the other host.
func (n network) link(a, b, a4, b4, a6, b6 string) {
	n.t.Helper()
	n.run("ip", "link", "add", "to-"+b, "netns", n.ns(a), "type", "veth", "peer", "name", "to-"+a, "netns", n.ns(b))
	for _, end := range [][4]string{{a, "to-" + b, a4, a6}, {b, "to-" + a, b4, b6}} {
		n.in(end[0], fmt.Sprintf("ip addr add %s/24 dev %s; ip addr add %s/64 dev %s nodad; ip link set %s up",
			end[2], end[1], end[3], end[1], end[1]))
	}
}

func (n network) run(name string, args ...string) string {
	n.t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		n.t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// in runs a shell command on a host.
func (n network) in(host, command string) string {
	n.t.Helper()
	return n.run("ip", "netns", "exec", n.ns(host), "/bin/sh", "-ec", command)
}

// nft loads rules on a host.
func (n network) nft(host, rules string) {
	n.t.Helper()
	cmd := exec.Command("ip", "netns", "exec", n.ns(host), "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(rules)
	if out, err := cmd.CombinedOutput(); err != nil {
		n.t.Fatalf("nft: %v\n%s\n%s", err, out, rules)
	}
}

// on calls f on a thread that is in the network of a host and acts as a user. Sockets that it
// creates keep that network and user.
func (n network) on(host string, user int, f func() error) error {
	done := make(chan error)
	go func() {
		// Never unlocked: the thread ends with this goroutine.
		runtime.LockOSThread()
		fd, err := unix.Open("/run/netns/"+n.ns(host), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			err = unix.Setns(fd, unix.CLONE_NEWNET)
			unix.Close(fd)
		}
		if err == nil && user != 0 {
			// The bare system call changes only this thread.
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(user), uintptr(user), uintptr(user)); errno != 0 {
				err = errno
			}
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// listen listens on a port of every address of a host.
func (n network) listen(host string, port int) net.Listener {
	n.t.Helper()
	var l net.Listener
	err := n.on(host, 0, func() (err error) {
		l, err = net.Listen("tcp", fmt.Sprintf("[::]:%d", port))
		return err
	})
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { l.Close() })
	return l
}
