// SPDX-License-Identifier: Apache-2.0

package renderedconfig

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/mcs-attest/mcs-attest/verifier/internal/poolconfig"
	"github.com/mcs-attest/mcs-attest/verifier/internal/poolconfig/poolconfigtest"
)

// fakeAPI answers lists, watches that never tell anything, and reads.
type fakeAPI struct {
	mu      sync.Mutex
	objects map[string]map[string]any // by resource/name
	broken  map[string]bool           // reads that fail
	absent  string                    // a resource whose lists are not found
	denied  int                       // how many were
	version int                       // of the lists; each change increases it
	changed chan struct{}             // ends all watches
}

func (a *fakeAPI) set(t *testing.T, resource, manifest, version string) {
	t.Helper()
	var object map[string]any
	if err := yaml.Unmarshal([]byte(manifest), &object); err != nil {
		t.Fatal(err)
	}
	meta := object["metadata"].(map[string]any)
	meta["resourceVersion"], meta["uid"] = version, meta["name"]
	a.objects[resource+"/"+fmt.Sprint(meta["name"])] = object
}

// change does something, and ends the watches so that all is listed again.
func (a *fakeAPI) change(do func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	do()
	a.version++
	close(a.changed)
	a.changed = make(chan struct{})
}

func (a *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	fail := func(code int, why string) {
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": why,
			"code": code, "message": why})
	}
	if discovery(w, r.URL.Path) {
		return
	}
	a.mu.Lock()
	changed, version := a.changed, fmt.Sprint(a.version)
	if r.URL.Query().Get("sendInitialEvents") != "" {
		a.mu.Unlock()
		fail(http.StatusUnprocessableEntity, "Invalid")
		return
	}
	if r.URL.Query().Get("watch") != "" {
		a.mu.Unlock()
		w.(http.Flusher).Flush()
		if r.URL.Query().Get("resourceVersion") != version {
			// The objects changed between the client's list and this watch.
			ended := make(chan struct{})
			close(ended)
			changed = ended
		}
		select {
		case <-changed:
			// Too old: list again.
			_ = json.NewEncoder(w).Encode(map[string]any{"type": "ERROR",
				"object": map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Expired",
					"code": 410}})
		case <-r.Context().Done():
		}
		return
	}
	defer a.mu.Unlock()
	parts := strings.Split(r.URL.Path, "/")
	last := parts[len(parts)-1]
	for resource, list := range lists {
		switch {
		case last == resource && resource == a.absent:
			a.denied++
		case last == resource:
			slim := strings.Contains(r.Header.Get("Accept"), "PartialObjectMetadata")
			items := []any{}
			for _, k := range slices.Sorted(maps.Keys(a.objects)) {
				object := a.objects[k]
				if !strings.HasPrefix(k, resource+"/") {
					continue
				}
				if slim {
					object = map[string]any{"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
						"metadata": object["metadata"]}
				}
				items = append(items, object)
			}
			if slim {
				list = metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadataList"}
			}
			_ = json.NewEncoder(w).Encode(map[string]any{"apiVersion": list.APIVersion, "kind": list.Kind,
				"metadata": map[string]any{"resourceVersion": version}, "items": items})
			return
		case parts[len(parts)-2] == resource && a.broken[last]:
			fail(http.StatusInternalServerError, "etcd timeout")
			return
		case parts[len(parts)-2] == resource && a.objects[resource+"/"+last] != nil:
			_ = json.NewEncoder(w).Encode(a.objects[resource+"/"+last])
			return
		}
	}
	fail(http.StatusNotFound, "NotFound")
}

// lists are the types of lists by the resource.
var lists = map[string]metav1.TypeMeta{
	"machineconfigpools": {APIVersion: "machineconfiguration.openshift.io/v1", Kind: "MachineConfigPoolList"},
	"machineconfigs":     {APIVersion: "machineconfiguration.openshift.io/v1", Kind: "MachineConfigList"},
	"controllerconfigs":  {APIVersion: "machineconfiguration.openshift.io/v1", Kind: "ControllerConfigList"},
	"configmaps":         {APIVersion: "v1", Kind: "ConfigMapList"},
}

