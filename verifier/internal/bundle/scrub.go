// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/mcs-attest/mcs-attest/pkg/secret"
)

// Scrubber removes from a text the patterns of secrets and known secrets, plain or encoded. If in
// doubt, it removes too much. The text is untrusted, because logs and records contain text from
// machines.
type Scrubber struct{ known [][]byte }

// minKnown is the minimum length of a known secret. A shorter one would be found in many other places.
const minKnown = 8

// NewScrubber returns a Scrubber that also removes these secrets. If a secret is a JSON document, it
// removes the document's values that are secret by their names.
func NewScrubber(known ...secret.Bytes) *Scrubber {
	s := &Scrubber{}
	for _, k := range known {
		raw := bytes.TrimSpace(k.Expose())
		s.add(raw)
		var doc any
		if json.Unmarshal(raw, &doc) == nil {
			s.leaves("", doc)
		}
	}
	// The longest first, because one secret may be part of another.
	slices.SortFunc(s.known, func(a, b []byte) int { return len(b) - len(a) })
	return s
}

func (s *Scrubber) add(raw []byte) {
	if len(raw) < minKnown {
		return
	}
	quoted, err := json.Marshal(string(raw))
	forms := [][]byte{raw, []byte(url.QueryEscape(string(raw))), []byte(url.PathEscape(string(raw))),
		[]byte(hex.EncodeToString(raw)), []byte(strings.ToUpper(hex.EncodeToString(raw)))}
	if err == nil {
		forms = append(forms, bytes.Trim(quoted, `"`))
	}
	for _, f := range forms {
		if !slices.ContainsFunc(s.known, func(have []byte) bool { return bytes.Equal(have, f) }) {
			s.known = append(s.known, f)
		}
	}
}

func (s *Scrubber) leaves(name string, v any) {
	switch v := v.(type) {
	case map[string]any:
		for k, inner := range v {
			s.leaves(k, inner)
		}
	case []any:
		for _, inner := range v {
			s.leaves(name, inner)
		}
	case string:
		if !secretNames[strings.ToLower(name)] {
			return
		}
		s.add([]byte(v))
		// The value of Docker's "auth" is user:password.
		if raw, err := base64.StdEncoding.DecodeString(v); err == nil {
			if _, password, ok := bytes.Cut(raw, []byte(":")); ok {
				s.add(password)
			}
		}
	}
}

// secretNames are fields whose values are secrets, in lower case.
var secretNames = map[string]bool{}

func init() {
	for _, n := range []string{
		"password", "passwd", "passphrase", "auth", "identitytoken", "registrytoken", "pullsecret", "pull-secret",
		".dockerconfigjson", ".dockercfg",
		"client-key-data", "client_secret", "clientsecret", "secretkey", "secret_key", "secretaccesskey", "secret_access_key",
		"aws_secret_access_key",
		"sessiontoken", "session_token", "private_key", "privatekey", "private-key", "tls.key", "access_token",
		"refresh_token", "id_token", "token",
		"previous-token", "token-secret", "apikey", "api_key", "api-key", "d", "k", "userdata", "user-data", "report_ticket",
		"reportticket", "luks_key", "keyfile",
	} {
		secretNames[n] = true
	}
}

// shape is a pattern of a secret. The match of its first group is kept. A text without any of the
// words, in lower case, is not searched.
type shape struct {
	name  string
	re    *regexp.Regexp
	words []string
}

var shapes = []shape{
	{"private key",
		regexp.MustCompile(`()-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\z)`),
		[]string{"private key"}},
	{"data URL", regexp.MustCompile(`(data:)[A-Za-z0-9/+.;=-]*,[^\s"'<>\\]{16,}`), []string{"data:"}},
	{"JWT", regexp.MustCompile(`()eyJ[A-Za-z0-9_-]{4,}\.[A-Za-z0-9_-]{4,}(?:\.[A-Za-z0-9_-]*){1,3}`), []string{"eyj"}},
	{"authorization", regexp.MustCompile(`(?i)(\b(?:bearer|basic)(?:[ \t+]|%20)+)[A-Za-z0-9._~+/=%-]{8,}`),
		[]string{"bearer", "basic"}},
	{"OpenShift token", regexp.MustCompile(`()sha256~[A-Za-z0-9_-]{20,}`), []string{"sha256~"}},
	{"bootstrap token", regexp.MustCompile(`()\b[a-z0-9]{6}\.[a-z0-9]{16}\b`), nil},
	{"cloud access key", regexp.MustCompile(`()\b(?:AKIA|ASIA)[A-Z0-9]{16}\b`), []string{"akia", "asia"}},
	{"flag", regexp.MustCompile(`(?i)(--?(?:token|password|secret|pass)(?:[ \t]+|=))[^\s"'\\[][^\s"'\\]{5,}`),
		[]string{"-token", "-password", "-secret", "-pass"}},
	{"URL parameter",
		regexp.MustCompile(`(?i)([?&](?:token|access_token|sig|signature|key|x-amz-[a-z-]+)=)[^&\s"'\\[][^&\s"'\\]*`),
		[]string{"token=", "sig=", "signature=", "key=", "x-amz-"}},
	{"URL password", regexp.MustCompile(`(://[^/\s:@"']*:)[^@/\s"']+@`), []string{"://"}},
}

