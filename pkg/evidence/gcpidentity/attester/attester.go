// SPDX-License-Identifier: Apache-2.0

// Package attester is the node's side of gcp-identity: the audience to request from the metadata
// server. The node sends the token unmodified.
package attester

import "encoding/base64"

// Audience returns the aud that a token must have: the verifier's origin ("https://host:port"), and
// the transcript of this conversation in base64url without padding. So the token is useless at
// another cluster, and on another connection to this one.
func Audience(origin string, transcript [32]byte) string {
	return origin + "/mcs-attest/v1/" + base64.RawURLEncoding.EncodeToString(transcript[:])
}
