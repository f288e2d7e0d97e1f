// SPDX-License-Identifier: Apache-2.0

package approver

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// Machine is a Machine of either API, or a MachineAttestation that stands in for one.
// It has the fields that approvals depend on.
type Machine struct {
	APIVersion, Kind, Namespace, Name, UID string
	Created                                time.Time
	Deleting                               bool
	// NodeRef is the Machine's Node, or "" before it joined.
	NodeRef    string
	ProviderID string
	Addresses  []corev1.NodeAddress
	// StandIn reports that a MachineAttestation stands in for the Machine.
	StandIn bool
	// Authority is the authoritative API while a machine has an object in both APIs:
	// "MachineAPI", "ClusterAPI" or "Migrating". Only the Machine API's object has it.
	Authority string
}

// AnnotationAddresses is an annotation of a MachineAttestation that stands in for a
// Machine, in place of a Machine's status.addresses. It lists, separated by commas, the
// names and addresses that the node's serving certificate may have besides the object's
// name.
const AnnotationAddresses = "mcs-attest.dev/addresses"

// Groups and authorities of the two Machine APIs.
const (
	groupMachineAPI     = "machine.openshift.io"
	groupClusterAPI     = "cluster.x-k8s.io"
	authorityMachineAPI = "MachineAPI"
	authorityClusterAPI = "ClusterAPI"
)

// String returns "namespace/name".
func (m *Machine) String() string {
	if m == nil {
		return ""
	}
	return m.Namespace + "/" + m.Name
}

func (m *Machine) group() string {
	group, _, _ := strings.Cut(m.APIVersion, "/")
	return group
}

// MachineFromObject parses an API object, with apiVersion and kind, of a Machine or of a
// MachineAttestation that stands in for one.
func MachineFromObject(object any) (*Machine, error) {
	raw, err := json.Marshal(object)
	if err != nil {
		return nil, fmt.Errorf("read Machine: %w", err)
	}
	var in struct {
		metav1.TypeMeta `json:",inline"`
		Metadata        metav1.ObjectMeta `json:"metadata"`
		Spec            struct {
			ProviderID       *string                    `json:"providerID"`
			AuthoritativeAPI string                     `json:"authoritativeAPI"`
			ExpectedProvider string                     `json:"expectedProviderID"`
			Pool             string                     `json:"pool"`
			MachineRef       *v1alpha1.MachineReference `json:"machineRef"`
		} `json:"spec"`
		Status struct {
			NodeRef *struct {
				Name string `json:"name"`
			} `json:"nodeRef"`
			Addresses        []corev1.NodeAddress `json:"addresses"`
			AuthoritativeAPI string               `json:"authoritativeAPI"`
		} `json:"status"`
	}
	if err := json.Unmarshal(raw, &in); err != nil {
		return nil, fmt.Errorf("read Machine: %w", err)
	}
	m := &Machine{
		APIVersion: in.APIVersion, Kind: in.Kind, Namespace: in.Metadata.Namespace, Name: in.Metadata.Name,
		UID:     string(in.Metadata.UID),
		Created: in.Metadata.CreationTimestamp.Time, Deleting: in.Metadata.DeletionTimestamp != nil,
		Addresses: in.Status.Addresses,
	}
	if in.Status.NodeRef != nil {
		m.NodeRef = in.Status.NodeRef.Name
	}
	if in.Spec.ProviderID != nil {
		m.ProviderID = *in.Spec.ProviderID
	}
	switch group := m.group(); {
	case group == groupMachineAPI && m.Kind == "Machine":
		m.Authority = cmp.Or(in.Status.AuthoritativeAPI, in.Spec.AuthoritativeAPI, authorityMachineAPI)
	case group == groupClusterAPI && m.Kind == "Machine":
	case group == v1alpha1.GroupVersion.Group && m.Kind == v1alpha1.KindMachineAttestation:
		if in.Spec.Pool == "" || in.Spec.MachineRef != nil {
			return nil, fmt.Errorf("MachineAttestation %s is not a stand-in for a Machine", m)
		}
		m.StandIn, m.ProviderID, m.NodeRef = true, in.Spec.ExpectedProvider, ""
		m.Addresses = standInAddresses(m.Name, in.Metadata.Annotations[AnnotationAddresses])
	default:
		return nil, fmt.Errorf("%.63s of %.253s is not a Machine", m.Kind, m.APIVersion)
	}
	return m, nil
}

