// SPDX-License-Identifier: Apache-2.0

package bounded_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/mcs-attest/mcs-attest/pkg/bounded"
)

func TestRead(t *testing.T) {
	if raw, err := bounded.Read(strings.NewReader("four"), 4); err != nil || string(raw) != "four" {
		t.Errorf("%q, %v", raw, err)
	}
	endless := strings.NewReader(strings.Repeat("x", 1<<20))
	if raw, err := bounded.Read(endless, 4); raw != nil || err == nil || err.Error() != "it has more than 4 bytes" {
		t.Errorf("%d bytes, %v", len(raw), err)
	}
	if read := 1<<20 - endless.Len(); read != 5 {
		t.Errorf("%d bytes of the input were read", read)
	}
	broken := errors.New("broken")
	if raw, err := bounded.Read(iotest.ErrReader(broken), 4); raw != nil || !errors.Is(err, broken) {
		t.Errorf("%q, %v", raw, err)
	}
}

func TestGunzip(t *testing.T) {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := w.Write(make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if raw, err := bounded.Gunzip(packed.Bytes(), 1<<20); err != nil || len(raw) != 1<<20 {
		t.Errorf("%d bytes, %v", len(raw), err)
	}
	for want, raw := range map[string][]byte{
		"its unpacked content: it has more than 1048575 bytes": packed.Bytes(),
		"it is not gzip":                       []byte("{}"),
		"its unpacked content: unexpected EOF": packed.Bytes()[:packed.Len()/2],
	} {
		if raw, err := bounded.Gunzip(raw, 1<<20-1); raw != nil || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%d bytes, %v, want %q", len(raw), err, want)
		}
	}
}
