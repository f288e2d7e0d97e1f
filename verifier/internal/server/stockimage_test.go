// SPDX-License-Identifier: Apache-2.0

package server

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/firstboot"
	"github.com/mcs-attest/mcs-attest/pkg/gate"
	"github.com/mcs-attest/mcs-attest/pkg/policy"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/specversion"
	"github.com/mcs-attest/mcs-attest/verifier/internal/backend"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/view"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// downloads is a server with one agent. Its clock does not move.
func downloads(t *testing.T, agent []byte) (
	s *Server, request func(source, method string, w http.ResponseWriter)) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "mcs-attest-agent-amd64"), agent, 0o600); err != nil {
		t.Fatal(err)
	}
	s = &Server{Parts: &backend.Parts{Now: func() time.Time { return noon }, Config: &config.Config{
		Origins: []string{"https://mcs.test:22623"},
		Agents:  &config.Agents{Folder: dir, Architectures: []string{"amd64"}},
	}}}
	if err := s.openAgents(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.closeAgents() })
	path := fmt.Sprintf("%s%x", firstboot.URLPath, sha256.Sum256(agent))
	return s, func(source, method string, w http.ResponseWriter) {
		r := httptest.NewRequest(method, path, nil)
		r.RemoteAddr = source + ":1"
		s.agents.ServeHTTP(w, r)
	}
}

// client reports the status of an answer, and then waits before it reads the body.
type client struct {
	header http.Header
	status chan int
	read   <-chan struct{}
}

func (c *client) Header() http.Header              { return c.header }
func (c *client) WriteHeader(status int)           { c.status <- status }
func (c *client) SetWriteDeadline(time.Time) error { return nil }
func (c *client) Write([]byte) (int, error) {
	<-c.read
	return 0, errors.New("the connection was closed")
}

func TestAttack_T61_SlowDownloadsOfOneSourceLeaveRoomForOthers(t *testing.T) {
	_, get := downloads(t, []byte("agent"))
	read := make(chan struct{})
	start := func(source string) (status int, ended chan struct{}) {
		c := &client{http.Header{}, make(chan int, 1), read}
		ended = make(chan struct{})
		go func() {
			get(source, http.MethodGet, c)
			close(ended)
		}()
		return <-c.status, ended
	}
	var all []chan struct{}
	served := func(source string, requests int) (n int) {
		for range requests {
			status, ended := start(source)
			if all = append(all, ended); status == http.StatusOK {
				n++
			}
		}
		return n
	}
	for _, source := range []string{"192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4"} {
		if n := served(source, 16); n != agentSlotsPerSource {
			t.Errorf("%d downloads of one source at a time, expected %d", n, agentSlotsPerSource)
		}
	}
	if n := served("192.0.2.5", 1); n != 1 {
		t.Error("four sources that read nothing keep the agent from others")
	}
	for i := range agentSlots {
		served(fmt.Sprintf("198.51.100.%d", i), 1)
	}
	if n := served("192.0.2.6", 1); n != 0 {
		t.Error("the number of downloads at a time is not limited")
	}
	close(read)
	for _, ended := range all {
		<-ended
	}
	if n := served("192.0.2.1", 1); n != 1 {
		t.Error("downloads that ended still count")
	}
}

func TestAttack_T61_AnswersWithoutABodyLeaveTheRateToDownloads(t *testing.T) {
	agent := make([]byte, 16<<20)
	_, get := downloads(t, agent)
	closed := make(chan struct{})
	close(closed)
	request := func(source, method string) int {
		c := &client{http.Header{}, make(chan int, 1), closed}
		get(source, method, c)
		return <-c.status
	}
	for i := range 256 {
		for range 5 {
			if got := request(fmt.Sprintf("198.51.100.%d", i), http.MethodHead); got != http.StatusOK {
				t.Fatalf("source %d: %d", i, got)
			}
		}
	}
	downloaded := 0
	for i := range 256 {
		if request(fmt.Sprintf("192.0.2.%d", i), http.MethodGet) == http.StatusOK {
			downloaded++
		}
	}
	if downloaded < 100 || downloaded == 256 {
		t.Errorf("%d downloads of 256 sources", downloaded)
	}
}

// realRoot is a backend with one pool, whose policy has stage: RealRoot.
type realRoot struct {
	backend.Backend
	view         *view.View
	config, full *gate.Rendered
}

func (b *realRoot) View() *view.View             { return b.view }
func (b *realRoot) Authorities() ([]byte, error) { return nil, nil }
func (b *realRoot) Configs(preApproved bool) *gate.Source {
	return &gate.Source{Config: func(string, specversion.Accept) (*gate.Rendered, error) {
		if preApproved {
			return b.config, nil
		}
		if b.full == nil {
			return nil, reason.Deny(reason.ConfigUnavailable, "no config")
		}
		return b.full, nil
	}}
}

