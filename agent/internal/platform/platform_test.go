// SPDX-License-Identifier: Apache-2.0

package platform_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/agent/internal/paths"
	"github.com/mcs-attest/mcs-attest/agent/internal/platform"
	"github.com/mcs-attest/mcs-attest/pkg/pointer"
)

// root has the files of a machine; write creates them.
type root struct {
	t *testing.T
	p paths.Paths
}

func newRoot(t *testing.T, cmdline string) *root {
	t.Helper()
	dir := t.TempDir()
	r := &root{t, paths.Paths{
		Cmdline:         filepath.Join(dir, "cmdline"),
		IgnitionRuntime: filepath.Join(dir, "run"),
		IgnitionLocal:   filepath.Join(dir, "etc"),
		IgnitionSystem:  filepath.Join(dir, "usr"),
		FwCfg:           filepath.Join(dir, "fw_cfg"),
	}}
	r.write(r.p.Cmdline, cmdline)
	return r
}

func (r *root) write(file, content string) {
	r.t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
		r.t.Fatal(err)
	}
}

func (r *root) fwCfg(content string) {
	dir := filepath.Join(r.p.FwCfg, "by_name/opt/com.coreos/config")
	r.write(filepath.Join(dir, "raw"), content)
	r.write(filepath.Join(dir, "size"), strconv.Itoa(len(content))+"\n")
}

func (r *root) find(platformID string) (platform.UserData, error) {
	m, err := platform.New(r.p, platformID)
	if err != nil {
		r.t.Fatal(err)
	}
	return m.Find(r.t.Context())
}

func TestFind(t *testing.T) {
	served := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/config" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_, _ = w.Write([]byte("from the URL"))
	}))
	defer served.Close()
	for _, c := range []struct {
		name, cmdline, id string
		files             func(*root)
		want              string
		err               error // any, where want is empty and err is nil
	}{
		{"qemu's fw_cfg", "quiet", "qemu", func(r *root) { r.fwCfg("from fw_cfg") }, "from fw_cfg", nil},
		{"the platform is on the command line", "ignition.platform.id=qemu", "", func(r *root) { r.fwCfg("from fw_cfg") },
			"from fw_cfg", nil},
		{"qemu without a config", "", "qemu", func(r *root) { r.write(filepath.Join(r.p.FwCfg, "rev"), "3") },
			"", platform.ErrNone},
		{"metal", "", "metal", func(*root) {}, "", platform.ErrNone},
		{"an unknown platform", "", "zvm", func(*root) {}, "", platform.ErrUnsupported},
		{"user.ign comes before the platform", "", "qemu", func(r *root) {
			r.fwCfg("from fw_cfg")
			r.write(filepath.Join(r.p.IgnitionSystem, "user.ign"), "from usr")
		}, "from usr", nil},
		{"an unknown platform with a user.ign", "", "zvm", func(r *root) {
			r.write(filepath.Join(r.p.IgnitionSystem, "user.ign"), "from usr")
		}, "from usr", nil},
		{"/etc comes before /usr", "", "metal", func(r *root) {
			r.write(filepath.Join(r.p.IgnitionSystem, "user.ign"), "from usr")
			r.write(filepath.Join(r.p.IgnitionLocal, "user.ign"), "from etc")
		}, "from etc", nil},
		{"/run comes before /etc", "", "metal", func(r *root) {
			r.write(filepath.Join(r.p.IgnitionLocal, "user.ign"), "from etc")
			r.write(filepath.Join(r.p.IgnitionRuntime, "user.ign"), "from run")
		}, "from run", nil},
		{"the command line comes before all", "ignition.config.url=" + served.URL + "/config", "metal", func(r *root) {
			r.write(filepath.Join(r.p.IgnitionRuntime, "user.ign"), "from run")
		}, "from the URL", nil},
		{"the last argument counts", "ignition.config.url=http://127.0.0.1:1/ ignition.config.url=" + served.URL + "/config",
			"metal", func(*root) {}, "from the URL", nil},
		{"a data URL", "ignition.config.url=data:,from%20data", "metal", func(*root) {}, "from data", nil},
		{"an error of the first source is the answer", "ignition.config.url=" + served.URL + "/missing", "metal",
			func(r *root) {
				r.write(filepath.Join(r.p.IgnitionRuntime, "user.ign"), "from run")
			}, "", nil},
		{"an unsupported scheme", "ignition.config.url=tftp://x/config", "metal", func(*root) {}, "",
			platform.ErrUnsupported},
		{"a config on a disk", "ignition.config.device=label", "metal", func(*root) {}, "", platform.ErrUnsupported},
		{"fw_cfg announces more than there is", "", "qemu", func(r *root) {
			r.fwCfg("short")
			r.write(filepath.Join(r.p.FwCfg, "by_name/opt/com.coreos/config/size"), "100")
		}, "", nil},
		{"fw_cfg announces a huge size", "", "qemu", func(r *root) {
			r.fwCfg("short")
			r.write(filepath.Join(r.p.FwCfg, "by_name/opt/com.coreos/config/size"), "99999999999")
		}, "", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRoot(t, c.cmdline)
			c.files(r)
			data, err := r.find(c.id)
			if string(data.Raw) != c.want || c.want == "" && err == nil || c.want != "" && err != nil || c.err != nil &&
				!errors.Is(err, c.err) {
				t.Errorf("have %q and error %v", data.Raw, err)
			}
		})
	}
}

