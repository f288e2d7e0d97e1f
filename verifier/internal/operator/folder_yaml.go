// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
)

// amendYAML returns the file with the change, and the object as it then is; nil
// if the file has no such object.
func amendYAML(raw []byte, namespace, name string,
	change func(spec *yaml.Node)) ([]byte, *v1alpha1.MachineAttestation, error) {
	docs, err := documents(raw)
	if err != nil {
		return nil, nil, err
	}
	var found *yaml.Node
	for _, doc := range docs {
		if len(doc.Content) != 1 {
			continue
		}
		objects := []*yaml.Node{doc.Content[0]}
		if items := get(doc.Content[0], "items"); items != nil {
			objects = items.Content
		}
		for _, o := range objects {
			if isAttestation(o, namespace, name) {
				found = o
			}
		}
	}
	if found == nil {
		return nil, nil, nil
	}
	before, err := yaml.Marshal(found)
	if err != nil {
		return nil, nil, err
	}
	spec := get(found, "spec")
	if spec == nil {
		spec = &yaml.Node{Kind: yaml.MappingNode}
		set(found, "spec", spec)
	}
	change(spec)
	after, err := yaml.Marshal(found)
	if err != nil {
		return nil, nil, err
	}
	object := new(v1alpha1.MachineAttestation)
	if err := unmarshalStrict(after, object); err != nil {
		return nil, nil, err
	}
	if bytes.Equal(before, after) {
		return raw, object, nil
	}
	next, err := encodeDocuments(docs)
	return next, object, err
}

// withoutYAML returns the file without a MachineAttestation, empty if nothing else is in it. It returns false
// if the object is not a document of its own.
func withoutYAML(raw []byte, namespace, name string) (next []byte, ok bool, err error) {
	docs, err := documents(raw)
	if err != nil {
		return nil, false, err
	}
	left := slices.DeleteFunc(slices.Clone(docs), func(doc *yaml.Node) bool {
		return len(doc.Content) == 1 && isAttestation(doc.Content[0], namespace, name)
	})
	if len(left) == len(docs) || len(left) == 0 {
		return nil, len(left) == 0, nil
	}
	next, err = encodeDocuments(left)
	return next, true, err
}

// documents parses a file of YAML or JSON.
func documents(raw []byte) ([]*yaml.Node, error) {
	var docs []*yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(raw))
	for {
		doc := new(yaml.Node)
		if err := dec.Decode(doc); errors.Is(err, io.EOF) {
			return docs, nil
		} else if err != nil {
			return nil, err
		}
		docs = append(docs, doc)
	}
}

func encodeDocuments(docs []*yaml.Node) ([]byte, error) {
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	for _, doc := range docs {
		if err := enc.Encode(doc); err != nil {
			return nil, err
		}
	}
	err := enc.Close()
	return out.Bytes(), err
}

// isAttestation reports whether o is the MachineAttestation of this name.
func isAttestation(o *yaml.Node, namespace, name string) bool {
	meta := get(o, "metadata")
	ns := text(get(meta, "namespace"))
	ns = cmp.Or(ns, "default")
	return text(get(o, "kind")) == v1alpha1.KindMachineAttestation && ns == namespace && text(get(meta, "name")) == name
}

// setEnrollment writes into a spec which TPM is in which machine.
func setEnrollment(spec *yaml.Node, want v1alpha1.MachineAttestationSpec) {
	eks := &yaml.Node{Kind: yaml.SequenceNode}
	for _, ek := range want.EKSHA256 {
		eks.Content = append(eks.Content, scalar("!!str", ek))
	}
	set(spec, "ekSHA256", eks)
	set(spec, "reattest", nil) // of the former TPM
	set(spec, "rehearsal", nil)
	ref := want.MachineRef
	if ref == nil {
		set(spec, "machineRef", nil)
		if text(get(spec, "pool")) != want.Pool {
			set(spec, "pool", scalar("!!str", want.Pool))
		}
		return
	}
	set(spec, "pool", nil)
	if old := get(spec, "machineRef"); text(get(old, "namespace")) == ref.Namespace && text(get(old, "name")) == ref.Name {
		return
	}
	machine := &yaml.Node{Kind: yaml.MappingNode}
	set(machine, "namespace", scalar("!!str", ref.Namespace))
	set(machine, "name", scalar("!!str", ref.Name))
	set(spec, "machineRef", machine)
}

func get(n *yaml.Node, key string) *yaml.Node {
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}

func text(n *yaml.Node) string {
	if n == nil || n.Kind != yaml.ScalarNode {
		return ""
	}
	return n.Value
}

func scalar(tag, value string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: value}
}

// set puts a value under a key; nil takes the key out.
func set(n *yaml.Node, key string, value *yaml.Node) {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value != key {
			continue
		}
		if value == nil {
			n.Content = slices.Delete(n.Content, i, i+2)
		} else {
			value.LineComment = n.Content[i+1].LineComment
			n.Content[i+1] = value
		}
		return
	}
	if value != nil {
		n.Content = append(n.Content, scalar("!!str", key), value)
	}
}
