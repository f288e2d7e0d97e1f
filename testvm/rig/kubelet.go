package rig

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"time"
)

// Kubelet makes a machine's real root one that becomes a Node: with a real kubelet,
// which begins with what Ignition left in /etc/kubernetes, and a container runtime
// that runs nothing. Such a machine runs until its power is cut.
type Kubelet struct {
	// Programs is the folder that has the kubelet and "cri", cluster.Binaries.
	Programs string
	// Node is the name of its Node.
	Node string
	// Gate holds it back before the kubelet starts, until it is opened. Nil: nothing does.
	Gate *Gate
}

// programs of the root disk: path in the guest to path here.
func (k *Kubelet) programs() map[string]string {
	return map[string]string{
		"usr/bin/kubelet": filepath.Join(k.Programs, "kubelet"),
		"usr/bin/cri":     filepath.Join(k.Programs, "cri"),
	}
}

// cmdline is what the guest's init reads.
func (k *Kubelet) cmdline() string {
	line := " rig.node=" + k.Node
	if k.Gate != nil {
		line += " rig.gate=" + k.Gate.url
	}
	return line
}

// KubeletConfig is /etc/kubernetes/kubelet.conf for such a machine: what a kubelet
// without a container runtime worth the name, and without systemd, can do with.
func KubeletConfig() string {
	b, err := json.Marshal(map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"containerRuntimeEndpoint": "unix:///run/cri.sock",
		"authentication": map[string]any{
			"anonymous": map[string]any{"enabled": false},
			"x509":      map[string]any{"clientCAFile": "/etc/kubernetes/kubelet-ca.crt"},
		},
		"rotateCertificates": true, "serverTLSBootstrap": true,
		"cgroupDriver": "cgroupfs", "cgroupsPerQOS": false, "enforceNodeAllocatable": []string{},
		"failSwapOn": false, "localStorageCapacityIsolation": false, "makeIPTablesUtilChains": false,
		"resolvConf": "", "registerNode": true, "nodeStatusReportFrequency": "10s",
	})
	if err != nil {
		panic(err) // of strings and bools
	}
	return string(b)
}

// Gate is a request that a guest makes and that is answered when the test says so.
type Gate struct {
	url  string
	once sync.Once
	open chan struct{}
}

// NewGate makes one that is closed.
func (r *Rig) NewGate() *Gate {
	r.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	r.fatal(err, "gate")
	g := &Gate{open: make(chan struct{})}
	g.url = fmt.Sprintf("http://%s:%d/", Host, listener.Addr().(*net.TCPAddr).Port)
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		select {
		case <-g.open:
		case <-req.Context().Done():
		}
	})}
	go func() {
		if err := server.Serve(listener); err != http.ErrServerClosed {
			r.t.Logf("rig: gate: %v", err)
		}
	}()
	r.t.Cleanup(func() { server.Close() })
	return g
}

// Open opens it.
func (g *Gate) Open() { g.once.Do(func() { close(g.open) }) }
