package inventory

import (
	"slices"
	"strings"
	"sync"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
)

// nameIndex finds Machines by what the kubelet's certificate signing requests are about:
// the name of a Node to come, which is one of a Machine's InternalDNS, and the Node
// that a Machine has become. Attestation finds no Machine by these; see
// [machine.Registry]. What is found is to be read anew before it counts.
type nameIndex struct {
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

func newNameIndex() *nameIndex {
	return &nameIndex{internal: map[string][]machine.Ref{}, node: map[string][]machine.Ref{}, of: map[machine.Ref]named{}}
}

// put takes a Machine's state. A Machine that was deleted and made again has
// another UID, and is another one; the one before is dropped by its name.
func (n *nameIndex) put(m *machine.Machine) {
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
func (n *nameIndex) drop(group string, k key) {
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

func (n *nameIndex) remove(ref machine.Ref) {
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
func (n *nameIndex) ByInternalDNS(name string) []machine.Ref {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return slices.Clone(n.internal[NormalDNS(name)])
}

// ByNode are the Machines whose nodeRef is this Node. [Options.Names] must be set.
func (n *nameIndex) ByNode(node string) []machine.Ref {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return slices.Clone(n.node[node])
}

// credentialIndex finds Machines by their live bootstrap credentials.
type credentialIndex struct {
	mu   sync.Mutex
	uids map[string]string // the Machine's UID by the id of the credential
	// orphaned are the credentials of records that were deleted, by the Machine's UID, until
	// they were revoked.
	orphaned map[string][]v1alpha1.CredentialStatus
}

// maxOrphaned bounds of how many Machines credentials without a record are
// remembered; those of others end by themselves.
const maxOrphaned = 10_000

// ByCredential is the UID of the Machine on whose record a live bootstrap credential
// has this id. The record is to be read before it counts.
func (i *credentialIndex) ByCredential(id string) (uid string, ok bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	uid, ok = i.uids[id]
	return uid, ok
}

// replaceCredentials replaces the credentials on a record.
func (i *credentialIndex) replaceCredentials(uid string, before, after []string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, id := range before {
		if i.uids[id] == uid {
			delete(i.uids, id)
		}
	}
	for _, id := range after {
		i.uids[id] = uid
	}
}

// orphan keeps the credentials of a record that was deleted.
func (i *credentialIndex) orphan(uid string, ids []string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.orphaned) >= maxOrphaned {
		return
	}
	for _, id := range ids {
		i.orphaned[uid] = append(i.orphaned[uid], v1alpha1.CredentialStatus{ID: id})
	}
}

// Orphaned returns the credentials of records that were deleted before they were revoked.
func (i *credentialIndex) Orphaned(uid string) []v1alpha1.CredentialStatus {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.orphaned[uid]
}

// DropOrphaned removes them from memory.
func (i *credentialIndex) DropOrphaned(uid string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.orphaned, uid)
}
