// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"encoding/json"
	"fmt"
	"path"
	"strings"

	"github.com/coreos/ignition/v2/config/util"
	v3_0 "github.com/coreos/ignition/v2/config/v3_0/types"

	"github.com/mcs-attest/mcs-attest/pkg/specversion"
)

// The part of spec 2.2's schema that a config of 3.0 needs. For fields without a pointer,
// absence has the same meaning in both.
type (
	config22 struct {
		Ignition ignition22 `json:"ignition"`
		Passwd   *passwd22  `json:"passwd,omitempty"`
		Storage  *storage22 `json:"storage,omitempty"`
		Systemd  *systemd22 `json:"systemd,omitempty"`
	}
	ignition22 struct {
		Config   *configs22  `json:"config,omitempty"`
		Security *security22 `json:"security,omitempty"`
		Timeouts *timeouts22 `json:"timeouts,omitempty"`
		Version  string      `json:"version"`
	}
	configs22 struct {
		Replace *resource22 `json:"replace,omitempty"`
	}
	security22 struct {
		TLS tls22 `json:"tls"`
	}
	tls22 struct {
		CertificateAuthorities []resource22 `json:"certificateAuthorities"`
	}
	timeouts22 struct {
		HTTPResponseHeaders *int `json:"httpResponseHeaders,omitempty"`
		HTTPTotal           *int `json:"httpTotal,omitempty"`
	}
	resource22 struct {
		Compression  string          `json:"compression,omitempty"`
		Source       string          `json:"source,omitempty"`
		Verification *verification22 `json:"verification,omitempty"`
	}
	verification22 struct {
		Hash string `json:"hash"`
	}
	passwd22 struct {
		Groups []group22 `json:"groups,omitempty"`
		Users  []user22  `json:"users,omitempty"`
	}
	group22 struct {
		Gid          *int   `json:"gid,omitempty"`
		Name         string `json:"name"`
		PasswordHash string `json:"passwordHash,omitempty"`
		System       bool   `json:"system,omitempty"`
	}
	user22 struct {
		Gecos             string                  `json:"gecos,omitempty"`
		Groups            []v3_0.Group            `json:"groups,omitempty"`
		HomeDir           string                  `json:"homeDir,omitempty"`
		Name              string                  `json:"name"`
		NoCreateHome      bool                    `json:"noCreateHome,omitempty"`
		NoLogInit         bool                    `json:"noLogInit,omitempty"`
		NoUserGroup       bool                    `json:"noUserGroup,omitempty"`
		PasswordHash      *string                 `json:"passwordHash,omitempty"`
		PrimaryGroup      string                  `json:"primaryGroup,omitempty"`
		SSHAuthorizedKeys []v3_0.SSHAuthorizedKey `json:"sshAuthorizedKeys,omitempty"`
		Shell             string                  `json:"shell,omitempty"`
		System            bool                    `json:"system,omitempty"`
		UID               *int                    `json:"uid,omitempty"`
	}
	storage22 struct {
		Directories []directory22  `json:"directories,omitempty"`
		Disks       []disk22       `json:"disks,omitempty"`
		Files       []file22       `json:"files,omitempty"`
		Filesystems []filesystem22 `json:"filesystems,omitempty"`
		Links       []link22       `json:"links,omitempty"`
		Raid        []raid22       `json:"raid,omitempty"`
	}
	node22 struct {
		Filesystem string   `json:"filesystem"`
		Group      *owner22 `json:"group,omitempty"`
		Overwrite  *bool    `json:"overwrite,omitempty"`
		Path       string   `json:"path"`
		User       *owner22 `json:"user,omitempty"`
	}
	owner22 struct {
		ID   *int   `json:"id,omitempty"`
		Name string `json:"name,omitempty"`
	}
	directory22 struct {
		node22
		Mode *int `json:"mode,omitempty"`
	}
	file22 struct {
		node22
		Append   bool       `json:"append,omitempty"`
		Contents resource22 `json:"contents"`
		Mode     *int       `json:"mode,omitempty"`
	}
	link22 struct {
		node22
		Hard   bool   `json:"hard,omitempty"`
		Target string `json:"target"`
	}
	disk22 struct {
		Device    string `json:"device"`
		WipeTable bool   `json:"wipeTable,omitempty"`
	}
	filesystem22 struct {
		Mount mount22 `json:"mount"`
		Name  string  `json:"name"`
	}
	mount22 struct {
		Device         string                  `json:"device"`
		Format         string                  `json:"format"`
		Label          *string                 `json:"label,omitempty"`
		Options        []v3_0.FilesystemOption `json:"options,omitempty"`
		UUID           *string                 `json:"uuid,omitempty"`
		WipeFilesystem bool                    `json:"wipeFilesystem,omitempty"`
	}
	raid22 struct {
		Devices []v3_0.Device     `json:"devices"`
		Level   string            `json:"level"`
		Name    string            `json:"name"`
		Options []v3_0.RaidOption `json:"options,omitempty"`
		Spares  int               `json:"spares,omitempty"`
	}
	systemd22 struct {
		Units []unit22 `json:"units,omitempty"`
	}
	unit22 struct {
		Contents string     `json:"contents,omitempty"`
		Dropins  []dropin22 `json:"dropins,omitempty"`
		Enabled  *bool      `json:"enabled,omitempty"`
		Mask     bool       `json:"mask,omitempty"`
		Name     string     `json:"name"`
	}
	dropin22 struct {
		Contents string `json:"contents,omitempty"`
		Name     string `json:"name"`
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
	var c v3_0.Config
	if err := json.Unmarshal(raw, &c); err != nil {
		return nil, fmt.Errorf("parse config: %w", err)
	}
	refuse := func(field, format string, a ...any) error {
		return &RefusedError{To: to, Field: field, Why: fmt.Sprintf(format, a...)}
	}
	out := config22{Ignition: ignition22{Version: to.String()}}
	if len(c.Ignition.Config.Merge) > 0 {
		return nil, refuse("ignition.config.merge", "spec 2.2 appends configs, but does not merge them")
	}
	if c.Ignition.Config.Replace.Source != nil {
		r := c.Ignition.Config.Replace
		ref := resource22Of(nil, r.Source, r.Verification)
		out.Ignition.Config = &configs22{Replace: &ref}
	}
	if cas := c.Ignition.Security.TLS.CertificateAuthorities; len(cas) > 0 {
		out.Ignition.Security = &security22{}
		for _, ca := range cas {
			out.Ignition.Security.TLS.CertificateAuthorities = append(out.Ignition.Security.TLS.CertificateAuthorities,
				resource22Of(nil, &ca.Source, ca.Verification))
		}
	}
	if t := c.Ignition.Timeouts; t != (v3_0.Timeouts{}) {
		out.Ignition.Timeouts = &timeouts22{HTTPResponseHeaders: t.HTTPResponseHeaders, HTTPTotal: t.HTTPTotal}
	}
	out.Passwd = passwd22Of(c.Passwd)
	storage, err := storage22Of(c.Storage, refuse)
	if err != nil {
		return nil, err
	}
	out.Storage = storage
	out.Systemd = systemd22Of(c.Systemd)
	return json.Marshal(out)
}

func resource22Of(compression, source *string, v v3_0.Verification) resource22 {
	r := resource22{Compression: value(compression), Source: value(source)}
	if v.Hash != nil {
		r.Verification = &verification22{Hash: *v.Hash}
	}
	return r
}

func passwd22Of(p v3_0.Passwd) *passwd22 {
	if len(p.Groups)+len(p.Users) == 0 {
		return nil
	}
	var out passwd22
	for _, g := range p.Groups {
		out.Groups = append(out.Groups, group22{Gid: g.Gid, Name: g.Name, PasswordHash: value(g.PasswordHash),
			System: value(g.System)})
	}
	for _, u := range p.Users {
		out.Users = append(out.Users, user22{
			Gecos: value(u.Gecos), Groups: u.Groups, HomeDir: value(u.HomeDir), Name: u.Name,
			NoCreateHome: value(u.NoCreateHome),
			NoLogInit:    value(u.NoLogInit), NoUserGroup: value(u.NoUserGroup), PasswordHash: u.PasswordHash,
			PrimaryGroup: value(u.PrimaryGroup), SSHAuthorizedKeys: u.SSHAuthorizedKeys, Shell: value(u.Shell),
			System: value(u.System), UID: u.UID,
		})
	}
	return &out
}

func systemd22Of(s v3_0.Systemd) *systemd22 {
	if len(s.Units) == 0 {
		return nil
	}
	var out systemd22
	for _, u := range s.Units {
		unit := unit22{Contents: value(u.Contents), Enabled: u.Enabled, Mask: value(u.Mask), Name: u.Name}
		for _, d := range u.Dropins {
			unit.Dropins = append(unit.Dropins, dropin22{Contents: value(d.Contents), Name: d.Name})
		}
		out.Units = append(out.Units, unit)
	}
	return &out
}

func storage22Of(s v3_0.Storage, refuse func(field, format string, a ...any) error) (*storage22, error) {
	var out storage22
	var mounts []string
	for _, d := range s.Disks {
		if len(d.Partitions) > 0 {
			return nil, refuse("storage.disks["+d.Device+"].partitions",
				"spec 2.2 counts them in sectors and does not match existing ones")
		}
		out.Disks = append(out.Disks, disk22{Device: d.Device, WipeTable: value(d.WipeTable)})
	}
	for _, r := range s.Raid {
		out.Raid = append(out.Raid, raid22{Devices: r.Devices, Level: r.Level, Name: r.Name, Options: r.Options,
			Spares: value(r.Spares)})
	}
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
		out.Filesystems = append(out.Filesystems, filesystem22{Name: name, Mount: mount22{
			Device: f.Device, Format: *f.Format, Label: f.Label, Options: f.Options, UUID: f.UUID,
			WipeFilesystem: value(f.WipeFilesystem),
		}})
	}
	listed := map[string]bool{}
	for _, d := range s.Directories {
		listed[path.Clean(d.Path)] = true
	}
	for _, d := range s.Directories {
		mode := d.Mode
		if mode == nil {
			mode = util.IntToPtr(directoryMode)
		}
		plain := *mode == directoryMode && d.User == (v3_0.NodeUser{}) && d.Group == (v3_0.NodeGroup{})
		parent := path.Dir(path.Clean(d.Path))
		// Every root file system has /etc and similar directories.
		if !plain && !listed[parent] && strings.Count(parent, "/") > 1 {
			return nil, refuse("storage.directories["+d.Path+"]",
				"spec 2.2 also sets mode and owner of missing parents; add %s to the list", parent)
		}
		out.Directories = append(out.Directories, directory22{node22: node22Of(d.Node, mounts), Mode: mode})
	}
	for _, l := range s.Links {
		out.Links = append(out.Links, link22{node22: node22Of(l.Node, mounts), Hard: value(l.Hard), Target: l.Target})
	}
	for _, f := range s.Files {
		if f.Contents.Source == nil && len(f.Append) == 0 {
			return nil, refuse("storage.files["+f.Path+"].contents",
				"spec 2.2 cannot create a file only if it does not exist")
		}
		node := node22Of(f.Node, mounts)
		if f.Contents.Source != nil {
			file := file22{node22: node, Contents: resource22Of(f.Contents.Compression, f.Contents.Source,
				f.Contents.Verification), Mode: f.Mode}
			if f.Overwrite == nil {
				file.Overwrite = util.BoolToPtr(false)
			}
			if f.Mode == nil {
				file.Mode = util.IntToPtr(fileMode)
			}
			out.Files = append(out.Files, file)
		}
		for _, a := range f.Append {
			file := file22{node22: node, Append: true, Contents: resource22Of(a.Compression, a.Source, a.Verification),
				Mode: f.Mode}
			file.Overwrite = util.BoolToPtr(false)
			out.Files = append(out.Files, file)
		}
	}
	if len(out.Directories)+len(out.Disks)+len(out.Files)+len(out.Filesystems)+len(out.Links)+len(out.Raid) == 0 {
		return nil, nil
	}
	return &out, nil
}

// node22Of assigns a node to the file system that is mounted closest above it.
func node22Of(n v3_0.Node, mounts []string) node22 {
	out := node22{Filesystem: rootFilesystem, Overwrite: n.Overwrite, Path: n.Path}
	longest := 0
	for _, m := range mounts {
		if rest, ok := strings.CutPrefix(n.Path, m); ok && len(m) > longest && (rest == "" || rest[0] == '/') {
			longest = len(m)
			out.Filesystem, out.Path = m, "/"+strings.TrimPrefix(rest, "/")
		}
	}
	if n.User != (v3_0.NodeUser{}) {
		out.User = &owner22{ID: n.User.ID, Name: value(n.User.Name)}
	}
	if n.Group != (v3_0.NodeGroup{}) {
		out.Group = &owner22{ID: n.Group.ID, Name: value(n.Group.Name)}
	}
	return out
}

func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
