// Package tpm2 appraises TPM 2.0 evidence: it is the verifier's side, pure
// functions from bytes to a verdict. The node's side is the folder attester.
//
// The proof is told in four steps, and each has its function.
//
//  1. [ParseEK] and [ParseAK] read the two public areas that a node sends. At
//     this point they are claims: an EK's attributes are whatever the caller
//     wrote, and so are an AK's.
//  2. An [Endorser] says whose TPM the EK is: an enrolment, a cloud's API
//     ([ProviderEndorser]), or a manufacturer's certificate, which
//     [VerifyEKCertificate] checks. Or it says whose the AK is
//     ([AKCertificateEndorser]).
//  3. [MakeCredential] encrypts a random secret to the EK, bound to the AK's
//     Name. The Name is a hash over the AK's whole public area, attributes
//     included, so a TPM releases the secret only if it holds both the EK's
//     private key and an object with exactly those attributes and its private
//     part. That is what turns step 1's claims into facts.
//  4. [VerifyQuote] takes the proof that the secret was released together with
//     a quote by the AK, both over one transcript, and returns a [Quote]. No
//     other function makes one: holding a Quote with a transcript means that
//     all of the checks were done.
//
// What comes from the network is untrusted until VerifyQuote returns. The
// parsers take whole structures of fixed shape: they refuse trailing bytes, any
// attribute or algorithm that is not on a short list, points off their curve,
// RSA keys of other sizes and exponents, and keys with the ROCA weakness. They
// allocate no more than the size of their input, and a caller bounds that
// first ([MaxPublicSize], [MaxQuoteSize], [MaxSignatureSize]).
//
// The structures are written out byte by byte and not through go-tpm, whose
// decoder accepts trailing bytes and off-curve points and costs as much time as
// the cryptography. go-tpm, go-attestation and go-tpm-tools are the oracles of
// this package's tests. docs/evidence/tpm2.md explains what the evidence proves
// and what it does not.
//
// Parts 1 and 2 in the comments are those of the TPM 2.0 Library
// Specification, revision 1.59.
package tpm2
