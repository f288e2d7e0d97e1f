// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/manifest"
	"github.com/mcs-attest/mcs-attest/pkg/noderole"
)

// node is the cached state of a Node.
type node struct {
	providerID string
	// controlPlane means that the Node has a label of the control plane's role. Only then addresses has
	// its internal IPs.
	controlPlane bool
	addresses    []netip.Addr
	ready        time.Time // since when it has been ready; zero: it is not
}

// The labels of Nodes of the control plane. Either is sufficient.
const (
	labelControlPlane = "node-role.kubernetes.io/control-plane"
	labelMaster       = "node-role.kubernetes.io/master"
)

// maxAddresses is the maximum number of addresses of a Node that are cached.
const maxAddresses = 8

func compactNode(o client.Object) (any, []manifest.Problem) {
	in, ok := o.(*corev1.Node)
	if !ok {
		return nil, []manifest.Problem{{What: fmt.Sprintf("%T is not a Node", o)}}
	}
	n := node{providerID: in.Spec.ProviderID}
	for _, c := range in.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
			n.ready = c.LastTransitionTime.Time
		}
	}
	_, control := in.Labels[labelControlPlane]
	_, master := in.Labels[labelMaster]
	if n.controlPlane = control || master; !n.controlPlane {
		return n, nil
	}
	for _, address := range in.Status.Addresses {
		a, err := netip.ParseAddr(address.Address)
		if err == nil && address.Type == corev1.NodeInternalIP && len(n.addresses) < maxAddresses {
			n.addresses = append(n.addresses, a.Unmap())
		}
	}
	return n, nil
}

// planned is a Machine or a stand-in of the control plane's pool.
type planned struct {
	uid   string
	names []string // that its Node may have
}

// plannedKey identifies it. The same Machine may be in both APIs.
type plannedKey struct {
	group string
	key
}

// plannedOf returns the planned Node of a Machine, or nil if the Machine does not belong to the control
// plane's pool.
func plannedOf(m *machine.Machine) (plannedKey, *planned) {
	group, _, _ := strings.Cut(m.APIVersion, "/")
	at := plannedKey{group, key{m.Namespace, m.Name}}
	if !m.HasPool(noderole.Pool) {
		return at, nil
	}
	var names []string
	for _, name := range append(slices.Clone(m.InternalDNS), m.NodeRef) {
		if name = NormalDNS(name); name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return at, &planned{m.UID, names}
}

// controlPlane has the Nodes of the control plane, and the Machines of its pool. Both are few.
type controlPlane struct {
	mu    sync.Mutex
	nodes map[string]node
	plans map[plannedKey]planned
}

// put caches a Node if it has a role of the control plane, and reports whether anything changed.
func (c *controlPlane) put(name string, n node) (changed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before, known := c.nodes[name]
	delete(c.nodes, name)
	if n.controlPlane {
		c.nodes[name] = n
	}
	return known != n.controlPlane || before.providerID != n.providerID && n.controlPlane
}

// plan caches what is planned with a Machine, or nil, and reports whether anything changed.
func (c *controlPlane) plan(at plannedKey, next *planned) (changed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before, known := c.plans[at]
	delete(c.plans, at)
	if next == nil {
		return known
	}
	c.plans[at] = *next
	return !known || before.uid != next.uid || !slices.Equal(before.names, next.names)
}

// has reports whether a Machine belongs to the control plane's pool, and whether a Node belongs to the
// control plane.
func (c *controlPlane) has(uid, name string) (planned, member bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, member = c.nodes[name]
	for _, p := range c.plans {
		planned = planned || p.uid == uid
	}
	return planned, member
}

// all returns the Nodes by name, and the Machines.
func (c *controlPlane) all() (map[string]node, []planned) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.nodes), slices.Collect(maps.Values(c.plans))
}