// standInAddresses returns the object's own name and the addresses of the annotation.
func standInAddresses(name, list string) []corev1.NodeAddress {
	all := []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: name}}
	for _, s := range strings.Split(list, ",") {
		switch s = strings.TrimSpace(s); {
		case s == "":
		case net.ParseIP(s) != nil:
			all = append(all, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: net.ParseIP(s).String()})
		default:
			all = append(all, corev1.NodeAddress{Type: corev1.NodeHostName, Address: s})
		}
	}
	return all
}

// named reports whether a node with this name may be this machine.
func (m *Machine) named(node string) bool {
	if m.StandIn {
		return m.Name == node
	}
	return slices.ContainsFunc(m.Addresses, func(a corev1.NodeAddress) bool {
		return a.Type == corev1.NodeInternalDNS && sameDNS(a.Address, node)
	})
}

// hasInternalDNS reports whether the name of the machine's node is known.
func (m *Machine) hasInternalDNS() bool {
	return m.StandIn || slices.ContainsFunc(m.Addresses,
		func(a corev1.NodeAddress) bool { return a.Type == corev1.NodeInternalDNS })
}

// is reports whether the Node of this name is this machine's.
func (m *Machine) is(node string) bool {
	if m.StandIn {
		return m.Name == node
	}
	return m.NodeRef != "" && m.NodeRef == node
}

func (m *Machine) hasName(name string) bool {
	for _, a := range m.Addresses {
		switch a.Type {
		case corev1.NodeInternalDNS, corev1.NodeExternalDNS, corev1.NodeHostName:
			if sameDNS(a.Address, name) {
				return true
			}
		}
	}
	return false
}

// hasAddress compares addresses as text, like the stock approver: another notation does not match.
func (m *Machine) hasAddress(ip net.IP) bool { return slices.Contains(m.addresses(), ip.String()) }

// isIP reports whether an address is an IP address.
func isIP(a corev1.NodeAddress) bool {
	return a.Type == corev1.NodeInternalIP || a.Type == corev1.NodeExternalIP
}

// sameDNS compares an address of a Machine, which may end in a dot, with a name.
func sameDNS(address, name string) bool {
	return name != "" && strings.EqualFold(strings.TrimSuffix(address, "."), name)
}

func (m *Machine) names() (all []string) {
	for _, a := range m.Addresses {
		if !isIP(a) {
			all = append(all, a.Address)
		}
	}
	return all
}

func (m *Machine) addresses() (all []string) {
	for _, a := range m.Addresses {
		if isIP(a) {
			all = append(all, a.Address)
		}
	}
	return all
}

// one returns the single Machine among those found, or nil if there is none. While a
// cluster migrates from the Machine API to Cluster API, one machine has two objects with
// the same provider ID. The Machine API's object names the authoritative one. The other
// adds its restrictions: that it joined, is being deleted, or is older.
func one(found []Machine) (*Machine, error) {
	switch len(found) {
	case 0:
		return nil, nil
	case 1:
		return &found[0], nil
	}
	ambiguous := reason.Deny(reason.MachineAmbiguous, "%d Machines, among them %s %s and %s %s", len(found),
		found[0].APIVersion, &found[0], found[1].APIVersion, &found[1])
	id := machine.NormalProviderID(found[0].ProviderID)
	if len(found) != 2 || id == "" || id != machine.NormalProviderID(found[1].ProviderID) {
		return nil, ambiguous
	}
	here, mirror := found[0], found[1]
	if here.group() != groupMachineAPI {
		here, mirror = mirror, here
	}
	if here.group() != groupMachineAPI || mirror.group() != groupClusterAPI {
		return nil, ambiguous
	}
	switch here.Authority {
	case authorityMachineAPI:
	case authorityClusterAPI:
		here, mirror = mirror, here
	default:
		return nil, reason.Deny(reason.MachineAmbiguous,
			"Machine %s is migrating between the Machine API and Cluster API", &here)
	}
	here.Deleting = here.Deleting || mirror.Deleting
	here.NodeRef = cmp.Or(here.NodeRef, mirror.NodeRef)
	if mirror.Created.Before(here.Created) {
		here.Created = mirror.Created
	}
	return &here, nil
}
