package configsource

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/gate"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/specversion"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cluster"
)

const poolYAML = `apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfigPool
metadata: {name: worker}
spec:
  machineConfigSelector: {matchLabels: {machineconfiguration.openshift.io/role: worker}}
`

// machineConfig is one of the pool worker that writes a file; extra is more of its metadata.
func machineConfig(name, path, text, extra string) string {
	return fmt.Sprintf(`apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfig
metadata:
  name: %s
  labels: {machineconfiguration.openshift.io/role: worker}
%sspec:
  config:
    ignition: {version: 3.2.0}
    storage:
      files: [{path: %s, mode: 420, contents: {source: "data:,%s"}}]
`, name, extra, path, url.PathEscape(text))
}

// needed says that everyone may have it.
const needed = "  annotations: {mcs-attest.dev/needed-before-node-approved: \"true\"}\n"

var newest = specversion.Accept{{Major: 3, Minor: 5}}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// text is a config of a pool.
func text(t *testing.T, s *Source, pool string, preApproved bool) string {
	t.Helper()
	r, err := s.Config(pool, preApproved, newest)
	if err != nil {
		t.Fatalf("pool %s, pre-approved %t: %v", pool, preApproved, err)
	}
	return string(raw(t, r))
}

// raw is what a client receives.
func raw(t *testing.T, r *gate.Rendered) []byte {
	t.Helper()
	w := httptest.NewRecorder()
	gate.Source{Config: func(string, specversion.Accept) (*gate.Rendered, error) { return r, nil }}.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/config/worker", nil))
	return w.Body.Bytes()
}

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

// look reads the folder now.
func look(s *Source) { s.run.(*folder).look() }

func open(t *testing.T) (*Source, string) {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, "pool.yaml", poolYAML)
	write(t, dir, "00-base.yaml", machineConfig("00-base", "/etc/base", "base", needed))
	write(t, dir, "50-site.yaml", machineConfig("50-site", "/etc/site", "site", ""))
	return NewFolder(dir, Options{Log: quiet()}), dir
}

