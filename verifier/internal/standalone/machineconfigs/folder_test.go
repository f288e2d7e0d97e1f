// SPDX-License-Identifier: Apache-2.0

package machineconfigs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/specversion"
	"github.com/mcs-attest/mcs-attest/verifier/internal/poolconfig"
	"github.com/mcs-attest/mcs-attest/verifier/internal/poolconfig/poolconfigtest"
)

func write(t *testing.T, dir, name, content string) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path+".new", []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T) (*Folder, string) {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, "pool.yaml", poolconfigtest.Pool)
	write(t, dir, "00-base.yaml", poolconfigtest.MachineConfig("00-base", "/etc/base", "base", poolconfigtest.Needed))
	write(t, dir, "50-site.yaml", poolconfigtest.MachineConfig("50-site", "/etc/site", "site", ""))
	return Open(dir, poolconfig.Options{Log: poolconfigtest.Quiet()}), dir
}

// A file that is written in place may have only the first of its MachineConfigs.
func TestFolder_WaitsForTheEndOfAChange(t *testing.T) {
	s, dir := open(t)
	s.settle = true // as Run sets it
	has := func() bool {
		return strings.Contains(poolconfigtest.Text(t, s, "worker", false), "/etc/more")
	}
	first := poolconfigtest.MachineConfig("60-first", "/etc/first", "first", "")
	write(t, dir, "60-more.yaml", first)
	s.scan()
	write(t, dir, "60-more.yaml", first+"---\n"+poolconfigtest.MachineConfig("60-more", "/etc/more", "more", ""))
	s.scan()
	if full := poolconfigtest.Text(t, s, "worker", false); strings.Contains(full, "/etc/first") || has() {
		t.Error("a file that was still changing is used")
	}
	s.scan()
	if full := poolconfigtest.Text(t, s, "worker", false); !strings.Contains(full, "/etc/first") || !has() {
		t.Errorf("the complete file is not used: %v", s.Findings())
	}
}

func TestFolder_ServesFullAndPreApprovedConfigs(t *testing.T) {
	s, dir := open(t)
	if got := s.Pools(); len(got) != 1 || got[0] != "worker" {
		t.Fatalf("pools %v, findings %v", got, s.Findings())
	}
	full, pre := poolconfigtest.Text(t, s, "worker", false), poolconfigtest.Text(t, s, "worker", true)
	for _, want := range []string{"/etc/base", "/etc/site", "/etc/ignition-machine-config-encapsulated.json"} {
		if !strings.Contains(full, want) {
			t.Errorf("the full config has no %s", want)
		}
	}
	if !strings.Contains(pre, "/etc/base") || strings.Contains(pre, "/etc/site") {
		t.Errorf("the part for anyone:\n%s", pre)
	}
	if strings.Contains(full, "/etc/kubernetes/kubeconfig") {
		t.Error("a kubeconfig that was not provided")
	}

	write(t, dir, "kubeconfig", "users: [{name: kubelet, user: {token: shared}}]\n")
	write(t, dir, "60-more.yaml", poolconfigtest.MachineConfig("60-more", "/etc/more", "more", ""))
	s.scan()
	full, pre = poolconfigtest.Text(t, s, "worker", false), poolconfigtest.Text(t, s, "worker", true)
	if !strings.Contains(full, "/etc/more") || !strings.Contains(full, "/etc/kubernetes/kubeconfig") {
		t.Error("what came later is missing")
	}
	if strings.Contains(pre, "/etc/kubernetes/kubeconfig") || strings.Contains(pre, "shared") {
		t.Error("the part for anyone has a credential")
	}
	if len(s.Findings()) > 0 {
		t.Errorf("%v", s.Findings())
	}
	// A pool that is deleted has no config any more.
	if err := os.Remove(filepath.Join(dir, "pool.yaml")); err != nil {
		t.Fatal(err)
	}
	s.scan()
	_, err := s.Config("worker", false, poolconfigtest.Newest)
	if reason.From(err).Code != reason.ConfigUnavailable {
		t.Errorf("a deleted pool: %v", err)
	}
}

func TestFolder_BrokenChangeKeepsTheLastGoodConfig(t *testing.T) {
	for _, tt := range []struct {
		name, file, content string
		// finding is what is said of it.
		finding []string
	}{
		{"no YAML at all", "60-bad.yaml", "{", []string{"60-bad.yaml:1", "none of it is in force"}},
		{"an Ignition config that does not parse", "60-bad.yaml",
			strings.Replace(poolconfigtest.MachineConfig("60-bad", "/etc/bad", "", ""), "/etc/bad", "not-absolute", 1),
			[]string{"MachineConfig 60-bad", "60-bad.yaml", "stays in force"}},
		{"a good one that became spec 2", "50-site.yaml",
			strings.Replace(poolconfigtest.MachineConfig("50-site", "/etc/site", "", ""), "3.2.0", "2.2.0", 1),
			[]string{"MachineConfig 50-site", "spec 2"}},
		{"an annotation that is neither true nor false", "50-site.yaml",
			poolconfigtest.MachineConfig("50-site", "/etc/site", "site",
				strings.Replace(poolconfigtest.Needed, "true", "yes", 1)),
			[]string{"50-site", "needed-before-node-approved"}},
		{"the same object twice", "copy.yaml", poolconfigtest.MachineConfig("50-site", "/etc/other", "", ""),
			[]string{"50-site", "is a duplicate"}},
		{"another kind of object", "copy.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\n",
			[]string{"copy.yaml:", "Pod"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, dir := open(t)
			full, pre := poolconfigtest.Text(t, s, "worker", false), poolconfigtest.Text(t, s, "worker", true)
			write(t, dir, tt.file, tt.content)
			s.scan()
			if got := poolconfigtest.Text(t, s, "worker", false); got != full {
				t.Error("the full config changed")
			}
			if got := poolconfigtest.Text(t, s, "worker", true); got != pre {
				t.Error("the part for anyone changed")
			}
			found := ""
			for _, f := range s.Findings() {
				found += f.Reason + " " + f.Text + "\n"
			}
			for _, want := range tt.finding {
				if !strings.Contains(found, want) {
					t.Errorf("%q is not in the findings:\n%s", want, found)
				}
			}
			// After it is fixed, it is used.
			write(t, dir, tt.file, poolconfigtest.MachineConfig(strings.TrimSuffix(tt.file, ".yaml"), "/etc/fixed", "m", ""))
			s.scan()
			if got := poolconfigtest.Text(t, s, "worker", false); !strings.Contains(got, "/etc/fixed") ||
				len(s.Findings()) > 0 {
				t.Errorf("fixed: findings %v", s.Findings())
			}
		})
	}
}

