// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
)

// Addresses in a guest. An ordinary machine has slirp's usual network. A machine with a metadata
// service is in 169.254.0.0/16, because slirp forwards only addresses of its own network.
const (
	// Host is the host's loopback interface for an ordinary guest.
	Host = "10.0.2.2"
	// CloudHost is the same for a guest with [VM.Metadata].
	CloudHost = "169.254.169.2"
	// metadataAddress is the metadata service of every cloud.
	metadataAddress = "169.254.169.254"
)

// netdev returns QEMU's network for the machine, with its metadata service if it has one.
func (n *Node) netdev(metadata http.Handler) string {
	if metadata == nil {
		return "user,id=net"
	}
	server := httptest.NewServer(&asked{n: n, next: metadata})
	n.r.t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	// Slirp starts a program for each connection and connects it to the guest.
	return fmt.Sprintf("user,id=net,net=169.254.0.0/16,host=%s,guestfwd=tcp:%s:80-cmd:busybox nc 127.0.0.1 %d",
		CloudHost, metadataAddress, server.Listener.Addr().(*net.TCPAddr).Port)
}

// asked records the machine's requests to its metadata service.
type asked struct {
	n    *Node
	next http.Handler
}

func (a *asked) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	a.n.mu.Lock()
	a.n.metadata = append(a.n.metadata, req.Method+" "+req.URL.Path+" "+req.UserAgent())
	a.n.mu.Unlock()
	a.next.ServeHTTP(w, req)
}

// Metadata returns the machine's requests to its metadata service so far: "METHOD path user-agent".
func (n *Node) Metadata() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]string(nil), n.metadata...)
}

// AskedMetadata reports whether a request for the path came from a client whose name begins with
// userAgent. Ignition sends "Ignition/" and its version.
func (n *Node) AskedMetadata(path, userAgent string) bool {
	for _, line := range n.Metadata() {
		if f := strings.SplitN(line, " ", 3); f[1] == path && strings.HasPrefix(f[2], userAgent) {
			return true
		}
	}
	return false
}
