// SPDX-License-Identifier: Apache-2.0

package render

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/url"
	"strings"

	"github.com/coreos/ignition/v2/config/v3_5/types"
	"github.com/vincent-petithory/dataurl"
)

// Limits of a search. Files that a node needs before it is approved are far smaller.
const (
	maxContents = 16 << 20 // of one file, decompressed
	maxNesting  = 3        // encodings within encodings
	minEncoded  = 24       // shorter base64 is not decoded
)

// written returns the decompressed contents that a resource has in the config, or the URL
// of a remote one.
func written(r types.Resource) (text []byte, remote bool, err error) {
	u, err := url.Parse(*r.Source)
	if err != nil {
		return nil, false, errors.New("the source is not a URL")
	}
	if u.Scheme != "data" {
		return []byte(*r.Source), true, nil
	}
	data, err := dataurl.DecodeString(*r.Source)
	if err != nil {
		return nil, false, errors.New("the source is not a data URL")
	}
	if r.Compression != nil && *r.Compression == "gzip" {
		text, err = gunzip(data.Data)
		return text, false, err
	}
	return data.Data, false, nil
}

// gunzip decompresses. If the data is truncated or corrupt, it returns an error and the text before that.
func gunzip(packed []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, errors.New("the data is not gzip")
	}
	text, err := io.ReadAll(io.LimitReader(r, maxContents+1))
	switch {
	case err != nil:
		return text, errors.New("the gzip data is corrupt")
	case len(text) > maxContents:
		return nil, fmt.Errorf("more than %d MiB", maxContents>>20)
	}
	return text, nil
}

// contents returns the kinds of secrets in a text and in the encoded parts of it.
func contents(text []byte) []string {
	budget := maxContents
	return nested(text, 0, &budget)
}

func nested(text []byte, depth int, budget *int) []string {
	if *budget -= len(text); *budget < 0 {
		return []string{fmt.Sprintf("more than %d MiB, which are not searched", maxContents>>20)}
	}
	var found []string
	switch {
	case bytes.HasPrefix(text, []byte("\x1f\x8b\x08")):
		if depth == maxNesting {
			return []string{"data that is compressed several times, which is not searched"}
		}
		unpacked, err := gunzip(text)
		if err == nil || depth > 0 && len(unpacked) > 0 {
			// Data after the gzip stream is part of the text, too.
			return nested(unpacked, depth+1, budget)
		}
		if depth == 0 {
			found = append(found, "contents that cannot be searched ("+err.Error()+")")
		}
	case depth == 0:
		for _, magic := range unsearched {
			if bytes.HasPrefix(text, []byte(magic.start)) {
				found = append(found, magic.what+", which is not searched")
			}
		}
	}
	if bytes.IndexByte(text, 0) >= 0 {
		// UTF-16, or text in binary data.
		text = bytes.ReplaceAll(text, []byte{0}, nil)
	}
	for _, p := range patterns {
		if p.in(text) {
			found = append(found, p.what)
		}
	}
	if bootstrapToken(text) {
		found = append(found, "a bootstrap token")
	}
	if assigned(text) {
		found = append(found, "a password or token")
	}
	if depth == maxNesting {
		return found
	}
	for run := range base64Runs(text) {
		words := [][]byte{run}
		if fields := bytes.Fields(run); len(fields) > 1 {
			// Several lines of one text, or adjacent words.
			words = append(words, fields...)
		}
		for _, word := range words {
			if len(word) < minEncoded {
				continue
			}
			if inner := decodeRun(word); inner != nil {
				found = append(found, nested(inner, depth+1, budget)...)
			}
		}
	}
	return found
}

// unsearched are compressed or encrypted formats, by their first bytes.
var unsearched = []struct{ start, what string }{
	{"PK\x03\x04", "a zip archive"},
	{"\xfd7zXZ\x00", "an xz archive"},
	{"BZh", "a bzip2 archive"},
	{"\x28\xb5\x2f\xfd", "a zstd archive"},
	{"\x04\x22\x4d\x18", "an lz4 archive"},
	{"7z\xbc\xaf\x27\x1c", "a 7z archive"},
	{"Salted__", "an encrypted file"},
	{"LUKS\xba\xbe", "a LUKS header"},
	{"\xfe\xed\xfe\xed", "a Java keystore"},
}

// base64Runs returns the parts that may be base64 in one or several lines: a long word of
// base64 characters and the words that follow it.
func base64Runs(text []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for at := 0; at < len(text); at++ {
			end := at + wordLen(text[at:])
			if end-at < minEncoded {
				at = end
				continue
			}
			for blank := end; ; {
				for blank < len(text) && strings.IndexByte(" \t\r\n", text[blank]) >= 0 {
					blank++
				}
				n := wordLen(text[blank:])
				if n == 0 || blank == end {
					break
				}
				blank += n
				end = blank
			}
			if !yield(text[at:end]) {
				return
			}
			at = end
		}
	}
}

func wordLen(text []byte) int {
	for i, c := range text {
		if !('A' <= c && c <= 'Z' || 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '+' || c == '/' || c == '-' ||
			c == '_') {
			return i
		}
	}
	return len(text)
}

// decodeRun decodes the longest prefix of a run that is base64, or returns nil.
func decodeRun(run []byte) []byte {
	text := strings.Map(func(r rune) rune {
		switch r {
		case ' ', '\t', '\r', '\n', '\v', '\f':
			return -1
		case '-':
			return '+'
		case '_':
			return '/'
		}
		return r
	}, string(run))
	if len(text)%4 == 1 {
		text = text[:len(text)-1]
	}
	out, err := base64.RawStdEncoding.DecodeString(text)
	if err != nil {
		return nil
	}
	return out
}