// discovery answers which kinds the cluster serves.
func discovery(w http.ResponseWriter, path string) bool {
	const group = "machineconfiguration.openshift.io"
	version := metav1.GroupVersionForDiscovery{GroupVersion: group + "/v1", Version: "v1"}
	answers := map[string]any{
		"/api": metav1.APIVersions{Versions: []string{"v1"}},
		"/apis": metav1.APIGroupList{Groups: []metav1.APIGroup{
			{Name: group, Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version},
		}},
		"/api/v1": metav1.APIResourceList{GroupVersion: "v1", APIResources: []metav1.APIResource{
			{Name: "configmaps", Kind: "ConfigMap", Namespaced: true},
		}},
		"/apis/" + group + "/v1": metav1.APIResourceList{GroupVersion: group + "/v1", APIResources: []metav1.APIResource{
			{Name: "machineconfigs", Kind: "MachineConfig"}, {Name: "machineconfigpools", Kind: "MachineConfigPool"},
			{Name: "controllerconfigs", Kind: "ControllerConfig"},
		}},
	}
	if answers[path] != nil {
		_ = json.NewEncoder(w).Encode(answers[path])
	}
	return answers[path] != nil
}

const kubeconfigData = `apiVersion: v1
kind: ConfigMap
metadata: {name: kubeconfig-data, namespace: ns}
data: {ca-bundle.crt: the CA}
`

// fake is a cluster with a pool of two MachineConfigs, and a Source that follows it.
func fake(t *testing.T, prepare func(*fakeAPI)) (*fakeAPI, follower) {
	t.Helper()
	a := &fakeAPI{objects: map[string]map[string]any{}, broken: map[string]bool{}, version: 1,
		changed: make(chan struct{})}
	a.set(t, "machineconfigpools", poolconfigtest.Pool, "1")
	a.set(t, "controllerconfigs", controllerConfig, "1")
	a.set(t, "configmaps", kubeconfigData, "1")
	a.set(t, "machineconfigs", poolconfigtest.MachineConfig("00-base", "/etc/base", "base", poolconfigtest.Needed), "1")
	a.set(t, "machineconfigs", poolconfigtest.MachineConfig("01-more", "/etc/public", "public", poolconfigtest.Needed),
		"1")
	if prepare != nil {
		prepare(a)
	}
	server := httptest.NewServer(a)
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections)
	return a, run(t, &rest.Config{Host: server.URL}, poolconfigtest.Quiet(), 50*time.Millisecond, "ns/kubeconfig-data")
}

// finds waits for a finding.
func finds(t *testing.T, s follower, reason, text string) {
	t.Helper()
	poolconfigtest.Eventually(t, "a finding "+text, func() error {
		for _, f := range s.Findings() {
			if f.Reason == reason && strings.Contains(f.Text, text) {
				return nil
			}
		}
		return fmt.Errorf("%v", s.Findings())
	})
}

func fixed(t *testing.T, s follower) {
	t.Helper()
	poolconfigtest.Eventually(t, "no finding", func() error {
		if got := s.Findings(); len(got) > 0 {
			return fmt.Errorf("%v", got)
		}
		return nil
	})
}

func TestFailedRead_ChangesNothing(t *testing.T) {
	a, s := fake(t, nil)
	has(t, s, false, "/etc/base", "")
	full, pre := poolconfigtest.Text(t, s, "worker", false), poolconfigtest.Text(t, s, "worker", true)
	a.change(func() {
		a.set(t, "machineconfigs", poolconfigtest.MachineConfig("50-site", "/etc/site", "site", ""), "2")
		a.set(t, "machineconfigs", poolconfigtest.MachineConfig("60-new", "/etc/new", "new", ""), "2")
		a.broken["60-new"] = true
	})
	finds(t, s, poolconfig.ReasonNotRead, "MachineConfig 60-new")
	if poolconfigtest.Text(t, s, "worker", false) != full || poolconfigtest.Text(t, s, "worker", true) != pre {
		t.Error("a part of the current content is served")
	}
	// Meanwhile one is taken back from anyone: its metadata say so.
	a.change(func() {
		a.set(t, "machineconfigs", poolconfigtest.MachineConfig("01-more", "/etc/public", "public", ""), "3")
		a.broken["01-more"] = true
	})
	poolconfigtest.Eventually(t, "no part for anyone", func() error {
		if _, err := s.Config("worker", true, poolconfigtest.Newest); !poolconfigtest.Unavailable(err) {
			return errors.Join(errors.New("it is served"), err)
		}
		return nil
	})
	if poolconfigtest.Text(t, s, "worker", false) != full {
		t.Error("the full config changed")
	}
	a.change(func() { a.broken = map[string]bool{} })
	has(t, s, false, "/etc/new", "")
	has(t, s, true, "/etc/base", "/etc/public")
	fixed(t, s)
}

