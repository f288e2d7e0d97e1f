// SPDX-License-Identifier: Apache-2.0

package render

import (
	"cmp"
	"reflect"
	"slices"
	"strings"

	"github.com/coreos/ignition/v2/config/util"
	"github.com/coreos/ignition/v2/config/v3_5/types"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
)

// FromController is the origin of an image that no MachineConfig sets. FromStreams is the
// same for a pool on a stream of the OSImageStream.
const (
	FromController = KindControllerConfig
	FromStreams    = KindOSImageStream
)

// part is one item that a MachineConfig defines: a file, a unit, a kernel argument.
type part struct {
	kind, key string
	// node is set for files, directories and links. They share paths; the last one wins.
	node bool
	// fields are the fields that are set. The main one comes first.
	fields []string
}

// lists are the parts of an Ignition config that are lists of items with a key.
var lists = []struct {
	kind  string
	field string // its path
	of    func(*types.Config) any
	about string // the main field of such an item
	node  bool
}{
	{"file", "storage.files", func(c *types.Config) any { return c.Storage.Files }, "contents.source", true},
	{"directory", "storage.directories", func(c *types.Config) any { return c.Storage.Directories }, "", true},
	{"link", "storage.links", func(c *types.Config) any { return c.Storage.Links }, "target", true},
	{"unit", "systemd.units", func(c *types.Config) any { return c.Systemd.Units }, "contents", false},
	{"user", "passwd.users", func(c *types.Config) any { return c.Passwd.Users }, "", false},
	{"group", "passwd.groups", func(c *types.Config) any { return c.Passwd.Groups }, "", false},
	{"disk", "storage.disks", func(c *types.Config) any { return c.Storage.Disks }, "", false},
	{"raid", "storage.raid", func(c *types.Config) any { return c.Storage.Raid }, "", false},
	{"filesystem", "storage.filesystems", func(c *types.Config) any { return c.Storage.Filesystems }, "", false},
	{"luks", "storage.luks", func(c *types.Config) any { return c.Storage.Luks }, "", false},
}

// onlyAtFirst are kinds that the machine-config-daemon cannot add to a running node.
var onlyAtFirst = []string{"disk", "raid", "filesystem", "luks", "fips"}

// parts returns what a MachineConfig defines, except for the images.
func (m *MachineConfig) parts() []part {
	var all []part
	if c := m.ignition; c != nil {
		for _, list := range lists {
			items := reflect.ValueOf(list.of(c))
			for i := range items.Len() {
				item := items.Index(i)
				p := part{kind: list.kind, key: util.CallKey(item), node: list.node, fields: fieldsOf(item, "")}
				if i := slices.Index(p.fields, list.about); i > 0 {
					p.fields = slices.Insert(slices.Delete(p.fields, i, i+1), 0, list.about)
				}
				all = append(all, p)
			}
		}
		for _, u := range c.Systemd.Units {
			for _, d := range u.Dropins {
				all = append(all, part{kind: "dropin", key: u.Name + "/" + d.Name, fields: []string{"contents"}})
			}
		}
		for _, a := range c.KernelArguments.ShouldExist {
			all = append(all, part{kind: "ignitionKernelArgument", key: string(a)})
		}
		for _, a := range c.KernelArguments.ShouldNotExist {
			all = append(all, part{kind: "ignitionKernelArgument", key: "not " + string(a)})
		}
		for _, f := range fieldsOf(reflect.ValueOf(c.Ignition), "") {
			if f != "version" {
				all = append(all, part{kind: "ignition", key: f})
			}
		}
	}
	for _, a := range m.Spec.KernelArguments {
		all = append(all, part{kind: "kernelArgument", key: a})
	}
	for _, e := range m.Spec.Extensions {
		all = append(all, part{kind: "extension", key: e})
	}
	if m.Spec.FIPS {
		all = append(all, part{kind: "fips", key: "true"})
	}
	return all
}

// fieldsOf returns the paths of the fields that are set, without the key and drop-ins.
func fieldsOf(v reflect.Value, prefix string) []string {
	var out []string
	for i := range v.NumField() {
		field, value := v.Type().Field(i), v.Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case empty(value) || name == "dropins":
		case field.Anonymous:
			out = append(out, fieldsOf(value, prefix)...)
		case value.Kind() == reflect.Struct:
			out = append(out, fieldsOf(value, prefix+name+".")...)
		case prefix == "" && (name == "path" && v.Type() == reflect.TypeFor[types.Node]() || name == "name"):
		default:
			out = append(out, prefix+name)
		}
	}
	return out
}

