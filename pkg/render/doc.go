// Package render renders MachineConfigPools from their MachineConfigs as the
// machine-config-operator does: the whole config, and the part of it that
// anyone may have before a node is approved (DESIGN, section 10).
//
// The whole config of a pool, [Full]:
//   - the pool's selector chooses its MachineConfigs; an empty one chooses none;
//   - those with the role label "worker" come first, then the others, each
//     sorted by name, so that a custom pool's settings win over the workers';
//   - their Ignition configs, of spec 3.0 to 3.5, are merged by Ignition's own
//     rules in spec 3.5, and files that do not say "overwrite" get true;
//   - kernelArguments and extensions are appended; fips is true if one says so;
//     the last kernelType other than "default" counts;
//   - osImageURL and baseOSExtensionsContainerImage are the ControllerConfig's (or the
//     pool's OSImageStream's), unless a MachineConfig that no controller
//     generated names another; the last one counts;
//   - it is written with the bytes, and so named with the hash, that the
//     machine-config-controller gives it.
//
// The pre-approved part, [PreApproved], is the same merge of some of these
// MachineConfigs, each whole or not at all:
//   - one that says so: the annotation mcs-attest.dev/needed-before-node-approved or,
//     with less weight, the field spec.neededBeforeNodeApproved;
//   - one that the machine-config-operator's own controllers generated (its
//     annotation and its owner say so), unless it holds a secret;
//   - nobody else's.
//
// What it then would hold is searched for secrets, see [Secrets]; one is enough to
// refuse the whole. Paths that an administrator listed may hold them.
//
// What cannot be rendered is refused, never left out: a MachineConfig that does
// not parse stops its pool, and is named in the error with its file and line.
//
// The manifests come from administrators and their tools. Whoever writes
// MachineConfigs is root on every node, so they are trusted to mean what they
// say, but not to be right.
package render
