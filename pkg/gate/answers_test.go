// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

func read(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// answerTo returns deny's response on one line.
func answerTo(t *testing.T, code reason.Code) (status int, header, problemTitle string) {
	t.Helper()
	rec := httptest.NewRecorder()
	deny(rec, reason.From(reason.Deny(code, "the detail")), "01ABC")
	var p problem
	if err := json.Unmarshal(rec.Body.Bytes(), &p); err != nil {
		t.Fatal(err)
	}
	h := rec.Header()
	if p.Status != rec.Code || p.Title == "" || p.Detail == "" || p.Type != "about:blank" ||
		p.Instance != "urn:mcs-attest:01ABC" ||
		h.Get("Content-Type") != "application/problem+json" || h.Get("Cache-Control") != "no-store" ||
		strings.HasPrefix(p.Detail, "Try again;") != code.Temporary() ||
		h.Get("Content-Length") != fmt.Sprint(rec.Body.Len()) || strings.Contains(rec.Body.String(), "the detail") {
		t.Errorf("%v: %v %s", code, h, rec.Body)
	}
	for _, name := range []string{"WWW-Authenticate", "Retry-After"} {
		if v := h.Get(name); v != "" {
			header = strings.TrimPrefix(header+"; ", "; ") + name + ": " + v
		}
	}
	return rec.Code, header, p.Title
}

func TestResponse_ForEachReason(t *testing.T) {
	var b strings.Builder
	for _, code := range reason.Codes() {
		status, header, title := answerTo(t, code)
		fmt.Fprintf(&b, "%s\t%d\t%s\t%s\n", code, status, header, title)
	}
	golden := filepath.Join("testdata", "answers.golden.txt")
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(golden, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want := read(t, golden); b.String() != want {
		t.Errorf("responses have changed; if intended, run with UPDATE_GOLDEN=1 and update docs/gate.md:\n%s", b.String())
	}
}

func TestDocs_DenialsMatchTheCodes(t *testing.T) {
	page := read(t, "../../docs/gate.md")
	rows := regexp.MustCompile(
		"(?m)^\\| `([A-Z][A-Za-z]+)` \\| [^|]+ \\| (\\d+) \\| (none|`[^`]+`) \\| ([^|]+) \\|$").FindAllStringSubmatch(page,
		-1)
	documented := map[string]bool{}
	for _, row := range rows {
		code, ok := reason.Parse(row[1])
		if !ok || documented[row[1]] {
			t.Errorf("%s is no reason, or there twice", row[1])
			continue
		}
		documented[row[1]] = true
		does := "emergency shell"
		if code.Temporary() {
			does = "tries again"
		}
		status, header, _ := answerTo(t, code)
		if header == "" {
			header = "none"
		} else {
			header = "`" + header + "`"
		}
		if got := fmt.Sprint(status, " ", header, " ", does); got != strings.Join(row[2:], " ") {
			t.Errorf("%s: the gate has %s, the page %s", row[1], got, strings.Join(row[2:], " "))
		}
	}
	// Every reason that the gate can return has its row.
	given := func(file, text string) {
		for _, m := range regexp.MustCompile(`reason\.([A-Z][A-Za-z]+)`).FindAllStringSubmatch(text, -1) {
			if _, ok := reason.Parse(m[1]); ok && !documented[m[1]] {
				t.Errorf("%s gives %s; docs/gate.md has no row for it", file, m[1])
			}
		}
	}
	for file, count := range map[string]int{"../record/record.go": 2, "../machine/find.go": 1} {
		functions := regexp.MustCompile(`(?ms)^func (\([^)]*\) )?(Redeemable|Redeem)\(.*?^}`).FindAllString(read(t, file), -1)
		if len(functions) != count {
			t.Errorf("%s has %d functions, want %d", file, len(functions), count)
		}
		given(file, strings.Join(functions, "\n"))
	}
	for _, pattern := range []string{"*.go", "../token/token.go", "../../verifier/internal/redeem/*.go",
		"../../verifier/internal/server/gate.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v", pattern, err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			given(file, read(t, file))
		}
	}
}

func TestDocs_PathsMatchTheGate(t *testing.T) {
	rows := regexp.MustCompile("(?m)^\\| `([A-Z]+)` \\| `([^`]+)` \\| (\\d+) \\|").FindAllStringSubmatch(read(t,
		"../../docs/gate.md"), -1)
	if len(rows) < 6 {
		t.Fatalf("%d rows", len(rows))
	}
	for _, row := range rows {
		r := get(row[2], good)
		r.Method = row[1]
		if res := newFixture().do(t, r); fmt.Sprint(res.StatusCode) != row[3] {
			t.Errorf("%s %s: %d, the page has %s", row[1], row[2], res.StatusCode, row[3])
		}
	}
}

func TestResponses_AreNeverRedirectsOrEmpty(t *testing.T) {
	for _, code := range append(reason.Codes(), 0, 9999) {
		if status, _, _ := answerTo(t, code); status != http.StatusBadRequest && status != http.StatusUnauthorized &&
			status != http.StatusForbidden && status != http.StatusServiceUnavailable {
			t.Errorf("%v: %d", code, status)
		}
	}
}
