package rig

import (
	"encoding/json"
	"io"
	"path/filepath"
)

// Kubelet makes a machine's real root one that becomes a Node: with a real kubelet,
// which begins with what Ignition left in /etc/kubernetes, and a container runtime
// that runs nothing. Such a machine runs until its power is cut; [Node.Probe] is its
// kubeconfig.
type Kubelet struct {
	// Programs is the folder that has the kubelet and "cri", cluster.Binaries.
	Programs string
	// Node is the name of its Node.
	Node string
	// Held: the kubelet does not start before [Node.Release].
	Held bool
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
	if k.Held {
		line += " rig.hold"
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

// Release lets the kubelet of a machine start that was held.
func (n *Node) Release() {
	n.r.t.Helper()
	_, err := io.WriteString(n.stdin, "\n")
	n.r.fatal(err, "console")
}
