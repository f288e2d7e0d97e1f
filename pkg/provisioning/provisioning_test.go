// SPDX-License-Identifier: Apache-2.0

package provisioning

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/secret"
)

var noon = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

const (
	tokenA = "AAAAbbbbCCCCddddEEEEffffGGGGhhhhIIIIjjjjKKKK"
	tokenB = "1111bbbb2222dddd3333ffff4444hhhh5555jjjj6666"
	tokenC = "zzzzbbbbyyyyddddxxxxffffwwwwhhhhvvvvjjjjuuuu"
)

// counter is a source of bytes that never repeat.
type counter struct{ n byte }

func (c *counter) Read(p []byte) (int, error) {
	for i := range p {
		c.n++
		p[i] = c.n
	}
	return len(p), nil
}

func parse(t *testing.T, pairs ...string) Tokens {
	t.Helper()
	tokens, err := Parse(data(pairs...))
	if err != nil {
		t.Fatal(err)
	}
	return tokens
}

func data(pairs ...string) map[string][]byte {
	d := map[string][]byte{}
	for i := 0; i < len(pairs); i += 2 {
		d[pairs[i]] = []byte(pairs[i+1])
	}
	return d
}

func text(s secret.Bytes) string { return string(s.Expose()) }

// A3: the results of "kubectl create secret generic" for common sources of a token.
func TestParse_AcceptsCommonSources(t *testing.T) {
	raw := bytes.Repeat([]byte{0xfb, 0xff, 0x01, 0x7e}, 8)
	for i := range raw {
		raw[i] += byte(i)
	}
	for _, c := range []struct{ name, token, want string }{
		{"as it is", tokenA, tokenA},
		{"with the line break of echo", tokenA + "\n", tokenA},
		{"with the line break of another system", tokenA + "\r\n", tokenA},
		{"standard base64", base64.StdEncoding.EncodeToString(raw), base64.StdEncoding.EncodeToString(raw)},
		{"base64url", base64.RawURLEncoding.EncodeToString(raw), base64.RawURLEncoding.EncodeToString(raw)},
		{"hexadecimal", fmt.Sprintf("%x", raw), fmt.Sprintf("%x", raw)},
		{"the longest", strings.Repeat(tokenA[:32], 16), strings.Repeat(tokenA[:32], 16)},
	} {
		if got := parse(t, KeyToken, c.token, "unrelated", "kept by others"); text(got.Current) != c.want {
			t.Errorf("%s: %q", c.name, got.Current.Expose())
		}
	}
}

// A2: the command line of the proposal.
func TestParse_AcceptsDDAndBase64(t *testing.T) {
	out, err := exec.Command("sh", "-c", "dd if=/dev/urandom bs=32 count=1 2>/dev/null | base64").Output()
	if err != nil {
		t.Fatal(err)
	}
	got := parse(t, KeyToken, string(out))
	if raw, err := base64.StdEncoding.DecodeString(text(got.Current)); err != nil || len(raw) != 32 {
		t.Errorf("%d bytes, %v", len(raw), err)
	}
}

