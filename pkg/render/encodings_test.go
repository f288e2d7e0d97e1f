// SPDX-License-Identifier: Apache-2.0

package render_test

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"strings"
)

func b64(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }

func gz(s string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	w.Write([]byte(s))
	w.Close()
	return b.String()
}

func percent(s string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		fmt.Fprintf(&b, "%%%02X", c)
	}
	return b.String()
}

// lines breaks a text into lines like base64(1), and indents it.
func lines(s string) string {
	var out []string
	for len(s) > 76 {
		out, s = append(out, s[:76]), s[76:]
	}
	return strings.Join(append(out, s), "\n  ")
}

func utf16le(s string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		b.Write([]byte{c, 0})
	}
	return b.String()
}

// continued returns a text of several lines as the value of one option of a unit.
func continued(s string) string {
	return strings.ReplaceAll(strings.TrimSuffix(s, "\n"), "\n", "\\\n") + "\n"
}