// tokenID is the id of a token, which opens nothing and is what support needs.
var tokenID = regexp.MustCompile(`^[0-9a-f]{24}$`)

// maxDepth is how often base64 may be within base64.
const maxDepth = 2

// maxExpanded bounds the bytes of all archives of one text. What is behind them is
// removed unread: a machine can make a log line of 400 bytes that expands to 256 KiB.
const maxExpanded = 8 << 20

const mark = "[redacted"

// Scrub returns the text without secrets, and how many of which kind were in it.
func (s *Scrubber) Scrub(text []byte) ([]byte, map[string]int) {
	found, expand := map[string]int{}, maxExpanded
	return s.scrub(text, found, &expand, maxDepth), found
}

// Leaks names what in a text is a secret; nothing in one that was scrubbed.
func (s *Scrubber) Leaks(text []byte) []string {
	_, found := s.Scrub(text)
	return kinds(found)
}

func (s *Scrubber) scrub(text []byte, found map[string]int, expand *int, depth int) []byte {
	for _, k := range s.known {
		if n := bytes.Count(text, k); n > 0 {
			found["known secret"] += n
			text = bytes.ReplaceAll(text, k, []byte(mark+": known secret]"))
		}
	}
	lower := bytes.ToLower(text)
	for _, sh := range shapes {
		if !sh.possible(lower) {
			continue
		}
		text = sh.re.ReplaceAllFunc(text, func(m []byte) []byte {
			parts := sh.re.FindSubmatch(m)
			found[sh.name]++
			return append(slices.Clone(parts[1]), []byte(mark+": "+sh.name+"]")...)
		})
	}
	text = scrubFields(text, found)
	if depth == 0 {
		return text
	}
	return s.scrubEncoded(text, found, expand, depth)
}

// minRun is how long a run of base64 must be to be looked into.
const minRun = 16

// scrubEncoded takes out what holds a secret once decoded.
func (s *Scrubber) scrubEncoded(text []byte, found map[string]int, expand *int, depth int) []byte {
	var out []byte
	last := 0
	for i := 0; i < len(text); {
		from := i
		joined, i2, digest := base64Run(text, i)
		i = i2
		if i == from {
			i++
			continue
		}
		// A hash, a UID or a number is no base64 of a text.
		if len(joined) < minRun || digest || !s.encoded(joined, expand, depth) {
			continue
		}
		for i < len(text) && text[i] == '=' {
			i++
		}
		found["encoded secret"]++
		out = append(append(out, text[last:from]...), []byte(mark+": encoded secret]")...)
		last = i
	}
	return append(out, text[last:]...)
}

// wrapped is how long a line must be to go on in the next one: base64 wraps at 64
// or at 76.
const wrapped = 60

// base64Run is the run that begins at i, without its line breaks, and its end.
func base64Run(text []byte, i int) (joined []byte, end int, digest bool) {
	digest = true
	for {
		from := i
		for i < len(text) && base64Byte[text[i]] {
			c := text[i]
			digest = digest && (c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c == '-')
			i++
		}
		line := text[from:i]
		next := lineBreak(text, i)
		if joined == nil && (len(line) < wrapped || next == i) {
			return line, i, digest
		}
		joined = append(joined, line...)
		if len(line) < wrapped || next == i || next >= len(text) || !base64Byte[text[next]] {
			return joined, i, digest
		}
		i = next
	}
}

// lineBreak is where the next line's text begins: behind a line break, also one
// that is written as \n, and its indentation; i if there is no line break.
func lineBreak(text []byte, i int) int {
	at := i
	for at < len(text) && text[at] == '\r' {
		at++
	}
	switch {
	case at < len(text) && text[at] == '\n':
		at++
	case bytes.HasPrefix(text[at:], []byte(`\n`)):
		at += 2
	default:
		return i
	}
	for at < len(text) && (text[at] == ' ' || text[at] == '\t') {
		at++
	}
	return at
}

var base64Byte = func() (t [256]bool) {
	for _, c := range []byte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_") {
		t[c] = true
	}
	return t
}()

func (sh shape) possible(lower []byte) bool {
	if sh.words == nil { // a bootstrap token: six characters, a dot, sixteen
		for i := 6; i+16 < len(lower); i++ {
			if lower[i] == '.' && alphanumeric(lower[i-6:i]) && alphanumeric(lower[i+1:i+17]) {
				return true
			}
		}
		return false
	}
	return slices.ContainsFunc(sh.words, func(w string) bool { return bytes.Contains(lower, []byte(w)) })
}

