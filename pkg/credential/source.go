// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"

	"github.com/mcs-attest/mcs-attest/pkg/bounded"
)

// maxKubeconfig is the maximum size of the file; OpenShift's has about ten kilobytes.
const maxKubeconfig = 1 << 20

// source describes how the file is stored in the config.
type source struct {
	header string // "data:text/plain;charset=utf-8;base64,"
	base64 bool
	gzip   bool
	hash   string // "sha512", "sha256"; or "" without a hash
}

// readSource decodes a file's contents from a data URL. It also returns how to encode
// another file in the same way.
func readSource(url, compression, hash string) (source, []byte, error) {
	// The scheme is case-insensitive. A comma in the header is valid only within quotes.
	comma := strings.IndexByte(url, ',')
	if len(url) < 5 || !strings.EqualFold(url[:5], "data:") {
		return source{}, nil, errors.New("its source is not a data URL, but another server")
	}
	if comma < 0 || strings.ContainsFunc(url[:comma],
		func(c rune) bool { return c <= ' ' || c >= 0x7f || c == '"' || c == '\\' }) {
		return source{}, nil, errors.New("its data URL cannot be decoded")
	}
	s := source{header: url[:comma+1], base64: strings.HasSuffix(url[:comma], ";base64")}
	file, err := decode(url[comma+1:], s.base64)
	if err != nil {
		return source{}, nil, err
	}
	switch compression {
	case "":
	case "gzip":
		s.gzip = true
		if file, err = bounded.Gunzip(file, maxKubeconfig); err != nil {
			return source{}, nil, fmt.Errorf("it cannot be decompressed: %w", err)
		}
	default:
		return source{}, nil, fmt.Errorf("its compression %.16q is unknown", compression)
	}
	if len(file) > maxKubeconfig {
		return source{}, nil, fmt.Errorf("it has more than %d bytes", maxKubeconfig)
	}
	if hash != "" {
		// A new hash must not hide a file that Ignition would reject.
		s.hash, _, _ = strings.Cut(hash, "-")
		if want, ok := sum(s.hash, file); !ok || !strings.EqualFold(hash, want) {
			return source{}, nil, errors.New("its verification hash does not match")
		}
	}
	return s, file, nil
}

// decode decodes a data URL's payload. It rejects what net/url or another decoder could
// decode differently.
func decode(payload string, inBase64 bool) ([]byte, error) {
	bad := errors.New("its data URL cannot be decoded")
	if strings.ContainsAny(payload, "\r\n") {
		return nil, bad
	}
	if inBase64 {
		out, err := base64.StdEncoding.DecodeString(payload)
		if err != nil {
			return nil, bad
		}
		return out, nil
	}
	if strings.ContainsFunc(payload, func(c rune) bool { return c <= ' ' || c >= 0x7f || c == '#' || c == '?' }) {
		return nil, bad
	}
	out, err := url.PathUnescape(payload)
	if err != nil {
		return nil, bad
	}
	return []byte(out), nil
}

// packers are reused, because a new one allocates more than a megabyte.
var packers = sync.Pool{New: func() any { return gzip.NewWriter(nil) }}

// url returns the data URL of a file, as the content of a JSON string.
func (s source) url(file []byte) ([]byte, error) {
	if s.gzip {
		var packed bytes.Buffer
		w := packers.Get().(*gzip.Writer)
		defer packers.Put(w)
		w.Reset(&packed)
		if _, err := w.Write(file); err != nil {
			return nil, err
		}
		if err := w.Close(); err != nil {
			return nil, err
		}
		file = packed.Bytes()
	}
	if !s.base64 {
		return Escape(append(make([]byte, 0, len(s.header)+len(file)*3/2), s.header...), file), nil
	}
	out := make([]byte, 0, len(s.header)+base64.StdEncoding.EncodedLen(len(file)))
	return base64.StdEncoding.AppendEncode(append(out, s.header...), file), nil
}

// Escape appends a file in the form of a data URL without base64, as the Machine Config
// Server encodes it.
func Escape(out, file []byte) []byte {
	return append(out, strings.ReplaceAll(url.QueryEscape(string(file)), "+", "%20")...)
}

// sum returns a hash in Ignition's form.
func sum(name string, file []byte) (string, bool) {
	switch name {
	case "sha512":
		s := sha512.Sum512(file)
		return "sha512-" + hex.EncodeToString(s[:]), true
	case "sha256":
		s := sha256.Sum256(file)
		return "sha256-" + hex.EncodeToString(s[:]), true
	}
	return "", false
}
