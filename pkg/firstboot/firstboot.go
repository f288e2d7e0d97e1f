// SPDX-License-Identifier: Apache-2.0

// Package firstboot has what the verifier and the agent share about boot images without the agent:
// paths, and the config that carries the agent into the real root.
//
// The verifier serves a [Config] that merges the pre-approved config, and after it one of its own.
// Ignition lets a later config replace what an earlier one has. The second one has these additions,
// none of which is secret:
//
//   - the agent, which Ignition downloads from the gate and checks by its SHA-256, one file for each
//     architecture;
//   - the pointer config to which the agent attests;
//   - the [StateFile] with the content [PreApproved], and the [LayoutFile];
//   - the unit mcs-attest-firstboot.service;
//   - a drop-in for each of the templates sshd@.service and ssh@.service, so that also a service of only one
//     connection starts after that unit;
//   - a mask of ignition-delete-config.service, so that the agent can read the machine's own pointer config.
//
// After its attestation the agent gives Ignition the [Full] config. It merges one config before the full one, with
// defaults for it, and one after it. The latter replaces the content of the StateFile. So Ignition itself records which
// config it has applied.
package firstboot

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	// Dir has the files of this package on the machine.
	Dir = "/etc/mcs-attest/firstboot"
	// PointerFile is the pointer config in Dir.
	PointerFile = "pointer.ign"
	// StateFile says in Dir which config Ignition has applied.
	StateFile = "config"
	// LayoutFile has in Dir what [CannotApplyTwice] reads of the pre-approved config.
	LayoutFile = "layout.json"
	// PresetFile is where Ignition appends a line for each unit that a config enables or disables. For systemd the
	// first line that names a unit counts.
	PresetFile = "/etc/systemd/system-preset/20-ignition.preset"
	// fallbackFile comes after the PresetFile for systemd, and before the files of the image.
	fallbackFile = "/etc/systemd/system-preset/21-mcs-attest.preset"
	// maxPreset is the maximum size of the PresetFile that the second boot keeps, in bytes.
	maxPreset = 64 << 10
	// deleteUnit deletes the user data of VMware and VirtualBox in each first boot.
	deleteUnit = "ignition-delete-config.service"
	// UnitName is the name of the unit.
	UnitName = "mcs-attest-firstboot.service"
	// AgentPath is the path of the agent without the architecture. SELinux lets units run programs
	// in this folder, and it is writable on CoreOS.
	AgentPath = "/usr/local/bin/" + AgentPrefix
	// AgentPrefix is the agent's file name without the architecture.
	AgentPrefix = "mcs-attest-agent-"
	// URLPath is the path of the agents at the gate, before the SHA-256 in hexadecimal.
	URLPath = "/agent/"
)

// The contents of the StateFile.
const (
	PreApproved = "pre-approved\n"
	FullConfig  = "whole\n"
)

// RealRoot is the claim of a machine that attests in the real root. In the initramfs there is none.
const RealRoot = "RealRoot"

// Architectures has systemd's names, which units have as %a, by Go's names.
var Architectures = map[string]string{
	"amd64": "x86-64", "arm64": "arm64", "ppc64le": "ppc64-le", "s390x": "s390x",
}

//go:embed mcs-attest-firstboot.service
var unit string

// Unit returns the unit's text.
func Unit() string { return unit }

// AgentConfig is what a pre-approved config carries for an attestation in the real root.
type AgentConfig struct {
	// Origin is the gate's, https://host:port.
	Origin string
	// Agents has the SHA-256 of each agent, in hexadecimal, by Go's name of its architecture.
	Agents map[string]string
	// Pointer is the pointer config to which the agent attests.
	Pointer []byte
}

// version is the specification of the configs of this package. 3.1 is the first one that checks
// files by SHA-256. They are merged with configs of any version that the machine's Ignition reads.
const version = "3.1.0"

