// SPDX-License-Identifier: Apache-2.0

package machineconfigs

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/verifier/internal/poolconfig"
	"github.com/mcs-attest/mcs-attest/verifier/internal/poolconfig/poolconfigtest"
)

// What was withdrawn from the pre-approved part is served to no client, whatever else is broken.
func TestAttack_T55_AWithdrawnPartIsNotServedAnyMore(t *testing.T) {
	public := poolconfigtest.MachineConfig("01-more", "/etc/public", "public", poolconfigtest.Needed)
	broken := strings.Replace(poolconfigtest.MachineConfig("50-site", "/etc/site", "site", ""), "3.2.0", "2.2.0", 1)
	for _, tt := range []struct {
		name   string
		change func(dir string)
		// stays: it is served as before.
		stays bool
		// renders is true if the pool still renders, so that its full config changes.
		renders bool
	}{
		{"another is broken, nothing was withdrawn", func(dir string) { write(t, dir, "50-site.yaml", broken) }, true, false},
		{"its file does not parse, so its last content stays", func(dir string) {
			write(t, dir, "50-site.yaml", broken)
			write(t, dir, "01-more.yaml", "{")
		}, true, false},
		{"another exists twice, nothing was withdrawn", func(dir string) {
			write(t, dir, "copy.yaml", poolconfigtest.MachineConfig("50-site", "/etc/o", "", ""))
		}, true, false},
		{"its annotation is \"false\", and another is broken", func(dir string) {
			write(t, dir, "50-site.yaml", broken)
			write(t, dir, "01-more.yaml", strings.Replace(public, `"true"`, `"false"`, 1))
		}, false, false},
		{"it is deleted, and another is broken", func(dir string) {
			write(t, dir, "50-site.yaml", broken)
			_ = os.Remove(filepath.Join(dir, "01-more.yaml"))
		}, false, false},
		{"it is deleted, and another exists twice", func(dir string) {
			write(t, dir, "copy.yaml", poolconfigtest.MachineConfig("50-site", "/etc/o", "", ""))
			_ = os.Remove(filepath.Join(dir, "01-more.yaml"))
		}, false, false},
		{"it exists twice, and one has the annotation \"false\"", func(dir string) {
			write(t, dir, "copy.yaml", strings.Replace(public, `"true"`, `"false"`, 1))
		}, false, false},
		{"its annotation has another value, and another is broken", func(dir string) {
			write(t, dir, "50-site.yaml", broken)
			write(t, dir, "01-more.yaml", strings.Replace(public, "/etc/public", "/etc/other", 1))
		}, false, false},
		{"a secret is found in it", func(dir string) {
			write(t, dir, "01-more.yaml",
				poolconfigtest.MachineConfig("01-more", "/etc/public", "password = hunter2", poolconfigtest.Needed))
		}, false, true},
		{"the pool no longer selects it, and another is broken", func(dir string) {
			write(t, dir, "50-site.yaml", broken)
			write(t, dir, "01-more.yaml", strings.Replace(public, "role: worker", "role: other", 1))
		}, false, false},
		{"no MachineConfig is in the part anymore", func(dir string) {
			_ = os.Remove(filepath.Join(dir, "01-more.yaml"))
			write(t, dir, "00-base.yaml", poolconfigtest.MachineConfig("00-base", "/etc/base", "base", ""))
		}, false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, dir := open(t)
			write(t, dir, "01-more.yaml", public)
			s.scan()
			before, full := poolconfigtest.Text(t, s, "worker", true), poolconfigtest.Text(t, s, "worker", false)
			if !strings.Contains(before, "/etc/public") {
				t.Fatal("it does not exist")
			}
			tt.change(dir)
			s.scan()
			r, err := s.Config("worker", true, poolconfigtest.Newest)
			switch {
			case tt.stays && (err != nil || string(poolconfigtest.Raw(t, r)) != before):
				t.Errorf("it is not as it was: %v", err)
			case !tt.stays && !poolconfigtest.Unavailable(err):
				t.Errorf("served nevertheless: %v", err)
			}
			if len(s.Findings()) == 0 {
				t.Error("nothing is reported")
			}
			if changed := poolconfigtest.Text(t, s, "worker", false) != full; changed != tt.renders {
				t.Errorf("the full config changed: %v", changed)
			}
		})
	}
}

func TestNoFullConfigGoesOutWithoutTheKubeconfig(t *testing.T) {
	const good = "users: [{name: kubelet, user: {token: shared}}]\n"
	for _, tt := range []struct{ name, content, want string }{
		{"empty", "", "no user has a credential"},
		{"no YAML", "{", "not YAML"},
		{"another text", "garbage", "not a kubeconfig"},
		{"without a credential", "users: [{name: kubelet, user: {}}]\n", "no user"},
		{"deleted", "-", "was deleted"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, dir := open(t)
			write(t, dir, "kubeconfig", good)
			s.scan()
			before := poolconfigtest.Text(t, s, "worker", false)
			if tt.content == "-" {
				_ = os.Remove(filepath.Join(dir, "kubeconfig"))
			} else {
				write(t, dir, "kubeconfig", tt.content)
			}
			for range 2 {
				s.scan()
				if poolconfigtest.Text(t, s, "worker", false) != before {
					t.Error("the last good one is not in force")
				}
				if got := fmt.Sprint(s.Findings()); !strings.Contains(got, tt.want) || !strings.Contains(got, "last good state") {
					t.Errorf("findings %s", got)
				}
			}
			write(t, dir, "kubeconfig", strings.Replace(good, "shared", "newer", 1))
			s.scan()
			if got := poolconfigtest.Text(t, s, "worker", false); got == before || len(s.Findings()) > 0 {
				t.Errorf("fixed: %v", s.Findings())
			}
			if tt.content == "-" {
				return
			}
			// There never was a good one.
			write(t, dir, "kubeconfig", tt.content)
			fresh := Open(dir, poolconfig.Options{Log: poolconfigtest.Quiet()})
			if _, err := fresh.Config("worker", false, poolconfigtest.Newest); !poolconfigtest.Unavailable(err) {
				t.Errorf("a config without the kubeconfig: %v", err)
			}
			if got := fmt.Sprint(fresh.Findings()); strings.Contains(got, "last good state") ||
				!strings.Contains(got, tt.want) {
				t.Errorf("findings %s", got)
			}
			poolconfigtest.Text(t, fresh, "worker", true) // it has none anyway
		})
	}
}

// Of a file that is broken in another way than before, one thing is wrong.
func TestBrokenFile_IsReportedOnce(t *testing.T) {
	s, dir := open(t)
	before := poolconfigtest.Text(t, s, "worker", false)
	write(t, dir, "50-site.yaml",
		strings.Replace(poolconfigtest.MachineConfig("50-site", "/etc/site", "site", ""), "3.2.0", "2.2.0", 1))
	s.scan()
	write(t, dir, "50-site.yaml", "{")
	s.scan()
	if got := s.Findings(); len(got) != 1 || !strings.Contains(got[0].Text, "50-site.yaml:1") ||
		poolconfigtest.Text(t, s, "worker", false) != before {
		t.Errorf("%v", got)
	}
	// One that was never good is not in force "as it was".
	write(t, dir, "60-new.yaml", "{")
	s.scan()
	if got := fmt.Sprint(s.Findings()); !strings.Contains(got, "none of it is in force") {
		t.Error(got)
	}
}
