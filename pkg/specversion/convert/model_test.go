// SPDX-License-Identifier: Apache-2.0

package convert_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"path"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/coreos/ignition/v2/config/util"
	"github.com/coreos/ignition/v2/config/v3_5/types"

	"github.com/mcs-attest/mcs-attest/pkg/specversion/convert"
)

// outcome is the result of a config at one path, implemented from the two specifications,
// independently of the conversion.
type outcome struct {
	Device    string // of its file system, or "" for the root file system
	Kind      string
	Mode      int
	User      string
	Overwrite bool
	Contents  string
	Appended  []string
	Target    string
}

// outcomes3 evaluates a config by the rules of spec 3.
func outcomes3(c types.Config) map[string]outcome {
	device := func(p string) string {
		longest, found := "", ""
		for _, f := range c.Storage.Filesystems {
			at := util.StrToPtr("")
			if f.Path != nil {
				at = f.Path
			}
			if *at != "" && (p == *at || strings.HasPrefix(p, *at+"/")) && len(*at) > len(longest) {
				longest, found = *at, f.Device
			}
		}
		return found
	}
	mode := func(m *int, otherwise int) int {
		if m == nil {
			return otherwise
		}
		return *m
	}
	user := func(n types.Node) string {
		if n.User.Name == nil {
			return ""
		}
		return *n.User.Name
	}
	resource := func(r types.Resource) string {
		s := *r.Source
		if r.Compression != nil {
			s += "|" + *r.Compression
		}
		return s
	}
	out := map[string]outcome{}
	for _, f := range c.Storage.Files {
		o := outcome{Device: device(f.Path), Kind: "file", Mode: mode(f.Mode, 0o644), User: user(f.Node),
			Overwrite: f.Overwrite != nil && *f.Overwrite}
		if f.Contents.Source != nil {
			o.Contents = resource(f.Contents)
		} else {
			o.Mode = mode(f.Mode, -1) // that of the existing file, if any
		}
		for _, a := range f.Append {
			o.Appended = append(o.Appended, resource(a))
		}
		out[f.Path] = o
	}
	for _, d := range c.Storage.Directories {
		out[d.Path] = outcome{Device: device(d.Path), Kind: "directory", Mode: mode(d.Mode, 0o755), User: user(d.Node),
			Overwrite: d.Overwrite != nil && *d.Overwrite}
	}
	for _, l := range c.Storage.Links {
		out[l.Path] = outcome{Device: device(l.Path), Kind: "link", User: user(l.Node), Overwrite: l.Overwrite != nil &&
			*l.Overwrite, Target: *l.Target}
	}
	return out
}

// outcomes2 evaluates a config by the rules of spec 2.2.
func outcomes2(t *testing.T, raw []byte, mounted map[string]string) map[string]outcome {
	t.Helper()
	type node struct {
		Filesystem, Path string
		Overwrite        *bool
		User             struct{ Name string }
		Mode             *int
		Append           bool
		Contents         struct{ Source, Compression string }
		Target           string
	}
	var c struct {
		Storage struct {
			Files, Directories, Links []node
			Filesystems               []struct {
				Name  string
				Mount struct{ Device string }
			}
		}
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		t.Fatal(err)
	}
	devices := map[string]string{"root": ""}
	for _, f := range c.Storage.Filesystems {
		if _, twice := devices[f.Name]; twice {
			t.Fatalf("two file systems are named %s", f.Name)
		}
		devices[f.Name] = f.Mount.Device
	}
	start := func(n node, kind string, overwrite bool) (string, outcome) {
		device, ok := devices[n.Filesystem]
		if !ok || !strings.HasPrefix(n.Path, "/") {
			t.Fatalf("%q on %q, which is no file system", n.Path, n.Filesystem)
		}
		if n.Overwrite != nil {
			overwrite = *n.Overwrite
		}
		o := outcome{Device: device, Kind: kind, User: n.User.Name, Overwrite: overwrite}
		if n.Mode != nil {
			o.Mode = *n.Mode
		}
		return path.Join(mounted[device], n.Path), o
	}
	out := map[string]outcome{}
	for _, f := range c.Storage.Files {
		at, o := start(f, "file", true)
		source := f.Contents.Source
		if f.Contents.Compression != "" {
			source += "|" + f.Contents.Compression
		}
		if !f.Append {
			o.Contents = source
			out[at] = o
			continue
		}
		if o.Overwrite {
			t.Fatalf("%s is appended to and overwritten", at)
		}
		before, ok := out[at]
		if !ok {
			before = o
			if f.Mode == nil {
				before.Mode = -1
			}
		}
		before.Appended = append(before.Appended, source)
		out[at] = before
	}
	for _, d := range c.Storage.Directories {
		at, o := start(d, "directory", false)
		out[at] = o
	}
	for _, l := range c.Storage.Links {
		at, o := start(l, "link", false)
		o.Target = l.Target
		out[at] = o
	}
	return out
}

