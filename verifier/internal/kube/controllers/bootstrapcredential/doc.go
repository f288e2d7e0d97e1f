// SPDX-License-Identifier: Apache-2.0

// Package bootstrapcredential creates the bootstrap credential of each machine that attested, and
// publishes it for the process that serves configs (package credential). That process can write
// records, so a record only proves that a machine attested. The inventory, confirmed by a live read,
// decides whether the Machine exists, may join and has not joined.
//
// It watches:
//
//   - records, through the inventory: [Reconciler.Observe]
//   - the metadata of the Secrets in the namespace of the published credentials
//
// For a record with a live attestation token it writes, in this order:
//
//   - the credential: the Secret to which a token of the service account is bound, and a TokenRequest;
//     or a bootstrap token
//   - the id of the credential on the record, under an optimistic lock
//   - the Secret that publishes the credential
//
// Each attestation token has one published credential, which every use of the token receives. The
// Secret is deleted when the machine has joined, is quarantined or was deleted, and when the token was
// superseded. It is also deleted ten minutes after the token expired, because the clocks of replicas may differ by that
// time.
//
// While the inventory does not allow the credential of a live attestation token, the controller retries
// after a few seconds, and less often with time. No event follows when the inventory receives the
// Machine.
//
// Replicas may have different views of a Machine, so that one withdraws what another one publishes. Each replica makes
// three credentials for one attestation token without a pause, and further ones after pauses of 30 seconds to four
// minutes. A replica that started after the Machine became unusable neither publishes nor withdraws its credential:
// another replica may have the Machine's last good state.
//
// It needs get of records, patch of their status, get of Machines, and the roles of
// deploy/components/credential or credential-kubernetes.
//
// It runs in each replica of the controller, because machines wait for it. A replica that does not lead
// acts a few seconds later, if the leader has not. So the failure of the leader delays no machine until
// the Lease expires.
//
// If it ends between two steps, the credential is on the record or no client has it, and the next pass
// creates another one. If it runs twice at the same time, the second Secret cannot be created, and both
// ids are on the record. If it runs late, machines wait: the front answers CredentialUnavailable, which
// is temporary.
package bootstrapcredential
