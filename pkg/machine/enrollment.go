// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/manifest"
)

// enrollment parses a MachineAttestation and checks what does not depend on its Machine.
func enrollment(doc manifest.Document, modified time.Time) (Enrollment, []manifest.Problem) {
	e := Enrollment{source: doc.Place()}
	if problems := doc.Decode(&e.MachineAttestation); len(problems) > 0 {
		return e, problems
	}
	if e.CreationTimestamp.IsZero() {
		e.CreationTimestamp = metav1.NewTime(modified)
	}
	var problems []manifest.Problem
	e.check(func(path, what, want string) {
		problems = append(problems, doc.Problem(path, path+": "+what, want))
	})
	return e, problems
}

// host returns the enrollment by a metal3 BareMetalHost: its annotation has the EK, and
// its consumerRef names the Machine, or in Cluster API the Machine's Metal3Machine. It
// returns nil if one of them is missing, or if another kind of object consumes the host.
func host(doc manifest.Document) (*Enrollment, []manifest.Problem) {
	var in struct {
		common
		Spec struct {
			ConsumerRef *v1alpha1.MachineReference `json:"consumerRef"`
		} `json:"spec"`
	}
	if problems := doc.DecodeKnown(&in); len(problems) > 0 {
		return nil, problems
	}
	list, ok := in.Metadata.Annotations[v1alpha1.AnnotationEKSHA256]
	ref := in.Spec.ConsumerRef
	if !ok || ref == nil || ref.Name == "" {
		return nil, nil
	}
	switch {
	case ref.Kind == "" || ref.Kind == "Machine":
	case ref.Kind == kindMetal3Machine && groupOf(ref.APIVersion) == groupInfrastructure:
	default:
		return nil, nil
	}
	e := &Enrollment{kind: kindHost, source: doc.Place()}
	e.Namespace, e.Name, e.UID = in.Metadata.Namespace, in.Metadata.Name, types.UID(in.Metadata.UID)
	if in.Metadata.CreationTimestamp != nil {
		e.CreationTimestamp = *in.Metadata.CreationTimestamp
	}
	e.Spec.MachineRef = ref
	for _, s := range strings.Split(list, ",") {
		e.Spec.EKSHA256 = append(e.Spec.EKSHA256, strings.TrimSpace(s))
	}
	var problems []manifest.Problem
	e.check(func(path, what, want string) {
		problems = append(problems, doc.Problem("metadata.annotations."+v1alpha1.AnnotationEKSHA256,
			v1alpha1.AnnotationEKSHA256+" of the host: "+what, want))
	})
	return e, problems
}

// pending reports whether the object is a machine that waits for approval, so it enrolls nothing yet.
func (e *Enrollment) pending() bool {
	return e.Spec.MachineRef == nil && e.Spec.Pool == "" && len(e.Spec.EKSHA256) == 0
}

// empty reports whether the object adds nothing to the Machine that it names.
func (e *Enrollment) empty() bool {
	s := e.Spec
	return s.MachineRef != nil && len(s.EKSHA256) == 0 && s.ExpectedProviderID == "" && !s.Quarantined &&
		s.Reattest == nil && s.Rehearsal == nil
}

// NewEnrollment returns the enrollment of a MachineAttestation that did not come from a file.
func NewEnrollment(a v1alpha1.MachineAttestation) (Enrollment, error) {
	e := Enrollment{MachineAttestation: a,
		source: manifest.Place{File: v1alpha1.KindMachineAttestation + " " + a.Namespace + "/" + a.Name}}
	var errs []error
	e.check(func(path, what, want string) { errs = append(errs, e.source.Problem(path+": "+what, want)) })
	return e, errors.Join(errs...)
}

// WithSpec returns the enrollment with another spec, whose parts were all checked before.
func (e Enrollment) WithSpec(spec v1alpha1.MachineAttestationSpec) Enrollment {
	e.Spec, e.eks = spec, nil
	e.check(func(string, string, string) {})
	return e
}

// named describes the Machine that the enrollment names, or the stand-in that it is.
func (e *Enrollment) named() string {
	switch ref := e.Spec.MachineRef; {
	case ref == nil:
		return fmt.Sprintf("MachineAttestation %s/%s", e.Namespace, e.Name)
	case ref.Kind == kindMetal3Machine:
		return fmt.Sprintf("the Machine of Metal3Machine %s/%s", ref.Namespace, ref.Name)
	default:
		return fmt.Sprintf("Machine %s/%s", ref.Namespace, ref.Name)
	}
}

// check fills in the namespaces and parses the hashes.
func (e *Enrollment) check(fault func(path, what, want string)) {
	if e.Name == "" {
		fault("metadata.name", "the object has no name", "a name, which status shows")
	}
	e.Namespace = namespaceOf(e.Namespace)
	spec := &e.Spec
	switch ref := spec.MachineRef; {
	case ref != nil:
		if ref.Name == "" {
			fault("spec.machineRef", "no name", "the name of the Machine")
		}
		if ref.Namespace == "" {
			own := *ref
			own.Namespace = e.Namespace
			spec.MachineRef = &own
		}
		if spec.Pool != "" {
			fault("spec.pool", "pool and machineRef are both set",
				"remove the pool, because the Machine has its own, or remove the machineRef to make this object a stand-in "+
					"for a Machine")
		}
	case e.pending() && strings.HasPrefix(e.Name, v1alpha1.PendingPrefix):
	case spec.Pool == "":
		fault("spec", "neither machineRef nor pool",
			"set machineRef to name the Machine, or pool to make this object a stand-in")
	case len(spec.EKSHA256) == 0 && spec.ExpectedProviderID == "":
		fault("spec", "no field identifies the machine", "set ekSHA256 or expectedProviderID")
	}
	for i, s := range spec.EKSHA256 {
		path := fmt.Sprintf("spec.ekSHA256[%d]", i)
		h, err := ParseEKHash(s)
		switch {
		case err != nil:
			fault(path, err.Error(), "the ekSHA256 that 'mcs-attest-agent identify' prints")
		case slices.Contains(e.eks, h):
			fault(path, "the hash is listed twice", "list it once")
		default:
			e.eks = append(e.eks, h)
		}
	}
	if spec.Reattest != nil && spec.Reattest.Until.IsZero() {
		fault("spec.reattest", "the grant has no end", "set until to a time within the next 24 hours")
	}
}

// standIn returns the Machine that a MachineAttestation without a machineRef stands in for.
func (e *Enrollment) standIn() Machine {
	m := Machine{
		APIVersion: v1alpha1.APIVersion, Kind: v1alpha1.KindMachineAttestation, Namespace: e.Namespace, Name: e.Name,
		UID: string(e.UID), Created: e.CreationTimestamp.Time, Deleting: e.DeletionTimestamp != nil,
		ProviderID: e.Spec.ExpectedProviderID, StandIn: true, Enrollment: &e.MachineAttestation,
		NodeRef: e.node, quarantined: e.Spec.Quarantined, source: e.source,
	}
	if m.UID == "" {
		m.UID = stableUID(m.APIVersion, m.Kind, m.Namespace, m.Name)
	}
	m.addPool(e.Spec.Pool)
	return m
}
