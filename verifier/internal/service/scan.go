// SPDX-License-Identifier: Apache-2.0

package service

import (
	"bytes"
	"encoding/base64"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// maxParts is the maximum number of parts of a message: fields, elements of lists, and in JSON also
// names. A normal message has fewer than 300. Half a megabyte of empty elements would cost a hundred
// times as much to parse.
const maxParts = 4096

// scan reads one top-level field of an encoded message without parsing the message. It also limits the
// number of the message's parts. The result is only a hint for the admission: the parser rejects a
// message that is broken or has the field twice.
func scan(body []byte, binary bool, message protoreflect.MessageDescriptor, field protoreflect.Name) ([]byte, error) {
	d := message.Fields().ByName(field) // nil if the name is empty
	if binary {
		parts := 0
		return scanBinary(body, message, d, &parts, 0)
	}
	name := ""
	if d != nil {
		name = d.JSONName()
	}
	value, parts := scanJSON(body, name)
	if parts > maxParts {
		return nil, reason.Deny(reason.TooLarge, "a message of more than %d parts", maxParts)
	}
	if d == nil || d.Kind() != protoreflect.BytesKind {
		return value, nil
	}
	value = bytes.TrimRight(value, "=")
	enc := base64.RawStdEncoding
	if bytes.ContainsAny(value, "-_") {
		enc = base64.RawURLEncoding
	}
	raw := make([]byte, enc.DecodedLen(len(value)))
	n, err := enc.Decode(raw, value)
	if err != nil {
		return nil, nil // the parser rejects it
	}
	return raw[:n], nil
}

// scanJSON returns the string value of a top-level name, and the number of parts.
func scanJSON(body []byte, name string) (value []byte, parts int) {
	var last []byte // the last string at the top level
	depth, wanted := 0, false
	for i := 0; i < len(body) && parts <= maxParts; i++ {
		switch body[i] {
		case '"':
			end := stringEnd(body, i+1)
			if depth == 1 {
				if last = body[i+1 : end]; wanted {
					value, wanted = last, false
				}
			}
			i = end
			parts++
		case ':':
			wanted = depth == 1 && name != "" && string(last) == name
		case '{', '[':
			depth++
			parts++
		case '}', ']':
			depth--
		case ',':
			wanted = false
			parts++
		}
	}
	return value, parts
}

// stringEnd returns the index of the quote that ends the string that begins at i.
func stringEnd(body []byte, i int) int {
	for {
		n := bytes.IndexByte(body[i:], '"')
		if n < 0 {
			return len(body)
		}
		end := i + n
		escapes := 0
		for escapes < n && body[end-1-escapes] == '\\' {
			escapes++
		}
		if escapes%2 == 0 {
			return end
		}
		i = end + 1
	}
}

// scanBinary is scan for the binary encoding. parts includes those of nested messages.
func scanBinary(body []byte, message protoreflect.MessageDescriptor, want protoreflect.FieldDescriptor, parts *int,
	depth int) (value []byte, err error) {
	for len(body) > 0 {
		if *parts++; *parts > maxParts || depth > 8 {
			return nil, reason.Deny(reason.TooLarge, "a message of more than %d parts", maxParts)
		}
		number, kind, n := protowire.ConsumeTag(body)
		if n < 0 {
			return value, nil // the parser rejects it
		}
		body = body[n:]
		if kind == protowire.StartGroupType {
			return nil, reason.Deny(reason.Malformed, "a group")
		}
		n = protowire.ConsumeFieldValue(number, kind, body)
		if n < 0 {
			return value, nil
		}
		if kind == protowire.BytesType {
			content, _ := protowire.ConsumeBytes(body)
			if want != nil && number == want.Number() {
				value = content
			}
			if f := message.Fields().ByNumber(number); f != nil && f.Message() != nil {
				if _, err := scanBinary(content, f.Message(), nil, parts, depth+1); err != nil {
					return nil, err
				}
			}
		}
		body = body[n:]
	}
	return value, nil
}
