// SPDX-License-Identifier: Apache-2.0

package cms_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/cms"
)

// mutations calls visit with changed copies of raw: each bit flipped, ranges removed, repeated, set
// to zero or swapped, and bytes added.
func mutations(raw []byte, visit func(what string, at int, mutant []byte)) {
	for i := range raw {
		for bit := range 8 {
			mutant := bytes.Clone(raw)
			mutant[i] ^= 1 << bit
			visit("a bit turned", i, mutant)
		}
		mutant := bytes.Clone(raw)
		mutant[i] ^= 0xff
		visit("a byte turned", i, mutant)
		visit("a zero before", i, slices.Insert(bytes.Clone(raw), i, 0))
	}
	for _, size := range []int{1, 2, 3, 4, 7, 16, 64, 256, 500} {
		for i := 0; i+size <= len(raw); i += max(1, size/4) {
			visit("a range cut", i, slices.Concat(raw[:i], raw[i+size:]))
			visit("a range twice", i, slices.Concat(raw[:i+size], raw[i:]))
			zero := bytes.Clone(raw)
			clear(zero[i : i+size])
			visit("a range of zeros", i, zero)
			if i+2*size <= len(raw) {
				visit("two ranges swapped", i, slices.Concat(raw[:i], raw[i+size:i+2*size], raw[i:i+size], raw[i+2*size:]))
			}
		}
	}
	for _, more := range [][]byte{{0}, {0, 0}, {5, 0}, raw} {
		visit("bytes after", len(raw), slices.Concat(raw, more))
		visit("bytes before", 0, slices.Concat(more, raw))
	}
	for i := range raw {
		visit("the beginning", i, raw[:i])
		visit("the end", i, raw[i+1:])
	}
}

// Every byte of AWS's own documents matters.
func TestAttack_T01_NoMutantOfARealDocument(t *testing.T) {
	for _, name := range captures {
		raw, cert := capture(t, name)
		mutations(raw, func(what string, at int, mutant []byte) {
			if bytes.Equal(mutant, raw) {
				return
			}
			m, err := cms.Parse(mutant, aws)
			if err != nil {
				return
			}
			if _, err := m.Verify(cert); err == nil {
				t.Errorf("%s: accepted with %s at %d", name, what, at)
			}
		})
	}
}

// In Azure's form the included certificates are not signed. A change in them must not change
// anything else.
func TestAttack_T01_NoMutantOfAzuresForm(t *testing.T) {
	raw := asAzure(t)
	certificate := region().certificate.Raw
	start := bytes.Index(raw, certificate)
	mutations(raw, func(what string, at int, mutant []byte) {
		if bytes.Equal(mutant, raw) {
			return
		}
		m, err := cms.Parse(mutant, azure)
		if err != nil {
			return
		}
		got, err := m.Verify(region().certificate)
		if err != nil {
			return
		}
		if !bytes.Equal(got, content) {
			t.Fatalf("another content with %s at %d", what, at)
		}
		if at < start || at >= start+len(certificate) || len(m.Certificates) == 1 &&
			bytes.Equal(m.Certificates[0], certificate) {
			t.Errorf("accepted with %s at %d", what, at)
		}
	})
}

// The two variations of the grammar change the message, but never the content.
func TestVariationsOfTheGrammarKeepTheContent(t *testing.T) {
	m := honest()
	for name, raw := range map[string][]byte{
		"no parameters":    func() []byte { m := m; m.NoParameters = true; return sign(t, m) }(),
		"several pieces":   func() []byte { m := m; m.Indefinite, m.Pieces = true, 10; return sign(t, m) }(),
		"the least pieces": func() []byte { m := m; m.Indefinite, m.Pieces = true, 1; return sign(t, m) }(),
	} {
		got, err := read(raw, aws)
		if err != nil || !bytes.Equal(got, content) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		if got, ok := oracle(raw); !ok || !bytes.Equal(got, content) {
			t.Errorf("%s: the library makes %q of it", name, got)
		}
	}
}

// Either all of the outermost structures of a message are indefinite, or none.
func TestAttack_T01_HalfIndefinite(t *testing.T) {
	m := honest()
	m.Indefinite = true
	raw := sign(t, m)
	if _, err := read(raw, aws); err != nil {
		t.Fatal(err)
	}
	der := tree(t, sign(t, honest()))
	inner := der.at(1, 0).der()
	half := slices.Concat([]byte{0x30, 0x80, 6, 9}, der.at(0).value, []byte{0xa0, 0x80}, inner, []byte{0, 0, 0, 0})
	if _, err := read(half, aws); err == nil {
		t.Error("indefinite outside, definite inside")
	}
	other := slices.Concat([]byte{6, 9}, der.at(0).value, []byte{0xa0, 0x80}, inner, []byte{0, 0})
	outside := (&node{tag: 0x30, value: other}).der()
	if _, err := read(outside, aws); err == nil {
		t.Error("definite outside, indefinite inside")
	}
}
