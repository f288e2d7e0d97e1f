// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/mcs-attest/mcs-attest/verifier/internal/admin"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
)

// collected is a Collector in memory.
type collected struct{ files, missed map[string]string }

func newCollected() *collected { return &collected{map[string]string{}, map[string]string{}} }

func (c *collected) Add(name string, content []byte) error {
	c.files[name] = string(content)
	return nil
}

func (c *collected) Missed(what string, err error) { c.missed[what] = err.Error() }

func TestCollect_OfAFolderHasOnlyTheObjectsOfEachSection(t *testing.T) {
	const (
		secretObject = "apiVersion: v1\nkind: Secret\nmetadata: {name: user-data, namespace: n}\nstringData: {a: hunter2}\n"
		policy       = "apiVersion: mcs-attest.dev/v1alpha1\nkind: AttestationPolicy\nmetadata: {name: workers}\n" +
			"spec: {pools: [worker]}\n"
		references = "apiVersion: mcs-attest.dev/v1alpha1\nkind: ReferenceValues\nmetadata: {name: rhcos}\n"
		machine    = "apiVersion: machine.openshift.io/v1beta1\nkind: Machine\nmetadata: {name: worker-0}\n"
		foreign    = "apiVersion: example.com/v1\nkind: Machine\nmetadata: {name: other-0}\nspec: {password: hunter2}\n"
		list       = "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Secret, metadata: {name: listed}, " +
			"data: {a: hunter2}}\n- {apiVersion: v1, kind: List, items: [{kind: Secret, data: {a: hunter2}}]}\n" +
			"- {apiVersion: metal3.io/v1alpha1, kind: BareMetalHost, metadata: {name: host-0}}\n"
	)
	f := folderWith(t, map[string]string{
		"attestations/a.yaml":        enrollmentOf("worker-1") + "---\n" + secretObject,
		"attestations/a.yaml.bak":    secretObject,
		"machines/m.yaml":            machine + "---\n" + list + "---\n" + foreign,
		"machines/passwords.txt":     "hunter2",
		"policies/p.yml":             policy + "---\n" + secretObject,
		"policies/broken.yaml":       "stringData: {a: hunter2",
		"reference-values/r.json":    `{"apiVersion":"v1","kind":"Secret","stringData":{"a":"hunter2"}}`,
		"reference-values/rhcos.yml": references,
	})
	if err := syscall.Mkfifo(f.Config.Path("machines", "fifo.yaml"), 0o600); err != nil {
		t.Fatal(err)
	}
	f.Offline = func(*config.Config, time.Time) (*admin.State, error) { return nil, errors.New("none") }
	to := newCollected()
	if err := f.Collect(t.Context(), 0, to); err != nil {
		t.Fatal(err)
	}
	for name, content := range to.files {
		if strings.Contains(content, "hunter2") {
			t.Errorf("%s: %s", name, content)
		}
	}
	for name, want := range map[string][]string{
		"attestations/a.yaml": {`"name":"worker-1"`, `"ekSHA256"`, `"kind":"Secret"`, `"name":"user-data"`,
			`"namespace":"n"`},
		"machines/m.yaml": {`"name":"worker-0"`, `"name":"listed"`, `"kind":"List"`, `"name":"host-0"`,
			`"name":"other-0"`},
		"policies/p.yml":             {`"pools":["worker"]`, `"name":"user-data"`},
		"reference-values/r.json":    {`"kind":"Secret"`},
		"reference-values/rhcos.yml": {`"name":"rhcos"`},
	} {
		for _, part := range want {
			if !strings.Contains(to.files[name], part) {
				t.Errorf("%s does not have %s: %s", name, part, to.files[name])
			}
		}
	}
	for name, want := range map[string]string{"machines/fifo.yaml": "not a regular file",
		"policies/broken.yaml": "does not parse"} {
		if !strings.Contains(to.missed[name], want) {
			t.Errorf("%s: %q", name, to.missed[name])
		}
	}
}

