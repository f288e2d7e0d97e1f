// SPDX-License-Identifier: Apache-2.0

// Package inventory is the cached state of the cluster in a process of the verifier. Both processes
// have one. The front appraises with its [view.View]. In the controller process, it triggers the
// controllers.
//
// Package sources watches the objects. They are cached in a reduced form, in three parts: [Machines]
// (Machines of either API, BareMetalHosts, Nodes, MachineAttestations), [Policies] (policies, reference
// values, anchors, MachineConfigPools) and [Secrets] (keys, certificates, the provisioning token,
// pointer configs). Objects are independent. One that cannot be used keeps its last good state, is
// reported ([Faults]), and does not affect the others. A kind that the cluster does not have is no
// error. One that the verifier may not read is an error, which names the missing rule.
//
// The package writes nothing. No grant rests on the watched state of a record: package records reads it
// live.
package inventory
