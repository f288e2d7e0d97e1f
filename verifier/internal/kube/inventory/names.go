// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"maps"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
)

// nameIndex finds Machines by the names in the kubelet's certificate signing requests: the name of a
// future Node, which is one of a Machine's InternalDNS names, and the Node of a Machine. Attestation
// does not find Machines by these; see [machine.Registry]. A caller must read the result live before it
// relies on it.
type nameIndex struct{ machines cache.ThreadSafeStore } // by group, namespace and name

// The indexes.
const byInternal, byNode = "internal", "node"

// named has the names of a Machine in the index.
type named struct {
	ref      machine.Ref
	internal []string // in NormalDNS
	node     string
}

// NormalDNS returns the form in which names are compared. Like the stock approver, it ignores case and
// a trailing dot.
func NormalDNS(name string) string { return strings.TrimSuffix(strings.ToLower(name), ".") }

func newNameIndex() *nameIndex {
	return &nameIndex{cache.NewThreadSafeStore(cache.Indexers{
		byInternal: func(o any) ([]string, error) { return o.(named).internal, nil },
		byNode:     func(o any) ([]string, error) { return []string{o.(named).node}, nil },
	}, cache.Indices{})}
}

// put stores a Machine's state, in place of that of another with its name.
func (n *nameIndex) put(m *machine.Machine) {
	if n == nil {
		return
	}
	one := named{ref: m.Ref(), node: m.NodeRef}
	for _, name := range m.InternalDNS {
		one.internal = append(one.internal, NormalDNS(name))
	}
	group, _, _ := strings.Cut(m.APIVersion, "/")
	n.machines.Update(id(group, key{m.Namespace, m.Name}), one)
}

// drop deletes a Machine.
func (n *nameIndex) drop(group string, k key) {
	if n != nil {
		n.machines.Delete(id(group, k))
	}
}

func id(group string, k key) string { return group + "/" + k.namespace + "/" + k.name }

// ByInternalDNS returns the Machines with this InternalDNS. [Options.Names] must be set.
func (n *nameIndex) ByInternalDNS(name string) []machine.Ref {
	return n.by(byInternal, NormalDNS(name))
}

// ByNode returns the Machines whose nodeRef is this Node. [Options.Names] must be set.
func (n *nameIndex) ByNode(node string) []machine.Ref { return n.by(byNode, node) }

func (n *nameIndex) by(index, name string) (refs []machine.Ref) {
	all, _ := n.machines.ByIndex(index, name) // the index exists
	for _, one := range all {
		refs = append(refs, one.(named).ref)
	}
	return refs
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
