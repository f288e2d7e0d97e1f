// SPDX-License-Identifier: Apache-2.0

// Package machinerecord keeps the record of each Machine consistent with the Machine. It creates the
// record, latches that the machine is quarantined or has joined, revokes the bootstrap credentials of a
// quarantined machine, releases a quarantine, and deletes the record with its Machine. Function
// [record.Compare] decides which of these steps is next.
//
// It watches nothing itself. The inventory watches Machines, MachineAttestations and Nodes, and
// triggers the controller with the UID of a Machine. A request has the priority of its step, in the
// queue and when it is repeated:
//
//	PriorityRevoke   quarantine a machine, revoke the credentials of a quarantined machine
//	PriorityJoin     latch that a machine has joined; delete a record that has live credentials
//	the others       create, release, restate, delete: bookkeeping
//
// Bookkeeping has a budget: writes per second, and concurrent writes, of which there are fewer than
// workers. A request without a turn returns to the queue and occupies no worker. So a quarantine never
// waits behind thousands of new Machines.
//
// It creates and deletes MachineAttestations, writes their status, deletes IdentityClaims, and deletes
// the Secrets of bootstrap credentials. It needs get, list, create and delete on machineattestations,
// patch on their status, list and delete on identityclaims, get on machines and namespaces, and the
// permissions of package credential: see the roles mcs-attest-controller* in deploy.
//
// Each step reads the record live, and writes it only if it did not change since. So a step that runs
// twice, late, or in two replicas has the same result. Before a delete, the API confirms that the
// Machine was deleted. Before a delete or a release, every object that could prevent it was read.
package machinerecord
