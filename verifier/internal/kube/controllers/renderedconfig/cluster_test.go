// SPDX-License-Identifier: Apache-2.0

package renderedconfig

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/mcs-attest/mcs-attest/pkg/credential"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	"github.com/mcs-attest/mcs-attest/pkg/specversion"
	"github.com/mcs-attest/mcs-attest/testvm/cluster"
	"github.com/mcs-attest/mcs-attest/verifier/internal/poolconfig"
	"github.com/mcs-attest/mcs-attest/verifier/internal/poolconfig/poolconfigtest"
	"github.com/mcs-attest/mcs-attest/verifier/internal/view"
)

const controllerConfig = `apiVersion: machineconfiguration.openshift.io/v1
kind: ControllerConfig
metadata:
  name: machine-config-controller
  annotations:
    machineconfiguration.openshift.io/release-image-version: 4.20.0
    machineconfiguration.openshift.io/generated-by-version: v4.20.0
spec:
  additionalTrustBundle: cm9vdA==
  baseOSContainerImage: quay.test/os@sha256:1
  cloudProviderCAData: Y2xvdWQtY2E=
  cloudProviderConfig: ""
  clusterDNSIP: 172.30.0.10
  images: {}
  ipFamilies: IPv4
  kubeAPIServerServingCAData: a3ViZWxldC1jYQ==
  network: {mtuMigration: {}}
  proxy: {}
  releaseImage: quay.test/release
  rootCAData: cm9vdA==
  dns: {apiVersion: config.openshift.io/v1, kind: DNS, metadata: {name: cluster}, spec: {baseDomain: test}, status: {}}
  infra:
    apiVersion: config.openshift.io/v1
    kind: Infrastructure
    metadata: {name: cluster}
    spec: {cloudConfig: {name: ""}, platformSpec: {}}
    status:
      apiServerInternalURI: https://api-int.test:6443
      apiServerURL: https://api.test:6443
      controlPlaneTopology: HighlyAvailable
      cpuPartitioning: None
      etcdDiscoveryDomain: ""
      infrastructureName: test
      infrastructureTopology: HighlyAvailable
`

