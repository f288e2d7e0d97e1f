// SPDX-License-Identifier: Apache-2.0

package convert_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	ignition "github.com/coreos/ignition/v2/config"
	"github.com/coreos/ignition/v2/config/v3_5"
	"github.com/coreos/ignition/v2/config/v3_5/types"

	"github.com/mcs-attest/mcs-attest/pkg/specversion"
	"github.com/mcs-attest/mcs-attest/pkg/specversion/convert"
)

var update = flag.Bool("update", false, "update the golden files")

// node has all kinds of content of MachineConfigs that every version supports.
const node = `{
  "ignition": {"version": "3.5.0",
    "timeouts": {"httpTotal": 30},
    "security": {"tls": {"certificateAuthorities": [{"source": "data:,a%20CA"}]}}},
  "passwd": {
    "groups": [{"name": "pods", "gid": 4000, "shouldExist": true}],
    "users": [{"name": "core", "passwordHash": "", "groups": ["wheel"],
      "sshAuthorizedKeys": ["ssh-ed25519 AAAA"], "shouldExist": true, "uid": 1000}]},
  "storage": {
    "disks": [{"device": "/dev/vdb", "wipeTable": true}],
    "raid": [{"name": "data", "level": "raid1", "devices": ["/dev/vdc", "/dev/vdd"], "options": ["--name=x"]}],
    "filesystems": [
      {"device": "/dev/vdb", "path": "/var", "format": "xfs",
       "label": "VAR", "wipeFilesystem": true, "options": ["-f"]},
      {"device": "/dev/md/data", "path": "/var/lib", "format": "ext4"},
      {"device": "/dev/vde", "format": "swap"}],
    "directories": [{"path": "/etc/a", "mode": 448, "user": {"name": "core"}}, {"path": "/opt/one/two"}],
    "files": [
      {"path": "/etc/plain", "contents": {"source": "data:,plain%20%26%20simple%0A"}, "mode": 420, "overwrite": true},
      {"path": "/etc/unset",
       "contents": {"source": "data:text/plain;charset=utf-8;base64,dW5zZXQK", "compression": ""}},
      {"path": "/etc/empty", "contents": {"source": ""}, "mode": 0},
      {"path": "/etc/hash", "contents": {"source": "https://x.example/", "compression": "gzip", "verification": {"hash": "sha512-00000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"}}, "user": {"id": 0}, "group": {"id": 12}},
      {"path": "/etc/both", "overwrite": true, "contents": {"source": "data:,one"},
       "append": [{"source": "data:,two"}, {"source": "data:,three"}]},
      {"path": "/etc/append", "append": [{"source": "data:,more"}]},
      {"path": "/var/on-var", "contents": {"source": "data:,v"}},
      {"path": "/var/lib/on-data", "contents": {"source": "data:,d"}},
      {"path": "/variable", "contents": {"source": "data:,on%20the%20root%20file%20system"}}],
    "links": [{"path": "/etc/l", "target": "plain", "hard": false},
              {"path": "/var/l", "target": "/etc/plain", "overwrite": true}]},
  "systemd": {"units": [
    {"name": "kubelet.service", "enabled": true,
     "contents": "[Service]\nExecStart=/bin/kubelet <&>\n[Install]\nWantedBy=multi-user.target\n",
     "dropins": [{"name": "10-a.conf", "contents": "[Service]\n"}, {"name": "20-b.conf"}]},
    {"name": "off.service", "enabled": false, "mask": true},
    {"name": "as-it-is.service"}]}
}`

func parse(t testing.TB, raw string) types.Config {
	t.Helper()
	c, r, err := v3_5.Parse([]byte(raw))
	if err != nil {
		t.Fatalf("%v: %s", err, r.String())
	}
	return c
}

func version(major, minor int) specversion.Version {
	return specversion.Version{Major: major, Minor: minor}
}

// all are the served versions.
var all = []specversion.Version{version(2, 2), version(3, 0), version(3, 1), version(3, 2), version(3, 3),
	version(3, 4), version(3, 5)}

