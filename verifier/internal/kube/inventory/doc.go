// Package inventory is what a process of the verifier knows of its cluster. Both
// processes have one: the front appraises with its [view.View], and it triggers the
// controllers of the controller process.
//
// Objects are watched by package sources and kept small, in three parts: [Machines]
// (Machines of either API, BareMetalHosts, Nodes, MachineAttestations), [Policies]
// (policies, reference values, anchors, MachineConfigPools) and [Secrets] (keys,
// certificates, the provisioning token, pointer configs). Each object stands for itself.
// One that cannot be used keeps its last good state, is reported ([Faults]), and stops no
// other. A kind that the cluster does not have is no error. One that the verifier may not
// read is an error, which names the missing rule.
//
// The package writes nothing. Nothing is granted on what a watch says of a record:
// package records reads it live.
package inventory