// apiServer is a cluster that has these objects, by the path of a list, and these logs, by the name of a pod.
func apiServer(t *testing.T, objects map[string][]map[string]any, logs map[string]string) *Cluster {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		parts := strings.Split(r.URL.Path, "/")
		answer := map[string]any{"apiVersion": "v1", "kind": "List", "items": objects[r.URL.Path]}
		switch {
		case parts[len(parts)-1] == "log" && r.URL.Query().Get("previous") == "":
			log := logs[parts[len(parts)-2]]
			if limit, err := strconv.Atoi(r.URL.Query().Get("limitBytes")); err == nil {
				log = log[:min(limit, len(log))]
			}
			_, _ = io.WriteString(w, log)
			return
		case parts[len(parts)-1] == "log":
			w.WriteHeader(http.StatusBadRequest)
			answer = map[string]any{"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "BadRequest"}
		case r.URL.Path == "/api/v1/namespaces/mcs-attest/configmaps/mcs-attest-config":
			answer = map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "data": map[string]string{
				"mcs-attest.yaml": "origins: ['https://api-int.test:22623']\nkubernetes: {caConfigMap: authorities/ca}\n"}}
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer)
	}))
	t.Cleanup(s.Close)
	c, err := OpenCluster(ClusterOptions{Rest: &rest.Config{Host: s.URL}, Namespaces: []string{"machines"}, Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func podWith(name string, port int) map[string]any {
	return map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"containers": []any{map[string]any{"name": "main", "ports": []any{
			map[string]any{"name": "metrics", "containerPort": 9622}, map[string]any{"name": "health", "containerPort": port},
		}}}}}
}

func TestCollect_KeepsTheEndOfALongLog(t *testing.T) {
	long := "oldest\n" + strings.Repeat(strings.Repeat("x", 1023)+"\n", maxLog>>10) + "newest\n"
	c := apiServer(t, map[string][]map[string]any{
		"/api/v1/namespaces/mcs-attest/pods": {podWith("long", 1), podWith("short", 1)},
	}, map[string]string{"long": long, "short": "one line\n"})
	to := newCollected()
	if err := c.Collect(t.Context(), 0, to); err != nil {
		t.Fatal(err)
	}
	log := to.files["logs/long.main.log"]
	if len(log) > maxLog || !strings.HasSuffix(log, "x\nnewest\n") || strings.Index(log, "\n") != 1023 {
		t.Errorf("%d bytes, which end with %q", len(log), log[max(0, len(log)-20):])
	}
	if missed := to.missed["logs/long.main.log"]; !strings.Contains(missed, "only the last 16 MiB") {
		t.Errorf("missed: %q", missed)
	}
	const short = "logs/short.main.log"
	if to.files[short] != "one line\n" || to.missed[short] != "" {
		t.Errorf("short log: %q, missed: %q", to.files[short], to.missed[short])
	}
}

func TestCollect_NamesTheHealthPortOfEachPod(t *testing.T) {
	c := apiServer(t, map[string][]map[string]any{
		"/api/v1/namespaces/mcs-attest/pods": {podWith("front", 22681), podWith("controller", 22682)},
	}, nil)
	to := newCollected()
	if err := c.Collect(t.Context(), 0, to); err != nil {
		t.Fatal(err)
	}
	for name, port := range map[string]int{"front": 22681, "controller": 22682} {
		want := fmt.Sprintf("port-forward %s %[2]d' makes http://127.0.0.1:%[2]d/readyz", name, port)
		if got := to.missed["health and metrics of "+name]; !strings.Contains(got, want) {
			t.Errorf("%s: %s", name, got)
		}
	}
}

func TestCollect_HasTheVerifiersEventsOfOtherNamespaces(t *testing.T) {
	event := func(namespace, name, kind, from string) map[string]any {
		return map[string]any{"apiVersion": "v1", "kind": "Event", "metadata": map[string]any{"namespace": namespace,
			"name": name}, "involvedObject": map[string]any{"kind": kind}, "reportingComponent": from}
	}
	old := event("default", "policy", "AttestationPolicy", "")
	old["source"] = map[string]any{"component": "mcs-attest-verifier"}
	c := apiServer(t, map[string][]map[string]any{
		"/api/v1/namespaces/machines/events": {event("machines", "machine", "Machine", "machine-controller"),
			event("machines", "foreign-pod", "Pod", "kubelet")},
		"/api/v1/namespaces/mcs-attest/events": {event("mcs-attest", "pod", "Pod", "kubelet")},
		"/api/v1/namespaces/default/events": {event("default", "node", "Node", "mcs-attest-verifier"), old,
			event("default", "foreign-node", "Node", "kubelet"),
			event("default", "foreign-machine", "Machine", "machine-controller")},
		"/api/v1/namespaces/authorities/events": {event("authorities", "ca", "ConfigMap", "mcs-attest-verifier"),
			event("authorities", "foreign-ca", "ConfigMap", "kubelet")},
	}, nil)
	to := newCollected()
	if err := c.Collect(t.Context(), 0, to); err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(to.files["cluster/events.jsonl"]) {
		var o struct{ Metadata struct{ Name string } }
		if err := json.Unmarshal([]byte(line), &o); err != nil {
			t.Fatal(err)
		}
		got = append(got, o.Metadata.Name)
	}
	slices.Sort(got)
	if want := []string{"ca", "machine", "node", "pod", "policy"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