// newRealRoot returns a backend with a pre-approved config and a full one, which may be "".
func newRealRoot(t *testing.T, preApproved, full string) *realRoot {
	t.Helper()
	policies, err := policy.Compile(v1alpha1.AttestationPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p"},
		Spec: v1alpha1.AttestationPolicySpec{
			Pools: []string{"worker"}, Unattested: v1alpha1.UnattestedPreApproved, Stage: v1alpha1.StageRealRoot,
		}})
	if err != nil {
		t.Fatal(err)
	}
	b := &realRoot{view: &view.View{Policies: policies}}
	if b.config, err = gate.NewRendered([]byte(preApproved)); err == nil && full != "" {
		b.full, err = gate.NewRendered([]byte(full))
	}
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A machine cannot repeat its first boot.
func TestPreApproved_DeniesAConfigThatTheFullOneCannotFollow(t *testing.T) {
	const group = `{"ignition":{"version":"3.1.0"},"passwd":{"groups":[{"name":"admins"}]}}`
	s, _ := downloads(t, []byte("agent"))
	b := newRealRoot(t, group, group)
	s.Backend = b
	get := s.preApproved().(gate.Source).Config
	for range 2 { // the second answer is from the cache
		config, err := get("worker", nil)
		if d := reason.From(err); d == nil || d.Code != reason.ConfigUnavailable ||
			!strings.Contains(err.Error(), `pool worker: `) || !strings.Contains(err.Error(), `passwd.groups "admins"`) {
			t.Fatalf("%v, %v", config, err)
		}
	}
	b.full = nil // an upstream has it
	if config, err := get("worker", nil); err != nil || config == nil {
		t.Errorf("without the full config: %v, %v", config, err)
	}
	b.full = newRealRoot(t, `{"ignition":{"version":"3.1.0"}}`, "").config
	if config, err := get("worker", nil); err != nil || config == nil {
		t.Errorf("with a corrected config: %v, %v", config, err)
	}
}

// To make a config with the agent needs much more time than to serve it. Any client chooses the pool and the version,
// and the configs without the agent are rendered again if other clients request many others.
func TestAttack_T61_ConfigsWithTheAgentAreMadeOnce(t *testing.T) {
	const pools = 9
	versions := []string{"2.2.0", "3.0.0", "3.1.0", "3.2.0", "3.3.0", "3.4.0", "3.5.0"}
	var cache agentConfigs
	made := 0
	ask := func(pool, version, comment, authorities string) {
		t.Helper()
		plain, err := gate.NewRendered([]byte(`{"ignition":{"version":"` + version + `"},"` + comment + `":1}`))
		if err != nil {
			t.Fatal(err)
		}
		config, err := cache.get(pool, plain, plain, []byte(authorities),
			func() (*gate.Rendered, error) { made++; return plain, nil })
		if err != nil || string(config.Bytes()) != string(plain.Bytes()) {
			t.Fatal(config, err)
		}
	}
	for range 3 {
		for i := range pools {
			for _, version := range versions {
				ask(fmt.Sprint("pool-", i), version, "", "ca")
			}
		}
	}
	if made != pools*len(versions) {
		t.Errorf("%d configs were made for %d pools with %d versions", made, pools, len(versions))
	}
	made = 0
	ask("pool-0", "3.5.0", "", "another ca")
	ask("pool-0", "3.5.0", "changed", "ca")
	if made != 2 {
		t.Errorf("after a change of the CA and one of the config, %d configs were made", made)
	}
}

func TestPreApproved_DeniesAClientThatCannotCheckTheAgent(t *testing.T) {
	s, _ := downloads(t, []byte("agent"))
	s.Backend = newRealRoot(t, `{"ignition":{"version":"3.0.0"}}`, `{"ignition":{"version":"3.0.0"}}`)
	handler := s.preApproved()
	for accept, want := range map[string]int{
		"3.0.0": http.StatusBadRequest, "2.2.0": http.StatusBadRequest, "3.1.0": http.StatusOK, "3.5.0": http.StatusOK,
	} {
		r, w := httptest.NewRequest(http.MethodGet, "/config/worker", nil), httptest.NewRecorder()
		r.Header.Set("Accept", "application/vnd.coreos.ignition+json;version="+accept)
		handler.ServeHTTP(w, r)
		carries := strings.Contains(w.Body.String(), `"merge":[{`) // the config of the agent follows the pool's own
		if w.Code != want || carries != (want == http.StatusOK) {
			t.Errorf("specification %s: %d %s", accept, w.Code, w.Body)
		}
	}
}
