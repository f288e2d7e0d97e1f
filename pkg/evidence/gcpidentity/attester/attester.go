// Package attester is the node's part of gcp-identity: what to ask the metadata
// server for. The token that comes back is sent as it is.
package attester

import "encoding/base64"

// Audience is the aud that a token must have: the verifier's origin
// ("https://host:port"), and the transcript of this conversation in base64url
// without padding. A token with it is of no use to any other cluster, nor to
// another connection to this one.
func Audience(origin string, transcript [32]byte) string {
	return origin + "/mcs-attest/v1/" + base64.RawURLEncoding.EncodeToString(transcript[:])
}
