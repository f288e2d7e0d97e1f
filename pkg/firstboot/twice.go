// SPDX-License-Identifier: Apache-2.0

package firstboot

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// layout has what Ignition may be unable to create after an earlier config.
type layout struct {
	Storage struct {
		Disks       []object `json:"disks,omitempty"`
		Raid        []object `json:"raid,omitempty"`
		Luks        []object `json:"luks,omitempty"`
		Filesystems []object `json:"filesystems,omitempty"`
		Files       []object `json:"files,omitempty"`
		Links       []object `json:"links,omitempty"`
	} `json:"storage,omitzero"`
	Passwd struct {
		Groups []object `json:"groups,omitempty"`
	} `json:"passwd,omitzero"`
}

// object is an entry of a list in a config.
type object map[string]any

func (o object) text(key string) string {
	s, _ := o[key].(string)
	return s
}

// layoutOf returns the layout of a config in JSON, without what files contain.
func layoutOf(config []byte) []byte {
	var l layout
	_ = json.Unmarshal(config, &l) // Ignition reports an error in it
	for _, f := range l.Storage.Files {
		maps.DeleteFunc(f, func(key string, _ any) bool { return key != "path" })
	}
	raw, _ := json.Marshal(l) // all of it was JSON
	return raw
}

// checks has the lists of a layout. A problem is why Ignition fails in the second boot, or "". The first object is the
// one of the pre-approved config, or nil.
var checks = []struct {
	field, key string
	list       func(*layout) []object
	problem    func(second, first object) string
}{
	{"storage.disks", "device", func(l *layout) []object { return l.Storage.Disks }, diskProblem},
	{"storage.raid", "name", func(l *layout) []object { return l.Storage.Raid }, repetition},
	{"storage.luks", "name", func(l *layout) []object { return l.Storage.Luks }, repetition},
	{"storage.filesystems", "device", func(l *layout) []object { return l.Storage.Filesystems }, filesystemProblem},
	{"storage", "path", func(l *layout) []object { return slices.Concat(l.Storage.Files, l.Storage.Links) }, pathProblem},
	{"passwd.groups", "name", func(l *layout) []object { return l.Passwd.Groups }, repetition},
}

// CannotApplyTwice returns an error if Ignition cannot apply the full config after the pre-approved one. The
// preApproved argument is that config, or its [LayoutFile]. CannotApplyTwice does not read configs that they merge.
//
// Ignition cannot create a RAID, a LUKS volume or, before version 2.26, a group that exists. For the other objects, see
// the functions below.
func CannotApplyTwice(full, preApproved []byte) error {
	const doing = "apply the full config after the pre-approved one"
	var second, first layout
	if err := errors.Join(json.Unmarshal(full, &second), json.Unmarshal(preApproved, &first)); err != nil {
		return fmt.Errorf(doing+": %w", err)
	}
	for _, c := range checks {
		earlier := map[string]object{}
		for _, o := range c.list(&first) {
			earlier[o.text(c.key)] = o
		}
		for _, o := range c.list(&second) {
			if why := c.problem(o, earlier[o.text(c.key)]); why != "" {
				return fmt.Errorf(doing+": %s %q: %s", c.field, o.text(c.key), why)
			}
		}
	}
	return nil
}

const (
	differs   = "it differs from the one of the pre-approved config"
	onlyFirst = "the pre-approved config must have it, too"
)

// repetition rejects an object in both configs, except a group that one of them deletes.
func repetition(second, first object) string {
	if first == nil || second["shouldExist"] == false || first["shouldExist"] == false {
		return ""
	}
	return "the pre-approved config must not have it"
}

// diskProblem requires the disk with the system in both configs: in the first boot, the root file system grows over all
// free space. A config does not say which disk that is; CoreOS has four partitions on it. No config can have wipeTable
// for that disk. Each boot creates a partition without a number.
func diskProblem(second, first object) string {
	wiped := second["wipeTable"] == true
	partitions, _ := second["partitions"].([]any)
	has := func(is func(number float64) bool) bool {
		return !wiped && slices.ContainsFunc(partitions, func(p any) bool {
			fields, _ := p.(map[string]any)
			number, _ := fields["number"].(float64)
			return is(number)
		})
	}
	system := second.text("device") == bootDisk || has(func(number float64) bool { return number > 4 })
	switch {
	case first == nil && system:
		return onlyFirst + ", or wipeTable for a disk without the system"
	case first == nil:
		return ""
	case !reflect.DeepEqual(second, first):
		return differs
	case has(func(number float64) bool { return number == 0 }):
		return "each partition must have a number"
	}
	return ""
}

// bootDisk is CoreOS's link to the disk with the system.
const bootDisk = "/dev/disk/by-id/coreos-boot-disk"

// filesystemProblem rejects a new file system for /boot or the root, because CoreOS has bound one to the other in the
// first boot, and one that hides or deletes the agent. On CoreOS, /usr/local is a link to /var/usrlocal.
func filesystemProblem(second, first object) string {
	wiped, label, path := second["wipeFilesystem"] == true, second.text("label"), second.text("path")
	agent := path != "" && (strings.HasPrefix(AgentPath, path+"/") || strings.HasPrefix("/var/usrlocal/bin/", path+"/"))
	switch {
	case wiped && (label == "root" || label == "boot"):
		return "only a machine with the agent in its initramfs can create it"
	case first != nil && !reflect.DeepEqual(second, first):
		return differs
	case first == nil && agent:
		return onlyFirst + ", because it has the agent"
	case wiped && agent:
		return "wipeFilesystem would delete the agent"
	}
	return ""
}

// pathProblem rejects a file or a link whose path exists, if it does not overwrite it. Ignition accepts the same
// symbolic link again, and a file without contents.
func pathProblem(second, first object) string {
	contents, _ := second["contents"].(map[string]any)
	target, earlier := second.text("target"), first.text("target")
	symbolic := second["hard"] != true && first["hard"] != true
	if first == nil || second["overwrite"] == true || target == earlier && (target != "" && symbolic ||
		target == "" && contents["source"] == nil) {
		return ""
	}
	return "it must have overwrite, because the pre-approved config has it, too"
}