// 2.2 has no parser in this tree, so both are evaluated by the rules of their specification.
func TestFrom35_Spec22WritesTheSameFiles(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	pick := func(of ...string) string { return of[random.IntN(len(of))] }
	maybe := func() bool { return random.IntN(2) == 0 }
	served := 0
	for range 1000 {
		var c types.Config
		mounted := map[string]string{}
		for i, at := range []string{"/var", "/var/lib", "/srv"} {
			if maybe() {
				device := fmt.Sprintf("/dev/vd%c", 'b'+i)
				mounted[device] = at
				c.Storage.Filesystems = append(c.Storage.Filesystems,
					types.Filesystem{Device: device, Path: &at, Format: util.StrToPtr("xfs")})
			}
		}
		random.Shuffle(len(c.Storage.Filesystems), func(i, j int) {
			f := c.Storage.Filesystems
			f[i], f[j] = f[j], f[i]
		})
		used := []string{}
		for range random.IntN(6) {
			p := pick("/etc", "/var", "/var/lib", "/var/libx", "/variable", "/srv", "/srv/a/b") + "/" + pick("a", "b", "c")
			if slices.Contains(used, p) {
				continue
			}
			used = append(used, p)
			n := types.Node{Path: p}
			if maybe() {
				n.Overwrite = util.BoolToPtr(maybe())
			}
			if maybe() {
				n.User.Name = util.StrToPtr("core")
			}
			var mode *int
			if maybe() {
				mode = util.IntToPtr([]int{0o600, 0o644, 0o755, 0}[random.IntN(4)])
			}
			resource := func() types.Resource {
				r := types.Resource{Source: util.StrToPtr("data:," + pick("x", "y", "z"))}
				if maybe() {
					r.Compression = util.StrToPtr("gzip")
				}
				return r
			}
			switch random.IntN(4) {
			case 0:
				c.Storage.Directories = append(c.Storage.Directories,
					types.Directory{Node: n, DirectoryEmbedded1: types.DirectoryEmbedded1{Mode: mode}})
			case 1:
				c.Storage.Links = append(c.Storage.Links,
					types.Link{Node: n, LinkEmbedded1: types.LinkEmbedded1{Target: util.StrToPtr("/etc/hosts")}})
			default:
				f := types.File{Node: n, FileEmbedded1: types.FileEmbedded1{Mode: mode}}
				if maybe() {
					f.Contents = resource()
				}
				for range random.IntN(3) {
					f.Append = append(f.Append, resource())
				}
				c.Storage.Files = append(c.Storage.Files, f)
			}
		}
		out, err := convert.From35(c, version(2, 2))
		if err != nil {
			continue
		}
		served++
		if got, want := outcomes2(t, out, mounted), outcomes3(c); !reflect.DeepEqual(got, want) {
			t.Fatalf("of %s\ngot  %+v\nwant %+v", out, got, want)
		}
	}
	if served < 250 {
		t.Errorf("only %d of 1000 configs were converted", served)
	}
}
