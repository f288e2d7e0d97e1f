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
	tail := "other: " + strings.Repeat("a", 2000) + "\n"
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
			func(f *file) {
				f.kubeconfig += "- name: unused\n  user: {}\n- name: null\n  user: null\n- name: none\n"
			}},
		{"an empty line before it", "3.2.0", func(f *file) { f.kubeconfig = "\n" + f.kubeconfig }},
		{"with more after the token than before it", "3.2.0", func(f *file) { f.kubeconfig += tail }},
		{"base64, with more after the token than before it", "3.2.0",
			func(f *file) { f.header, f.kubeconfig = "data:;base64,", f.kubeconfig+tail }},
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
		{"a file that is cut off", func(f *file) {
			all := packed([]byte(kubeconfig))
			f.compression, f.source = "gzip", "data:;base64,"+base64.StdEncoding.EncodeToString(all[:len(all)-1])
		}, "decompressed"},
		{"something appended, in 2.x", func(f *file) { f.members = `, "append": true` }, "appended"},
		{"something appended, in 3.x", func(f *file) { f.members = `, "append": [{"source": "data:,x"}]` }, "appended"},
		{"an appended list after an empty one", func(f *file) {
			f.members = `, "append": [], "append": [{"source": "data:,x"}]`
		}, "twice"},
		{"a filesystem that is a number", func(f *file) { f.members = `, "filesystem": 1` }, "filesystem is not a string"},
		{"another filesystem", func(f *file) { f.members = `, "filesystem": "data"` }, "filesystem"},
		{"contents twice", func(f *file) { f.members = `, "contents": {}` }, "twice"},
		{"contents twice, in capitals", func(f *file) { f.members = `, "CONTENTS": {}` }, "twice"},
		{"the path twice", func(f *file) { f.members = `, "path": "/etc/other"` }, "twice"},
		{"no YAML", func(f *file) { f.kubeconfig = "\t{" }, "not YAML"},
		{"nothing", func(f *file) { f.source = "data:," }, "not YAML"},
		{"two documents", func(f *file) { f.kubeconfig += "---\na: 1\n" }, "more than one document"},
		{"UTF-16", func(f *file) {
			f.kubeconfig = "\xff\xfe" + strings.Join(strings.Split(f.kubeconfig, ""), "\x00") + "\x00"
		}, "not plain UTF-8"},
		{"a byte order mark", func(f *file) { f.kubeconfig = "\ufeff" + f.kubeconfig }, "UTF-8"},
		{"no token", replace("token: "+shared, "{}"), "no token"},
		{"an empty token", replace(shared, `""`), "no token"},
		{"a token that is a number", replace(shared, digits), "no token"},
		{"a token that is a list", replace(shared, "[a]"), "no token"},
		{"a token that is an object", replace(shared, "{a: b}"), "no token"},
		{"a token of two words", replace(shared, shared+"\n      more"), "no token"},
		{"the token twice", replace("    token:", "    token: other\n    token:"), "ambiguous"},
		{"the token in capitals", replace("    token:", "    Token:"), "ambiguous"},
		{"the users twice", func(f *file) { f.kubeconfig += "users: []\n" }, "ambiguous"},
		{"the token by reference", func(f *file) {
			f.kubeconfig = "x: &t abc\n" + strings.Replace(f.kubeconfig, shared, "*t", 1)
		}, ""},
		{"the user by reference", func(f *file) {
			f.kubeconfig = "x: &u {password: a}\n" + strings.Replace(f.kubeconfig, "    token", "    <<: *u\n    token", 1)
		}, ""},
		{"a merged user", replace("    token", "    <<: {password: a}\n    token"), ""},
		{"a merged context", replace("    user: kubelet", "    <<: {user: other}\n    user: kubelet"), "it has references"},
		{"the current context by reference", func(f *file) {
			f.kubeconfig = "x: &c kubelet\n" + strings.Replace(f.kubeconfig, "text: kubelet", "text: *c", 1)
		}, "it has references"},
		{"a name that is a list", func(f *file) { f.kubeconfig += "? [a]\n: b\n" }, "it has references"},
		{"a token behind a tag", replace(shared, "!!str "+shared), "cannot be located"},
		{"a token in a block", replace(shared, "|-\n      "+shared), "cannot be located"},
		{"an escape in the token", replace(shared, `"\x61"`), "cannot be located"},
		{"another user's token", func(f *file) { f.kubeconfig += "- name: other\n  user: {token: " + own + "}\n" },
			"has a token"},
		{"another user's certificate", func(f *file) { f.kubeconfig += "- name: other\n  user: {client-key-data: a2V5}\n" },
			"client-key-data"},
		{"another user's token in capitals", func(f *file) {
			f.kubeconfig += "- name: other\n  user: {Token: " + own + "}\n"
		}, "token is ambiguous"},
		{"another user's token behind a tag", func(f *file) {
			f.kubeconfig += "- name: other\n  user: !!null {token: " + own + "}\n"
		}, "has a token"},
		{"another user's program in capitals", func(f *file) { f.kubeconfig += "- name: other\n  user: {EXEC: {}}\n" },
			"exec is ambiguous"},
		{"another user that is a text", func(f *file) { f.kubeconfig += "- name: other\n  user: x\n" },
			"the parent of tokenFile is not an object"},
		{"another user that is a list", func(f *file) { f.kubeconfig += "- name: other\n  user: [token, x]\n" },
			"the parent of tokenFile is not an object"},
		{"an entry of users that is a text", func(f *file) { f.kubeconfig += "- x\n" },
			"the parent of user is not an object"},
		{"a file beside the token", replace("    token:", "    tokenFile: /run/token\n    token:"), "tokenFile"},
		{"a program beside the token", replace("    token:", "    exec: {command: a}\n    token:"), "exec"},
		{"a user of the same name", func(f *file) { f.kubeconfig += "- name: kubelet\n  user: {}\n" }, "same name"},
		{"the current context twice", func(f *file) { f.kubeconfig += "current-context: kubelet\n" },
			"current-context is ambiguous"},
		{"an empty current context", replace("current-context: kubelet", `current-context: ""`), "no current-context"},
		{"a current context that is a list", replace("current-context: kubelet", "current-context: [kubelet]"),
			"no current-context"},
		{"no contexts", replace("contexts:", "other:"), "no list contexts"},
		{"contexts that are an object", replace("contexts:", "contexts: {}\nother:"), "no list contexts"},
		{"a context twice", replace("  name: kubelet\ncurrent", "  name: kubelet\n  context: {}\ncurrent"),
			"context is ambiguous"},
		{"a context of the same name without content", replace("contexts:\n", "contexts:\n- name: kubelet\n"),
			"not in contexts"},
		{"a line break that only YAML has", func(f *file) {
			raw, err := yaml.YAMLToJSON([]byte(kubeconfig))
			if err != nil {
				t.Fatal(err)
			}
			// The comment has the token in the column that it has in the next line.
			column := bytes.Index(raw, []byte(shared)) - 1
			f.kubeconfig = "#" + strings.Repeat(" ", column-1) + `"` + shared + `"` + "\r" + string(raw)
		}, "cannot be located"},
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

