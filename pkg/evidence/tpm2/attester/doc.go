// Package attester is the node's side of TPM 2.0 evidence: it prepares an
// endorsement key (EK) and an attestation key (AK), and answers a challenge
// with a quote and the proof that the credential was activated.
//
// # The sequence
//
// [Open] needs nothing from a verifier, so it can run while the network comes up:
//
//  1. the NV indexes are listed, and the EK certificate is read;
//  2. the EK is the persistent key whose public part is the certificate's, else
//     a primary made from the template or nonce in NV, else from the TCG's
//     default template. Nothing is persisted;
//  3. the AK is the one that the platform certified, where the list of step 1
//     shows its certificate: on Compute Engine made from the template beside it,
//     on Azure at its persistent handle. Its key must be the certificate's, and
//     its use must need no more than an empty password. Otherwise, and on every
//     TPM without such a certificate, it is a primary of the endorsement
//     hierarchy from one fixed template: the same key on every boot, with
//     nothing to store and no owner authorisation. That one has noDA, so that
//     power cuts cannot lock it out. In this hierarchy a quote shows the true
//     reset and restart counts.
//
// [Attester.Attest] then reads the PCRs, quotes them over the transcript,
// checks the quote against what it read (another process may extend a PCR in
// between: it tries again), activates the credential in a policy session that
// is salted to the EK and encrypts the response, and answers with an HMAC under
// the activated secret. The secret itself never leaves this package.
//
// [Attester.Close] flushes what was loaded. [Cap] extends PCR 11 so that
// nothing running later can attest as the initramfs.
//
// # The EK's order
//
// A machine is known by its EK, so the choice must be the same on every boot
// (DESIGN, section 19, rule 13). It depends only on what the manufacturer put
// into NV: the first certificate of P-256, P-384, P-256 (high range), RSA-2048,
// RSA-2048 (high range) for which the TPM has the key; without any certificate
// the P-256 default, or RSA-2048 on a TPM without P-256. Elliptic curves come
// first because an RSA key that is not persistent takes a TPM seconds to make.
// [Options].Key restricts the choice to one type.
//
// # Discipline
//
// [Retrying] repeats what a TPM asks to have repeated and gives up after a
// bounded wait. Time limits on single commands are the device's own
// (agent/internal/tpmdev). At most three objects are ever loaded: the TPM may
// have no more slots. Constants are those of the TPM 2.0 Library, revision
// 1.59, and the TCG EK Credential Profile for TPM Family 2.0, 2.6.
package attester
