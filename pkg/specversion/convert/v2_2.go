// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"encoding/json"
	"fmt"
	"path"
	"strings"

	"github.com/coreos/ignition/v2/config/util"
	"github.com/coreos/ignition/v2/config/v3_0/types"

	"github.com/mcs-attest/mcs-attest/pkg/specversion"
)

// The part of spec 2.2's schema that a config of 3.0 needs. What is the same in both has the
// types of 3.0. For fields without a pointer, absence has the same meaning in both.
type (
	config22 struct {
		Ignition types.Ignition `json:"ignition"`
		Passwd   types.Passwd   `json:"passwd"`
		Storage  storage22      `json:"storage"`
		Systemd  types.Systemd  `json:"systemd"`
	}
	storage22 struct {
		Directories []directory22  `json:"directories,omitempty"`
		Disks       []types.Disk   `json:"disks,omitempty"`
		Files       []file22       `json:"files,omitempty"`
		Filesystems []filesystem22 `json:"filesystems,omitempty"`
		Links       []link22       `json:"links,omitempty"`
		Raid        []types.Raid   `json:"raid,omitempty"`
	}
	node22 struct {
		Filesystem string `json:"filesystem"`
		types.Node
	}
	directory22 struct {
		node22
		types.DirectoryEmbedded1
	}
	file22 struct {
		node22
		Append   bool               `json:"append,omitempty"`
		Contents types.FileContents `json:"contents"`
		Mode     *int               `json:"mode,omitempty"`
	}
	link22 struct {
		node22
		types.LinkEmbedded1
	}
	filesystem22 struct {
		Mount types.Filesystem `json:"mount"` // without a path
		Name  string           `json:"name"`
	}
)

// The defaults of an absent mode in spec 3.
const (
	fileMode      = 0o644
	directoryMode = 0o755
)

// rootFilesystem is the name of the root file system, which every config of spec 2 has.
const rootFilesystem = "root"

// to22 converts a valid config of 3.0 to 2.2.
func to22(raw []byte, to specversion.Version) ([]byte, error) {
	var c types.Config
	if err := json.Unmarshal(raw, &c); err != nil {
		return nil, fmt.Errorf("parse config: %w", err)
	}
	refuse := func(field, format string, a ...any) error {
		return fmt.Errorf("%s: %s", field, fmt.Sprintf(format, a...))
	}
	if len(c.Ignition.Config.Merge) > 0 {
		return nil, refuse("ignition.config.merge", "spec 2.2 appends configs, but does not merge them")
	}
	c.Ignition.Version = to.String()
	storage, err := storage22Of(c.Storage, refuse)
	if err != nil {
		return nil, err
	}
	raw, err = json.Marshal(config22{c.Ignition, c.Passwd, *storage, c.Systemd})
	if err != nil {
		return nil, fmt.Errorf("encode config: %w", err)
	}
	tree, err := parse(raw)
	if err != nil {
		return nil, err
	}
	removeEmpty(tree)
	return json.Marshal(tree)
}

func storage22Of(s types.Storage, refuse func(field, format string, a ...any) error) (*storage22, error) {
	out := storage22{Disks: s.Disks, Raid: s.Raid}
	for _, d := range s.Disks {
		if len(d.Partitions) > 0 {
			return nil, refuse("storage.disks["+d.Device+"].partitions",
				"spec 2.2 counts them in sectors and does not match existing ones")
		}
	}
	var mounts []string
	for _, f := range s.Filesystems {
		field := "storage.filesystems[" + f.Device + "]"
		switch {
		case f.Format == nil:
			return nil, refuse(field+".format", "spec 2.2 requires a format")
		case f.Path != nil && path.Clean(*f.Path) == "/":
			return nil, refuse(field+".path", "spec 2.2 cannot create the root file system")
		}
		name := f.Device // any unique name
		if f.Path != nil {
			name = path.Clean(*f.Path)
			mounts = append(mounts, name)
		}
		f.Path = nil
		out.Filesystems = append(out.Filesystems, filesystem22{Mount: f, Name: name})
	}
	listed := map[string]bool{}
	for _, d := range s.Directories {
		listed[path.Clean(d.Path)] = true
	}
	for _, d := range s.Directories {
		if d.Mode == nil {
			d.Mode = util.IntToPtr(directoryMode)
		}
		plain := *d.Mode == directoryMode && d.User == (types.NodeUser{}) && d.Group == (types.NodeGroup{})
		parent := path.Dir(path.Clean(d.Path))
		// Every root file system has /etc and similar directories.
		if !plain && !listed[parent] && strings.Count(parent, "/") > 1 {
			return nil, refuse("storage.directories["+d.Path+"]",
				"spec 2.2 also sets mode and owner of missing parents; add %s to the list", parent)
		}
		out.Directories = append(out.Directories, directory22{node22Of(d.Node, mounts), d.DirectoryEmbedded1})
	}
	for _, l := range s.Links {
		out.Links = append(out.Links, link22{node22Of(l.Node, mounts), l.LinkEmbedded1})
	}
	for _, f := range s.Files {
		if f.Contents.Source == nil && len(f.Append) == 0 {
			return nil, refuse("storage.files["+f.Path+"].contents",
				"spec 2.2 cannot create a file only if it does not exist")
		}
		node := node22Of(f.Node, mounts)
		if f.Contents.Source != nil {
			file := file22{node22: node, Contents: f.Contents, Mode: f.Mode}
			if f.Overwrite == nil {
				file.Overwrite = util.BoolToPtr(false)
			}
			if f.Mode == nil {
				file.Mode = util.IntToPtr(fileMode)
			}
			out.Files = append(out.Files, file)
		}
		node.Overwrite = util.BoolToPtr(false)
		for _, a := range f.Append {
			out.Files = append(out.Files, file22{node22: node, Append: true, Contents: a, Mode: f.Mode})
		}
	}
	return &out, nil
}

// node22Of assigns a node to the file system that is mounted closest above it.
func node22Of(n types.Node, mounts []string) node22 {
	out := node22{Filesystem: rootFilesystem, Node: n}
	longest := 0
	for _, m := range mounts {
		if rest, ok := strings.CutPrefix(n.Path, m); ok && len(m) > longest && (rest == "" || rest[0] == '/') {
			longest = len(m)
			out.Filesystem, out.Path = m, "/"+strings.TrimPrefix(rest, "/")
		}
	}
	return out
}
