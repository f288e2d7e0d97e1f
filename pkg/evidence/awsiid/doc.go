// SPDX-License-Identifier: Apache-2.0

// Package awsiid verifies instance identity documents of Amazon EC2.
//
// The document is the rsa2048 form (IMDS, /latest/dynamic/instance-identity/rsa2048, decoded from
// base64): a signed message with a JSON object about the instance. The two other forms are not
// accepted, because their keys are RSA-1024 and DSA-1024. The node has nothing to compute, so this
// package has no attester side.
//
// AWS signs with one certificate per region. The certificates are data ([Defaults]), can be
// extended ([ParseCertificates]), and are never fetched. A message that names none of the
// configured certificates is rejected. The content is read only after the signature has verified.
// It must name the region of the certificate that verified it.
//
// A document is created once, when the instance starts, and has no nonce. Every process that can,
// or once could, reach the metadata service of an instance has it. So a statement is never Bound.
// By itself it proves that the instance exists, not that the caller is the instance. If there is a
// [Describer], EC2 is asked whether the document still matches the instance.
package awsiid
