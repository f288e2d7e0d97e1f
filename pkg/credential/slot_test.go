// SPDX-License-Identifier: Apache-2.0

package credential_test

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"path"
	"reflect"
	"strings"
	"testing"

	"github.com/vincent-petithory/dataurl"
	"sigs.k8s.io/yaml"

	"github.com/mcs-attest/mcs-attest/pkg/credential"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
)

const (
	shared = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJzaGFyZWQifQ.c2hhcmVk_c2ln-bmF0dXJl"
	own    = "eyJhbGciOiJSUzI1NiJ9.eyJqdGkiOiJvd24ifQ.b3du"
	digits = "123456.7890123456789012" // a bootstrap token that is a number to YAML
)

// kubeconfig is the file as the Machine Config Server writes it.
const kubeconfig = `apiVersion: v1
clusters:
- cluster:
    certificate-authority-data: Q0E=
    server: https://api-int.example.com:6443
  name: local
contexts:
- context:
    cluster: local
    user: kubelet
  name: kubelet
current-context: kubelet
kind: Config
preferences: {}
users:
- name: kubelet
  user:
    token: ` + shared + `
`

// file is the entry of the kubeconfig in a config.
type file struct {
	header, compression, hash string // hash is the algorithm
	kubeconfig                string
	members                   string // more members of the entry
	path                      string
	source                    string // replaces that of the kubeconfig
}

func (f file) String() string {
	raw := []byte(f.kubeconfig)
	verification := ""
	switch f.hash {
	case "sha512":
		s := sha512.Sum512(raw)
		verification = `, "verification": {"hash": "sha512-` + hex.EncodeToString(s[:]) + `"}`
	case "sha256":
		s := sha256.Sum256(raw)
		verification = `, "verification": {"hash": "sha256-` + hex.EncodeToString(s[:]) + `"}`
	case "wrong":
		verification = `, "verification": {"hash": "sha256-` + strings.Repeat("ab", 32) + `"}`
	}
	compression := ""
	if f.compression != "" {
		compression = `"compression": "` + f.compression + `", `
	}
	if f.compression == "gzip" {
		raw = packed(raw)
	}
	source := f.source
	if source == "" {
		source = f.header + dataurl.Escape(raw)
		if strings.HasSuffix(f.header, "base64,") {
			source = f.header + base64.StdEncoding.EncodeToString(raw)
		}
	}
	return fmt.Sprintf(`{"path": %q, "mode": 420%s, "contents": {%s"source": %q%s}}`, f.path, f.members, compression,
		source, verification)
}

func packed(raw []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, _ = w.Write(raw)
	_ = w.Close()
	return out.Bytes()
}

func honest() file {
	return file{header: "data:,", kubeconfig: kubeconfig, path: credential.Path}
}

// config returns a config with this file among others.
func config(version string, entries ...string) []byte {
	files := append([]string{`{"path": "/etc/hostname", "contents": {"source": "data:,a"}}`}, entries...)
	files = append(files, `{"path": "/etc/last", "contents": {"source": "data:,z"}}`)
	return []byte(`{"ignition": {"version": "` + version + `"}, "storage": {"files": [` + strings.Join(files, ", ") +
		`]}, "systemd": {"units": [{"name": "a.service"}]}} ` + "\n")
}

