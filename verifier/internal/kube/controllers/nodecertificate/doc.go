// SPDX-License-Identifier: Apache-2.0

// Package nodecertificate creates the certificate signing request of each machine that attested its
// kubelet's key and requested its node's certificate, and adds the issued certificate to the
// machine's record. The process that serves machines writes the request to the record and reads the
// certificate there. It has no permission for certificate signing requests.
//
// That process can write records, so a record only proves that a machine attested. The inventory,
// confirmed by a live read, decides whether the Machine exists, may join and has not joined.
// [approver.NewRequest] checks the request itself. This controller approves nothing: package csr does.
//
// It watches:
//
//   - records, through the inventory: [Reconciler.Observe], and each minute all that wait. So a new leader finds
//     what was recorded while none led
//   - the certificate signing requests that its own account made
//
// It needs get of records, patch of their status, get of Machines, and create, get, list and
// watch of certificate signing requests.
//
// A machine that has not joined can attest again and again, each time with a new key. So this controller
// makes at most approver.pendingPerMachine requests for one machine within an hour.
//
// A request is named by its Machine and its key. If the controller runs twice at the same time, or
// again after a crash, it finds the request that exists. If it runs late, the machine waits: the front
// answers CredentialUnavailable, which is temporary.
package nodecertificate