func TestAFolderIsServedWholeAndAsThePartForAnyone(t *testing.T) {
	s, dir := open(t)
	if got := s.Pools(); len(got) != 1 || got[0] != "worker" {
		t.Fatalf("pools %v, findings %v", got, s.Findings())
	}
	full, pre := text(t, s, "worker", false), text(t, s, "worker", true)
	for _, want := range []string{"/etc/base", "/etc/site", "/etc/ignition-machine-config-encapsulated.json"} {
		if !strings.Contains(full, want) {
			t.Errorf("the whole config has no %s", want)
		}
	}
	if !strings.Contains(pre, "/etc/base") || strings.Contains(pre, "/etc/site") {
		t.Errorf("the part for anyone:\n%s", pre)
	}
	if strings.Contains(full, "/etc/kubernetes/kubeconfig") {
		t.Error("a kubeconfig that nobody gave")
	}

	write(t, dir, "kubeconfig", "users: [{name: kubelet, user: {token: shared}}]\n")
	write(t, dir, "60-more.yaml", machineConfig("60-more", "/etc/more", "more", ""))
	look(s)
	full, pre = text(t, s, "worker", false), text(t, s, "worker", true)
	if !strings.Contains(full, "/etc/more") || !strings.Contains(full, "/etc/kubernetes/kubeconfig") {
		t.Error("what came later is not there")
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
	look(s)
	_, err := s.Config("worker", false, newest)
	if reason.From(err).Code != reason.ConfigUnavailable {
		t.Errorf("a deleted pool: %v", err)
	}
}

func TestABrokenChangeLeavesTheLastGoodConfig(t *testing.T) {
	for _, tt := range []struct {
		name, file, content string
		// finding is what is said of it.
		finding []string
	}{
		{"no YAML at all", "60-bad.yaml", "{", []string{"60-bad.yaml:1", "nothing of it is in force"}},
		{"an Ignition config that does not parse", "60-bad.yaml", strings.Replace(machineConfig("60-bad", "/etc/bad", "", ""), "/etc/bad", "not-absolute", 1),
			[]string{"MachineConfig 60-bad", "60-bad.yaml", "stays in force"}},
		{"a good one that became spec 2", "50-site.yaml", strings.Replace(machineConfig("50-site", "/etc/site", "", ""), "3.2.0", "2.2.0", 1),
			[]string{"MachineConfig 50-site", "spec 2"}},
		{"an annotation that is neither true nor false", "50-site.yaml", machineConfig("50-site", "/etc/site", "site", strings.Replace(needed, "true", "yes", 1)),
			[]string{"50-site", "needed-before-node-approved"}},
		{"the same object twice", "copy.yaml", machineConfig("50-site", "/etc/other", "", ""), []string{"50-site", "second time"}},
		{"another kind of object", "copy.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\n", []string{"copy.yaml:", "Pod"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, dir := open(t)
			full, pre := text(t, s, "worker", false), text(t, s, "worker", true)
			write(t, dir, tt.file, tt.content)
			look(s)
			if got := text(t, s, "worker", false); got != full {
				t.Error("the whole config changed")
			}
			if got := text(t, s, "worker", true); got != pre {
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
			// Mended, it is taken.
			write(t, dir, tt.file, machineConfig(strings.TrimSuffix(tt.file, ".yaml"), "/etc/mended", "m", ""))
			look(s)
			if got := text(t, s, "worker", false); !strings.Contains(got, "/etc/mended") || len(s.Findings()) > 0 {
				t.Errorf("mended: findings %v", s.Findings())
			}
		})
	}
}

// A pool whose pre-approved part would hold a secret has none; the whole config is served.
func TestAttack_T55_ASecretIsInNoConfigForAnyone(t *testing.T) {
	s, dir := open(t)
	key := "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g\n-----END PRIVATE KEY-----\n"
	write(t, dir, "60-key.yaml", machineConfig("60-key", "/etc/pki/site.key", key, ""))
	look(s)
	if got := text(t, s, "worker", true); strings.Contains(got, "PRIVATE") || strings.Contains(got, "site.key") {
		t.Error("a customer's key goes to anyone")
	}
	before := text(t, s, "worker", true)
	// Its owner is mistaken in what anyone may have.
	write(t, dir, "60-key.yaml", machineConfig("60-key", "/etc/pki/site.key", key, needed))
	look(s)
	if got := text(t, s, "worker", true); got != before {
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
	if !strings.Contains(text(t, s, "worker", false), "site.key") {
		t.Error("the whole config does not have it")
	}
	// Where there never was a part for anyone, there is none; with the path listed there is.
	fresh := NewFolder(dir, Options{Log: quiet()})
	_, err := fresh.Config("worker", true, newest)
	if reason.From(err).Code != reason.ConfigUnavailable {
		t.Errorf("%v", err)
	}
	listed := NewFolder(dir, Options{Log: quiet(), Allow: []string{"/etc/pki/site.key"}})
	if !strings.Contains(text(t, listed, "worker", true), "site.key") {
		t.Error("an administrator listed the path, and it is not there")
	}
}

func TestEventsAreEmittedOnceByWhoeverLeads(t *testing.T) {
	_, dir := open(t)
	var events emitted
	leading := false
	s := NewFolder(dir, Options{Log: quiet(), Events: &events, Leading: func() bool { return leading }})
	write(t, dir, "60-bad.yaml", strings.Replace(machineConfig("60-bad", "/etc/bad", "", ""), "/etc/bad", "bad", 1))
	look(s)
	if len(events) > 0 {
		t.Errorf("a replica that does not lead emits %v", events)
	}
	leading = true
	for i := range 3 {
		write(t, dir, "70-other.yaml", machineConfig("70-other", "/etc/other", fmt.Sprint(i), ""))
		look(s)
	}
	if len(events) != 1 || events[0].About.Kind != "MachineConfig" || events[0].About.Name != "60-bad" || !events[0].Warning {
		t.Errorf("%+v", events)
	}
}

func TestAFolderThatIsNotThereHasNoPools(t *testing.T) {
	s := NewFolder(filepath.Join(t.TempDir(), "none"), Options{Log: quiet()})
	if !s.Ready() || len(s.Pools()) > 0 || len(s.Findings()) > 0 {
		t.Errorf("%v %v", s.Pools(), s.Findings())
	}
	var empty Source
	_, err := empty.Config("worker", false, newest)
	if d := (*reason.Denial)(nil); !errors.As(err, &d) || d.Code != reason.ConfigUnavailable {
		t.Errorf("before anything was read: %v", err)
	}
}

// Since a config is what a client negotiates, each version is there.
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
		if err := json.Unmarshal(bytes.TrimSpace(raw(t, r)), &head); err != nil || head.Ignition.Version != want {
			t.Errorf("%q: %s, %v", accept, head.Ignition.Version, err)
		}
	}
}

type emitted []cluster.Event

func (e *emitted) Emit(v cluster.Event) { *e = append(*e, v) }

// eventually waits until what is asked is so.
func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if err = check(); err == nil {
			return
		}
	}
	t.Fatalf("%s: %v", what, err)
}
