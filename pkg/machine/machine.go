// Package machine answers the question "which Machine is speaking?".
//
// Machines come as manifests: machine.openshift.io/v1beta1 and Cluster API
// (cluster.x-k8s.io) Machines, and MachineAttestations, which enrol a Machine's
// TPM or, with spec.pool and without a machineRef, stand in for a Machine where
// there are none; a metal3 BareMetalHost enrols the TPM of the Machine that
// consumes it. An [Index] is built from them once, never changes, and is replaced
// as a whole; a [Registry] is for manifests that change one at a time.
//
// [Index.Match] takes an identity that was verified, and nothing else: the hash
// of an EK, a cloud's instance id, the UID of an earlier record. Names and
// addresses are never keys. What evidence names no Machine, more than one, or a
// Machine that may not attest now, is refused, each with a reason of its own.
//
// Manifests are an administrator's; the pool in a rule is the caller's wish.
package machine

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
)

// EKHash is the SHA-256 of an EK's SubjectPublicKeyInfo. The zero value is none.
type EKHash = [32]byte

// Machine is a Machine object as far as attestation goes. It is read only once indexed.
type Machine struct {
	APIVersion, Kind, Namespace, Name string
	// UID is metadata.uid, or a stable UUID of group, kind, namespace and name.
	UID string
	// Created is metadata.creationTimestamp, or when the file last changed.
	Created time.Time
	// Undated: it is the latter, which says nothing of the machine itself.
	Undated  bool
	Deleting bool
	Phase    string
	// NodeRef is the Node that the Machine became; empty before it joined.
	NodeRef    string
	ProviderID string
	// Pools that the Machine may have, sorted.
	Pools []string
	// EKSHA256 are the enrolled EKs (lower-case hexadecimal, sorted), those of
	// its MachineAttestation included.
	EKSHA256    []string
	InternalDNS []string
	Addresses   []string
	// UserDataSecret names the secret with the pointer config.
	UserDataSecret string
	// StandIn marks a MachineAttestation in place of a Machine.
	StandIn bool
	// Enrolment is the MachineAttestation that belongs to the Machine, or is it; nil if none.
	Enrolment *v1alpha1.MachineAttestation
	// Mirror is the same machine's other object while it is one of both the Machine
	// API and Cluster API; nil otherwise. Which of the two counts may change.
	Mirror *Machine

	authority   string // which of two mirrored objects counts; see fold
	quarantined bool   // some MachineAttestation of this Machine says so
	source      place  // where the manifest stands, for messages
}

// place is a file and a line.
type place struct {
	file string
	line int
}

func (p place) String() string {
	if p.line == 0 {
		return p.file
	}
	return fmt.Sprintf("%s:%d", p.file, p.line)
}

// String is "namespace/name".
func (m *Machine) String() string { return m.Namespace + "/" + m.Name }

// Joined reports whether the Machine is a Node already. This is a latch: only a
// grant opens it again.
func (m *Machine) Joined() bool { return m.NodeRef != "" || m.Phase == "Running" }

// maxGrant is how far ahead a grant may end (DESIGN, section 19, rule 11).
const maxGrant = 24 * time.Hour

// Granted reports whether the administrator lets the Machine attest once more
// although it has joined. Whether the grant was used is in the record.
func (m *Machine) Granted(now time.Time) bool {
	if m.Enrolment == nil || m.Enrolment.Spec.Reattest == nil {
		return false
	}
	left := m.Enrolment.Spec.Reattest.Until.Sub(now)
	return left > 0 && left <= maxGrant
}

// Quarantined reports whether an administrator stopped this Machine.
func (m *Machine) Quarantined() bool { return m.quarantined }

// HasPool reports whether the Machine may have the pool.
func (m *Machine) HasPool(pool string) bool { return slices.Contains(m.Pools, pool) }

// API groups of the Machines that are understood.
const (
	groupMachineAPI = "machine.openshift.io"
	groupClusterAPI = "cluster.x-k8s.io"
	groupMetal3     = "metal3.io"
	kindHost        = "BareMetalHost"
)

func (m *Machine) group() string { return groupOf(m.APIVersion) }

func groupOf(apiVersion string) string {
	group, _, _ := strings.Cut(apiVersion, "/")
	return group
}

// uidSpace is the name space of UIDs for manifests that have none.
var uidSpace = uuid.MustParse("5b0c2f3e-6d0b-5c0e-9a52-3f7a0c6f1d94")

// stableUID is the UUID (RFC 9562, 5.5, version 5) of an object without a UID.
// The API version is not part of it: a manifest may move on to the next.
func stableUID(apiVersion, kind, namespace, name string) string {
	return uuid.NewSHA1(uidSpace, []byte(groupOf(apiVersion)+"/"+kind+"/"+namespace+"/"+name)).String()
}

// NormalProviderID is the form in which provider ids are compared: Azure
// resource ids and vSphere UUIDs do not distinguish case, all others do.
func NormalProviderID(id string) string {
	if scheme, _, _ := strings.Cut(id, "://"); strings.EqualFold(scheme, "azure") || strings.EqualFold(scheme, "vsphere") {
		return strings.ToLower(id)
	}
	return id
}

// ParseEKHash reads 64 hexadecimal digits.
func ParseEKHash(s string) (EKHash, error) {
	var h EKHash
	if len(s) != 2*len(h) {
		return h, fmt.Errorf("%.80q has %d characters, a SHA-256 has %d hexadecimal digits", s, len(s), 2*len(h))
	}
	if _, err := hex.Decode(h[:], []byte(s)); err != nil {
		return EKHash{}, fmt.Errorf("%.80q is not hexadecimal", s)
	}
	if h == (EKHash{}) {
		return h, fmt.Errorf("a hash of zeros is no EK's")
	}
	return h, nil
}
