// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/manifest"
)

// Manifests are the parsed objects of one file, each checked by itself.
type Manifests struct {
	Machines    []Machine
	Enrollments []Enrollment
}

// Enrollment is a MachineAttestation, or the enrollment by a BareMetalHost.
type Enrollment struct {
	v1alpha1.MachineAttestation
	eks    []EKHash
	kind   string // "", or kindHost
	node   string // the Node of a stand-in, if known
	source manifest.Place
}

// Parse parses the Machines and MachineAttestations of one file. modified is the file's
// modification time, which replaces a missing creation time of a Machine. If a problem
// is an error, Parse returns no manifests.
func Parse(file string, raw []byte, modified time.Time) (Manifests, []manifest.Problem) {
	docs, problems := manifest.Split(file, raw)
	var out Manifests
	for _, doc := range docs {
		problems = append(problems, out.add(doc, modified)...)
	}
	if manifest.Failed(problems) {
		return Manifests{}, problems
	}
	return out, problems
}

// FromObject parses one object of the Kubernetes API, decoded from JSON. If a problem is
// an error, it returns no manifests. A MachineAttestation that waits for approval, and a
// host without an enrolled EK, yield neither a manifest nor a problem.
func FromObject(object map[string]any) (Manifests, []manifest.Problem) {
	if object["apiVersion"] == v1alpha1.APIVersion {
		// Another version of the verifier may have written the status.
		own := maps.Clone(object)
		delete(own, "status")
		object = own
	}
	doc, err := manifest.Object(object)
	if err != nil {
		return Manifests{}, []manifest.Problem{*err}
	}
	var out Manifests
	if problems := out.add(doc, time.Time{}); manifest.Failed(problems) {
		return Manifests{}, problems
	}
	return out, nil
}

// FromUnannotated parses a Machine whose annotations are invalid, without them. Its
// progress does not depend on annotations.
func FromUnannotated(object map[string]any) (Machine, bool) {
	metadata, _ := object["metadata"].(map[string]any)
	metadata = maps.Clone(metadata)
	delete(metadata, "annotations")
	own := maps.Clone(object)
	own["metadata"] = metadata
	found, _ := FromObject(own)
	if len(found.Machines) == 0 {
		return Machine{}, false
	}
	return found.Machines[0], true
}

// advanced returns m with the progress of later.
func (m Machine) advanced(later Machine) Machine {
	m.Deleting = m.Deleting || later.Deleting
	if !m.Joined() {
		m.NodeRef, m.Phase = later.NodeRef, later.Phase
	}
	return m
}

// add parses one object and adds it.
func (out *Manifests) add(doc manifest.Document, modified time.Time) []manifest.Problem {
	group, version, _ := strings.Cut(doc.APIVersion, "/")
	switch {
	case group == groupMachineAPI && version == "v1beta1" && doc.Kind == "Machine":
		m, wrong := machineAPI(doc, modified)
		out.Machines = append(out.Machines, m)
		return wrong
	case group == groupClusterAPI && (version == "v1beta1" || version == "v1beta2") && doc.Kind == "Machine":
		m, wrong := clusterAPI(doc, modified)
		out.Machines = append(out.Machines, m)
		return wrong
	case group == groupMetal3 && doc.Kind == kindHost:
		e, wrong := host(doc)
		if e != nil {
			out.Enrollments = append(out.Enrollments, *e)
		}
		return wrong
	case doc.APIVersion == v1alpha1.APIVersion && doc.Kind == v1alpha1.KindMachineAttestation:
		e, wrong := enrollment(doc, modified)
		if !e.pending() {
			out.Enrollments = append(out.Enrollments, e)
		}
		return wrong
	}
	return []manifest.Problem{doc.Problem("kind", fmt.Sprintf("%s of %s is not supported here", doc.Kind, doc.APIVersion),
		"Machine of machine.openshift.io/v1beta1 or cluster.x-k8s.io/v1beta1 or v1beta2, BareMetalHost of metal3.io, or "+
			"MachineAttestation of "+v1alpha1.APIVersion)}
}

