// SPDX-License-Identifier: Apache-2.0

package reload

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestReload_BadChangeIsReportedAndKeepsTheLastGoodValue(t *testing.T) {
	p := filepath.Join(t.TempDir(), "f")
	put := func(s string) {
		t.Helper()
		if err := os.WriteFile(p, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	parse := func(c [][]byte) (string, error) {
		if string(c[0]) == "bad" {
			return "", errors.New("bad content")
		}
		return string(c[0]), nil
	}
	put("bad")
	if _, err := New(parse, p); err == nil {
		t.Fatal("started with a bad value")
	}
	put("one")
	v, err := New(parse, p)
	if err != nil {
		t.Fatal(err)
	}
	if changed, err := v.Refresh(); changed || err != nil {
		t.Errorf("unchanged file: %t, %v", changed, err)
	}
	put("bad")
	for range 2 {
		if changed, err := v.Refresh(); changed || err == nil || v.Load() != "one" || v.Err() == nil {
			t.Errorf("bad change: %t, %v, %q", changed, err, v.Load())
		}
	}
	put("two")
	if changed, err := v.Refresh(); !changed || err != nil || v.Load() != "two" || v.Err() != nil {
		t.Errorf("good change: %t, %v, %q", changed, err, v.Load())
	}
	if err := os.Remove(p); err != nil {
		t.Fatal(err)
	}
	if _, err := v.Refresh(); err == nil || v.Load() != "two" {
		t.Errorf("removed file: %v, %q", err, v.Load())
	}
	put("two")
	if _, err := v.Refresh(); err != nil {
		t.Errorf("the file is back and the error stays: %v", err)
	}
}