func TestParse_ErrorsDoNotContainTheToken(t *testing.T) {
	expires := noon.Format(time.RFC3339)
	for _, c := range []struct {
		name string
		data map[string][]byte
		want string
	}{
		{"nothing", data(), `no key "token"`},
		{"another key", data("Token", tokenA), `no key "token"`},
		{"an empty token", data(KeyToken, "\n"), "0 characters, which is too short"},
		{"too short", data(KeyToken, tokenA[:42]), "42 characters, which is too short"},
		{"too long", data(KeyToken, strings.Repeat(tokenA, 12)), "at most 512"},
		{"no random", data(KeyToken, strings.Repeat("ab", 30)), "not random"},
		{"two lines of another system", data(KeyToken, tokenA+"\r"+tokenB), "contains a line break"},
		{"too short, with the command", data(KeyToken, "short"), "32 random bytes in base64 have 44:"},
		{"a previous of one character", data(KeyToken, tokenA, KeyPrevious, "x", KeyPreviousExpires, expires),
			"previous-token: the token has 1 characters"},
		{"an end of one character", data(KeyToken, tokenA, KeyPreviousExpires, "x"), "previous-expires: not a time"},
		{"two lines", data(KeyToken, tokenA+"\n"+tokenB), "contains a line break"},
		{"a space", data(KeyToken, tokenA+" "+tokenB), "an Authorization header does not allow"},
		{"binary", data(KeyToken, tokenA+"\x00\xff"), "an Authorization header does not allow"},
		{"padding inside", data(KeyToken, tokenA+"=A"), "an Authorization header does not allow"},
		{"a short previous", data(KeyToken, tokenA, KeyPrevious, "short", KeyPreviousExpires, expires),
			"previous-token: the token has 5 characters"},
		{"a previous without an end", data(KeyToken, tokenA, KeyPrevious, tokenB), "would never expire"},
		{"an end that is no time", data(KeyToken, tokenA, KeyPrevious, tokenB, KeyPreviousExpires, tokenC),
			"previous-expires: not a time"},
		{"an end without a zone", data(KeyToken, tokenA, KeyPrevious, tokenB, KeyPreviousExpires, "2026-11-01T12:00:00"),
			"previous-expires: not a time"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Parse(c.data)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("%v, want %q", err, c.want)
			}
			for _, token := range []string{tokenA[:20], tokenB[:20], tokenC[:20]} {
				if strings.Contains(err.Error(), token) {
					t.Errorf("the error tells the token: %v", err)
				}
			}
			if !got.Current.Empty() || !got.Previous.Empty() {
				t.Error("tokens in spite of the error")
			}
		})
	}
}

func TestNew_Creates256RandomBits(t *testing.T) {
	made, err := New(noon, &counter{})
	if err != nil {
		t.Fatal(err)
	}
	if raw, err := base64.RawURLEncoding.DecodeString(text(made.Current)); err != nil || len(raw) != 32 {
		t.Errorf("%d bytes, %v", len(raw), err)
	}
	if again, err := Parse(made.Data()); err != nil || text(again.Current) != text(made.Current) {
		t.Error(err)
	}
	if _, err := New(noon, strings.NewReader("short")); err == nil {
		t.Error("a token from a source that ran dry")
	}
}

