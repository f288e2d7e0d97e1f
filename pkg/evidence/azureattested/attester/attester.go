// SPDX-License-Identifier: Apache-2.0

// Package attester is the node's side of azure-attested: it binds Azure's attested document to one
// conversation. It has no dependencies, because it is in every initramfs.
package attester

import "encoding/base64"

// TokenResource is the resource for which an agent requests a managed identity token, unless the
// machine's image names another one. The verifier must not choose it: the author of the pointer
// config chooses the verifier, and a token for Azure's management API would give away the machine's
// permissions there.
const TokenResource = "api://mcs-attest"

// nonceSize is the longest nonce that Azure's metadata service accepts.
const nonceSize = 32

// Nonce returns the document's nonce for a transcript: the first 32 characters of its base64url
// form, which are 192 bits.
func Nonce(transcript [32]byte) string {
	return base64.RawURLEncoding.EncodeToString(transcript[:])[:nonceSize]
}
