// SPDX-License-Identifier: Apache-2.0

package render

import (
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
)

// Rendered is a pool's rendered config, before the Machine Config Server's additions. It is
// immutable.
type Rendered struct {
	Pool string
	// PreApproved reports that this is the pre-approved part.
	PreApproved bool
	// Config is the merged MachineConfig. Its name is that of the full config as the
	// machine-config-controller would name it (rendered-<pool>-<hash>); spec.config is
	// the merged Ignition config, of specification 3.5.
	Config *mcfgv1.MachineConfig
	// Origins has the origin of each part, sorted by Kind and Key.
	Origins []Origin
	// Left lists what the pre-approved part omits, with the reason.
	Left []Origin

	// parts are the MachineConfigs that a pre-approved part consists of.
	parts []partSource
}

// Origin tells from which MachineConfig a part of a config comes.
type Origin struct {
	// Kind is "file", "directory", "link", "unit", "dropin", "user", "group", "disk", "raid",
	// "filesystem", "luks", "kernelArgument", "ignitionKernelArgument", "extension", "fips",
	// "kernelType", "osImageURL", "baseOSExtensionsContainerImage" or "ignition".
	Kind string `json:"kind"`
	// Key is the path, the name of a unit or user, the argument, ... A field from another
	// MachineConfig follows in parentheses: "/etc/x (mode)".
	Key string `json:"key"`
	// From is the MachineConfig whose value counts. Over are those that it overrides.
	From string   `json:"from"`
	Over []string `json:"over,omitempty"`
	// Why explains why it is in the pre-approved part, or not.
	Why string `json:"why,omitempty"`
}
