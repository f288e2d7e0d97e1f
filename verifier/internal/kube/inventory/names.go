// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
)

// nameIndex finds Machines by the names in the kubelet's certificate signing requests: the name of a
// future Node, which is one of a Machine's InternalDNS names, and the Node of a Machine. Attestation
// does not find Machines by these; see [machine.Registry]. A caller must read the result live before it
// relies on it.
type nameIndex struct {
	mu       sync.RWMutex
	internal map[string][]machine.Ref // by NormalDNS
	node     map[string][]machine.Ref
	of       map[machine.Ref]named
}

// named has the names of a Machine in the index.
type named struct {
	internal []string
	node     string
}

// NormalDNS returns the form in which names are compared. Like the stock approver, it ignores case and
// a trailing dot.
func NormalDNS(name string) string { return strings.TrimSuffix(strings.ToLower(name), ".") }

func newNameIndex() *nameIndex {
	return &nameIndex{internal: map[string][]machine.Ref{}, node: map[string][]machine.Ref{}, of: map[machine.Ref]named{}}
}

// put stores a Machine's state. A Machine that was deleted and created again has another UID and is
// another Machine. put deletes the previous one by its name.
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

// drop deletes a Machine. Deletions are rare, and an index by name would be as large as the rest.
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
		// A slice that was returned to a caller must not change.
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

// ByInternalDNS returns the Machines with this InternalDNS. [Options.Names] must be set.
func (n *nameIndex) ByInternalDNS(name string) []machine.Ref {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return slices.Clone(n.internal[NormalDNS(name)])
}

// ByNode returns the Machines whose nodeRef is this Node. [Options.Names] must be set.
func (n *nameIndex) ByNode(node string) []machine.Ref {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return slices.Clone(n.node[node])
}

// credentialIndex finds Machines by their live bootstrap credentials.
type credentialIndex struct {
	mu   sync.Mutex
	uids map[string]string // UID of the Machine by the id of the credential
	// orphaned has the credentials of records that were deleted, by the Machine's UID, until they are
	// revoked.
	orphaned map[string][]v1alpha1.CredentialStatus
}

const (
	// maxOrphaned is the maximum number of Machines with orphaned credentials in memory. The credentials of
	// others expire.
	maxOrphaned = 10_000
	// maxLifetime is that of a credential.
	maxLifetime = 24 * time.Hour
)

// ByCredential returns the UID of the Machine whose record has a live bootstrap credential with this
// id. The caller must read the record before it relies on it.
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

// orphan stores the credentials of a record that was deleted. Only the replica that leads revokes them. Another one
// keeps them until they have expired, because it may lead by then.
func (i *credentialIndex) orphan(uid string, ids []string, now time.Time) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.orphaned) >= maxOrphaned {
		maps.DeleteFunc(i.orphaned, func(_ string, all []v1alpha1.CredentialStatus) bool { return expired(all, now) })
	}
	if len(i.orphaned) >= maxOrphaned {
		return
	}
	for _, id := range ids {
		i.orphaned[uid] = append(i.orphaned[uid],
			v1alpha1.CredentialStatus{ID: id, Expiry: metav1.NewTime(now.Add(maxLifetime))})
	}
}

// expired reports whether the last credential has surely expired.
func expired(all []v1alpha1.CredentialStatus, now time.Time) bool {
	return len(all) == 0 || !now.Before(all[len(all)-1].Expiry.Time)
}

// orphans returns the UIDs of the Machines with orphaned credentials that may still be live.
func (i *credentialIndex) orphans(now time.Time) (uids []string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for uid, all := range i.orphaned {
		if !expired(all, now) {
			uids = append(uids, uid)
		}
	}
	return uids
}

// Orphaned returns the credentials of records that were deleted before they were revoked.
func (i *credentialIndex) Orphaned(uid string) []v1alpha1.CredentialStatus {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.orphaned[uid]
}

// DropOrphaned deletes them from memory.
func (i *credentialIndex) DropOrphaned(uid string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.orphaned, uid)
}