// common has the fields that both kinds of Machine have in common.
type common struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        struct {
		Name              string            `json:"name"`
		Namespace         string            `json:"namespace"`
		UID               string            `json:"uid"`
		CreationTimestamp *metav1.Time      `json:"creationTimestamp"`
		DeletionTimestamp *metav1.Time      `json:"deletionTimestamp"`
		Labels            map[string]string `json:"labels"`
		Annotations       map[string]string `json:"annotations"`
	} `json:"metadata"`
}

// address is an address in a Machine's status.
type address struct {
	Type    string `json:"type"`
	Address string `json:"address"`
}

// nodeRef has the fields that both kinds of Machine use.
type nodeRef struct {
	Name string `json:"name"`
	UID  string `json:"uid"`
}

// Labels of the two Machine APIs.
const (
	labelRole         = "machine.openshift.io/cluster-api-machine-role"
	labelType         = "machine.openshift.io/cluster-api-machine-type"
	labelControlPlane = "cluster.x-k8s.io/control-plane"
)

// machineAPI parses a Machine of machine.openshift.io/v1beta1.
func machineAPI(doc manifest.Document, modified time.Time) (Machine, []manifest.Problem) {
	var in struct {
		common
		Spec struct {
			ProviderID       *string `json:"providerID"`
			AuthoritativeAPI string  `json:"authoritativeAPI"`
			ProviderSpec     struct {
				Value struct {
					UserDataSecret any `json:"userDataSecret"`
					UserData       any `json:"userData"`
				} `json:"value"`
			} `json:"providerSpec"`
		} `json:"spec"`
		Status struct {
			NodeRef          *nodeRef  `json:"nodeRef"`
			Phase            *string   `json:"phase"`
			Addresses        []address `json:"addresses"`
			AuthoritativeAPI string    `json:"authoritativeAPI"`
		} `json:"status"`
	}
	if problems := doc.DecodeKnown(&in); len(problems) > 0 {
		return Machine{}, problems
	}
	m, problems := in.machine(doc, modified)
	if in.Spec.ProviderID != nil {
		m.ProviderID = strings.TrimSpace(*in.Spec.ProviderID)
	}
	if in.Status.Phase != nil {
		m.Phase = *in.Status.Phase
	}
	m.setStatus(in.Status.NodeRef, in.Status.Addresses)
	v := in.Spec.ProviderSpec.Value
	namespace, name := UserDataSecret(map[string]any{"userDataSecret": v.UserDataSecret, "userData": v.UserData})
	if namespace == "" || namespace == m.Namespace { // the inventory reads no other namespace for this Machine
		m.UserDataSecret = name
	}
	m.addPool(in.Metadata.Labels[labelRole])
	m.addPool(in.Metadata.Labels[labelType])
	m.authority = authorityMachineAPI
	for _, a := range []string{in.Spec.AuthoritativeAPI, in.Status.AuthoritativeAPI} {
		if a != "" {
			m.authority = a
		}
	}
	return m, problems
}

