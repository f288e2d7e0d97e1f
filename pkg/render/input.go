// SPDX-License-Identifier: Apache-2.0

package render

import (
	"fmt"
	"strings"
	"sync"

	"github.com/coreos/ignition/v2/config/v3_5/types"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	mcfgv1alpha1 "github.com/openshift/api/machineconfiguration/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/manifest"
)

// Group is the API group of the input.
const Group = "machineconfiguration.openshift.io"

// The kinds.
const (
	KindMachineConfig     = "MachineConfig"
	KindMachineConfigPool = "MachineConfigPool"
	KindControllerConfig  = "ControllerConfig"
	KindOSImageStream     = "OSImageStream"
)

// Input is the input of renders. It is read-only.
type Input struct {
	Pools   []*Pool
	Configs []*MachineConfig
	// Controller is the cluster's ControllerConfig; nil outside of OpenShift.
	Controller *mcfgv1.ControllerConfig
	// Streams is the cluster's OSImageStream, or nil.
	Streams *mcfgv1alpha1.OSImageStream
	// StreamsErr is set if the cluster serves the kind OSImageStream but the object cannot be
	// used. Then no pool renders.
	StreamsErr error

	controllerAt, streamsAt manifest.Place
}

// Pool is a MachineConfigPool.
type Pool struct {
	mcfgv1.MachineConfigPool
	at manifest.Place
}

// MachineConfig is one of the configs of a pool. If it is invalid, the pools that select it
// do not render, and their error names it.
type MachineConfig struct {
	mcfgv1.MachineConfig
	// Needed is spec.neededBeforeNodeApproved, or nil.
	Needed *bool

	at       manifest.Place
	ignition *types.Config // nil without spec.config
	fault    *Fault

	once    sync.Once
	secrets []Secret
}

// Fault is the error of an invalid MachineConfig. The error of a render wraps it.
type Fault struct {
	MachineConfig string
	// Problem has the location. If the object came from the API, File is the object's name.
	Problem manifest.Problem
}

func (f *Fault) Error() string { return "MachineConfig " + f.MachineConfig + ": " + f.Problem.Error() }

// Parse parses the MachineConfigs, MachineConfigPools, ControllerConfig and OSImageStream of
// one file. If a problem is an error, it returns no input.
func Parse(file string, raw []byte) (Input, []manifest.Problem) {
	docs, problems := manifest.Split(file, raw)
	var in Input
	for _, doc := range docs {
		problems = append(problems, in.add(doc)...)
	}
	if manifest.Failed(problems) {
		return Input{}, problems
	}
	return in, problems
}

// FromObject parses one object of the Kubernetes API, decoded from JSON. If a problem is an
// error, it returns no input.
func FromObject(object map[string]any) (Input, []manifest.Problem) {
	doc, err := manifest.Object(object)
	if err != nil {
		return Input{}, []manifest.Problem{*err}
	}
	var in Input
	if problems := in.add(doc); manifest.Failed(problems) {
		return Input{}, problems
	}
	return in, nil
}

// Join combines inputs. A duplicate object is a problem, and then Join returns no input.
func Join(inputs ...Input) (Input, []manifest.Problem) {
	var out Input
	var problems []manifest.Problem
	seen := map[string]manifest.Place{}
	add := func(kind, name string, at manifest.Place) {
		if first, ok := seen[kind+"/"+name]; ok {
			problems = append(problems, at.Problem(fmt.Sprintf("%s %q is a duplicate", kind, name),
				fmt.Sprintf("the first is %s; remove one", first)))
			return
		}
		seen[kind+"/"+name] = at
	}
	for _, in := range inputs {
		for _, p := range in.Pools {
			add(KindMachineConfigPool, p.Name, p.at)
		}
		for _, m := range in.Configs {
			add(KindMachineConfig, m.Name, m.at)
		}
		out.Pools, out.Configs = append(out.Pools, in.Pools...), append(out.Configs, in.Configs...)
		if in.Controller != nil {
			add(KindControllerConfig, "", in.controllerAt)
			out.Controller, out.controllerAt = in.Controller, in.controllerAt
		}
		if in.Streams != nil {
			add(KindOSImageStream, "", in.streamsAt)
			out.Streams, out.streamsAt = in.Streams, in.streamsAt
		}
	}
	if manifest.Failed(problems) {
		return Input{}, problems
	}
	return out, nil
}

// Together combines inputs for read-only checks. It permits duplicate objects.
func Together(inputs ...Input) Input {
	var out Input
	for _, in := range inputs {
		out.Pools, out.Configs = append(out.Pools, in.Pools...), append(out.Configs, in.Configs...)
	}
	return out
}