// A pool whose pre-approved part would hold a secret has none; the full config is served.
func TestAttack_T55_ASecretIsInNoConfigForAnyone(t *testing.T) {
	s, dir := open(t)
	key := "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g\n-----END PRIVATE KEY-----\n"
	write(t, dir, "60-key.yaml", poolconfigtest.MachineConfig("60-key", "/etc/pki/site.key", key, ""))
	s.scan()
	if got := poolconfigtest.Text(t, s, "worker", true); strings.Contains(got, "PRIVATE") ||
		strings.Contains(got, "site.key") {
		t.Error("a customer's key goes to anyone")
	}
	before := poolconfigtest.Text(t, s, "worker", true)
	// Its owner is mistaken in what anyone may have.
	write(t, dir, "60-key.yaml", poolconfigtest.MachineConfig("60-key", "/etc/pki/site.key", key, poolconfigtest.Needed))
	s.scan()
	if got := poolconfigtest.Text(t, s, "worker", true); got != before {
		t.Error("the part for anyone changed")
	}
	found := fmt.Sprint(s.Findings())
	for _, want := range []string{"PreApprovedNotRendered", "60-key", "/etc/pki/site.key"} {
		if !strings.Contains(found, want) {
			t.Errorf("%q is not in %s", want, found)
		}
	}
	if strings.Contains(found, "MC4CAQAw") {
		t.Error("the key is in a finding")
	}
	if !strings.Contains(poolconfigtest.Text(t, s, "worker", false), "site.key") {
		t.Error("the full config does not have it")
	}
	// Where there never was a part for anyone, there is none; with the path listed there is.
	fresh := Open(dir, poolconfig.Options{Log: poolconfigtest.Quiet()})
	_, err := fresh.Config("worker", true, poolconfigtest.Newest)
	if reason.From(err).Code != reason.ConfigUnavailable {
		t.Errorf("%v", err)
	}
	listed := Open(dir, poolconfig.Options{Log: poolconfigtest.Quiet(), Allow: []string{"/etc/pki/site.key"}})
	if !strings.Contains(poolconfigtest.Text(t, listed, "worker", true), "site.key") {
		t.Error("an administrator listed the path, but it is missing")
	}
}

func TestEventsAreEmittedOnceByTheLeader(t *testing.T) {
	_, dir := open(t)
	var events []poolconfig.Fault
	leading := false
	s := Open(dir, poolconfig.Options{Log: poolconfigtest.Quiet(), Leading: func() bool { return leading },
		Notify: func(f poolconfig.Fault) { events = append(events, f) }})
	write(t, dir, "60-bad.yaml", strings.Replace(poolconfigtest.MachineConfig("60-bad", "/etc/bad", "", ""), "/etc/bad",
		"bad", 1))
	s.scan()
	if len(events) > 0 {
		t.Errorf("a replica that does not lead emits %v", events)
	}
	leading = true
	for i := range 3 {
		write(t, dir, "70-other.yaml", poolconfigtest.MachineConfig("70-other", "/etc/other", fmt.Sprint(i), ""))
		s.scan()
	}
	if len(events) != 1 || events[0].About.Kind != "MachineConfig" || events[0].About.Name != "60-bad" {
		t.Errorf("%+v", events)
	}
}

func TestMissingFolder_HasNoPools(t *testing.T) {
	s := Open(filepath.Join(t.TempDir(), "none"), poolconfig.Options{Log: poolconfigtest.Quiet()})
	if len(s.Pools()) > 0 || len(s.Findings()) > 0 {
		t.Errorf("%v %v", s.Pools(), s.Findings())
	}
	_, err := poolconfig.NewStore(poolconfig.Options{Log: poolconfigtest.Quiet()}).Config("worker", false,
		poolconfigtest.Newest)
	if d := (*reason.Denial)(nil); !errors.As(err, &d) || d.Code != reason.ConfigUnavailable {
		t.Errorf("before anything was read: %v", err)
	}
}

// Since a config is what a client negotiates, each version is available.
func TestEachVersionIsServed(t *testing.T) {
	s, _ := open(t)
	for accept, want := range map[string]string{"": "2.2.0", "3.2": "3.2.0", "3.9": "3.5.0"} {
		var a specversion.Accept
		if accept != "" {
			a = specversion.ParseAccept("application/vnd.coreos.ignition+json;version=" + accept + ".0")
		}
		r, err := s.Config("worker", false, a)
		if err != nil {
			t.Errorf("%q: %v", accept, err)
			continue
		}
		var head struct {
			Ignition struct{ Version string } `json:"ignition"`
		}
		if err := json.Unmarshal(bytes.TrimSpace(poolconfigtest.Raw(t, r)), &head); err != nil ||
			head.Ignition.Version != want {
			t.Errorf("%q: %s, %v", accept, head.Ignition.Version, err)
		}
	}
}
