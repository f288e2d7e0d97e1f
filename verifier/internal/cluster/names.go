package cluster

import (
	"slices"
	"strings"
	"sync"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
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
	n.remove(ref)
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
			n.remove(ref)
		}
	}
}

func (n *names) remove(ref machine.Ref) {
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
func (ms *Machines) ByInternalDNS(name string) []machine.Ref {
	ms.names.mu.RLock()
	defer ms.names.mu.RUnlock()
	return slices.Clone(ms.names.internal[NormalDNS(name)])
}

// ByNode are the Machines whose nodeRef is this Node. [Options.Names] must be set.
func (ms *Machines) ByNode(node string) []machine.Ref {
	ms.names.mu.RLock()
	defer ms.names.mu.RUnlock()
	return slices.Clone(ms.names.node[node])
}

// ByCredential is the UID of the Machine on whose record a live bootstrap credential
// has this id. The record is to be read before it counts.
func (ms *Machines) ByCredential(id string) (uid string, ok bool) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	uid, ok = ms.credentials[id]
	return uid, ok
}

// Counts are how many Machines and Nodes there are.
func (ms *Machines) Counts() (machines, nodes int) { return ms.registry.Len(), ms.registry.Nodes() }

// keepCredentials notes which credentials a record has; the lock is held.
func (ms *Machines) keepCredentials(uid string, before, after []string) {
	for _, id := range before {
		if ms.credentials[id] == uid {
			delete(ms.credentials, id)
		}
	}
	for _, id := range after {
		ms.credentials[id] = uid
	}
}

// maxOrphaned bounds of how many Machines credentials without a record are
// remembered; those of others end by themselves.
const maxOrphaned = 10_000

// orphan notes that a record is gone; the lock is held.
func (ms *Machines) orphan(uid string, l latch) {
	ms.keepCredentials(uid, l.credentials, nil)
	if !ms.o.Revocable || !l.unrevoked || len(ms.orphaned) >= maxOrphaned {
		return
	}
	for _, id := range l.credentials {
		ms.orphaned[uid] = append(ms.orphaned[uid], v1alpha1.CredentialStatus{ID: id})
	}
}

// orphans are what is remembered of a record that is gone; forget it, once they were
// taken back.
func (ms *Machines) orphans(uid string, forget bool) []v1alpha1.CredentialStatus {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if forget {
		delete(ms.orphaned, uid)
		return nil
	}
	return ms.orphaned[uid]
}

// RecordUID is the UID of the Machine that the record of this Machine is named by:
// while a machine is an object of both Machine APIs it has one record.
func (ms *Machines) RecordUID(uid string) string {
	if m, ok := ms.registry.ByUID(uid); ok {
		return records.UID(m)
	}
	return uid
}
