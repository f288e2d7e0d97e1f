// SPDX-License-Identifier: Apache-2.0

package metadata

import (
	"encoding/base64"
	"regexp"
	"strings"
)

// The longest names are Google's with 63 and Azure's with 90 bytes.
var name = regexp.MustCompile(`^[\w.()+=,@:-]{1,128}$`)

// isName reports whether s is safe in a provider id and in the path of a URL.
func isName(s string) bool { return name.MatchString(s) && s != "." && s != ".." }

// isToken reports whether s is safe in the value of an HTTP header.
func isToken(s string) bool {
	return s != "" && strings.IndexFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }) < 0
}

// decode reads base64 with or without line breaks.
func (s *service) decode(what string, raw []byte) ([]byte, error) {
	out := make([]byte, base64.StdEncoding.DecodedLen(len(raw)))
	n, err := base64.StdEncoding.Decode(out, []byte(strings.TrimSpace(string(raw))))
	if err != nil {
		return nil, s.wrong(what, "the answer is not base64")
	}
	if n == 0 {
		return nil, s.wrong(what, "the answer is empty")
	}
	return out[:n], nil
}

// pkcs7 reads a signed document in base64. It checks only that the document is a SEQUENCE, which
// detects a wrong encoding; the verifier checks the rest.
func (s *service) pkcs7(what string, raw []byte) ([]byte, error) {
	out, err := s.decode(what, raw)
	if err == nil && out[0] != 0x30 {
		return nil, s.wrong(what, "the answer is not PKCS #7 in base64")
	}
	return out, err
}

// lastElement returns the part of s after the last slash.
func lastElement(s string) string {
	s = strings.TrimSpace(s)
	return s[strings.LastIndexByte(s, '/')+1:]
}
