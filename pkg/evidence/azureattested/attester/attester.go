// Package attester is the node's side of azure-attested: what binds Azure's
// attested document to one conversation. It depends on nothing, since it is in
// every initramfs.
package attester

import "encoding/base64"

// TokenResource is the resource that an agent requests a token of the managed
// identity for, unless the machine's image names another one. A verifier does not
// choose it: anyone who writes the pointer config chooses the verifier, and a token
// for Azure's management API gives away what the machine may do there.
const TokenResource = "api://mcs-attest"

// nonceSize is the most that Azure's metadata service takes.
const nonceSize = 32

// Nonce is the document's nonce for a transcript: the first 32 characters of its
// base64url form, which are 192 of its bits.
func Nonce(transcript [32]byte) string {
	return base64.RawURLEncoding.EncodeToString(transcript[:])[:nonceSize]
}
