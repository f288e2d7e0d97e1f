// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
)

// PodAPI is the address of the Service "kubernetes" in a cluster with [Kubelets]. It is in the network of a
// virtual machine, so that the machine's emulator can forward connections of pods to the API server.
const PodAPI = "10.0.2.129"

// services is the range of the Services' addresses, of which PodAPI is the first.
const services = "10.0.2.128/25"

// Kubelets lets the API server connect to kubelets, as "kubectl attach" and "kubectl logs" need it.
// The API server has no route to the network of a virtual machine. So it connects through a proxy of
// this process, which knows from [Cluster.Reach] where a kubelet listens.
func Kubelets() Option { return func(o *options) { o.kubelets = true } }

// kubelets are the addresses of kubelets.
type kubelets struct {
	mu      sync.Mutex
	reached map[string]string
}

// Reach makes the API server reach the kubelet of a Node at an address of this host. A Node that is
// not named by Reach is unreachable.
func (c *Cluster) Reach(node, address string) {
	c.kubelets.mu.Lock()
	defer c.kubelets.mu.Unlock()
	c.kubelets.reached[node] = address
}

const egress = `apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
- name: cluster
  connection:
    proxyProtocol: HTTPConnect
    transport: {uds: {udsName: %s}}
`

// connectKubelets starts the proxy, and returns the API server's flags.
func (c *Cluster) connectKubelets() ([]string, error) {
	socket, config := c.path("kubelets.sock"), c.path("egress.yaml")
	err := errors.Join(
		c.ca.issue("kubelet-client", pkix.Name{CommonName: "kube-apiserver", Organization: []string{"system:masters"}},
			nil, nil),
		os.WriteFile(config, fmt.Appendf(nil, egress, socket), 0o600),
	)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	c.kubelets = &kubelets{reached: map[string]string{}}
	proxy := &http.Server{Handler: c.kubelets} //nolint:gosec // its only client is the API server
	go func() {
		if err := proxy.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			c.logf("the proxy to kubelets: %v", err)
		}
	}()
	c.closers = append(c.closers, proxy)
	return []string{
		"--egress-selector-config-file=" + config, "--kubelet-certificate-authority=" + c.ca.path("ca.crt"),
		"--kubelet-client-certificate=" + c.ca.path("kubelet-client.crt"),
		"--kubelet-client-key=" + c.ca.path("kubelet-client.key"), "--service-cluster-ip-range=" + services,
	}, nil
}

// ServeHTTP implements http.Handler for CONNECT.
func (k *kubelets) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	node, _, err := net.SplitHostPort(r.Host)
	k.mu.Lock()
	address, ok := k.reached[node]
	k.mu.Unlock()
	if r.Method != http.MethodConnect || err != nil || !ok {
		http.Error(w, "no kubelet is known for "+r.Host, http.StatusBadGateway)
		return
	}
	there, err := net.Dial("tcp", address)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer there.Close()
	here, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return // the API server has hung up
	}
	defer here.Close()
	if _, err := io.WriteString(here, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return
	}
	var copies sync.WaitGroup
	// When one direction ends, so does the other one.
	pipe := func(to net.Conn, from io.Reader) {
		_, _ = io.Copy(to, from)
		_ = errors.Join(to.Close(), here.Close(), there.Close())
	}
	copies.Go(func() { pipe(there, buffered) })
	copies.Go(func() { pipe(here, there) })
	copies.Wait()
}
