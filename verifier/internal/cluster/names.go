package cluster

import (
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/inventory"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/records"
)

// names finds Machines by what the kubelet's certificate signing requests are about:
// the name of a Node to come, which is one of a Machine's InternalDNS, and the Node
// that a Machine has become. Attestation finds no Machine by these; see
// [machine.Registry]. What is found is to be read anew before it counts.
type names struct {
	mu       sync.RWMutex
	internal map[string][]machine.Ref // by NormalDNS
	node     map[string][]machine.Ref
	of       map[machine.Ref]named
}

// named is under what a Machine is found.
type named struct {
	internal []string
	node     string
}

// NormalDNS is the form in which names are compared: as the stock approver does,
// without regard to case and to a dot at the end.
func NormalDNS(name string) string { return strings.TrimSuffix(strings.ToLower(name), ".") }

func newNames() *names {
	return &names{internal: map[string][]machine.Ref{}, node: map[string][]machine.Ref{}, of: map[machine.Ref]named{}}
}

// put takes a Machine's state. A Machine that was deleted and made again has
// another UID, and is another one; the one before is dropped by its name.
func (n *names) put(m *machine.Machine) {
	if n == nil {
		return
	}
	next := named{node: m.NodeRef}
	for _, name := range m.InternalDNS {
		if name = NormalDNS(name); !slices.Contains(next.internal, name) {
			next.internal = append(next.internal, name)
		}
	}
	ref := m.Ref()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.forget(ref)
	if len(next.internal) == 0 && next.node == "" {
		return
	}
	n.of[ref] = next
	for _, name := range next.internal {
		n.internal[name] = append(n.internal[name], ref)
	}
	if next.node != "" {
		n.node[next.node] = append(n.node[next.node], ref)
	}
}

// drop forgets a Machine that is gone. Deletions are few: an index by name would
// be as large as the rest.
func (n *names) drop(group string, k key) {
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for ref := range n.of {
		if ref.Name == k.name && ref.Namespace == k.namespace && strings.HasPrefix(ref.APIVersion, group+"/") {
			n.forget(ref)
		}
	}
}

func (n *names) forget(ref machine.Ref) {
	was, ok := n.of[ref]
	if !ok {
		return
	}
	delete(n.of, ref)
	without := func(index map[string][]machine.Ref, name string) {
		// A slice that was handed out stays as it is.
		var rest []machine.Ref
		for _, r := range index[name] {
			if r != ref {
				rest = append(rest, r)
			}
		}
		if len(rest) == 0 {
			delete(index, name)
		} else {
			index[name] = rest
		}
	}
	for _, name := range was.internal {
		without(n.internal, name)
	}
	if was.node != "" {
		without(n.node, was.node)
	}
}

// ByInternalDNS are the Machines with this InternalDNS. [Options.Names] must be set.
func (c *Cluster) ByInternalDNS(name string) []machine.Ref {
	c.names.mu.RLock()
	defer c.names.mu.RUnlock()
	return slices.Clone(c.names.internal[NormalDNS(name)])
}

// ByNode are the Machines whose nodeRef is this Node. [Options.Names] must be set.
func (c *Cluster) ByNode(node string) []machine.Ref {
	c.names.mu.RLock()
	defer c.names.mu.RUnlock()
	return slices.Clone(c.names.node[node])
}

// ByCredential is the UID of the Machine on whose record a live bootstrap credential
// has this id. The record is to be read before it counts.
func (c *Cluster) ByCredential(id string) (uid string, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	uid, ok = c.credentials[id]
	return uid, ok
}

// Ready says why nothing final should be said on what was watched: something has
// not been read, or is too old, or what was in force before a restore of etcd is being
// set again. nil: all is well.
func (c *Cluster) Ready() error {
	if synced, missing := c.Synced(); !synced {
		return errors.New(inventory.Bounded(strings.Join(missing, "; ")))
	}
	if err := c.View().Stale; err != nil {
		return err
	}
	if c.repairing() {
		return errors.New("what was in force before etcd was restored is being set again")
	}
	return nil
}

// Counts are how many Machines and Nodes there are.
func (c *Cluster) Counts() (machines, nodes int) { return c.registry.Len(), c.registry.Nodes() }

// keepCredentials notes which credentials a record has; the lock is held.
func (c *Cluster) keepCredentials(uid string, before, after []string) {
	for _, id := range before {
		if c.credentials[id] == uid {
			delete(c.credentials, id)
		}
	}
	for _, id := range after {
		c.credentials[id] = uid
	}
}

// maxOrphaned bounds of how many Machines credentials without a record are
// remembered; those of others end by themselves.
const maxOrphaned = 10_000

// orphan notes that a record is gone; the lock is held.
func (c *Cluster) orphan(uid string, l latch) {
	c.keepCredentials(uid, l.credentials, nil)
	if c.o.Revoke == nil || !l.unrevoked || len(c.orphaned) >= maxOrphaned {
		return
	}
	for _, id := range l.credentials {
		c.orphaned[uid] = append(c.orphaned[uid], v1alpha1.CredentialStatus{ID: id})
	}
}

// orphans are what is remembered of a record that is gone; forget it, once they were
// taken back.
func (c *Cluster) orphans(uid string, forget bool) []v1alpha1.CredentialStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	if forget {
		delete(c.orphaned, uid)
		return nil
	}
	return c.orphaned[uid]
}

// RecordUID is the UID of the Machine that the record of this Machine is named by:
// while a machine is an object of both Machine APIs it has one record.
func (c *Cluster) RecordUID(uid string) string {
	if m, ok := c.registry.ByUID(uid); ok {
		return records.UID(m)
	}
	return uid
}
