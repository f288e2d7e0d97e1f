// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/verifier/internal/backend"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube"
)

// discovery is what the API server of these tests has, by path: a few kinds, and a Lease that no replica holds.
var discovery = map[string]string{
	leasePath: `{"kind": "Lease", "apiVersion": "coordination.k8s.io/v1", "metadata": {"name": "` + kube.LeaseName + `"}}`,
	"/api":    `{"kind": "APIVersions", "versions": ["v1"]}`,
	"/apis": `{"kind": "APIGroupList", "apiVersion": "v1", "groups": [` +
		group("certificates.k8s.io", "v1") + `, ` + group("machineconfiguration.openshift.io", "v1") + `, ` +
		group("mcs-attest.dev", "v1alpha1") + `]}`,
	"/api/v1":                      resources("v1", "ConfigMap", "Secret"),
	"/apis/certificates.k8s.io/v1": resources("certificates.k8s.io/v1", "CertificateSigningRequest"),
	"/apis/machineconfiguration.openshift.io/v1": resources("machineconfiguration.openshift.io/v1",
		"ControllerConfig", "MachineConfig", "MachineConfigPool"),
	"/apis/mcs-attest.dev/v1alpha1": resources("mcs-attest.dev/v1alpha1", "AttestationVerifier"),
}

func group(name, version string) string {
	return fmt.Sprintf(`{"name": %q, "versions": [{"groupVersion": "%s/%s", "version": %[3]q}]}`, name, name, version)
}

func resources(version string, kinds ...string) string {
	var all []string
	for _, kind := range kinds {
		all = append(all, fmt.Sprintf(`{"name": "%ss", "kind": %q, "verbs": ["get"]}`, strings.ToLower(kind), kind))
	}
	return fmt.Sprintf(`{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": %q, "resources": [%s]}`,
		version, strings.Join(all, ", "))
}

// restrictedAPI is an API server that allows only the Lease and the objects of the verifier's own kinds.
type restrictedAPI struct {
	mu      sync.Mutex
	objects map[string]response // by path
}

type response struct {
	contentType string
	body        []byte
}

const leasePath = "/apis/coordination.k8s.io/v1/namespaces/mcs-attest/leases/" + kube.LeaseName

// ServeHTTP implements http.Handler.
func (a *restrictedAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	at, code, reason := strings.TrimSuffix(r.URL.Path, "/status"), http.StatusOK, ""
	res, ok := a.objects[at]
	switch own := at == leasePath || strings.HasPrefix(at, "/apis/mcs-attest.dev/"); {
	case !ok && !own:
		code, reason = http.StatusForbidden, "Forbidden"
	case r.Method != http.MethodGet:
		res.contentType = r.Header.Get("Content-Type")
		res.body, _ = io.ReadAll(r.Body) // the caller sees what is missing
		var o metav1.PartialObjectMetadata
		if r.Method == http.MethodPost && json.Unmarshal(res.body, &o) == nil {
			at += "/" + o.Name
		}
		a.objects[at] = res
	case !ok:
		code, reason = http.StatusNotFound, "NotFound"
	}
	if reason != "" {
		res = response{"application/json", fmt.Appendf(nil,
			`{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": %q, "code": %d}`, reason, code)}
	}
	w.Header().Set("Content-Type", res.contentType)
	w.WriteHeader(code)
	_, _ = w.Write(res.body)
}

// conditions returns the conditions of the AttestationVerifier, by type.
func (a *restrictedAPI) conditions(t *testing.T) map[string]metav1.Condition {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	var v v1alpha1.AttestationVerifier
	if raw := a.objects["/apis/mcs-attest.dev/v1alpha1/attestationverifiers/cluster"].body; raw != nil {
		if err := json.Unmarshal(raw, &v); err != nil {
			t.Fatal(err)
		}
	}
	all := map[string]metav1.Condition{}
	for _, c := range v.Status.Conditions {
		all[c.Type] = c
	}
	return all
}

// newProcess prepares a process.
func newProcess(t *testing.T, sections string) (*Process, *restrictedAPI) {
	t.Helper()
	handler := &restrictedAPI{objects: map[string]response{}}
	for at, body := range discovery {
		handler.objects[at] = response{"application/json", []byte(body)}
	}
	api := httptest.NewServer(handler)
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
	return k, handler
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

// everySection is the configuration of a process with all controllers.
const everySection = "render: {}\ncredential: {mode: CertificateOrToken}\napprover: {}\ncertificates: {}\n"

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
	k, _ := newProcess(t, everySection)
	names := k.names(t)
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
	k, _ := newProcess(t, "credential: {}\napprover: {}\n")
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
	k, _ := newProcess(t, "upstream: https://127.0.0.1:22625\n")
	names := k.names(t)
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

// F1: what each part of a process that may read nothing finds is in the conditions.
func TestProcess_ReportsFindingsAsConditions(t *testing.T) {
	k, api := newProcess(t, everySection)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	missing := func() (all []string) {
		conditions := api.conditions(t)
		for _, want := range []struct{ kind, status, reason, text string }{
			{v1alpha1.ConditionAvailable, "False", "NotSynced", "nodes"},
			{v1alpha1.ConditionProgressing, "True", "Syncing", "nodes"},
			{v1alpha1.ConditionUpgradeable, "False", "NotSynced", "nodes"},
			{v1alpha1.ConditionDoorOpen, "Unknown", "NotObserved", "MachineConfigPools"},
			{v1alpha1.ConditionDegraded, "True", "Forbidden", "list and watch on nodes"},
			{v1alpha1.ConditionDegraded, "True", "Forbidden", "published credentials in namespace mcs-attest-credentials"},
			{v1alpha1.ConditionDegraded, "True", "Forbidden", "watch machineconfigs"},
			{v1alpha1.ConditionDegraded, "True", "Forbidden", "certificate signing requests cannot be watched"},
			{v1alpha1.ConditionDegraded, "True", "Forbidden", "certificates of the Machine Config Server cannot be managed"},
		} {
			c := conditions[want.kind]
			if string(c.Status) != want.status || c.Reason != want.reason || !strings.Contains(c.Message, want.text) {
				all = append(all, fmt.Sprintf("want %q, got %+v", want, c))
			}
		}
		return all
	}
	for deadline := time.Now().Add(2 * time.Minute); len(missing()) > 0; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal(strings.Join(missing(), "\n"))
		}
	}
}

// The test above causes no finding of some controllers.
func TestProcess_HasTheFindingsOfEachController(t *testing.T) {
	k, _ := newProcess(t, everySection)
	var has []string
	for _, f := range k.findings {
		has = append(has, runtime.FuncForPC(reflect.ValueOf(f).Pointer()).Name())
	}
	files, err := filepath.Glob("*/*.go")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !regexp.MustCompile(`(?m)^func \(\w+ \*\w+\) Findings\(\) `).Match(source) {
			continue
		}
		found++
		method := "/" + filepath.Dir(file) + ".("
		if !slices.ContainsFunc(has, func(name string) bool { return strings.Contains(name, method) }) {
			t.Errorf("the findings of %s are not reported, only %q", file, has)
		}
	}
	if found < 7 {
		t.Errorf("only %d controllers have findings", found)
	}
}
