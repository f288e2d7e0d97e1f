// SPDX-License-Identifier: Apache-2.0

// Package attester is the node's side of TPM 2.0 evidence. It prepares an endorsement key (EK) and
// an attestation key (AK), and answers a challenge with a quote and the proof that the credential
// was activated.
//
// # Sequence
//
// [Open] needs no input from a verifier, so it can run while the network starts:
//
//  1. It lists the NV indexes and reads the EK certificate.
//  2. The EK is the persistent key that matches the certificate. Otherwise it is a primary key from
//     the template or nonce in NV, or from the TCG's default template. Nothing is made persistent.
//  3. The AK is the one that the platform certified, if step 1 found its certificate. On Compute
//     Engine it is created from the template in NV; on Azure it is at a persistent handle. It must
//     match the certificate and work with an empty password. Otherwise the AK is a primary key of
//     the endorsement hierarchy from one fixed template. That key is the same on every boot, and
//     needs no storage and no owner authorization. It has noDA, so that power cuts cannot lock it
//     out. In this hierarchy a quote contains the true reset and restart counts.
//
// [Attester.Attest] then reads the PCRs and quotes them over the transcript. It compares the quote
// with the values that it read, and retries if another process extended a PCR in between. It
// activates the credential in a policy session that is salted to the EK and encrypts the response.
// The answer contains an HMAC under the activated secret, which never leaves this package.
//
// [Attester.Close] flushes the loaded objects. [Cap] extends PCR 11 so that nothing that runs later
// can attest as the initramfs.
//
// # Order of EKs
//
// The EK identifies a machine, so the choice must be the same on every boot (rule 13 of
// docs/security-rules.md). It depends only on the manufacturer's content of NV: the first
// certificate of P-256, P-384, P-256 (high range), RSA-2048, RSA-2048 (high range) for which the
// TPM has the key. Without a certificate it is the P-256 default, or RSA-2048 on a TPM without
// P-256. Elliptic curves come first, because a TPM needs seconds to create an RSA key that is not
// persistent. [Options].Key restricts the choice to one type.
//
// # Limits
//
// [Retrying] repeats a command when the TPM requests it, and gives up after a limited wait. The
// device limits the time of single commands (agent/internal/tpmdev). At most three objects are
// loaded at the same time, because a TPM may have no more slots. Constants are those of the TPM 2.0
// Library, revision 1.59, and the TCG EK Credential Profile for TPM Family 2.0, 2.6.
package attester