func TestCmdline(t *testing.T) {
	c := platform.ParseCmdline("BOOT_IMAGE=/vmlinuz  root=LABEL=\"a b\" ignition.config.url=http://x/?a=b " +
		"mcs-attest=off mcs-attest=require ignition.config.device=d quiet\n")
	want := platform.Cmdline{"BOOT_IMAGE=/vmlinuz", "root=LABEL=\"a b\"", "ignition.config.url=http://x/?a=b",
		"mcs-attest=off", "mcs-attest=require", "ignition.config.device=d", "quiet"}
	if !slices.Equal(c, want) {
		t.Errorf("words %q", c)
	}
	if v, _ := c.Last("mcs-attest"); v != "require" {
		t.Errorf("mcs-attest=%s", v)
	}
	if v, _ := c.Last("ignition.config.url"); v != "http://x/?a=b" {
		t.Errorf("url %s", v)
	}
	if _, ok := c.Last("quiet"); ok {
		t.Error("a word without a value has a value")
	}
	line, changed := c.Masked()
	if !changed || line != "BOOT_IMAGE=/vmlinuz root=LABEL=\"a b\" mcs-attest=off mcs-attest=require quiet\n" {
		t.Errorf("masked %q", line)
	}
	if _, changed := platform.ParseCmdline("quiet").Masked(); changed {
		t.Error("masked without a reason")
	}
}

func FuzzCmdline(f *testing.F) {
	f.Add("a=b \"c d\" ignition.config.url=x")
	f.Add("\"")
	f.Fuzz(func(t *testing.T, s string) {
		line, changed := platform.ParseCmdline(s).Masked()
		if _, again := platform.ParseCmdline(line).Masked(); changed && again {
			t.Errorf("%q still names a config", line)
		}
	})
}

// Where QEMU has no fw_cfg, Ignition reads a disk.
func TestQEMUDisk(t *testing.T) {
	for name, c := range map[string]struct{ disk, want string }{
		"a config":  {"{}" + strings.Repeat("\x00", 510), "{}"},
		"empty":     {strings.Repeat("\x00", 512), ""},
		"too large": {strings.Repeat("x", pointer.MaxSize+1), "error"},
		"none yet":  {"", "error"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRoot(t, "")
			r.p.Disks = filepath.Join(t.TempDir(), "disk/by-label")
			r.fwCfg("not this one")
			if c.disk != "" {
				r.write(filepath.Join(r.p.Disks, "../by-id/virtio-ignition"), c.disk)
			}
			m := platform.Machine{Paths: r.p, ID: "qemu", Wait: time.Millisecond}
			for _, architecture := range []string{"s390x", "ppc64le"} {
				got, err := platform.QEMU(architecture)(t.Context(), m)
				if string(got.Raw) != c.want && c.want != "error" || (err != nil) != (c.want == "error") ||
					errors.Is(err, platform.ErrNone) {
					t.Errorf("%s: %.20q, %v", architecture, got.Raw, err)
				}
			}
			if got, err := platform.QEMU("amd64")(t.Context(), m); string(got.Raw) != "not this one" || err != nil {
				t.Errorf("amd64: %.20q, %v", got.Raw, err)
			}
		})
	}
}