// newOpenShift is an API server with OpenShift's MachineConfigs, and one who may do what
// the verifier may.
func newOpenShift(t *testing.T) (*cluster.Cluster, *rest.Config) {
	t.Helper()
	c := cluster.Start(t)
	c.InstallOpenShift(t)
	rbac, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "..", "deploy", "components", "render", "rbac.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	c.KubectlApply(t, `
apiVersion: v1
kind: Namespace
metadata: {name: mcs-attest}
---
apiVersion: v1
kind: Namespace
metadata: {name: openshift-machine-config-operator}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: kubeconfig-data, namespace: openshift-machine-config-operator}
binaryData: {ca-bundle.crt: `+base64.StdEncoding.EncodeToString([]byte("the API server's CA"))+`}
---
`+controllerConfig+"---\n"+string(rbac))
	return c, c.ServiceAccount(t, "mcs-attest", "mcs-attest-verifier")
}

// syncBuffer is a log that can be read while it is written.
type syncBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.String()
}

// follower is a Reconciler that runs, with what it stores.
type follower struct {
	*Reconciler
	*poolconfig.Store
}

func (f follower) Findings() []view.Finding { return f.Reconciler.Findings() }

// run starts a Reconciler of a cluster.
func run(t *testing.T, api *rest.Config, log *slog.Logger, retry time.Duration, configMap string) follower {
	t.Helper()
	store := poolconfig.NewStore(poolconfig.Options{Log: log})
	r, err := New(api, Options{Log: log, Store: store, OwnCredential: true, KubeconfigConfigMap: configMap, Retry: retry})
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	ctx := t.Context()
	running.Go(func() {
		if err := r.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(running.Wait)
	return follower{r, store}
}

func follow(t *testing.T, api *rest.Config) (follower, *syncBuffer) {
	t.Helper()
	var logged syncBuffer
	return run(t, api, slog.New(slog.NewTextHandler(&logged, nil)), 200*time.Millisecond,
		"openshift-machine-config-operator/kubeconfig-data"), &logged
}

// has waits until a config has, and has not, some texts.
func has(t *testing.T, s follower, preApproved bool, with, without string) {
	t.Helper()
	poolconfigtest.Eventually(t, fmt.Sprintf("a config with %q and without %q", with, without), func() error {
		r, err := s.Config("worker", preApproved, poolconfigtest.Newest)
		if err != nil {
			return err
		}
		got := string(poolconfigtest.Raw(t, r))
		if !strings.Contains(got, with) || without != "" && strings.Contains(got, without) {
			return fmt.Errorf("it is\n%.3000s\nfindings: %v", got, s.Findings())
		}
		return nil
	})
}

func TestRendered_FollowsTheMachineConfigs(t *testing.T) {
	c, api := newOpenShift(t)
	c.KubectlApply(t, poolconfigtest.Pool+"---\n"+poolconfigtest.MachineConfig("00-base", "/etc/base", "base",
		poolconfigtest.Needed)+"---\n"+poolconfigtest.MachineConfig("50-site", "/etc/site", "site", ""))
	// A cluster keeps the rendered ones of its past: those are not read.
	c.KubectlApply(t, strings.Replace(poolconfigtest.MachineConfig("rendered-worker-0", "/etc/of-the-past", "0", ""),
		"  labels: {machineconfiguration.openshift.io/role: worker}\n", "", 1))
	calls := &calls{}
	api.Wrap(calls.listen)
	s, logged := follow(t, api)

	// The pool was not rendered yet, so the verifier renders it.
	has(t, s, false, "/etc/site", "")
	has(t, s, true, "/etc/base", "/etc/site")
	full := poolconfigtest.Text(t, s, "worker", false)
	for _, want := range []string{"/etc/kubernetes/kubeconfig", placeholder, "api-int.test%3A6443", "kubelet-ca",
		"quay.test%2Fos"} {
		if !strings.Contains(full, want) {
			t.Errorf("%q is not in the full config", want)
		}
	}
	// In every version the gate finds where a machine's own credential goes.
	for _, accept := range []string{"", "application/vnd.coreos.ignition+json;version=3.1.0",
		"application/vnd.coreos.ignition+json;version=3.5.0"} {
		r, err := s.Config("worker", false, specversion.ParseAccept(accept))
		if err != nil {
			t.Fatal(err)
		}
		config := poolconfigtest.Raw(t, r)
		slot, err := credential.Find(config)
		if err != nil || slot == nil {
			t.Fatalf("%q: no place for a credential: %v", accept, err)
		}
		parts, err := slot.With(config, secret.New([]byte("its-very-own")))
		if got := string(bytes.Join(parts, nil)); err != nil || strings.Contains(got, placeholder) || len(got) == 0 {
			t.Errorf("%q: %v\n%s", accept, err, got)
		}
	}
	if pre := poolconfigtest.Text(t, s, "worker", true); strings.Contains(pre, "/etc/kubernetes/kubeconfig") {
		t.Error("a kubeconfig in the part for anyone")
	}

	// The machine-config-operator renders: the object that the pool names counts.
	rendered := strings.Replace(poolconfigtest.MachineConfig("rendered-worker-1", "/etc/of-the-operator", "1", ""),
		"  labels: {machineconfiguration.openshift.io/role: worker}\n", "", 1)
	c.KubectlApply(t, rendered)
	status(t, c, `{"status":{"machineCount":3,"updatedMachineCount":0,"readyMachineCount":0,"unavailableMachineCount":0,"degradedMachineCount":0,"configuration":{"name":"rendered-worker-1"}}}`)
	has(t, s, false, "/etc/of-the-operator", "/etc/site")
	has(t, s, true, "/etc/base", "/etc/of-the-operator")
	// The node's annotations name an existing config.
	has(t, s, true, "rendered-worker-1", "")

	// A next one is served once a node has it.
	c.KubectlApply(t, strings.ReplaceAll(strings.ReplaceAll(rendered, "worker-1", "worker-2"), "of-the-operator",
		"of-the-next"))
	c.Kubectl(t, "patch", "machineconfigpool", "worker", "--type=merge", "-p", `{"spec":{"configuration":{"name":"rendered-worker-2"}}}`)
	has(t, s, false, "/etc/of-the-operator", "")
	status(t, c, `{"status":{"updatedMachineCount":1}}`)
	has(t, s, false, "/etc/of-the-next", "/etc/of-the-operator")

	// One that is named and not there: the last good one stays, and it is said why.
	c.Kubectl(t, "patch", "machineconfigpool", "worker", "--type=merge", "-p", `{"spec":{"configuration":{"name":"rendered-worker-3"}}}`)
	poolconfigtest.Eventually(t, "a finding", func() error {
		if got := fmt.Sprint(s.Findings()); !strings.Contains(got, "rendered-worker-3") {
			return fmt.Errorf("%s", got)
		}
		return nil
	})
	has(t, s, false, "/etc/of-the-next", "")

	// A broken MachineConfig stops the part that we render, not the operator's.
	c.KubectlApply(t, strings.Replace(poolconfigtest.MachineConfig("60-bad", "/etc/bad", "", ""), "/etc/bad", "bad", 1))
	poolconfigtest.Eventually(t, "a finding that names it", func() error {
		if got := fmt.Sprint(s.Findings()); !strings.Contains(got, "PreApprovedNotRendered") ||
			!strings.Contains(got, "60-bad") {
			return fmt.Errorf("%s", got)
		}
		return nil
	})
	has(t, s, true, "/etc/base", "")
	c.Kubectl(t, "delete", "machineconfig", "60-bad")
	c.Kubectl(t, "patch", "machineconfigpool", "worker", "--type=merge", "-p", `{"spec":{"configuration":{"name":"rendered-worker-2"}}}`)
	poolconfigtest.Eventually(t, "no finding", func() error {
		if got := s.Findings(); len(got) > 0 {
			return fmt.Errorf("%v", got)
		}
		return nil
	})
	absent, bad := 0, 0
	for line := range strings.Lines(logged.String()) {
		switch {
		case !strings.Contains(line, "level=ERROR"):
		case strings.Contains(line, "rendered-worker-3"):
			absent++
		case strings.Contains(line, "60-bad"):
			bad++
		case strings.Contains(line, "rendered-worker-1"): // the watch of the pools may be ahead
		default:
			t.Errorf("another fault is logged: %s", line)
		}
	}
	if absent != 1 || bad != 1 {
		t.Errorf("each fault is logged once, and not %d and %d times:\n%s", absent, bad, logged.String())
	}

	// An API server that is unavailable removes nothing. Changes made meanwhile arrive later.
	c.StopAPIServer()
	has(t, s, false, "/etc/of-the-next", "")
	if err := c.StartAPIServer(); err != nil {
		t.Fatal(err)
	}
	c.KubectlApply(t, poolconfigtest.MachineConfig("55-late", "/etc/late", "late", poolconfigtest.Needed))
	has(t, s, true, "/etc/late", "")

	// What is not served was not read, and nothing was written.
	calls.mu.Lock()
	defer calls.mu.Unlock()
	if calls.read["machineconfigs/rendered-worker-0"] > 0 || calls.read["machineconfigs/rendered-worker-1"] != 1 ||
		calls.written > 0 || calls.whole > 0 {
		t.Errorf("read %v, %d lists of whole MachineConfigs, %d calls that write", calls.read, calls.whole, calls.written)
	}
}

// calls are those of the API that a Source makes.
type calls struct {
	mu             sync.Mutex
	read           map[string]int // MachineConfigs by name
	whole, written int
}

func (c *calls) listen(next http.RoundTripper) http.RoundTripper {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.read = map[string]int{}
	return tripper(func(r *http.Request) (*http.Response, error) {
		c.mu.Lock()
		if _, name, ok := strings.Cut(r.URL.Path, "/machineconfigs/"); ok {
			c.read["machineconfigs/"+name]++
		} else if strings.HasSuffix(r.URL.Path, "/machineconfigs") && !strings.Contains(r.Header.Get("Accept"),
			"PartialObjectMetadata") {
			c.whole++
		}
		if r.Method != http.MethodGet {
			c.written++
		}
		c.mu.Unlock()
		return next.RoundTrip(r)
	})
}

type tripper func(*http.Request) (*http.Response, error)

func (f tripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A cluster without the machine-config-operator is an ordinary one.
func TestRendered_ClusterWithoutMachineConfigsHasNoPools(t *testing.T) {
	c := cluster.StartShared(t)
	s, _ := follow(t, c.Admin())
	poolconfigtest.Eventually(t, "everything was read", func() error {
		if !s.Ready(t.Context()) {
			return fmt.Errorf("not yet: %v", s.Findings())
		}
		return nil
	})
	if len(s.Pools()) > 0 || len(s.Findings()) > 0 && !strings.Contains(fmt.Sprint(s.Findings()), "CA bundle") {
		t.Errorf("%v %v", s.Pools(), s.Findings())
	}
}

// status is the pool's, as the machine-config-operator writes it.
func status(t *testing.T, c *cluster.Cluster, patch string) {
	t.Helper()
	client, err := dynamic.NewForConfig(c.Admin())
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.Resource(schema.GroupVersionResource{Group: "machineconfiguration.openshift.io", Version: "v1",
		Resource: "machineconfigpools"}).
		Patch(t.Context(), "worker", types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
	if err != nil {
		t.Fatal(err)
	}
}

// Without deploy/components/render the verifier may read none of it: that is said, and
// nothing is served.
func TestAccountWithoutAccessToMachineConfigs_IsReported(t *testing.T) {
	c := cluster.StartShared(t)
	c.InstallOpenShift(t)
	s, _ := follow(t, c.ServiceAccount(t, "default", "default"))
	poolconfigtest.Eventually(t, "a finding", func() error {
		if got := fmt.Sprint(s.Findings()); !strings.Contains(got, "forbidden") || !strings.Contains(got, "machineconfig") {
			return fmt.Errorf("%s", got)
		}
		return nil
	})
	if _, err := s.Config("worker", true, poolconfigtest.Newest); s.Ready(t.Context()) ||
		reason.From(err).Code != reason.ConfigUnavailable {
		t.Errorf("%v", err)
	}
}
