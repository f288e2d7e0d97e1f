// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"encoding/json"
	"io"
	"path/filepath"
)

// Kubelet turns a machine's real root into a Node: with a real kubelet, which starts with what
// Ignition wrote to /etc/kubernetes, and a container runtime that runs no containers. Such a
// machine runs until its power is cut. [Node.Probe] is its kubeconfig.
type Kubelet struct {
	// Programs is the folder that has the kubelet and "cri", binaries.Kubernetes.
	Programs string
	// Containers is the folder that has containerd, binaries.Containers. If it is set, the Node runs pods,
	// and the kubelet can be reached at [Node.Address].
	Containers string
	// Images are the images that this Node has, by name. It pulls no others.
	Images map[string]Image
	// Ports are more ports of the machine that can be reached at [Node.Address].
	Ports []int
	// API is the address of the API server on this host, and PodAPI the one that pods connect to, or both
	// are empty.
	API, PodAPI string
	// Node is the name of its Node.
	Node string
	// Held: the kubelet does not start before [Node.Release].
	Held bool
}

const kubeletPort = 10250

// kubeletMemory is the memory of a machine with a kubelet, in MiB.
const kubeletMemory = "1024"

func (k *Kubelet) memory() string {
	if k.Containers != "" {
		return "1536"
	}
	return kubeletMemory
}

// programs returns the programs of the root disk: path in the guest to path here.
func (k *Kubelet) programs() map[string]string {
	return map[string]string{
		"usr/bin/kubelet": filepath.Join(k.Programs, "kubelet"),
		"usr/bin/cri":     filepath.Join(k.Programs, "cri"),
	}
}

// cmdline returns the arguments for the guest's init.
func (k *Kubelet) cmdline() string {
	line := " rig.node=" + k.Node
	if k.Held {
		line += " rig.hold"
	}
	return line
}

// KubeletConfig returns /etc/kubernetes/kubelet.conf for such a machine: a configuration that works
// without a real container runtime and without systemd.
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
		panic(err) // strings and bools always encode
	}
	return string(b)
}

// Release starts a kubelet that was held.
func (n *Node) Release() {
	n.r.t.Helper()
	_, err := io.WriteString(n.stdin, "\n")
	n.r.fatal(err, "console")
}