func alphanumeric(s []byte) bool {
	for _, c := range s {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}

// maxName bounds the name of a field.
const maxName = 64

// scrubFields takes out the values of fields that are secret by their names: in
// JSON, YAML, a command line or a log line, also inside another string.
func scrubFields(text []byte, found map[string]int) []byte {
	var out []byte
	last := 0
	for i, c := range text {
		if c != ':' && c != '=' || i < last {
			continue
		}
		name := nameBefore(text[last:i])
		if !secretNames[name] {
			continue
		}
		from, quote := valueAfter(text, i+1)
		// "d" and "k" are the private parts of a JWK; a word of a log they may be, too.
		if len(name) == 1 && quote == "" {
			continue
		}
		length := valueLength(text[from:], quote)
		value := text[from : from+length]
		if length < 6 && quote == "" || length == 0 || bytes.HasPrefix(value, []byte(mark)) || name == "token" &&
			tokenID.Match(value) {
			continue
		}
		if len(name) == 1 && length < 32 {
			continue
		}
		found["secret field"]++
		out = append(append(out, text[last:from]...), []byte(mark+": secret field]")...)
		last = from + length
	}
	return append(out, text[last:]...)
}

// nameBefore is the name that a text ends with, in lower case: password, or
// "password", or \"password\".
func nameBefore(text []byte) string {
	text = bytes.TrimRight(text, " \t")
	if n := len(text); n > 0 && (text[n-1] == '"' || text[n-1] == '\'') {
		text = bytes.TrimRight(text[:n-1], `\`)
	}
	from := len(text)
	for from > 0 && len(text)-from < maxName && (text[from-1] == '_' || text[from-1] == '.' || text[from-1] == '-' ||
		alphanumeric(bytes.ToLower(text[from-1:from]))) {
		from--
	}
	return strings.ToLower(string(text[from:]))
}

// valueAfter is where a value begins, and the quote that it begins with, with the
// backslashes in front of it; "" if there is none.
func valueAfter(text []byte, at int) (from int, quote string) {
	for at < len(text) && (text[at] == ' ' || text[at] == '\t') {
		at++
	}
	end := at
	for end < len(text) && text[end] == '\\' {
		end++
	}
	if end < len(text) && (text[end] == '"' || text[end] == '\'') {
		return end + 1, string(text[at : end+1])
	}
	return at, ""
}

// valueLength is how far a value goes: to the quote that ends it, or to the end of
// a word. A mapping or a list is no value.
func valueLength(rest []byte, quote string) int {
	if quote != "" {
		escapes := strings.Count(quote, `\`)
		for i := 0; i < len(rest); i++ {
			if rest[i] != quote[len(quote)-1] {
				continue
			}
			before := 0
			for before < i && rest[i-1-before] == '\\' {
				before++
			}
			if before == escapes {
				return i - escapes
			}
		}
		return len(rest)
	}
	if n := bytes.IndexAny(rest, " \t\r\n,;}]\"'{["); n >= 0 {
		return n
	}
	return len(rest)
}

var unURL = strings.NewReplacer("-", "+", "_", "/")

// encoded reports whether a run of base64 holds a secret, or an archive for which
// nothing of expand is left.
func (s *Scrubber) encoded(m []byte, expand *int, depth int) bool {
	text := unURL.Replace(string(m))
	// A path in front of it would shift it.
	for skip := range min(4, len(text)) {
		part := text[skip:]
		if len(part)%4 == 1 {
			part = part[:len(part)-1]
		}
		raw, err := base64.RawStdEncoding.DecodeString(part)
		if err != nil {
			continue
		}
		inner := depth - 1
		if bytes.HasPrefix(raw, []byte{0x1f, 0x8b}) {
			if *expand <= 0 {
				return true
			}
			raw, inner = gunzip(raw), 0 // does not expand nested archives
			*expand -= len(raw)
		}
		if !readable(raw) && !slices.ContainsFunc(s.known, func(k []byte) bool { return bytes.Contains(raw, k) }) {
			continue
		}
		found := map[string]int{}
		if s.scrub(raw, found, expand, inner); len(found) > 0 {
			return true
		}
	}
	return false
}

// readable reports whether there is something in raw that could be read.
func readable(raw []byte) bool {
	n := 0
	for _, c := range raw {
		if c < ' ' || c > '~' {
			n = 0
			continue
		}
		if n++; n == minKnown {
			return true
		}
	}
	return false
}

func gunzip(raw []byte) []byte {
	z, err := gzip.NewReader(bytes.NewReader(raw))
	if err != nil {
		return raw
	}
	out, _ := io.ReadAll(io.LimitReader(z, 256<<10)) // the part before an error is searched
	return out
}
