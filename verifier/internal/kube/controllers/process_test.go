// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/verifier/internal/backend"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
)

// discovery is as much of an API server as a manager needs that is not started.
var discovery = map[string]string{
	"/api": `{"kind": "APIVersions", "versions": ["v1"]}`,
	"/apis": `{"kind": "APIGroupList", "apiVersion": "v1", "groups": [{"name": "certificates.k8s.io",
"versions": [{"groupVersion": "certificates.k8s.io/v1", "version": "v1"}]}]}`,
	"/apis/certificates.k8s.io/v1": `{"kind": "APIResourceList", "apiVersion": "v1",
"groupVersion": "certificates.k8s.io/v1", "resources": [{"name": "certificatesigningrequests",
"kind": "CertificateSigningRequest", "verbs": ["get"]}]}`,
}

// newProcess prepares a process.
func newProcess(t *testing.T, sections string) *Process {
	t.Helper()
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		answer, ok := discovery[r.URL.Path]
		if !ok {
			answer = `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}`
			w.WriteHeader(http.StatusNotFound)
		}
		fmt.Fprint(w, answer)
	}))
	t.Cleanup(api.Close)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, fmt.Appendf(nil, `{"apiVersion": "v1", "kind": "Config", "current-context": "c",
"clusters": [{"name": "c", "cluster": {"server": %q}}], "users": [{"name": "c", "user": {}}],
"contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}]}`, api.URL), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Parse("mcs-attest.yaml", fmt.Appendf(nil, "origins: [https://api-int.example.com:22623]\n"+
		"kubernetes: {kubeconfig: %q}\n%s", kubeconfig, sections), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	k, err := New(backend.NewParts(c, slog.New(slog.DiscardHandler), time.Now, "test"))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// recording is a manager that notes what is added to it.
type recording struct {
	manager.Manager
	added map[string]bool
}

// Add implements manager.Manager. A controller has a name; another Runnable has a type.
func (r recording) Add(runnable manager.Runnable) error {
	v := reflect.Indirect(reflect.ValueOf(runnable))
	name := v.Type().String()
	if v.Kind() == reflect.Struct {
		if f := v.FieldByName("Name"); f.IsValid() {
			name = f.String()
		}
	}
	r.added[name] = true
	return r.Manager.Add(runnable)
}

func (k *Process) names(t *testing.T) []string {
	t.Helper()
	m, err := k.manager()
	if err != nil {
		t.Fatal(err)
	}
	r := recording{m, map[string]bool{}}
	for _, setUp := range k.controllers {
		if err := setUp(r); err != nil {
			t.Fatal(err)
		}
	}
	return slices.Collect(maps.Keys(r.added))
}

// Each controller of the page on architecture runs in one manager, which can be built again.
func TestProcess_RunsEachControllerOfTheArchitecture(t *testing.T) {
	page, err := os.ReadFile("../../../../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "### The controllers")
	table, _, _ = strings.Cut(table, "\n## ")
	var documented []string
	for _, row := range regexp.MustCompile("(?m)^\\| (`.*?) \\|").FindAllStringSubmatch(table, -1) {
		for _, name := range regexp.MustCompile("`([a-z]+)`").FindAllStringSubmatch(row[1], -1) {
			documented = append(documented, name[1])
		}
	}
	if len(documented) < 15 {
		t.Fatalf("the page has only %q", documented)
	}
	names := newProcess(t, "render: {}\ncredential: {mode: CertificateOrToken}\napprover: {}\ncertificates: {}\n").names(t)
	for _, name := range documented {
		if name == "renderedconfig" { // it has a manager of its own
			continue
		}
		// csr is two controllers, and the doorprobe is a type.
		runs := regexp.MustCompile("^" + name + `\b`)
		if !slices.ContainsFunc(names, runs.MatchString) {
			t.Errorf("%s does not run; what runs is %q", name, names)
		}
	}
}

// The approver reads records through the process. One that lost what it had before a restore of etcd does not count.
func TestProcess_NoRequestIsApprovedOnARecordThatIsNotRepaired(t *testing.T) {
	k := newProcess(t, "credential: {}\napprover: {}\n")
	for uid, node := range map[string]string{"joined": "w-0", "waits": ""} {
		k.inventory.Registry().PutMachine(machine.Machine{APIVersion: "machine.openshift.io/v1beta1",
			Namespace: "openshift-machine-api", Name: uid, UID: uid, NodeRef: node})
	}
	k.inventory.Guard().Restored(0, "test")
	records := lazyInventory{k}
	if rec, err := records.Record(t.Context(), "joined"); err == nil {
		t.Errorf("the record counts: %+v", rec)
	}
	if _, err := records.Record(t.Context(), "waits"); err != nil {
		t.Errorf("another Machine is held, too: %v", err)
	}
	if records.Ready("waits") == nil {
		t.Error("a credential is made before the repair")
	}
}

// Without a section of the configuration, its controllers do not run, because they lack permissions.
func TestProcess_RunsNoControllerThatIsNotConfigured(t *testing.T) {
	names := newProcess(t, "upstream: https://127.0.0.1:22625\n").names(t)
	for _, name := range []string{
		"bootstrapcredential", "csr-client", "csr-serving", "mcscertificates",
	} {
		if slices.Contains(names, name) {
			t.Errorf("%s runs", name)
		}
	}
	if !slices.Contains(names, "machinerecord") || !slices.Contains(names, "restore") {
		t.Errorf("what runs is %q", names)
	}
}