func TestFind_RejectsContentsOfAnotherType(t *testing.T) {
	source := `"source": "data:,` + dataurl.EscapeString(kubeconfig) + `"`
	for _, c := range []struct{ name, contents, want string }{
		{"a source that is a number", `"source": 1`, "source is not a string"},
		{"a source that is a list", `"source": ["data:,"]`, "source is not a string"},
		{"the source twice", source + ", " + source, `"source" occurs twice`},
		{"a compression that is a number", source + `, "compression": 1`, "compression is not a string"},
		{"the verification twice", source + `, "verification": {}, "verification": {}`, `"verification" occurs twice`},
		{"a hash that is a number", source + `, "verification": {"hash": 1}`, "hash is not a string"},
		{"a hash function that is unknown", source + `, "verification": {"hash": "md5-00"}`, "hash does not match"},
	} {
		slot, err := credential.Find(config("3.2.0", `{"path": "/etc/kubernetes/kubeconfig", "contents": {`+c.contents+`}}`))
		if err == nil || slot != nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, %v; want %q", c.name, slot, err, c.want)
		}
	}
}

// With each of these characters, two decoders of data URLs can read different files.
func TestFind_RejectsDataURLsThatDecodersCanReadDifferently(t *testing.T) {
	plain, encoded := dataurl.EscapeString(kubeconfig), base64.StdEncoding.EncodeToString([]byte(kubeconfig))
	for _, source := range []string{"data:," + plain, "data:text/plain," + plain, "DATA:;base64," + encoded} {
		if slot, err := findSource(t, source); err != nil || slot == nil {
			t.Fatalf("%.20q: %v, %v", source, slot, err)
		}
	}
	for name, source := range map[string]string{
		"only the scheme":                   "data:",
		"a space in the type":               "data:text /plain," + plain,
		"a tab in the type":                 "data:text\t/plain," + plain,
		"a delete character in the type":    "data:text\x7f/plain," + plain,
		"a letter beyond ASCII in the type": "data:text/\u00e9," + plain,
		"a quote in the type":               `data:text/"plain",` + plain,
		"a backslash in the type":           `data:text\plain,` + plain,
		"a line feed in base64":             "data:;base64," + encoded[:40] + "\n" + encoded[40:],
		"a carriage return in base64":       "data:;base64," + encoded[:40] + "\r" + encoded[40:],
		"a line feed":                       "data:,%23\n" + plain,
		"a space":                           "data:,%23 %0A" + plain,
		"a delete character":                "data:,%23\x7f%0A" + plain,
		"a letter beyond ASCII":             "data:,%23\u00e9%0A" + plain,
		"a query":                           "data:,%23?%0A" + plain,
		"an escape of other letters":        "data:,%23%0g%0A" + plain,
		"an escape of a sign":               "data:,%23%-1%0A" + plain,
	} {
		slot, err := findSource(t, source)
		if err == nil || slot != nil || !strings.Contains(err.Error(), "its data URL cannot be decoded") {
			t.Errorf("%s: %v, %v", name, slot, err)
		}
	}
}