// One "not found" for a kind that was read is no cluster without the kind.
func TestRenderedConfigsOutliveAKindThatIsNotFoundOnce(t *testing.T) {
	for _, resource := range []string{"machineconfigs", "machineconfigpools", "controllerconfigs"} {
		t.Run(resource, func(t *testing.T) {
			a, s := fake(t, nil)
			has(t, s, true, "/etc/base", "")
			before := poolconfigtest.Text(t, s, "worker", true)
			a.change(func() { a.absent = resource })
			poolconfigtest.Eventually(t, "not found", func() error {
				a.mu.Lock()
				defer a.mu.Unlock()
				if a.denied == 0 {
					return fmt.Errorf("no list was denied")
				}
				return nil
			})
			// The pool is reconciled meanwhile.
			a.change(func() {
				a.set(t, "configmaps", strings.Replace(kubeconfigData, "the CA", "another CA", 1), "2")
			})
			has(t, s, false, base64.RawStdEncoding.EncodeToString([]byte("another CA")), "")
			if poolconfigtest.Text(t, s, "worker", true) != before {
				t.Error("the pre-approved part changed")
			}
			a.change(func() { a.absent = "" })
			fixed(t, s)
		})
	}
}

// A new pool whose MachineConfig cannot be read is only a finding.
func TestRendered_UnreadableNewPoolLeavesTheReplicaReady(t *testing.T) {
	a, s := fake(t, nil)
	has(t, s, false, "/etc/base", "")
	poolconfigtest.Eventually(t, "ready", func() error {
		if !s.Ready(t.Context()) {
			return fmt.Errorf("%v", s.Findings())
		}
		return nil
	})
	a.change(func() { delete(a.objects, "controllerconfigs/machine-config-controller") })
	finds(t, s, poolconfig.ReasonNotRead, "no ControllerConfig")
	a.change(func() {
		a.set(t, "machineconfigpools", strings.Replace(poolconfigtest.Pool, "name: worker", "name: infra", 1), "2")
	})
	poolconfigtest.Eventually(t, "the new pool", func() error {
		pools, err := s.listPools(t.Context())
		if err == nil && len(pools) != 2 {
			err = fmt.Errorf("%d pools", len(pools))
		}
		return err
	})
	if names := s.Names(); len(names) != 1 {
		t.Fatalf("pools that were read: %v", names)
	}
	if !s.Ready(t.Context()) {
		t.Error("a new pool made the replica not ready")
	}
}

func TestRendered_FullConfigHasItsKubeconfig(t *testing.T) {
	without := strings.Replace(kubeconfigData, "ca-bundle.crt", "other", 1)
	noServer := strings.Replace(controllerConfig, "apiServerInternalURI: https://api-int.test:6443", `apiServerInternalURI: ""`, 1)
	for _, tt := range []struct {
		name, want string
		change     func(*fakeAPI)
	}{
		{"the ConfigMap lost its key", "no CA bundle", func(a *fakeAPI) { a.set(t, "configmaps", without, "2") }},
		{"the ConfigMap is gone", "no CA bundle", func(a *fakeAPI) { delete(a.objects, "configmaps/kubeconfig-data") }},
		{"the API server has no address", "apiServerInternalURI",
			func(a *fakeAPI) { a.set(t, "controllerconfigs", noServer, "2") }},
		{"the ControllerConfig is gone", "no ControllerConfig",
			func(a *fakeAPI) { delete(a.objects, "controllerconfigs/machine-config-controller") }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, s := fake(t, nil)
			has(t, s, false, "/etc/kubernetes/kubeconfig", "")
			before := poolconfigtest.Text(t, s, "worker", false)
			a.change(func() { tt.change(a) })
			finds(t, s, poolconfig.ReasonNotRead, tt.want)
			if poolconfigtest.Text(t, s, "worker", false) != before {
				t.Error("it changed")
			}

			fresh, s := fake(t, tt.change)
			poolconfigtest.Eventually(t, "a finding", func() error {
				if got := fmt.Sprint(s.Findings()); !strings.Contains(got, tt.want) {
					return fmt.Errorf("%s", got)
				}
				return nil
			})
			if _, err := s.Config("worker", false, poolconfigtest.Newest); !poolconfigtest.Unavailable(err) {
				t.Errorf("a config without a kubeconfig: %v", err)
			}
			fresh.change(func() {
				fresh.set(t, "controllerconfigs", controllerConfig, "9")
				fresh.set(t, "configmaps", kubeconfigData, "9")
			})
			has(t, s, false, "/etc/kubernetes/kubeconfig", "")
			fixed(t, s)
		})
	}
}
