// SPDX-License-Identifier: Apache-2.0

package cms_test

import "testing"

// node is one element of a DER message, so that a test can change a single element.
type node struct {
	tag   byte
	value []byte  // of a primitive
	nodes []*node // of a constructed one
}

// tree parses DER.
func tree(tb testing.TB, der []byte) *node {
	tb.Helper()
	n, rest := element(tb, der)
	if len(rest) != 0 {
		tb.Fatal("bytes after the message")
	}
	return n
}

func element(tb testing.TB, der []byte) (*node, []byte) {
	tb.Helper()
	n, size, head := &node{tag: der[0]}, int(der[1]), 2
	if size >= 0x80 {
		for octets := size & 0x7f; octets > 0; octets-- {
			if head == 2 {
				size = 0
			}
			size = size<<8 | int(der[head])
			head++
		}
	}
	body, rest := der[head:head+size], der[head+size:]
	if n.tag&0x20 == 0 {
		n.value = body
		return n, rest
	}
	for len(body) > 0 {
		var child *node
		child, body = element(tb, body)
		n.nodes = append(n.nodes, child)
	}
	return n, rest
}

// at returns the node at a path of positions.
func (n *node) at(path ...int) *node {
	for _, i := range path {
		n = n.nodes[i]
	}
	return n
}

func (n *node) der() []byte {
	body := n.value
	if n.nodes != nil {
		body = nil
		for _, child := range n.nodes {
			body = append(body, child.der()...)
		}
	}
	switch size := len(body); {
	case size < 0x80:
		return append([]byte{n.tag, byte(size)}, body...)
	case size < 0x100:
		return append([]byte{n.tag, 0x81, byte(size)}, body...)
	case size < 0x10000:
		return append([]byte{n.tag, 0x82, byte(size >> 8), byte(size)}, body...)
	default:
		return append([]byte{n.tag, 0x83, byte(size >> 16), byte(size >> 8), byte(size)}, body...)
	}
}
