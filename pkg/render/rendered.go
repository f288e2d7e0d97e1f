package render

import (
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
)

// Rendered is a pool's config as it is rendered, before the Machine Config Server
// adds what it knows when it is asked. It never changes.
type Rendered struct {
	Pool string
	// PreApproved: this is the part that anyone may have.
	PreApproved bool
	// Config is the merged MachineConfig. Its name is that of the whole config as the
	// machine-config-controller would name it (rendered-<pool>-<hash>); spec.config is
	// the merged Ignition config, of specification 3.5.
	Config *mcfgv1.MachineConfig
	// Origins say for each part where it comes from, sorted by Kind and Key.
	Origins []Origin
	// Left are what the pre-approved part leaves out, with why.
	Left []Origin

	// parts are the MachineConfigs that a pre-approved part was made of.
	parts []madeOf
}

// Origin says of one part of a config which MachineConfig it comes from.
type Origin struct {
	// Kind is "file", "directory", "link", "unit", "dropin", "user", "group", "disk", "raid",
	// "filesystem", "luks", "kernelArgument", "ignitionKernelArgument", "extension", "fips",
	// "kernelType", "osImageURL", "baseOSExtensionsContainerImage" or "ignition".
	Kind string `json:"kind"`
	// Key is the path, the unit's name, the user's name, the argument, ... A field that
	// another MachineConfig says follows in parentheses: "/etc/x (mode)".
	Key string `json:"key"`
	// From is the MachineConfig whose value counts, Over are those that it replaced.
	From string   `json:"from"`
	Over []string `json:"over,omitempty"`
	// Why it is in the pre-approved part, or not, as a sentence.
	Why string `json:"why,omitempty"`
}
