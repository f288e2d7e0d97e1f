// SPDX-License-Identifier: Apache-2.0

// Package restore prevents a restore of etcd from making anything less strict. Both processes use it,
// the front and the controller.
//
// If etcd is restored from a backup, rights that were revoked since then return. The protection has
// these parts:
//
//   - A [Detector] detects the restore before an object of the restored state is applied.
//   - A [Guard] takes one [Memory] of what is in force at that time. All keys of that time are void.
//   - Until an administrator acknowledges the restore, the guard returns the stricter of the memory and
//     the API's state. This applies to policies and anchors, Machines, enrollments, grants, and the
//     provisioning token. An object that is not in the memory, and may be as old as the backup,
//     was deleted after it. It is not accepted.
//   - A [Reconciler] repairs what the backup lost: it sets quarantines, joins and used grants in the
//     records again, and then requests new keys. It also repairs what a front removes from a record later.
//     It runs in every replica of the controller process, leader or not. A front only holds.
//
// A replica that starts after the restore has no memory. The acknowledgement is the annotation
// [AnnotationRestoreSeen] on the AttestationVerifier.
//
// The reconciler watches nothing; the guard triggers it. It patches the status of MachineAttestations
// and writes the Secret of the keys. If it runs twice, or in two replicas, the second run changes
// nothing. Until it has run, there is no key, so no machine is served.
//
// Permissions: list on attestationpolicies (mcs-attest.dev), get on attestationverifiers
// (mcs-attest.dev). The reconciler needs get and create on machineattestations and patch on
// machineattestations/status (mcs-attest.dev), and get, create and update on the Secret
// mcs-attest-keys.
package restore