// read returns the kubeconfig as Ignition would write it.
func read(t testing.TB, config []byte) []byte {
	t.Helper()
	var c struct {
		Storage struct {
			Files []struct {
				Path     string
				Contents struct {
					Source, Compression string
					Verification        struct{ Hash string }
				}
			}
		}
	}
	if err := json.Unmarshal(config, &c); err != nil {
		t.Fatal(err)
	}
	for _, f := range c.Storage.Files {
		if path.Clean(f.Path) != credential.Path {
			continue
		}
		u, err := url.Parse(f.Contents.Source)
		if err != nil {
			t.Fatal(err)
		}
		d, err := dataurl.DecodeString(u.String())
		if err != nil {
			t.Fatal(err)
		}
		raw := d.Data
		if f.Contents.Compression == "gzip" {
			r, err := gzip.NewReader(bytes.NewReader(raw))
			if err != nil {
				t.Fatal(err)
			}
			if raw, err = io.ReadAll(r); err != nil {
				t.Fatal(err)
			}
		}
		if name, want, ok := strings.Cut(f.Contents.Verification.Hash, "-"); ok {
			a, b := sha512.Sum512(raw), sha256.Sum256(raw)
			if have := map[string][]byte{"sha512": a[:], "sha256": b[:]}[name]; hex.EncodeToString(have) != want {
				t.Fatalf("%s-%s is not the hash of the file", name, want)
			}
		}
		return raw
	}
	t.Fatal("no kubeconfig in the config")
	return nil
}

// object returns a kubeconfig as the kubelet parses it.
func object(t testing.TB, raw []byte) (o map[string]any) {
	t.Helper()
	if err := yaml.Unmarshal(raw, &o); err != nil {
		t.Fatalf("%v\n%s", err, raw)
	}
	return o
}

// current returns the user of the current context.
func current(t testing.TB, o map[string]any) map[string]any {
	t.Helper()
	find := func(list, kind string, name any) map[string]any {
		for _, e := range o[list].([]any) {
			if e := e.(map[string]any); e["name"] == name {
				return e[kind].(map[string]any)
			}
		}
		t.Fatalf("no %v in %s", name, list)
		return nil
	}
	return find("users", "user", find("contexts", "context", o["current-context"])["user"])
}

// exchanged checks all guarantees of With, and of Without if token is empty.
func exchanged(t testing.TB, before []byte, token string) []byte {
	t.Helper()
	kept := bytes.Clone(before)
	slot, err := credential.Find(before)
	if err != nil || slot == nil {
		t.Fatalf("Find: %v, %v", slot, err)
	}
	parts, err := slot.With(before, secret.New([]byte(token)))
	if token == "" {
		parts, err = slot.Without(before)
	}
	if err != nil {
		t.Fatalf("With: %v", err)
	}
	if len(parts) != 3 {
		t.Fatalf("%d parts", len(parts))
	}
	if len(parts[0]) == 0 || len(parts[2]) == 0 || &parts[0][0] != &before[0] ||
		&parts[2][0] != &before[len(before)-len(parts[2])] {
		t.Error("the first and the last part are no longer the config's own bytes")
	}
	after := bytes.Join(parts, nil)
	if !bytes.Equal(before, kept) {
		t.Fatal("the config itself was written to")
	}
	// Compare the config without this file, and the file without this token.
	was, is := read(t, before), read(t, after)
	if a, b := without(t, before), without(t, after); !reflect.DeepEqual(a, b) {
		t.Errorf("more than one file changed:\n%v\n%v", a, b)
	}
	a, b := object(t, was), object(t, is)
	if current(t, b)["token"] != token {
		t.Errorf("the kubelet's token is now %v", current(t, b)["token"])
	}
	old, _ := current(t, a)["token"].(string)
	current(t, a)["token"] = token
	if !reflect.DeepEqual(a, b) {
		t.Errorf("more than the token changed:\n%s\n%s", was, is)
	}
	if old != token && len(old) > 8 && bytes.Contains(is, []byte(old)) {
		t.Error("the shared token is still there")
	}
	return after
}

// without returns a config without the parts that may change.
func without(t testing.TB, config []byte) (o map[string]any) {
	t.Helper()
	if err := json.Unmarshal(config, &o); err != nil {
		t.Fatal(err)
	}
	storage, _ := o["storage"].(map[string]any)
	files, _ := storage["files"].([]any)
	for _, f := range files {
		f := f.(map[string]any)
		if p, _ := f["path"].(string); path.Clean(p) == credential.Path {
			contents := f["contents"].(map[string]any)
			contents["source"] = ""
			if v, ok := contents["verification"].(map[string]any); ok {
				v["hash"] = ""
			}
		}
	}
	return o
}