// downloadTime is the time in seconds for which Ignition tries to download a file. Without a limit, it would wait
// indefinitely for an agent that no verifier has anymore after an update. After a reboot it fetches the config again.
// The limit is for all files of the first boot, so it is longer than an outage should be.
const downloadTime = 6 * 3600

type ignitionConfig struct {
	Ignition struct {
		Version string `json:"version"`
		Config  struct {
			Merge []resource `json:"merge"`
		} `json:"config,omitzero"`
		Timeouts struct {
			HTTPTotal int `json:"httpTotal"` // seconds
		} `json:"timeouts,omitzero"`
	} `json:"ignition"`
	content
}

// settings are those of a pointer config with which Ignition fetches other configs and files.
type settings struct {
	Version  string          `json:"version"`
	Proxy    json.RawMessage `json:"proxy,omitempty"`
	Security json.RawMessage `json:"security,omitempty"`
	Timeouts json.RawMessage `json:"timeouts,omitempty"`
}

type content struct {
	Storage struct {
		Files []file `json:"files"`
	} `json:"storage,omitzero"`
	Systemd struct {
		Units []systemdUnit `json:"units,omitempty"`
	} `json:"systemd,omitzero"`
}

type resource struct {
	Source       string       `json:"source"`
	Verification verification `json:"verification,omitzero"`
}

type verification struct {
	Hash string `json:"hash,omitempty"`
}

type file struct {
	Path      string   `json:"path"`
	Overwrite bool     `json:"overwrite"`
	Mode      int      `json:"mode"`
	Contents  resource `json:"contents"`
}

type systemdUnit struct {
	Name     string   `json:"name"`
	Enabled  bool     `json:"enabled,omitempty"`
	Mask     *bool    `json:"mask,omitempty"`
	Contents string   `json:"contents,omitempty"`
	Dropins  []dropin `json:"dropins,omitempty"`
}

type dropin struct {
	Name     string `json:"name"`
	Contents string `json:"contents"`
}

// afterUnit makes a template start after the unit, whose Before= cannot name a template.
var afterUnit = []dropin{{Name: "mcs-attest-firstboot.conf", Contents: "[Unit]\nAfter=" + UnitName + "\n"}}

// Config returns the config that carries the agent and merges the pre-approved config.
func Config(preApproved []byte, c AgentConfig) ([]byte, error) {
	if len(preApproved) == 0 || len(c.Agents) == 0 || len(c.Pointer) == 0 || c.Origin == "" {
		return nil, errors.New("the config, the agents, the pointer config and the origin are all required")
	}
	var given, own ignitionConfig
	_ = json.Unmarshal(preApproved, &given) // Ignition reports an error in it
	own.Ignition.Timeouts.HTTPTotal = cmp.Or(given.Ignition.Timeouts.HTTPTotal, downloadTime)
	for _, arch := range slices.Sorted(maps.Keys(c.Agents)) {
		name, ok := Architectures[arch]
		if !ok {
			return nil, fmt.Errorf("architecture %q is unknown", arch)
		}
		own.Storage.Files = append(own.Storage.Files, file{Path: AgentPath + name, Overwrite: true, Mode: 0o755,
			Contents: resource{c.Origin + URLPath + c.Agents[arch], verification{"sha256-" + c.Agents[arch]}}})
	}
	own.Storage.Files = append(own.Storage.Files,
		file{Path: Dir + "/" + PointerFile, Overwrite: true, Mode: 0o644, Contents: data(c.Pointer)},
		file{Path: Dir + "/" + LayoutFile, Overwrite: true, Mode: 0o644, Contents: data(layoutOf(preApproved))},
		state(PreApproved))
	own.Systemd.Units = []systemdUnit{{Name: UnitName, Enabled: true, Contents: unit},
		{Name: "sshd@.service", Dropins: afterUnit}, {Name: "ssh@.service", Dropins: afterUnit},
		{Name: deleteUnit, Mask: new(true)}}
	return merging(&own, preApproved)
}

// Earlier is what the first boot has for [Full].
type Earlier struct {
	Pointer []byte // the outermost pointer config
	Layout  []byte // the LayoutFile
	Preset  []byte // the PresetFile
}