// add adds one object.
func (in *Input) add(doc manifest.Document) []manifest.Problem {
	group, version, _ := strings.Cut(doc.APIVersion, "/")
	at := doc.Place()
	switch {
	case group == Group && version == "v1" && doc.Kind == KindMachineConfig:
		m, problems := machineConfig(doc, at)
		if m != nil {
			in.Configs = append(in.Configs, m)
		}
		return problems
	case group == Group && version == "v1" && doc.Kind == KindMachineConfigPool:
		p := &Pool{at: at}
		problems := doc.DecodeKnown(&p.MachineConfigPool)
		problems = append(problems, named(doc, p.ObjectMeta)...)
		in.Pools = append(in.Pools, p)
		return problems
	case group == Group && version == "v1" && doc.Kind == KindControllerConfig:
		if in.Controller != nil {
			return []manifest.Problem{at.Problem("the ControllerConfig is a duplicate",
				fmt.Sprintf("the first is %s; remove one", in.controllerAt))}
		}
		in.Controller, in.controllerAt = &mcfgv1.ControllerConfig{}, at
		return doc.DecodeKnown(in.Controller)
	case group == Group && (version == "v1" || version == "v1alpha1") && doc.Kind == KindOSImageStream:
		if in.Streams != nil {
			return []manifest.Problem{at.Problem("the OSImageStream is a duplicate",
				fmt.Sprintf("the first is %s; remove one", in.streamsAt))}
		}
		in.Streams, in.streamsAt = &mcfgv1alpha1.OSImageStream{}, at
		return doc.DecodeKnown(in.Streams)
	}
	return []manifest.Problem{doc.Problem("kind", fmt.Sprintf("%s of %s is not supported here", doc.Kind, doc.APIVersion),
		"MachineConfig, MachineConfigPool, ControllerConfig or OSImageStream of "+Group)}
}

func named(doc manifest.Document, meta metav1.ObjectMeta) []manifest.Problem {
	if meta.Name == "" {
		return []manifest.Problem{doc.Problem("metadata", "the "+doc.Kind+" has no name", "metadata.name")}
	}
	return nil
}

// machineConfig parses a MachineConfig as far as possible. With a name and labels its pools
// are known, so that an error affects only those pools.
func machineConfig(doc manifest.Document, at manifest.Place) (*MachineConfig, []manifest.Problem) {
	var meta struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
	}
	if problems := append(doc.DecodeKnown(&meta), named(doc, meta.Metadata)...); manifest.Failed(problems) {
		return nil, problems
	}
	m := &MachineConfig{at: at}
	wrong := func(p manifest.Problem) (*MachineConfig, []manifest.Problem) {
		m.MachineConfig = mcfgv1.MachineConfig{ObjectMeta: meta.Metadata}
		m.fault = &Fault{MachineConfig: meta.Metadata.Name, Problem: p}
		return m, nil
	}
	var field struct {
		Spec struct {
			Needed *bool `json:"neededBeforeNodeApproved"`
		} `json:"spec"`
	}
	problems := append(doc.DecodeKnown(&m.MachineConfig), doc.DecodeKnown(&field)...)
	if manifest.Failed(problems) {
		return wrong(problems[0])
	}
	m.Needed = field.Spec.Needed
	unknown := unknownFields(doc)
	if k := m.Spec.KernelType; k != "" && k != KernelDefault && k != KernelRealtime && k != Kernel64kPages {
		return wrong(doc.Problem("spec.kernelType", fmt.Sprintf("kernelType is %.64q", k),
			"use default, realtime or 64k-pages"))
	}
	if m.Spec.Config.Raw == nil {
		return m, unknown
	}
	config, problem := parseIgnition(doc, m.Spec.Config.Raw)
	if problem != nil {
		return wrong(*problem)
	}
	m.ignition = config
	if problem := m.unsupported(doc); problem != nil {
		return wrong(*problem)
	}
	return m, unknown
}

// unknownFields warns about unknown fields of the spec. Ignition's parser checks those of
// the Ignition config.
func unknownFields(doc manifest.Document) []manifest.Problem {
	var all []manifest.Problem
	for _, p := range doc.Decode(&mcfgv1.MachineConfig{}) {
		if strings.HasPrefix(p.What, `unknown field "spec.`) && p.What != `unknown field "spec.neededBeforeNodeApproved"` {
			p.Warning = true
			all = append(all, p)
		}
	}
	return all
}