// edited returns the config node with an overlay merged into it.
func edited(t testing.TB, overlay string) types.Config {
	t.Helper()
	child := parse(t, `{"ignition":{"version":"3.5.0"},`+overlay+`}`)
	return v3_5.Merge(parse(t, node), child)
}

func TestConfig_IsEquivalentInEveryVersion(t *testing.T) {
	want := meaning(t, parse(t, node))
	for _, v := range all {
		t.Run(v.String(), func(t *testing.T) {
			out, err := convert.From35(parse(t, node), v)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := specversion.Of(out); err != nil || got != v {
				t.Fatalf("it is of version %s, %v", got, err)
			}
			if v.Major == 2 {
				return
			}
			c, r, err := ignition.Parse(out)
			if err != nil || len(r.Entries) > 0 {
				t.Fatalf("Ignition does not take it without a word: %v: %s", err, r.String())
			}
			c.Ignition.Version = "3.5.0"
			back, err := json.Marshal(c)
			if err != nil {
				t.Fatal(err)
			}
			if got := meaning(t, parse(t, string(back))); got != want {
				t.Errorf("it means\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// meaning returns a config as JSON without members that have no effect.
func meaning(t testing.TB, c types.Config) string {
	t.Helper()
	for i := range c.Passwd.Users {
		c.Passwd.Users[i].ShouldExist = nil
	}
	for i := range c.Passwd.Groups {
		c.Passwd.Groups[i].ShouldExist = nil
	}
	raw, err := json.MarshalIndent(c, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// 2.2 has no parser here, so the golden file was reviewed by hand.
func TestGolden(t *testing.T) {
	for _, v := range all {
		out, err := convert.From35(parse(t, node), v)
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if err := json.Indent(&b, out, "", "  "); err != nil {
			t.Fatal(err)
		}
		b.WriteByte('\n')
		file := "testdata/" + v.String() + ".golden.json"
		if *update {
			if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(b.Bytes(), want) {
			t.Errorf("%s: differs; -update shows how\n%s", file, b.Bytes())
		}
	}
}

func TestFrom35_NamesTheFieldThatAVersionLacks(t *testing.T) {
	v30, v31, v32, v33, v34, v35 := version(3, 0), version(3, 1), version(3, 2), version(3, 3), version(3, 4),
		version(3, 5)
	disk := func(partition string) string {
		return `"storage":{"disks":[{"device":"/dev/vdb","partitions":[{"number":1,` + partition + `}]}]}`
	}
	luks := func(more string) string {
		return `"storage":{"luks":[{"name":"data","device":"/dev/vdx"` + more + `}]}`
	}
	for _, c := range []struct {
		name, overlay string
		since         specversion.Version // the oldest that has it
		says          string              // the error, in earlier versions
	}{
		{"what every version has", `"storage":{}`, version(2, 2), ""},
		{"a Crypto Express card", luks(`,"cex":{"enabled":true}`), v35, "storage.luks[data].cex: spec|storage.luks: spec"},
		{"discard", luks(`,"discard":true`), v34, "storage.luks[data].discard: spec|storage.luks: spec"},
		{"options to open a volume with", luks(`,"openOptions":["--x"]`), v34,
			"storage.luks[data].openOptions: spec|storage.luks: spec"},
		{"Tang without its server",
			luks(`,"clevis":{"tang":[{"url":"https://t.example","thumbprint":"T","advertisement":"{}"}]}`),
			v34, "storage.luks[data].clevis.tang[0].advertisement: spec|storage.luks: spec"},
		{"an access point of S3", `"storage":{"files":[{"path":"/etc/x","contents":{"source":"arn:aws:s3:us-west-1:123456789012:accesspoint/t/object/p"}}]}`, v34, "$.storage.files"},
		{"a setuid file", `"storage":{"files":[{"path":"/etc/x","contents":{"source":"data:,"},"mode":2541}]}`,
			v34, "storage.files[/etc/x].mode: spec"},
		{"a sticky directory", `"storage":{"directories":[{"path":"/etc/x","mode":1023}]}`, v34,
			"storage.directories[/etc/x].mode: spec"},
		{"kernel arguments", `"kernelArguments":{"shouldExist":["quiet"]}`, v33, "kernelArguments: spec"},
		{"kernel arguments that should not be", `"kernelArguments":{"shouldNotExist":["quiet"]}`, v33,
			"kernelArguments: spec"},
		{"no file system", `"storage":{"filesystems":[{"device":"/dev/vdx","format":"none","wipeFilesystem":true}]}`, v33,
			"$.storage.filesystems"},
		{"LUKS", luks(``), v32, "storage.luks: spec"},
		{"a partition to be resized", disk(`"label":"a","sizeMiB":1,"resize":true`), v32,
			"storage.disks[/dev/vdb].partitions[0].resize: spec"},
		{"a user to be deleted", `"passwd":{"users":[{"name":"x","shouldExist":false}]}`, v32,
			"passwd.users[x].shouldExist: spec"},
		{"a group to be deleted", `"passwd":{"groups":[{"name":"x","shouldExist":false}]}`, v32,
			"passwd.groups[x].shouldExist: spec"},
		{"Google's storage", `"storage":{"files":[{"path":"/etc/x","contents":{"source":"gs://bucket/object"}}]}`, v32,
			"$.storage.files"},
		{"a proxy", `"ignition":{"version":"3.5.0","proxy":{"httpProxy":"http://p.example"}}`, v31, "ignition.proxy: spec"},
		{"HTTP headers", `"storage":{"files":[{"path":"/etc/x","contents":{"source":"https://x.example","httpHeaders":[{"name":"A","value":"b"}]}}]}`, v31, "storage.files[/etc/x].contents.httpHeaders: spec"},
		{"a compressed CA", `"ignition":{"version":"3.5.0","security":{"tls":{"certificateAuthorities":[{"source":"data:,x","compression":"gzip"}]}}}`, v31, "certificateAuthorities[1].compression: spec"},
		{"mount options",
			`"storage":{"filesystems":[{"device":"/dev/vdx","path":"/srv","format":"btrfs","mountOptions":["subvolid=5"]}]}`,
			v31, "storage.filesystems[/srv].mountOptions: spec"},
		{"a SHA-256", `"storage":{"files":[{"path":"/etc/x","contents":{"source":"data:,x","verification":{"hash":"sha256-e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}}}]}`, v31, "$.storage.files"},
		{"a partition", disk(`"label":"a","sizeMiB":1`), v30, "storage.disks[/dev/vdb].partitions: spec 2.2"},
		{"a file that is only made where there is none", `"storage":{"files":[{"path":"/etc/x"}]}`, v30,
			"storage.files[/etc/x].contents: spec 2.2"},
		{"a config to be merged", `"ignition":{"version":"3.5.0","config":{"merge":[{"source":"https://x.example"}]}}`,
			v30, "ignition.config.merge: spec 2.2"},
		{"a file system as it is", `"storage":{"filesystems":[{"device":"/dev/vdx"}]}`,
			v30, "storage.filesystems[/dev/vdx].format: spec 2.2"},
		{"the root file system", `"storage":{"filesystems":[{"device":"/dev/vdx","path":"/","format":"xfs"}]}`,
			v30, "storage.filesystems[/dev/vdx].path: spec 2.2"},
		{"a directory whose parents would be as it is", `"storage":{"directories":[{"path":"/opt/new/deep","mode":448}]}`,
			v30, "storage.directories[/opt/new/deep]: spec 2.2"},
		{"one whose parents are listed",
			`"storage":{"directories":[{"path":"/opt/new"},{"path":"/opt/new/deep","mode":448}]}`, version(2, 2), ""},
		{"a value that is the default", disk(`"label":"a","sizeMiB":1,"resize":false`),
			v30, "storage.disks[/dev/vdb].partitions: spec 2.2"},
		{"LUKS with values that are the defaults", luks(`,"discard":false,"cex":{"enabled":false},"openOptions":[]`), v32,
			"storage.luks: spec"},
	} {
		t.Run(c.name, func(t *testing.T) {
			config := edited(t, c.overlay)
			for _, v := range all {
				_, err := convert.From35(config, v)
				if v.Major > c.since.Major || v.Major == c.since.Major && v.Minor >= c.since.Minor {
					if err != nil {
						t.Errorf("%s: %v", v, err)
					}
					continue
				}
				if err == nil || !says(err, c.says) {
					t.Errorf("%s: %v, want a refusal with %q", v, err, c.says)
				}
			}
		})
	}
}

// says reports whether the error contains one of the texts.
func says(err error, any string) bool {
	return slices.ContainsFunc(strings.Split(any, "|"), func(s string) bool { return strings.Contains(err.Error(), s) })
}

func TestOtherVersionsAreRefused(t *testing.T) {
	for _, v := range []specversion.Version{version(1, 0), version(2, 1), version(2, 3), version(3, 6), version(3, -1),
		version(4, 0)} {
		if out, err := convert.From35(parse(t, node), v); err == nil {
			t.Errorf("%s: %.60s", v, out)
		}
	}
}

// From35 does not assume that its input is valid.
func TestFrom35_ResultIsValidInItsVersion(t *testing.T) {
	config := parse(t, node)
	config.Storage.Files = append(config.Storage.Files, types.File{Node: types.Node{Path: "relative"}})
	for _, v := range all {
		if out, err := convert.From35(config, v); err == nil || !strings.Contains(err.Error(), "it is not valid in spec") {
			t.Errorf("%s: %v\n%.60s", v, err, out)
		}
	}
}

// Errors go to logs, so they must not contain the contents of files.
func TestFrom35_ErrorHasNoContents(t *testing.T) {
	config := edited(t, `"storage":{"files":[{"path":"/etc/x","append":[{"source":"https://hunter2@x.example","httpHeaders":[{"name":"A","value":"hunter2"}]}],"contents":{"source":"data:,hunter2","compression":"gzip"}}],"luks":[{"name":"d","device":"/dev/x","keyFile":{"source":"data:,hunter2"}}]}`)
	config.Storage.Files = append(config.Storage.Files, types.File{Node: types.Node{Path: "relative"}})
	for _, v := range all {
		if _, err := convert.From35(config, v); err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", v, err)
		}
	}
}

func FuzzFrom35(f *testing.F) {
	f.Add([]byte(node))
	f.Add([]byte(`{"ignition":{"version":"3.5.0"}}`))
	f.Add([]byte(`{"ignition":{"version":"3.5.0"},"storage":{"luks":[{"name":"a","device":"/dev/x","clevis":{"custom":{"pin":"tpm2","config":"{}"}}}]}}`))
	f.Add([]byte(`{"ignition":{"version":"3.5.0"},"storage":{"files":[{"path":"/a","mode":2541}],"links":[{"path":"/b","target":""}]}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		config, _, err := v3_5.Parse(raw)
		if err != nil {
			return
		}
		for _, v := range all {
			out, err := convert.From35(config, v)
			if err != nil {
				continue
			}
			if got, err := specversion.Of(out); err != nil || got != v {
				t.Fatalf("%s: it is of %s, %v", v, got, err)
			}
			if len(out) > 8*len(raw)+4096 {
				t.Fatalf("%s: %d bytes of %d", v, len(out), len(raw))
			}
		}
	})
}

func BenchmarkFrom35(b *testing.B) {
	config := parse(b, node)
	big := "data:," + strings.Repeat("0123456789", 50_000)
	config.Storage.Files[0].Contents.Source = &big
	for _, v := range all {
		b.Run(v.String(), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := convert.From35(config, v); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