func TestWith_ChangesOnlyTheTokenOfTheKubeconfig(t *testing.T) {
	for _, c := range []struct {
		name, version string
		change        func(*file)
	}{
		{"as the Machine Config Server writes it", "3.5.0", func(*file) {}},
		{"in the oldest specification", "2.2.0", func(f *file) { f.members = `, "filesystem": "root", "append": false` }},
		{"in the newest", "3.6.0", func(f *file) { f.members = `, "overwrite": true, "append": []` }},
		{"in base64", "3.2.0", func(f *file) { f.header = "data:;base64," }},
		{"with a media type", "3.2.0", func(f *file) { f.header = "data:text/plain;charset=utf-8;base64," }},
		{"with a media type and no base64", "3.2.0", func(f *file) { f.header = "data:text/plain;charset=utf-8," }},
		{"compressed", "3.2.0", func(f *file) { f.header, f.compression = "data:;base64,", "gzip" }},
		{"compressed, without base64", "3.2.0", func(f *file) { f.compression = "gzip" }},
		{"with a hash", "3.2.0", func(f *file) { f.hash = "sha512" }},
		{"with another hash", "3.2.0", func(f *file) { f.hash = "sha256" }},
		{"compressed, with a hash", "3.2.0",
			func(f *file) { f.header, f.compression, f.hash = "data:;base64,", "gzip", "sha512" }},
		{"the hash before the contents", "3.2.0", func(f *file) {
			f.members, f.hash = `, "note": 1`, "sha512"
		}},
		{"a path that is not clean", "3.2.0", func(f *file) { f.path = "/etc//kubernetes/./kubeconfig" }},
		{"the token in double quotes", "3.2.0",
			func(f *file) { f.kubeconfig = strings.Replace(kubeconfig, shared, `"`+shared+`"`, 1) }},
		{"the token in single quotes", "3.2.0",
			func(f *file) { f.kubeconfig = strings.Replace(kubeconfig, shared, `'`+shared+`' # ours`, 1) }},
		{"a kubeconfig in JSON", "3.2.0", func(f *file) {
			raw, err := yaml.YAMLToJSON([]byte(kubeconfig))
			if err != nil {
				t.Fatal(err)
			}
			f.kubeconfig = string(raw)
		}},
		{"with what is not ASCII before it", "3.2.0", func(f *file) {
			f.kubeconfig = strings.Replace(kubeconfig, "- name: kubelet\n  user:\n    token: "+shared,
				"- {name: kubelet, user: {ä: \"ö\U0001F512\", token: "+shared+"}}", 1)
		}},
		{"with the lines of another system", "3.2.0",
			func(f *file) { f.kubeconfig = strings.ReplaceAll(kubeconfig, "\n", "\r\n") }},
		{"a user without any credential beside it", "3.2.0",
			func(f *file) { f.kubeconfig += "- name: unused\n  user: {}\n- name: none\n" }},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := honest()
			c.change(&f)
			before := config(c.version, f.String())
			for _, token := range []string{own, digits, "true"} {
				after := exchanged(t, before, token)
				exchanged(t, after, shared) // and again, as a second gate in a chain does
			}
			exchanged(t, before, "")
		})
	}
}

func TestWith_AcceptsTheHashBeforeTheSource(t *testing.T) {
	f := honest()
	f.hash = "sha256"
	var entry map[string]any
	if err := json.Unmarshal([]byte(f.String()), &entry); err != nil {
		t.Fatal(err)
	}
	contents := entry["contents"].(map[string]any)
	raw := fmt.Sprintf(`{"path": %q, "contents": {"verification": {"hash": %q}, "source": %q}}`, f.path,
		contents["verification"].(map[string]any)["hash"], contents["source"])
	exchanged(t, config("3.2.0", raw), own)
}

