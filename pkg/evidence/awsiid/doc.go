// Package awsiid verifies instance identity documents of Amazon EC2.
//
// The document is the rsa2048 form (IMDS, /latest/dynamic/instance-identity/rsa2048,
// with the base64 taken off): a signed message whose content is a JSON object
// about the instance. The two other forms are not accepted: their keys are RSA-1024
// and DSA-1024. On the node there is nothing to compute, so this package has no
// attester side.
//
// AWS signs with one certificate in each region. They are data ([Defaults]), can
// be added to ([ParseCertificates]), and are never fetched. A message names its
// signer; one that names none of the configured certificates is refused. Nothing
// of the content is read before the signature verified, and then the content must
// name the region of the certificate that verified it.
//
// A document is made once, when the instance starts, and has no nonce. Whoever can
// reach the metadata service of an instance, or could once, has it. So a statement
// is never Bound, and by itself it says "this instance exists", not "this instance
// is speaking". EC2 is asked, where a [Describer] is given, whether the instance
// still is what the document says.
package awsiid