func findSource(t *testing.T, source string) (*credential.Slot, error) {
	t.Helper()
	raw, err := json.Marshal(source)
	if err != nil {
		t.Fatal(err)
	}
	return credential.Find(config("3.2.0", `{"path": "/etc/kubernetes/kubeconfig", "contents": {"source": `+string(raw)+`}}`))
}

func TestFind_AcceptsOneMebibyte(t *testing.T) {
	for _, compression := range []string{"", "gzip"} {
		f := honest()
		f.header, f.compression = "data:;base64,", compression
		f.kubeconfig += "#" + strings.Repeat("a", 1048576-len(kubeconfig)-1)
		if slot, err := credential.Find(config("3.2.0", f.String())); err != nil || slot == nil {
			t.Errorf("compression %q: %v, %v", compression, slot, err)
		}
		f.kubeconfig += "a"
		slot, err := credential.Find(config("3.2.0", f.String()))
		if err == nil || slot != nil || !strings.Contains(err.Error(), "it has more than 1048576 bytes") {
			t.Errorf("compression %q, one more byte: %v, %v", compression, slot, err)
		}
	}
}

func TestWith_AcceptsTokensOfOnlyTheseCharacters(t *testing.T) {
	const accepted = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~+/="
	before := config("3.2.0", honest().String())
	slot, err := credential.Find(before)
	if err != nil {
		t.Fatal(err)
	}
	for c := range 256 {
		token := "a" + string([]byte{byte(c)})
		_, err := slot.With(before, secret.New([]byte(token)))
		if ok := strings.IndexByte(accepted, byte(c)) >= 0; ok != (err == nil) {
			t.Errorf("%q: %v", token, err)
		} else if !ok && err.Error() != "the token contains invalid characters" {
			t.Errorf("%q: %v", token, err)
		}
	}
	exchanged(t, before, accepted)
}

func TestWith_AcceptsATokenOf16KiB(t *testing.T) {
	for _, header := range []string{"data:,", "data:;base64,"} {
		f := honest()
		f.header = header
		before := config("3.2.0", f.String())
		exchanged(t, before, strings.Repeat("a", 16384))
		slot, err := credential.Find(before)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := slot.With(before, secret.New(bytes.Repeat([]byte("a"), 16385))); err == nil {
			t.Errorf("%s: a token of 16385 bytes is accepted", header)
		}
	}
}

// A machine's config must not differ from that of the Machine Config Server in more than the token.
func TestEscape_LeavesOnlyUnreservedCharacters(t *testing.T) {
	const unreserved = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"
	for c := range 256 {
		want := fmt.Sprintf("x%%%02X", c)
		if strings.IndexByte(unreserved, byte(c)) >= 0 {
			want = "x" + string(rune(c))
		}
		if got := string(credential.Escape([]byte("x"), []byte{byte(c)})); got != want {
			t.Errorf("byte 0x%02x: got %q, want %q", c, got, want)
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
