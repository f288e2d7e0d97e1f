// Package restore keeps a restore of etcd from making anything laxer. Both kinds of process use it: the front, and
// the controller.
//
// An etcd that is restored from a backup brings back what was revoked since. There is one mechanism:
//
//   - A [Detector] notices the restore, before an object of the restored state is taken in.
//   - A [Guard] takes one [Memory] of what is in force at that moment. All keys of that time are void.
//   - Until an administrator acknowledges the restore, the guard returns the stricter of the memory and what the API
//     has: policies and anchors, Machines, enrollments, grants, the provisioning token. What the memory does not have
//     and what is older than the notice was removed since the backup: it is not accepted.
//   - A [Reconciler] repairs what the backup lost: it sets quarantines, joins and used grants in the records again,
//     and then has new keys made. It also repairs what a front removes from a record later. It runs in every replica of
//     the controller process, leader or not. A front only holds.
//
// A replica that starts after the restore has no memory. The acknowledgement is the annotation
// [AnnotationRestoreSeen] on the AttestationVerifier.
//
// The reconciler watches nothing; the guard triggers it. It patches the status of MachineAttestations and writes the
// Secret of the keys. If it runs twice, or in two replicas, the second run changes nothing. While it is late, there is
// no key, so no machine is served.
//
// Permissions: list on attestationpolicies (mcs-attest.dev), get on attestationverifiers (mcs-attest.dev). The
// reconciler needs get and create on machineattestations and patch on machineattestations/status (mcs-attest.dev), and
// get, create and update on the Secret mcs-attest-keys.
package restore
