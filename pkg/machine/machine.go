// SPDX-License-Identifier: Apache-2.0

// Package machine finds the Machine that a verified identity belongs to. The
// appraisal, the gate and the approver use it.
//
// Its input is manifests: Machines of machine.openshift.io/v1beta1 and of Cluster
// API (cluster.x-k8s.io), and MachineAttestations. A MachineAttestation enrolls a
// Machine's TPM. With spec.pool and without a machineRef it stands in for a Machine,
// where Machines do not exist. A metal3 BareMetalHost enrolls the TPM of the Machine
// that consumes it, in Cluster API through its Metal3Machine. An [Index] is immutable and built from all manifests. A
// [Registry] holds manifests that change one at a time.
//
// [Index.Match] accepts only verified identities: the hash of an EK, a cloud's
// instance ID, the UID of an earlier record. Names and addresses are never keys. It
// denies an identity that names no Machine, more than one, or one that may not attest
// now, each with its own reason.
//
// Manifests come from administrators and are trusted. The pool in [Rules] comes from
// the caller and is untrusted.
package machine

import (
	"crypto/fips140"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/manifest"
)

// EKHash is the SHA-256 of an EK's SubjectPublicKeyInfo. The zero value means no EK.
type EKHash = [32]byte

// Machine has the fields of a Machine object that attestation needs. It is read-only after indexing.
type Machine struct {
	APIVersion, Kind, Namespace, Name string
	// UID is metadata.uid, or a stable UUID of group, kind, namespace and name.
	UID string
	// Created is metadata.creationTimestamp, or else the file's modification time.
	Created time.Time
	// Undated reports that Created is the file's modification time, which tells nothing about the machine.
	Undated  bool
	Deleting bool
	Phase    string
	// NodeRef is the Machine's Node, or "" before it joined.
	NodeRef    string
	ProviderID string
	// Pools are the pools that the Machine may have, sorted.
	Pools []string
	// EKSHA256 are the enrolled EKs, in sorted lower-case hexadecimal, including those
	// of its MachineAttestations.
	EKSHA256    []string
	InternalDNS []string
	Addresses   []string
	// UserDataSecret names the secret with the pointer config.
	UserDataSecret string
	// StandIn reports that a MachineAttestation stands in for the Machine.
	StandIn bool
	// Enrollment is the Machine's MachineAttestation, or the stand-in itself, or nil.
	Enrollment *v1alpha1.MachineAttestation
	// Mirror is the other object of a machine that both the Machine API and Cluster API
	// have, or nil. Which of the two is authoritative may change.
	Mirror *Machine

	authority   string         // which of two mirrored objects is authoritative; see fold
	metal3      string         // the name of its Metal3Machine, which is in the same namespace
	quarantined bool           // by a MachineAttestation of this Machine
	expected    []string       // the provider IDs that its MachineAttestations expect
	source      manifest.Place // for messages
}

// String returns "namespace/name".
func (m *Machine) String() string { return m.Namespace + "/" + m.Name }

// Joined reports whether the Machine is already a Node. It is a latch: only a grant
// lets the Machine attest again.
func (m *Machine) Joined() bool { return m.NodeRef != "" || m.Phase == "Running" }

// NodeNames returns the names that the Machine's Node may have: its InternalDNS names, in the form of
// a Node's name, each one once.
func (m *Machine) NodeNames() (all []string) {
	for _, name := range m.InternalDNS {
		name = strings.ToLower(strings.TrimSuffix(name, "."))
		if name != "" && !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	return all
}

// maxGrant is the longest validity of a grant (rule 11 of docs/security-rules.md).
const maxGrant = 24 * time.Hour

// Granted reports whether an administrator lets the Machine attest again although it
// joined. The record notes whether the grant was used.
func (m *Machine) Granted(now time.Time) bool {
	if m.Enrollment == nil || m.Enrollment.Spec.Reattest == nil {
		return false
	}
	left := m.Enrollment.Spec.Reattest.Until.Sub(now)
	return left > 0 && left <= maxGrant
}

// Quarantined reports whether an administrator quarantined the Machine.
func (m *Machine) Quarantined() bool { return m.quarantined }

// HasPool reports whether the Machine may have the pool.
func (m *Machine) HasPool(pool string) bool { return slices.Contains(m.Pools, pool) }

// API groups of the supported manifests.
const (
	groupMachineAPI = "machine.openshift.io"
	groupClusterAPI = "cluster.x-k8s.io"
	groupMetal3     = "metal3.io"
	kindHost        = "BareMetalHost"

	groupInfrastructure = "infrastructure.cluster.x-k8s.io"
	kindMetal3Machine   = "Metal3Machine"
)

func (m *Machine) group() string { return groupOf(m.APIVersion) }

func groupOf(apiVersion string) string {
	group, _, _ := strings.Cut(apiVersion, "/")
	return group
}

// uidSpace is the namespace of the UIDs for manifests without one.
var uidSpace = uuid.MustParse("5b0c2f3e-6d0b-5c0e-9a52-3f7a0c6f1d94")

// stableUID returns the UUID (RFC 9562, 5.5, version 5) of an object without a UID.
// It does not depend on the API version, which may change in the manifest.
func stableUID(apiVersion, kind, namespace, name string) (uid string) {
	fips140.WithoutEnforcement(func() { // SHA-1 makes a name here, and protects nothing
		uid = uuid.NewSHA1(uidSpace, []byte(groupOf(apiVersion)+"/"+kind+"/"+namespace+"/"+name)).String()
	})
	return uid
}

// NormalProviderID returns the form in which provider IDs are compared. Azure resource
// IDs and vSphere UUIDs are case-insensitive, all others are case-sensitive.
func NormalProviderID(id string) string {
	if scheme, _, _ := strings.Cut(id, "://"); strings.EqualFold(scheme, "azure") || strings.EqualFold(scheme, "vsphere") {
		return strings.ToLower(id)
	}
	return id
}

// ParseEKHash parses 64 hexadecimal digits.
func ParseEKHash(s string) (EKHash, error) {
	var h EKHash
	if len(s) != 2*len(h) {
		return h, fmt.Errorf("%.80q has %d characters, but a SHA-256 has %d hexadecimal digits", s, len(s), 2*len(h))
	}
	if _, err := hex.Decode(h[:], []byte(s)); err != nil {
		return EKHash{}, fmt.Errorf("%.80q is not hexadecimal", s)
	}
	if h == (EKHash{}) {
		return h, fmt.Errorf("a hash of only zeros is not valid")
	}
	return h, nil
}
