// SPDX-License-Identifier: Apache-2.0

// Package tpm2 appraises TPM 2.0 evidence. It is the verifier's side: pure functions from bytes to
// a verdict. The node's side is the folder attester.
//
// The proof has four steps, each with its own function.
//
//  1. [ParseEK] and [ParseAK] parse the two public areas that a node sends. At this point they are
//     only claims: the caller chooses the attributes of EK and AK.
//  2. An [Endorser] identifies the owner of the EK: an enrollment, a cloud's API
//     ([ProviderEndorser]), or a manufacturer's certificate, which [VerifyEKCertificate] checks. Or
//     it identifies the owner of the AK ([AKCertificateEndorser]).
//  3. [MakeCredential] encrypts a random secret to the EK, bound to the AK's Name. The Name is a
//     hash over the AK's whole public area, including its attributes. So a TPM releases the secret
//     only if it has the private key of the EK and an object with exactly those attributes and its
//     private part. This turns the claims of step 1 into facts.
//  4. [VerifyQuote] checks the proof that the secret was released, together with a quote by the AK,
//     both over one transcript. It returns a [Quote]. No other function creates one, so a Quote
//     with a transcript means that all checks were done.
//
// Input from the network is untrusted until VerifyQuote returns. The parsers accept only complete
// structures of a fixed form. They reject trailing bytes, every attribute or algorithm that is not
// on a short list, points off their curve, RSA keys of other sizes and exponents, and keys with the
// ROCA weakness. They allocate no more than the size of their input, which the caller limits first
// ([MaxPublicSize], [MaxQuoteSize], [MaxSignatureSize]).
//
// The structures are parsed here and not by go-tpm, whose decoder accepts trailing bytes and points
// off the curve, and needs as much time as the cryptography. The tests of this package compare it
// with go-tpm, go-attestation and go-tpm-tools. docs/evidence/tpm2.md explains what the evidence
// proves and what it does not.
//
// Parts 1 and 2 in the comments are those of the TPM 2.0 Library Specification, revision 1.59.
package tpm2