// clusterAPI parses a Machine of cluster.x-k8s.io.
func clusterAPI(doc manifest.Document, modified time.Time) (Machine, []manifest.Problem) {
	var in struct {
		common
		Spec struct {
			ProviderID string `json:"providerID"`
			Bootstrap  struct {
				DataSecretName *string `json:"dataSecretName"`
			} `json:"bootstrap"`
			InfrastructureRef struct {
				APIVersion string `json:"apiVersion"` // v1beta1
				APIGroup   string `json:"apiGroup"`   // v1beta2
				Kind       string `json:"kind"`
				Namespace  string `json:"namespace"` // v1beta1: that of the Machine
				Name       string `json:"name"`
			} `json:"infrastructureRef"`
		} `json:"spec"`
		Status struct {
			NodeRef   *nodeRef  `json:"nodeRef"`
			Phase     string    `json:"phase"`
			Addresses []address `json:"addresses"`
		} `json:"status"`
	}
	if problems := doc.DecodeKnown(&in); len(problems) > 0 {
		return Machine{}, problems
	}
	m, problems := in.machine(doc, modified)
	m.ProviderID = strings.TrimSpace(in.Spec.ProviderID)
	m.Phase = in.Status.Phase
	m.setStatus(in.Status.NodeRef, in.Status.Addresses)
	if in.Spec.Bootstrap.DataSecretName != nil {
		m.UserDataSecret = *in.Spec.Bootstrap.DataSecretName
	}
	if ref := in.Spec.InfrastructureRef; ref.Kind == kindMetal3Machine &&
		cmp.Or(ref.APIGroup, groupOf(ref.APIVersion)) == groupInfrastructure &&
		(ref.Namespace == "" || ref.Namespace == m.Namespace) {
		m.metal3 = ref.Name
	}
	// The label's presence counts; its value is usually empty.
	if _, ok := in.Metadata.Labels[labelControlPlane]; ok {
		m.addPool("master")
	} else {
		m.addPool("worker")
	}
	return m, problems
}

// machine returns a Machine with the metadata.
func (c *common) machine(doc manifest.Document, modified time.Time) (Machine, []manifest.Problem) {
	var problems []manifest.Problem
	if c.Metadata.Name == "" {
		problems = append(problems, doc.Problem("metadata", "the Machine has no name", "metadata.name"))
	}
	m := Machine{
		APIVersion: c.APIVersion, Kind: c.Kind, Namespace: namespaceOf(c.Metadata.Namespace), Name: c.Metadata.Name,
		UID: c.Metadata.UID, Created: modified, Undated: true, Deleting: c.Metadata.DeletionTimestamp != nil,
		source: doc.Place(),
	}
	if !c.Metadata.CreationTimestamp.IsZero() {
		m.Created, m.Undated = c.Metadata.CreationTimestamp.Time, false
	}
	if m.UID == "" {
		m.UID = stableUID(m.APIVersion, m.Kind, m.Namespace, m.Name)
	}
	m.addPool(c.Metadata.Annotations[v1alpha1.AnnotationPool])
	if list, ok := c.Metadata.Annotations[v1alpha1.AnnotationEKSHA256]; ok {
		path := "metadata.annotations." + v1alpha1.AnnotationEKSHA256
		for _, s := range strings.Split(list, ",") {
			h, err := ParseEKHash(strings.TrimSpace(s))
			if err != nil {
				problems = append(problems, doc.Problem(path, v1alpha1.AnnotationEKSHA256+": "+err.Error(),
					"the ekSHA256 that 'mcs-attest-agent identify' prints; separate several by commas"))
				continue
			}
			m.addEK(h)
		}
	}
	return m, problems
}

// setStatus sets the fields that come from the status.
func (m *Machine) setStatus(ref *nodeRef, addresses []address) {
	if ref != nil {
		// A reference without a name also means that the Machine joined.
		m.NodeRef = ref.Name
		if m.NodeRef == "" {
			m.NodeRef = "(unnamed)"
		}
	}
	if m.Phase == "Deleting" || m.Phase == "Deleted" {
		m.Deleting = true
	}
	for _, a := range addresses {
		switch a.Type {
		case "InternalDNS":
			m.InternalDNS = append(m.InternalDNS, a.Address)
		case "InternalIP", "ExternalIP":
			m.Addresses = append(m.Addresses, a.Address)
		}
	}
}

func (m *Machine) addPool(pool string) {
	if i, found := slices.BinarySearch(m.Pools, pool); pool != "" && !found {
		m.Pools = slices.Insert(m.Pools, i, pool)
	}
}

func (m *Machine) addEK(h EKHash) {
	s := hex.EncodeToString(h[:])
	if i, found := slices.BinarySearch(m.EKSHA256, s); !found {
		m.EKSHA256 = slices.Insert(m.EKSHA256, i, s)
	}
}

func namespaceOf(ns string) string {
	if ns == "" {
		return "default"
	}
	return ns
}
