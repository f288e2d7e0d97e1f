// SPDX-License-Identifier: Apache-2.0

package bundle_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/secret"
	"github.com/mcs-attest/mcs-attest/verifier/internal/bundle"
)

const (
	jwt      = "eyJhbGciOiJFUzI1NiIsInR5cCI6ImVhdCtqd3QifQ.eyJpc3MiOiJodHRwczovL2FwaS1pbnQifQ.c2lnbmF0dXJlLXdpdGgtbWFueS1ieXRlcw"
	password = "correct horse battery"
)

func compressed(s string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = io.WriteString(z, s)
	_ = z.Close()
	return base64.StdEncoding.EncodeToString(b.Bytes())
}

func TestContentForSupportIsKept(t *testing.T) {
	s := bundle.NewScrubber(secret.New([]byte("sesame-open-sesame")))
	for _, line := range []string{
		`{"time":"2026-11-21T05:44:32.825576039Z","level":"INFO","msg":"decision","log":"audit","event":"attest","outcome":"allowed","correlation_id":"3a5b4fd06c86a868","source":"127.0.0.1","pool":"worker","machine":"default/worker-0","endorsement":"enrolled","ek":"71e78eb297ff04c7b1947d1fafc366459f6c7f6030a57f7d92dc3ee09c0e1ac2","token":"bcefaeee992a80ecbd738b60","evidence.tpm2":"519ef41c21e4ff7aca0450f06d27f21e2348617485abe360c59beacbd9852768"}`,
		`{"status":{"token":{"id":"bcefaeee992a80ecbd738b60","pool":"worker","uses":1},"machineUID":"56bce73b-6076-425f-9eda-9844aae98735"}}`,
		`10.0.0.7 - - [21/Nov/2026] "GET /config/worker HTTP/1.1" 200`,
		"providerID: aws:///eu-west-1a/i-0123456789abcdef0",
		"image: quay.io/mcs-attest/verifier@sha256:519ef41c21e4ff7aca0450f06d27f21e2348617485abe360c59beacbd9852768",
		"mcs_attest_decisions_total{event=\"attest\",outcome=\"denied\",pool=\"worker\",reason=\"EKNotEnrolled\"} 3",
		"readyz: token keys: none may sign now",
		"/var/lib/containers/storage/overlay/openshift-machine-config-operator/machine-config-server",
	} {
		got, found := s.Scrub([]byte(line))
		if string(got) != line {
			t.Errorf("%s\nbecame %s (%v)", line, got, found)
		}
	}
}