// Full returns the config that merges the full one, records that Ignition has applied it, and makes
// the boot a first boot for systemd. Ignition enables units by presets, which systemd applies only in a
// first boot (machine-id(5), "First Boot Semantics"). It refuses the config of [Config], and one that
// Ignition [CannotApplyTwice].
//
// The full config is merged after the defaults that a machine without this package would also have for it:
//
//   - the proxy, the certificate authorities and the timeouts of the outermost pointer config, with which Ignition
//     fetches the remote files of the full config;
//   - an empty PresetFile. Otherwise a unit that the pre-approved config enables stays enabled if the full config
//     disables it, because Ignition only appends to that file. The lines of the first boot follow in another file, for
//     the units that only its configs enable or disable;
//   - ignition-delete-config.service, which [Config] masks.
func Full(config []byte, e Earlier) ([]byte, error) {
	if len(config) == 0 {
		return nil, errors.New("the config is empty")
	}
	if carriesAgent(config) {
		return nil, errors.New("the config is the pre-approved one")
	}
	if err := CannotApplyTwice(config, e.Layout); err != nil {
		return nil, err
	}
	var given struct{ Ignition settings }
	if err := json.Unmarshal(e.Pointer, &given); err != nil {
		return nil, fmt.Errorf("the pointer config: %w", err)
	}
	before := struct {
		Ignition settings `json:"ignition"`
		content
	}{Ignition: given.Ignition}
	// A crash can leave a file of null characters.
	if len(e.Preset) > maxPreset || !utf8.Valid(e.Preset) || bytes.ContainsRune(e.Preset, 0) {
		e.Preset = nil
	}
	before.Storage.Files = []file{{Path: PresetFile, Overwrite: true, Mode: 0o644, Contents: data(nil)},
		{Path: fallbackFile, Overwrite: true, Mode: 0o644, Contents: data(e.Preset)}}
	before.Systemd.Units = []systemdUnit{{Name: deleteUnit, Mask: new(false)}}
	raw, err := json.Marshal(before)
	if err != nil {
		return nil, fmt.Errorf("encode config: %w", err)
	}
	var own ignitionConfig
	own.Storage.Files = []file{state(FullConfig),
		{Path: "/etc/machine-id", Overwrite: true, Mode: 0o444, Contents: data([]byte("uninitialized\n"))}}
	// The unit exists, and the PresetFile no longer enables it.
	own.Systemd.Units = []systemdUnit{{Name: UnitName, Enabled: true}}
	return merging(&own, raw, config)
}

// carriesAgent reports whether a config is one of [Config].
func carriesAgent(config []byte) bool {
	var outer, own ignitionConfig
	if json.Unmarshal(config, &outer) != nil {
		return false
	}
	return slices.ContainsFunc(outer.Ignition.Config.Merge, func(r resource) bool {
		raw, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(r.Source, dataPrefix))
		return err == nil && json.Unmarshal(raw, &own) == nil && slices.Contains(own.Storage.Files, state(PreApproved))
	})
}

// merging returns a config that merges others, and then one of this package, which therefore wins.
func merging(own *ignitionConfig, others ...[]byte) ([]byte, error) {
	own.Ignition.Version = version
	raw, err := json.Marshal(own)
	if err != nil {
		return nil, fmt.Errorf("encode config: %w", err)
	}
	var out ignitionConfig
	out.Ignition.Version = version
	for _, config := range append(others, raw) {
		out.Ignition.Config.Merge = append(out.Ignition.Config.Merge, data(config))
	}
	return json.Marshal(out)
}

func state(content string) file {
	return file{Path: Dir + "/" + StateFile, Overwrite: true, Mode: 0o644, Contents: data([]byte(content))}
}

const dataPrefix = "data:;base64,"

func data(content []byte) resource {
	return resource{Source: dataPrefix + base64.StdEncoding.EncodeToString(content)}
}
