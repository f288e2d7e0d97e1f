// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"encoding/hex"
	"strings"
	"time"
)

// compactMachine is a Machine in compact form.
type compactMachine struct {
	*sharedFields
	name, uid, nodeRef, providerID string
	metal3                         string
	created                        int64 // Unix time in nanoseconds; 0 means none
	eks                            []EKHash
}

// sharedFields has the fields that are equal for many Machines.
type sharedFields struct {
	apiVersion, kind, namespace, phase, userDataSecret, authority string

	pools    string // joined by commas, which no pool name contains
	deleting bool
	undated  bool
}

// compact returns the compact form of m. It omits InternalDNS and addresses, which are never looked up.
func (r *Registry) compact(m Machine) *compactMachine {
	shared := sharedFields{m.APIVersion, m.Kind, m.Namespace, m.Phase, m.UserDataSecret, m.authority,
		strings.Join(m.Pools, ","), m.Deleting, m.Undated}
	one, ok := r.shared[shared]
	if !ok {
		one = &shared
		if len(r.shared) < maxShared {
			r.shared[shared] = one
		}
	}
	k := &compactMachine{sharedFields: one, name: m.Name, uid: m.UID, nodeRef: m.NodeRef, providerID: m.ProviderID,
		metal3: m.metal3}
	if !m.Created.IsZero() {
		k.created = m.Created.UnixNano()
	}
	for _, s := range m.EKSHA256 {
		k.eks = append(k.eks, ekOf(s))
	}
	return k
}

// maxShared limits the number of entries in Registry.shared.
const maxShared = 10_000

// machine returns the Machine of the compact form.
func (k *compactMachine) machine() Machine {
	m := Machine{
		APIVersion: k.apiVersion, Kind: k.kind, Namespace: k.namespace, Name: k.name, UID: k.uid, Deleting: k.deleting,
		Undated: k.undated, Phase: k.phase,
		NodeRef: k.nodeRef, ProviderID: k.providerID, UserDataSecret: k.userDataSecret, authority: k.authority,
		metal3: k.metal3,
	}
	if k.created != 0 {
		m.Created = time.Unix(0, k.created)
	}
	if k.pools != "" {
		m.Pools = strings.Split(k.pools, ",")
	}
	for _, h := range k.eks {
		m.EKSHA256 = append(m.EKSHA256, hex.EncodeToString(h[:]))
	}
	return m
}

func (k *compactMachine) provider() string { return NormalProviderID(k.providerID) }

// metal3Machine returns the key of the Machine's Metal3Machine.
func (k *compactMachine) metal3Machine() name { return name{kindMetal3Machine, k.namespace, k.metal3} }