func TestCheck(t *testing.T) {
	both := parse(t, KeyToken, tokenA, KeyPrevious, tokenB, KeyPreviousExpires, noon.Format(time.RFC3339))
	before := noon.Add(-time.Nanosecond)
	for _, c := range []struct {
		name   string
		tokens Tokens
		shown  string
		now    time.Time
		want   Match
	}{
		{"the current one", both, tokenA, before, Current},
		{"the current one, much later", both, tokenA, noon.Add(time.Hour), Current},
		{"the previous one, a moment before its end", both, tokenB, before, Previous},
		{"the previous one, at its end", both, tokenB, noon, Expired},
		{"the previous one, later", both, tokenB, noon.Add(time.Hour), Expired},
		{"another", both, tokenC, before, None},
		{"nothing", both, "", before, None},
		{"a part", both, tokenA[:43], before, None},
		{"with a line break", both, tokenA + "\n", before, None},
		{"in another case", both, strings.ToLower(tokenA), before, None},
		{"nothing against no token", Tokens{}, "", before, None},
		{"nothing against no previous token", parse(t, KeyToken, tokenA), "", before, None},
		{"the same token twice counts as the current one", parse(t, KeyToken, tokenA, KeyPrevious, tokenA, KeyPreviousExpires,
			noon.Format(time.RFC3339)), tokenA, noon, Current},
	} {
		if got := c.tokens.Check(c.now, []byte(c.shown)); got != c.want ||
			got.Valid() != (c.want == Current || c.want == Previous) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// A18: secrets are compared only by crypto/subtle, all of them, and no comparison ends early.
func TestCheck_ComparesInConstantTime(t *testing.T) {
	for _, c := range []struct {
		file, function string
		loops          int
		compared       []string // without crypto/subtle; each operand is public
	}{
		{"provisioning.go", "Check", 1, []string{"match == Previous"}},
		{"provisioning.go", "same", 0, []string{"subtle.ConstantTimeCompare(a.Expose(), b.Expose()) == 1"}},
		{"../appraisal/appraisal.go", "provisioningToken", 1, []string{"found == 0", "found > 1"}},
	} {
		t.Run(c.function, func(t *testing.T) {
			file, err := parser.ParseFile(token.NewFileSet(), c.file, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			var f *ast.FuncDecl
			for _, d := range file.Decls {
				if d, ok := d.(*ast.FuncDecl); ok && d.Name.Name == c.function {
					f = d
				}
			}
			if f == nil {
				t.Fatal("the function does not exist")
			}
			loops, subtle, end := 0, 0, f.Body.Pos()
			ast.Inspect(f.Body, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.RangeStmt:
					loops, end = loops+1, n.End()
				case *ast.BinaryExpr:
					if text := types.ExprString(n); comparison(n.Op) && !slices.Contains(c.compared, text) {
						t.Errorf("compares %s", text)
					}
				case *ast.CallExpr:
					switch name := types.ExprString(n.Fun); {
					case name == "subtle.ConstantTimeCompare":
						subtle++
					case name == "string", comparing.MatchString(name):
						t.Errorf("calls %s", name)
					}
				case *ast.ForStmt, *ast.IndexExpr, *ast.FuncLit, *ast.TypeSwitchStmt:
					t.Errorf("has a %T", n)
				case *ast.SwitchStmt:
					if n.Tag != nil {
						t.Errorf("compares %s", types.ExprString(n.Tag))
					}
				case *ast.BranchStmt:
					if n.Tok != token.CONTINUE {
						t.Errorf("has a %s", n.Tok)
					}
				}
				return true
			})
			if loops != c.loops || subtle != 1 {
				t.Errorf("%d loops with %d comparisons", loops, subtle)
			}
			ast.Inspect(f.Body, func(n ast.Node) bool {
				if r, ok := n.(*ast.ReturnStmt); ok && r.Pos() < end {
					t.Error("returns before all tokens are compared")
				}
				return true
			})
		})
	}
}

// comparing matches the packages whose functions compare in variable time.
var comparing = regexp.MustCompile(`^(bytes|cmp|maps|reflect|slices|strings)\.`)

func comparison(op token.Token) bool {
	return slices.Contains([]token.Token{token.EQL, token.NEQ, token.LSS, token.LEQ, token.GTR, token.GEQ}, op)
}

// A9, A10: exact limits, and no third token.
func TestRotate(t *testing.T) {
	random := &counter{}
	first, err := New(noon, random)
	if err != nil {
		t.Fatal(err)
	}
	second, err := first.Rotate(noon, random, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if text(second.Previous) != text(first.Current) || text(second.Current) == text(first.Current) ||
		!second.PreviousExpires.Equal(noon.Add(time.Hour)) {
		t.Fatalf("%v", second.PreviousExpires)
	}
	for _, at := range []time.Duration{0, time.Minute, time.Hour - time.Nanosecond} {
		if _, err := second.Rotate(noon.Add(at), random, time.Hour); !errors.Is(err, ErrRotating) {
			t.Errorf("rotated again after %v: %v", at, err)
		}
		if second.Check(noon.Add(at), first.Current.Expose()) != Previous ||
			second.Check(noon.Add(at), second.Current.Expose()) != Current || len(second.Valid(noon.Add(at))) != 2 {
			t.Errorf("after %v a token of the two is not valid", at)
		}
	}
	end := noon.Add(time.Hour)
	if second.Check(end, first.Current.Expose()) != Expired || len(second.Valid(end)) != 1 {
		t.Error("the previous token outlives its grace")
	}
	third, err := second.Rotate(end, random, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if third.Check(end, first.Current.Expose()) != None || third.Check(end, second.Current.Expose()) != Previous {
		t.Error("the third rotation")
	}
	for _, grace := range []time.Duration{0, -1, MaxGrace + 1} {
		if _, err := third.Rotate(end.Add(time.Hour), random, grace); err == nil || errors.Is(err, ErrRotating) {
			t.Errorf("grace %v: %v", grace, err)
		}
	}
	// Without random bytes there is no new token.
	if same, err := third.Rotate(end.Add(time.Hour), strings.NewReader("short"), time.Hour); err == nil ||
		!same.Equal(third) {
		t.Errorf("a source that ran dry: %v", err)
	}
	// The Secret's whole seconds never shorten the grace period.
	odd, err := first.Rotate(noon.Add(1), random, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if odd.Check(noon.Add(time.Hour), first.Current.Expose()) != Previous {
		t.Error("the grace was cut short")
	}
}

// An end without a previous token, which an administrator may write, is no grace period.
func TestRotate_WithoutAPreviousToken(t *testing.T) {
	tokens := parse(t, KeyToken, tokenA, KeyPreviousExpires, noon.Add(time.Hour).Format(time.RFC3339))
	if n := len(tokens.Valid(noon)); n != 1 {
		t.Errorf("%d valid tokens", n)
	}
	if _, err := tokens.Rotate(noon, &counter{}, time.Hour); err != nil {
		t.Error(err)
	}
}

func TestEqual(t *testing.T) {
	at := noon.Format(time.RFC3339)
	pairs := []string{KeyToken, tokenA, KeyPrevious, tokenB, KeyPreviousExpires, at}
	one := parse(t, pairs...)
	if !one.Equal(parse(t, pairs...)) {
		t.Error("the same tokens differ")
	}
	for name, other := range map[string]Tokens{
		"the current one":  parse(t, KeyToken, tokenC, KeyPrevious, tokenB, KeyPreviousExpires, at),
		"the previous one": parse(t, KeyToken, tokenA, KeyPrevious, tokenC, KeyPreviousExpires, at),
		"its end": parse(t, KeyToken, tokenA, KeyPrevious, tokenB, KeyPreviousExpires,
			noon.Add(time.Second).Format(time.RFC3339)),
	} {
		if one.Equal(other) {
			t.Errorf("%s does not count", name)
		}
	}
}

// A stolen token is invalid immediately, also during a grace period, also twice in a second,
// and no reader considers the change an edit by hand.
func TestReplace_InvalidatesAllOtherTokens(t *testing.T) {
	random := &counter{}
	first, _ := New(noon, random)
	second, err := first.Rotate(noon, random, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for name, old := range map[string]Tokens{"never rotated": parse(t, KeyToken, tokenA), "new": first,
		"in its grace": second} {
		next, err := old.Replace(noon, random)
		if err != nil {
			t.Fatal(err)
		}
		read, err := Parse(next.Data())
		if err != nil {
			t.Fatal(err)
		}
		got, edited := Edited(old, read, noon, time.Hour)
		if edited || got.Check(noon, old.Current.Expose()).Valid() || !old.Previous.Empty() &&
			got.Check(noon, old.Previous.Expose()).Valid() {
			t.Errorf("%s: an old token is valid", name)
		}
		if got.Check(noon, next.Current.Expose()) != Current {
			t.Errorf("%s: the new one is not", name)
		}
	}
}

// A12.
func TestEdited(t *testing.T) {
	expires := noon.Add(30 * time.Minute).Format(time.RFC3339)
	for _, c := range []struct {
		name          string
		known, read   []string
		edited        bool
		current, prev string
		end           time.Time
	}{
		{"nothing changed", []string{KeyToken, tokenA}, []string{KeyToken, tokenA}, false, tokenA, "", time.Time{}},
		{"another token by kubectl apply", []string{KeyToken, tokenA}, []string{KeyToken, tokenB}, true, tokenB, tokenA,
			noon.Add(time.Hour)},
		{"another token, the previous one untouched",
			[]string{KeyToken, tokenA, KeyPrevious, tokenC, KeyPreviousExpires, expires},
			[]string{KeyToken, tokenB, KeyPrevious, tokenC, KeyPreviousExpires, expires}, true, tokenB, tokenA,
			noon.Add(time.Hour)},
		{"another token, and the previous one left out",
			[]string{KeyToken, tokenA, KeyPrevious, tokenC, KeyPreviousExpires, expires},
			[]string{KeyToken, tokenB}, true, tokenB, tokenA, noon.Add(time.Hour)},
		{"a rotation", []string{KeyToken, tokenA}, []string{KeyToken, tokenB, KeyPrevious, tokenA, KeyPreviousExpires,
			expires}, false, tokenB, tokenA, noon.Add(30 * time.Minute)},
		{"an end by hand", []string{KeyToken, tokenA},
			[]string{KeyToken, tokenB, KeyPreviousExpires, noon.Format(time.RFC3339)}, false, tokenB, "", noon},
		{"the previous one's end by hand", []string{KeyToken, tokenA, KeyPrevious, tokenC, KeyPreviousExpires, expires},
			[]string{KeyToken, tokenA, KeyPrevious, tokenC, KeyPreviousExpires, noon.Format(time.RFC3339)}, false, tokenA,
			tokenC, noon},
	} {
		got, edited := Edited(parse(t, c.known...), parse(t, c.read...), noon, time.Hour)
		if edited != c.edited || text(got.Current) != c.current || text(got.Previous) != c.prev ||
			!got.PreviousExpires.Equal(c.end) {
			t.Errorf("%s: %t %s %s %v", c.name, edited, got.Current.Expose(), got.Previous.Expose(), got.PreviousExpires)
		}
		// A token that was written back does not count as an edit again.
		if again, edited := Edited(parse(t, c.known...), parse(t, encode(got)...), noon.Add(time.Minute),
			time.Hour); c.edited && (edited || text(again.Previous) != c.prev) {
			t.Errorf("%s: read as edited again", c.name)
		}
	}
	if got, edited := Edited(Tokens{}, parse(t, KeyToken, tokenA), noon, time.Hour); edited || !got.Previous.Empty() {
		t.Error("a first token was edited")
	}
}

func encode(tokens Tokens) (pairs []string) {
	for k, v := range tokens.Data() {
		pairs = append(pairs, k, string(v))
	}
	return pairs
}

// A8, with its own clock.
func TestDue(t *testing.T) {
	const day = 24 * time.Hour
	made := noon
	tokens := parse(t, KeyToken, tokenA)
	if _, ok := tokens.Due(made, 0, time.Hour); ok {
		t.Error("rotated without a request")
	}
	if _, ok := (Tokens{}).Due(made, day, time.Hour); ok {
		t.Error("rotated without a token")
	}
	if at, ok := tokens.Due(made, 1, time.Hour); !ok || !at.Equal(made.Add(1)) {
		t.Errorf("the shortest interval: due at %v", at)
	}
	earlier := parse(t, KeyToken, tokenA, KeyPreviousExpires, made.Add(-time.Hour).Format(time.RFC3339))
	if at, _ := earlier.Due(made, day, time.Hour); !at.Equal(made.Add(day)) {
		t.Errorf("made after the last rotation: due at %v", at)
	}
	now := made
	random := &counter{}
	var rotations []time.Duration
	for range 3 {
		at, ok := tokens.Due(made, day, time.Hour)
		if !ok || at.Before(now) {
			t.Fatalf("due at %v", at)
		}
		now = at
		next, err := tokens.Rotate(now, random, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		tokens = next
		rotations = append(rotations, now.Sub(made))
	}
	if fmt.Sprint(rotations) != "[24h0m0s 48h0m0s 72h0m0s]" {
		t.Errorf("rotated after %v", rotations)
	}
	// An interval shorter than the grace period waits for its end.
	if at, _ := tokens.Due(made, time.Minute, time.Hour); !at.Equal(now.Add(time.Hour)) {
		t.Errorf("due at %v", at)
	}
	// A new token is not due just because the previous one already expired.
	fresh, _ := New(noon, random)
	if at, _ := fresh.Due(time.Time{}, time.Hour, time.Hour); !at.Equal(noon.Add(time.Hour)) {
		t.Errorf("a new one is due at %v", at)
	}
}

func TestDataAndFileKeepEverything(t *testing.T) {
	for _, tokens := range []Tokens{
		parse(t, KeyToken, tokenA),
		parse(t, KeyToken, tokenA, KeyPrevious, tokenB, KeyPreviousExpires, "2026-11-01T14:00:00+02:00"),
		parse(t, KeyToken, tokenA, KeyPreviousExpires, noon.Format(time.RFC3339)),
	} {
		fromFile, err := ParseFile(tokens.EncodeFile().Expose())
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range []map[string][]byte{tokens.Data(), fromFile} {
			got, err := Parse(d)
			if err != nil || text(got.Current) != text(tokens.Current) || text(got.Previous) != text(tokens.Previous) ||
				!got.PreviousExpires.Equal(tokens.PreviousExpires) {
				t.Errorf("%v: %v", d, err)
			}
		}
	}
}

func TestParseFile(t *testing.T) {
	for name, raw := range map[string]string{
		"YAML": "token: " + tokenA + "\nprevious-token: " + tokenB + "\nprevious-expires: 2026-11-01T12:00:00Z # noon\n",
		"JSON": `{"token":"` + tokenA + `","previous-token":"` + tokenB + `","previous-expires":"2026-11-01T12:00:00Z"}`,
	} {
		d, err := ParseFile([]byte(raw))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got, err := Parse(d)
		if err != nil || text(got.Previous) != tokenB || !got.PreviousExpires.Equal(noon) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, raw := range map[string]string{
		"empty": "", "a bare token": tokenA, "a list": "- " + tokenA, "an unknown key": "tokens: " + tokenA,
		"a key twice": "token: " + tokenA + "\ntoken: " + tokenB, "a nested value": "token: {value: " + tokenA + "}",
		"an alias": "token: &a " + tokenA + "\nprevious-token: *a\n", "no YAML": "token: [" + tokenA,
		"two documents": "token: " + tokenA + "\n---\ntoken: " + tokenB,
	} {
		_, err := ParseFile([]byte(raw))
		if err == nil || strings.Contains(err.Error(), tokenA[:20]) ||
			(name == "no YAML") != strings.Contains(err.Error(), "neither YAML nor JSON") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTokens_AreNotPrinted(t *testing.T) {
	tokens := parse(t, KeyToken, tokenA, KeyPrevious, tokenB, KeyPreviousExpires, noon.Format(time.RFC3339))
	if s := fmt.Sprintf("%v %+v %#v %+v", tokens, tokens, tokens, View{tokens: tokens}); strings.Contains(s, tokenA) ||
		strings.Contains(s, tokenB) {
		t.Error(s)
	}
	if a, b := ID(tokens.Current), ID(tokens.Previous); a == b || len(a) != 6 {
		t.Errorf("%s %s", a, b)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(tokenA), []byte(tokenB), []byte("2026-11-01T12:00:00Z"))
	f.Add([]byte(tokenA+"\n"), []byte(""), []byte(""))
	f.Add([]byte("short"), []byte("\x00"), []byte("never"))
	f.Fuzz(func(t *testing.T, token, previous, expires []byte) {
		got, err := Parse(map[string][]byte{KeyToken: token, KeyPrevious: previous, KeyPreviousExpires: expires})
		if err != nil {
			if !got.Current.Empty() || !got.Previous.Empty() {
				t.Fatal("tokens in spite of an error")
			}
			return
		}
		if got.Check(noon, got.Current.Expose()) != Current || got.Check(noon, nil) != None {
			t.Fatal("a token that does not match itself, or matches nothing")
		}
		again, err := Parse(got.Data())
		if err != nil || text(again.Current) != text(got.Current) || text(again.Previous) != text(got.Previous) {
			t.Fatalf("not what was written: %v", err)
		}
		if d, err := ParseFile(got.EncodeFile().Expose()); err != nil || string(d[KeyToken]) != text(got.Current) {
			t.Fatalf("not the content of the file: %v", err)
		}
	})
}

func FuzzParseFile(f *testing.F) {
	f.Add([]byte("token: " + tokenA))
	f.Add([]byte(`{"token":"a"}`))
	f.Add([]byte("a: &a [*a]"))
	f.Fuzz(func(_ *testing.T, raw []byte) {
		if d, err := ParseFile(raw); err == nil {
			_, _ = Parse(d)
		}
	})
}