func TestAttack_T46_SecretsByTheirPattern(t *testing.T) {
	s := bundle.NewScrubber()
	key := "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEIJ+abc/def\n-----END EC PRIVATE KEY-----"
	quoted, err := json.Marshal(key)
	if err != nil {
		t.Fatal(err)
	}
	pull := `{"auths":{"quay.io":{"auth":"` + base64.StdEncoding.EncodeToString([]byte("user:"+password)) +
		`","email":"a@example.com"}}}`
	for name, c := range map[string]struct{ text, secret string }{
		"JWT":                 {"token " + jwt + " was shown", jwt},
		"JWT in a URL":        {"GET /config/worker?token=" + jwt, jwt},
		"Bearer":              {"Authorization: Bearer c2VjcmV0LXRva2Vu", "c2VjcmV0LXRva2Vu"},
		"Bearer in JSON":      {`{"value":"Bearer abcdefghijklmnop"}`, "abcdefghijklmnop"},
		"Bearer in a URL":     {"header=Bearer%20abcdefghijklmnop", "abcdefghijklmnop"},
		"Basic":               {"authorization: basic dXNlcjpwYXNzd29yZA==", "dXNlcjpwYXNzd29yZA"},
		"private key":         {key, "MHcCAQEEIJ"},
		"private key in JSON": {`{"tls.key":` + string(quoted) + `}`, "MHcCAQEEIJ"},
		"private key in base64": {"tls.key: " + base64.StdEncoding.EncodeToString([]byte(key)),
			base64.StdEncoding.EncodeToString([]byte(key))[:40]},
		"private key cut off": {key[:60], "MHcCAQEEIJ"},
		"pull secret":         {pull, base64.StdEncoding.EncodeToString([]byte("user:" + password))},
		"pull secret in a string": {`{"message":` + quote(t, pull) + `}`,
			base64.StdEncoding.EncodeToString([]byte("user:" + password))},
		"pull secret in base64": {`{"data":"` + base64.StdEncoding.EncodeToString([]byte(pull)) + `"}`,
			base64.StdEncoding.EncodeToString([]byte(pull))[8:60]},
		"pull secret in base64 of gz": {"contents=" + compressed(pull), compressed(pull)[:40]},
		"base64 behind a path": {"/x/" + base64.StdEncoding.EncodeToString([]byte(pull)),
			base64.StdEncoding.EncodeToString([]byte(pull))[8:60]},
		"base64url": {base64.RawURLEncoding.EncodeToString([]byte("Authorization: Bearer " + jwt)),
			base64.RawURLEncoding.EncodeToString([]byte("Authorization: Bearer " + jwt))[10:60]},
		"base64 twice": {base64.StdEncoding.EncodeToString([]byte(base64.StdEncoding.EncodeToString(
			[]byte(key)))), base64.StdEncoding.EncodeToString([]byte(base64.StdEncoding.EncodeToString([]byte(key))))[4:60]},
		"user data":                    {"userData: eyJpZ25pdGlvbiI6e319Cg==", "eyJpZ25pdGlvbiI6e319Cg"},
		"data URL":                     {`"source": "data:;base64,c2VjcmV0IGNvbnRlbnQgb2YgYSBmaWxl"`, "c2VjcmV0IGNvbnRlbnQ"},
		"data URL in percent encoding": {`source: data:,very%20secret%20content%0A`, "very%20secret"},
		"OpenShift token": {"oc login --token=sha256~abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQ",
			"abcdefghijklmnop"},
		"a flag":                      {"args: verifier --password hunter2222", "hunter2222"},
		"bootstrap token":             {"kubeadm join abcdef.0123456789abcdef", "0123456789abcdef"},
		"cloud key":                   {"AKIAIOSFODNN7EXAMPLE", "AKIAIOSFODNN7EXAMPLE"},
		"cloud secret":                {"aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "wJalrXUtnFEMI"},
		"presigned URL":               {"https://s3.example.com/x?X-Amz-Signature=0123456789abcdef&x=1", "0123456789abcdef"},
		"password in a URL":           {"https://user:hunter22@proxy.example.com:3128", "hunter22"},
		"password in YAML":            {"password: hunter2222\nnext: 1", "hunter2222"},
		"password with blanks":        {`{"password": "` + password + `"}`, "battery"},
		"password in a nested string": {`{"a":"{\"password\":\"hunter2222\"}"}`, "hunter2222"},
		"provisioning token": {"token: c2VjcmV0LXRva2VuLW9mLXRoZS1jbHVzdGVyLTEyMzQ1Njc4OTA=",
			"c2VjcmV0LXRva2VuLW9m"},
		"key of a JWK": {`{"kty":"EC","d":"870MB6gfuTJ4HtUnUvYMyJpr5eUZNP4Bk43bVdj3eAE"}`, "870MB6gfuTJ4"},
	} {
		if !strings.Contains(c.text, c.secret) {
			t.Fatalf("%s: the case holds no secret", name)
		}
		got, found := s.Scrub([]byte(c.text))
		if strings.Contains(string(got), c.secret) || len(found) == 0 {
			t.Errorf("%s: %s", name, got)
		}
		if left := s.Leaks(got); len(left) > 0 {
			t.Errorf("%s: scrubbed text still has %v: %s", name, left, got)
		}
	}
}

func quote(t *testing.T, s string) string {
	t.Helper()
	raw, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// wrap is base64 in lines, as base64(1) and PEM have it.
func wrap(raw string, width int, sep string) string {
	text := base64.StdEncoding.EncodeToString([]byte(raw))
	var lines []string
	for len(text) > width {
		lines, text = append(lines, text[:width]), text[width:]
	}
	return strings.Join(append(lines, text), sep)
}

func TestAttack_T46_SecretsInWrappedBase64(t *testing.T) {
	s := bundle.NewScrubber()
	pull := `{"auths":{"registry.example.com":{"auth":"` + strings.Repeat("QWxhZGRpbjpvcGVuIHNlc2FtZQ", 12) +
		`","email":"a@example.com"}}}`
	public := strings.Repeat("nothing secret in this text at all. ", 12)
	for name, sep := range map[string]string{"plain": "\n", "in YAML": "\n    ", "on Windows": "\r\n", "in JSON": `\n`} {
		for _, width := range []int{64, 76} {
			got, _ := s.Scrub([]byte("data: |\n    " + wrap(pull, width, sep) + "\nnext: 1\n"))
			for _, line := range strings.Split(wrap(pull, width, "\n"), "\n") {
				if strings.Contains(string(got), line) {
					t.Errorf("%s, %d columns: %s stays in\n%s", name, width, line, got)
				}
			}
			if !strings.HasSuffix(string(got), "\nnext: 1\n") {
				t.Errorf("%s: what comes after is gone:\n%s", name, got)
			}
			text := "data: |\n    " + wrap(public, width, sep) + "\nnext: 1\n"
			if got, found := s.Scrub([]byte(text)); string(got) != text {
				t.Errorf("%s: a public text became (%v)\n%s", name, found, got)
			}
		}
	}
}

func TestAttack_T46_KnownSecretsHoweverTheyAreWritten(t *testing.T) {
	const token = `open "sesame"/9~x`
	pull := `{"auths":{"quay.io":{"auth":"` + base64.StdEncoding.EncodeToString([]byte("user:"+password)) + `"}}}`
	keys := `{"keys":[{"kid":"public-id-of-the-key","d":"short-part"}]}`
	s := bundle.NewScrubber(secret.New([]byte(token+"\n")), secret.New([]byte(pull)), secret.New([]byte(keys)))
	for name, text := range map[string]string{
		"plain":                 "it said " + token + "!",
		"JSON":                  quote(t, token),
		"query":                 "?x=" + url.QueryEscape(token),
		"path":                  "/x/" + url.PathEscape(token),
		"hex":                   hex.EncodeToString([]byte(token)),
		"base64":                base64.StdEncoding.EncodeToString([]byte(token)),
		"base64url":             base64.RawURLEncoding.EncodeToString([]byte(token)),
		"base64 of more":        base64.StdEncoding.EncodeToString([]byte("a" + token + "bc")),
		"gzip":                  compressed("a longer text with " + token),
		"a registry's password": "login as user with " + password,
		"a key's private part":  "short-part",
	} {
		got, found := s.Scrub([]byte(text))
		if len(found) == 0 || strings.Contains(string(got), "sesame") || strings.Contains(string(got), password) ||
			strings.Contains(string(got), "short-part") {
			t.Errorf("%s: %s", name, got)
		}
	}
	if got, found := s.Scrub([]byte("signed by public-id-of-the-key")); len(found) > 0 {
		t.Errorf("a key's id is public: %s", got)
	}
}

// A caller without proof can write such text into the log. If the time grew with the square of the length, this text
// would take several minutes.
func TestAttack_T46_TextThatRepeatsANameIsSearchedOnce(t *testing.T) {
	text := []byte(strings.Repeat("d:", 1<<20))
	done := make(chan bool, 1)
	go func() {
		scrubbed, _ := bundle.NewScrubber().Scrub(text)
		done <- bytes.Equal(scrubbed, text)
	}()
	select {
	case same := <-done:
		if !same {
			t.Error("a text without a secret was changed")
		}
	case <-time.After(time.Minute):
		t.Error("no result after a minute")
	}
}

// A caller without proof can write lines into the log that expand to much more. What is behind the bound is removed,
// because it was not searched.
func TestAttack_T46_ArchivesExpandToABound(t *testing.T) {
	const each, all = 256 << 10, 8 << 20
	archive := compressed(strings.Repeat("nothing. ", each/9+1))
	text := []byte(strings.Repeat(archive+"\n\n", 3*all/each))
	scrubbed, found := bundle.NewScrubber().Scrub(text)
	if n := bytes.Count(scrubbed, []byte(archive[:40])); n != all/each {
		t.Errorf("%d archives were kept, want %d", n, all/each)
	}
	if n := found["encoded secret"]; n != 2*all/each {
		t.Errorf("%d archives were removed, want %d", n, 2*all/each)
	}
}

func TestListOfContents_NamesWhatIsMissing(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	var out bytes.Buffer
	b := bundle.Archive(&out, "support", now, bundle.NewScrubber())
	for _, f := range []struct{ name, content string }{
		{"logs/pod.log", "Bearer " + jwt + "\nready\n"}, {"logs/pod.log", "another of the same name"},
		{"../../etc/passwd", "x"}, {"a\nb\x1b[31m.txt", "x"}, {"contents.txt", "forged"},
	} {
		if err := b.Add(f.name, []byte(f.content)); err != nil {
			t.Fatal(err)
		}
	}
	b.Missed("events", errors.New("you may not list events: token "+jwt))
	if files, removed, missed := b.Summary(); files != 5 || removed == 0 || len(missed) != 1 {
		t.Errorf("%d files, %d removed, missed %v", files, removed, missed)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	files := untar(t, out.Bytes())
	for _, want := range []string{"support/logs/pod.log", "support/logs/pod.log.2", "support/etc/passwd",
		"support/a_b_[31m.txt", "support/contents.txt.2", "support/contents.txt"} {
		if _, ok := files[want]; !ok {
			t.Errorf("no %s in %v", want, files)
		}
	}
	contents := files["support/contents.txt"]
	if !strings.Contains(contents, "logs/pod.log: ") || !strings.Contains(contents, "removed: 1") ||
		!strings.Contains(contents, "you may not list events") {
		t.Errorf("contents.txt:\n%s", contents)
	}
	for name, content := range files {
		if strings.Contains(content, jwt) {
			t.Errorf("a token in %s", name)
		}
	}
}

func TestFolder_HasTheFilesOfTheBundle(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "support")
	b, err := bundle.Folder(dir, bundle.NewScrubber())
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(b.Add("a/b.txt", []byte("x")), b.Close()); err != nil {
		t.Fatal(err)
	}
	if raw, err := os.ReadFile(filepath.Join(dir, "a", "b.txt")); err != nil || string(raw) != "x" {
		t.Errorf("%q, %v", raw, err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("others may read it: %v, %v", info.Mode(), err)
	}
	if _, err := bundle.Folder(dir, bundle.NewScrubber()); err == nil {
		t.Error("over existing files")
	}
}

func untar(t *testing.T, raw []byte) map[string]string {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[h.Name] = string(content)
	}
}

func FuzzScrub(f *testing.F) {
	f.Add([]byte(`{"auth":"dXNlcjpwYXNz","token":"` + jwt + `"}`))
	f.Add([]byte("password: \\\"\\\\\" token=[redacted"))
	f.Add([]byte("-----BEGIN PRIVATE KEY-----"))
	s := bundle.NewScrubber(secret.New([]byte("sesame-open-sesame")))
	f.Fuzz(func(t *testing.T, text []byte) {
		got, _ := s.Scrub(text)
		if bytes.Contains(got, []byte("sesame-open-sesame")) {
			t.Errorf("%q", got)
		}
		if len(got) > 64*len(text)+1024 {
			t.Errorf("%d bytes became %d", len(text), len(got))
		}
	})
}