func TestFind_ReturnsNilWithoutAKubeconfig(t *testing.T) {
	for _, c := range []struct{ name, config string }{
		{"other files", string(config("3.2.0"))},
		{"no storage", `{"ignition": {"version": "3.2.0"}}`},
		{"null on the way", `{"storage": null}`},
		{"null files", `{"storage": {"files": null}}`},
		{"a file without a path", `{"storage": {"files": [{}]}}`},
		{"the path elsewhere", `{"storage": {"directories": [{"path": "/etc/kubernetes/kubeconfig"}]}, "files": [{"path": "/etc/kubernetes/kubeconfig"}]}`},
		{"a longer path", string(config("3.2.0", `{"path": "/etc/kubernetes/kubeconfig.d"}`))},
	} {
		if slot, err := credential.Find([]byte(c.config)); slot != nil || err != nil {
			t.Errorf("%s: %v, %v", c.name, slot, err)
		}
	}
}

// Each case is the honest file with one change. A config whose token cannot be replaced must
// be an error, because otherwise the shared credential would be served.
func TestFind_RejectsUnsupportedConfigs(t *testing.T) {
	replace := func(old, new string) func(*file) {
		return func(f *file) {
			if !strings.Contains(f.kubeconfig, old) {
				t.Fatalf("no %q to replace", old)
			}
			f.kubeconfig = strings.Replace(f.kubeconfig, old, new, 1)
		}
	}
	for _, c := range []struct {
		name   string
		change func(*file)
		want   string
	}{
		{"a source elsewhere", func(f *file) { f.source = "https://example.com/kubeconfig" }, "not a data URL"},
		{"a source without a comma", func(f *file) { f.source = "data:text" }, "cannot be decoded"},
		{"no source", func(f *file) { f.source = " " }, "not a data URL"},
		{"quotes in the data URL's type", func(f *file) { f.source = `data:text/plain;a="x,y",z` }, "cannot be decoded"},
		{"base64 that is none", func(f *file) { f.source = "data:;base64,!!" }, "cannot be decoded"},
		{"half an escape", func(f *file) { f.source = "data:,%4" }, "cannot be decoded"},
		{"a fragment", func(f *file) { f.source = "data:,a#b" }, "cannot be decoded"},
		{"a compression that is not known", func(f *file) { f.compression = "xz" }, "compression"},
		{"not compressed at all", func(f *file) { f.compression, f.source = "gzip", "data:,plain" }, "decompressed"},
		{"a hash of something else", func(f *file) { f.hash = "wrong" }, "hash"},
		{"something appended, in 2.x", func(f *file) { f.members = `, "append": true` }, "appended"},
		{"something appended, in 3.x", func(f *file) { f.members = `, "append": [{"source": "data:,x"}]` }, "appended"},
		{"another filesystem", func(f *file) { f.members = `, "filesystem": "data"` }, "filesystem"},
		{"contents twice", func(f *file) { f.members = `, "contents": {}` }, "twice"},
		{"contents twice, in capitals", func(f *file) { f.members = `, "CONTENTS": {}` }, "twice"},
		{"the path twice", func(f *file) { f.members = `, "path": "/etc/other"` }, "twice"},
		{"no YAML", func(f *file) { f.kubeconfig = "\t{" }, "not YAML"},
		{"nothing", func(f *file) { f.source = "data:," }, "not YAML"},
		{"two documents", func(f *file) { f.kubeconfig += "---\na: 1\n" }, "more than one document"},
		{"a byte order mark", func(f *file) { f.kubeconfig = "\ufeff" + f.kubeconfig }, "UTF-8"},
		{"no token", replace("token: "+shared, "{}"), "no token"},
		{"an empty token", replace(shared, `""`), "no token"},
		{"a token that is a number", replace(shared, digits), "no token"},
		{"a token that is a list", replace(shared, "[a]"), "no token"},
		{"a token of two words", replace(shared, shared+"\n      more"), "no token"},
		{"the token twice", replace("    token:", "    token: other\n    token:"), "ambiguous"},
		{"the token in capitals", replace("    token:", "    Token:"), "ambiguous"},
		{"the users twice", func(f *file) { f.kubeconfig += "users: []\n" }, "ambiguous"},
		{"the token by reference", replace("token: "+shared, "token: *t"), ""},
		{"the user by reference", replace("user:\n    token", "user: &u\n    <<: *u\n    token"), ""},
		{"a token behind a tag", replace(shared, "!!str "+shared), "cannot be located"},
		{"a token in a block", replace(shared, "|-\n      "+shared), "cannot be located"},
		{"an escape in the token", replace(shared, `"\x61"`), "cannot be located"},
		{"another user's token", func(f *file) { f.kubeconfig += "- name: other\n  user: {token: " + own + "}\n" },
			"has a token"},
		{"another user's certificate", func(f *file) { f.kubeconfig += "- name: other\n  user: {client-key-data: a2V5}\n" },
			"client-key-data"},
		{"a file beside the token", replace("    token:", "    tokenFile: /run/token\n    token:"), "tokenFile"},
		{"a program beside the token", replace("    token:", "    exec: {command: a}\n    token:"), "exec"},
		{"a user of the same name", func(f *file) { f.kubeconfig += "- name: kubelet\n  user: {}\n" }, "same name"},
		{"no current context", replace("current-context: kubelet\n", ""), "current-context"},
		{"a current context that does not exist", replace("current-context: kubelet", "current-context: other"), "contexts"},
		{"a context of another user", replace("user: kubelet", "user: other"), "users"},
		{"a context without a user", replace("    user: kubelet\n", ""), "no user"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := honest()
			c.change(&f)
			slot, err := credential.Find(config("3.2.0", f.String()))
			if err == nil || slot != nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("%v, %v; want %q", slot, err, c.want)
			}
			if strings.Contains(err.Error(), shared) || strings.Contains(err.Error(), own) {
				t.Errorf("a secret in the error: %v", err)
			}
		})
	}
	for name, raw := range map[string]string{
		"two of the files":       string(config("3.2.0", honest().String(), honest().String())),
		"two, one not clean":     string(config("3.2.0", honest().String(), `{"path": "/etc/kubernetes//kubeconfig"}`)),
		"storage twice":          `{"storage": {}, "storage": {"files": []}}`,
		"files twice":            `{"storage": {"files": [], "Files": []}}`,
		"a letter that folds":    `{"storage": {}, "ſtorage": {"files": []}}`,
		"no JSON":                `{"storage": `,
		"nothing":                ``,
		"a file without content": string(config("3.2.0", `{"path": "/etc/kubernetes/kubeconfig"}`)),
		"null contents":          string(config("3.2.0", `{"path": "/etc/kubernetes/kubeconfig", "contents": null}`)),
		"a number for a source": string(config("3.2.0",
			`{"path": "/etc/kubernetes/kubeconfig", "contents": {"source": 1}}`)),
	} {
		if slot, err := credential.Find([]byte(raw)); err == nil || slot != nil {
			t.Errorf("%s: %v, %v", name, slot, err)
		}
	}
}

func TestWith_RejectsAnotherConfig(t *testing.T) {
	before := config("3.2.0", honest().String())
	slot, err := credential.Find(before)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := slot.With(before, secret.New([]byte(own))); err != nil {
		t.Fatal(err)
	}
	other := bytes.Clone(before)
	other[bytes.Index(other, []byte("apiVersion"))]++
	for name, c := range map[string]struct {
		config []byte
		token  string
	}{
		"a config of another length":   {append(bytes.Clone(before), ' '), own},
		"another config":               {other, own},
		"no token":                     {before, ""},
		"a token that ends the string": {before, "a\"\n"},
		"a token of two lines":         {before, "a\nb"},
		"a token without an end":       {before, strings.Repeat("a", 20<<10)},
	} {
		if parts, err := slot.With(c.config, secret.New([]byte(c.token))); err == nil || parts != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		if out := fmt.Sprintf(verb, slot); strings.Contains(out, shared) || strings.Contains(out, url.QueryEscape(shared)) {
			t.Errorf("%s prints the token", verb)
		}
	}
}
