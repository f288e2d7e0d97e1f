// SPDX-License-Identifier: Apache-2.0

// Package render renders MachineConfigPools from their MachineConfigs, as the
// machine-config-operator does. It renders the full config of a pool, and the
// pre-approved part, which every caller may have before its node is approved. The
// renderedconfig controller and the command render use it.
//
// [Full] renders the full config of a pool:
//   - The pool's selector selects its MachineConfigs. An empty selector selects none.
//   - MachineConfigs with the role label "worker" come first, then the others, each group
//     sorted by name. So a custom pool's settings override the workers'.
//   - Their Ignition configs, of spec 3.0 to 3.5, are merged by Ignition's rules in spec
//     3.5. Files without "overwrite" get true.
//   - kernelArguments and extensions are appended. fips is true if one MachineConfig sets
//     it. The last kernelType other than "default" counts.
//   - osImageURL and baseOSExtensionsContainerImage come from the ControllerConfig or the
//     pool's OSImageStream, unless a MachineConfig that no controller generated sets them.
//     The last one counts.
//   - The result has the same bytes, and so the same hash in its name, as the
//     machine-config-controller's.
//
// [PreApproved] merges some of these MachineConfigs in the same way, each whole or not at
// all:
//   - those that are marked by the annotation mcs-attest.dev/needed-before-node-approved,
//     or by the field spec.neededBeforeNodeApproved, which the annotation overrides;
//   - those that the machine-config-operator's controllers generated, according to their
//     annotation and owner, unless they contain a secret.
//
// The pre-approved part is searched for secrets, see [Secrets]. If it contains one, it is
// rejected as a whole. Files that an administrator listed may contain secrets.
//
// A MachineConfig that cannot be rendered is never omitted. Its pool does not render, and
// the error names the MachineConfig with its file and line.
//
// The manifests come from administrators and their tools. The author of a MachineConfig is
// root on every node, so manifests are trusted to be well-intended, but not to be correct.
package render