// definition lists the MachineConfigs that define one item, in merge order.
type definition struct {
	part
	by []string
	// fields lists the MachineConfigs by field.
	fields map[string][]string
}

// origins returns the origin of each part of a merged config.
func origins(chosen []*MachineConfig, config *mcfgv1.MachineConfig, in Input) []Origin {
	definitions := map[[2]string]*definition{}
	paths := map[string]string{} // kind by path
	kernel, images := &definition{}, map[string][]string{}
	for _, m := range chosen {
		for _, p := range m.parts() {
			id := [2]string{p.kind, p.key}
			if p.node {
				if before, ok := paths[p.key]; ok && before != p.kind {
					// The later item replaces the earlier one.
					old := [2]string{before, p.key}
					definitions[id] = &definition{part: p, by: definitions[old].by, fields: map[string][]string{}}
					delete(definitions, old)
				}
				paths[p.key] = p.kind
			}
			s := definitions[id]
			if s == nil {
				s = &definition{part: p, fields: map[string][]string{}}
				definitions[id] = s
			}
			s.by = append(s.by, m.Name)
			for _, f := range p.fields {
				s.fields[f] = append(s.fields[f], m.Name)
			}
		}
		if k := m.Spec.KernelType; k == KernelRealtime || k == Kernel64kPages {
			kernel.by = append(kernel.by, m.Name)
		}
		if !m.generated() {
			for field, url := range map[string]string{"osImageURL": m.Spec.OSImageURL,
				"baseOSExtensionsContainerImage": m.Spec.BaseOSExtensionsContainerImage} {
				if url != "" {
					images[field] = append(images[field], m.Name)
				}
			}
		}
	}
	var out []Origin
	last := func(kind, key string, by []string) {
		from := by[len(by)-1]
		over := slices.DeleteFunc(slices.Clone(by), func(name string) bool { return name == from })
		if len(over) == 0 {
			over = nil
		}
		out = append(out, Origin{Kind: kind, Key: key, From: from, Over: over})
	}
	each := func(kind, key string, by []string) {
		for _, name := range slices.Compact(by) {
			out = append(out, Origin{Kind: kind, Key: key, From: name})
		}
	}
	for _, s := range definitions {
		switch s.kind {
		case "kernelArgument", "extension", "fips", "ignitionKernelArgument":
			each(s.kind, s.key, s.by)
			continue
		}
		out = append(out, s.origins()...)
	}
	if len(kernel.by) > 0 {
		last("kernelType", config.Spec.KernelType, kernel.by)
	}
	fallback := FromController
	if in.Streams != nil {
		fallback = FromStreams
	}
	for field, url := range map[string]string{"osImageURL": config.Spec.OSImageURL,
		"baseOSExtensionsContainerImage": config.Spec.BaseOSExtensionsContainerImage} {
		if url != "" {
			by := images[field]
			if in.Controller != nil || len(by) == 0 {
				by = slices.Insert(slices.Clone(by), 0, fallback)
			}
			last(field, url, by)
		}
	}
	sortOrigins(out)
	return out
}

// origins returns one origin for the item, and one for each field that comes from another
// MachineConfig than the main field.
func (s *definition) origins() []Origin {
	about := s.by
	if len(s.part.fields) > 0 {
		for _, list := range lists {
			if list.kind == s.kind && s.fields[list.about] != nil {
				about = s.fields[list.about]
			}
		}
	}
	from := about[len(about)-1]
	main := Origin{Kind: s.kind, Key: s.key, From: from}
	for _, name := range s.by {
		if name != from && !slices.Contains(main.Over, name) {
			main.Over = append(main.Over, name)
		}
	}
	out := []Origin{main}
	for field, by := range s.fields {
		if field == "append" {
			for _, name := range by {
				if name != from {
					out = append(out, Origin{Kind: s.kind, Key: s.key + " (append)", From: name})
				}
			}
			continue
		}
		if setter := by[len(by)-1]; setter != from {
			out = append(out, Origin{Kind: s.kind, Key: s.key + " (" + field + ")", From: setter})
		}
	}
	return out
}

func sortOrigins(all []Origin) {
	slices.SortFunc(all, func(a, b Origin) int {
		return cmp.Or(strings.Compare(a.Kind, b.Kind), strings.Compare(a.Key, b.Key), strings.Compare(a.From, b.From))
	})
}
