// SPDX-License-Identifier: Apache-2.0

package operator_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/mcs-attest/mcs-attest/testvm/binaries"
	"github.com/mcs-attest/mcs-attest/testvm/cluster"
)

const ek = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

var (
	machines     = schema.GroupVersionResource{Group: "machine.openshift.io", Version: "v1beta1", Resource: "machines"}
	attestations = schema.GroupVersionResource{Group: "mcs-attest.dev", Version: "v1alpha1",
		Resource: "machineattestations"}
	verifiers = schema.GroupVersionResource{Group: "mcs-attest.dev", Version: "v1alpha1",
		Resource: "attestationverifiers"}
	events        = schema.GroupVersionResource{Version: "v1", Resource: "events"}
	programs      = sync.OnceValues(buildPrograms)
	programsDir   string
	installedOnce sync.Once
)

// buildPrograms makes a folder with the verifier under each of its names.
func buildPrograms() (string, error) {
	dir, err := os.MkdirTemp("", "programs-")
	if err != nil {
		return "", err
	}
	programsDir = dir
	program, err := binaries.Verifier()
	if err != nil {
		return "", err
	}
	for _, name := range []string{"mcs-attest-verifier", "kubectl-attest", "oc-attest", "kubectl_complete-attest"} {
		if err := os.Symlink(program, filepath.Join(dir, name)); err != nil {
			return "", err
		}
	}
	return dir, nil
}

func TestMain(m *testing.M) {
	code := m.Run()
	if programsDir != "" {
		_ = os.RemoveAll(programsDir)
	}
	os.Exit(code)
}

// installed is a cluster with OpenShift's CRDs and ours, shared by the tests.
func installed(t *testing.T) *cluster.Cluster {
	t.Helper()
	c := cluster.StartShared(t)
	installedOnce.Do(func() {
		c.InstallOpenShift(t)
		c.InstallClusterAPI(t)
		c.InstallOwn(t)
		c.KubectlApply(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: mcs-attest}\n")
		available(t, client(t, c))
	})
	return c
}

func client(t *testing.T, c *cluster.Cluster) dynamic.Interface {
	t.Helper()
	d, err := dynamic.NewForConfig(c.Admin())
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// fixture makes objects in one namespace, as their controllers would.
type fixture struct {
	d         dynamic.Interface
	namespace string
	own       string
}

func decode(text string) (*unstructured.Unstructured, error) {
	var o unstructured.Unstructured
	return &o, yaml.Unmarshal([]byte(text), &o.Object)
}

// put creates an object and, if it has one, its status.
func (f fixture) put(r schema.GroupVersionResource, text string) (*unstructured.Unstructured, error) {
	ctx := context.Background()
	want, err := decode(text)
	if err != nil {
		return nil, err
	}
	client := f.d.Resource(r).Namespace(want.GetNamespace())
	made, err := client.Create(ctx, want, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	if status, ok := want.Object["status"]; ok {
		made.Object["status"] = status
		return client.UpdateStatus(ctx, made, metav1.UpdateOptions{})
	}
	return made, nil
}

// machine makes a Machine; with a node it has joined.
func (f fixture) machine(name, node string) (uid string, err error) {
	text := fmt.Sprintf(`
apiVersion: machine.openshift.io/v1beta1
kind: Machine
metadata:
  name: %s
  namespace: %s
  labels: {machine.openshift.io/cluster-api-machine-role: worker}
spec:
  providerSpec: {value: {userDataSecret: {name: worker-user-data}, password: machine-provider-secret}}
`, name, f.namespace)
	if node != "" {
		text += "status: {phase: Running, nodeRef: {kind: Node, name: " + node + "}}\n"
	}
	o, err := f.put(machines, text)
	if err != nil {
		return "", err
	}
	return string(o.GetUID()), nil
}

// record makes what a verifier would have recorded of a Machine.
func (f fixture) record(machine, uid, phase, reason string) error {
	identity := `{ekSHA256: "` + ek + `"}`
	if phase == "Denied" {
		identity = "{}"
	}
	at := func(ago time.Duration) string { return time.Now().Add(-ago).UTC().Format(time.RFC3339) }
	before := ""
	if phase == "Joined" {
		before = fmt.Sprintf("{time: %q, event: Attested}, {time: %q, event: Fetched}, ", at(94*time.Second),
			at(92*time.Second))
	}
	_, err := f.put(attestations, fmt.Sprintf(`
apiVersion: mcs-attest.dev/v1alpha1
kind: MachineAttestation
metadata:
  name: %[2]s
  namespace: %[3]s
  ownerReferences: [{apiVersion: machine.openshift.io/v1beta1, kind: Machine, name: %[1]s, uid: %[2]s}]
spec: {machineRef: {apiVersion: machine.openshift.io/v1beta1, kind: Machine, namespace: %[3]s, name: %[1]s}}
status:
  machineUID: %[2]s
  phase: %[4]s
  pool: worker
  identity: %[5]s
  history: [%[8]s{time: "%[6]s", event: %[4]s, reason: "%[7]s", message: "as recorded"}]
`, machine, uid, f.namespace, phase, identity, at(time.Minute), reason, before))
	return err
}

// waiting makes a machine that waits for approval.
func (f fixture) waiting(id, hash string) error {
	now := time.Now().UTC().Format(time.RFC3339)
	_, err := f.put(attestations, fmt.Sprintf(`
apiVersion: mcs-attest.dev/v1alpha1
kind: MachineAttestation
metadata: {name: "pending-%s", namespace: %s}
spec: {}
status:
  phase: Pending
  pending: {ekSHA256: "%s", pool: worker, firstSeen: %q, lastSeen: %q, source: 192.0.2.7,
    certificate: {manufacturer: "id:STM"}, claims: "{\"hostname\":\"rack7\"}"}
`, id, f.own, hash, now, now))
	return err
}

func available(t *testing.T, d dynamic.Interface) {
	t.Helper()
	f := fixture{d: d}
	_, err := f.put(verifiers, fmt.Sprintf(`
apiVersion: mcs-attest.dev/v1alpha1
kind: AttestationVerifier
metadata: {name: cluster}
status:
  version: v0.0.0-test
  conditions:
  - {type: Available, status: "True", reason: Serving, message: "", lastTransitionTime: %q}
  - {type: Degraded, status: "False", reason: AsExpected, message: "", lastTransitionTime: %[1]q}
`, time.Now().UTC().Format(time.RFC3339)))
	if err != nil {
		t.Fatal(err)
	}
}

// path is PATH with our programs and kubectl in it.
func path(t *testing.T, c *cluster.Cluster) string {
	t.Helper()
	dir, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	return dir + string(os.PathListSeparator) + filepath.Dir(c.KubectlPath()) + string(
		os.PathListSeparator) + os.Getenv("PATH")
}

// scripts runs the scripts in dir. Each has namespaces of its own, $NS for Machines
// and $OWN for the verifier.
func scripts(t *testing.T, dir string, c *cluster.Cluster, namespaces bool) {
	fixtures := func(ts *testscript.TestScript) fixture {
		return fixture{d: client(t, c), namespace: ts.Getenv("NS"), own: ts.Getenv("OWN")}
	}
	search := path(t, c)
	testscript.Run(t, testscript.Params{
		Dir:                 dir,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			name := strings.ReplaceAll(strings.TrimPrefix(filepath.Base(env.WorkDir), "script-"), "_", "-")
			env.Setenv("PATH", search)
			env.Setenv("KUBECONFIG", c.Kubeconfig("admin"))
			env.Setenv("HOME", env.WorkDir)
			env.Setenv("EK", ek)
			env.Setenv("NS", "m-"+name)
			env.Setenv("OWN", "v-"+name)
			if namespaces {
				c.KubectlApply(t, fmt.Sprintf("apiVersion: v1\nkind: Namespace\nmetadata: {name: m-%s}\n---\napiVersion: "+
					"v1\nkind: Namespace\nmetadata: {name: v-%[1]s}\n", name))
			}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			// machine NAME [NODE] makes a Machine and sets $UID.
			"machine": func(ts *testscript.TestScript, _ bool, args []string) {
				uid, err := fixtures(ts).machine(args[0], strings.Join(args[1:], ""))
				ts.Check(err)
				ts.Setenv("UID", uid)
			},
			// record MACHINE UID PHASE [REASON] makes its record.
			"record": func(ts *testscript.TestScript, _ bool, args []string) {
				ts.Check(fixtures(ts).record(args[0], args[1], args[2], strings.Join(args[3:], "")))
			},
			// waiting ID HASH makes a machine that waits for approval.
			"waiting": func(ts *testscript.TestScript, _ bool, args []string) {
				ts.Check(fixtures(ts).waiting(args[0], args[1]))
			},
			// attested NAME EK records that the machine that an enrollment stands in for attested.
			"attested": func(ts *testscript.TestScript, _ bool, args []string) {
				f := fixtures(ts)
				client := f.d.Resource(attestations).Namespace(f.namespace)
				o, err := client.Get(context.Background(), args[0], metav1.GetOptions{})
				ts.Check(err)
				o.Object["status"] = map[string]any{"machineUID": string(o.GetUID()), "phase": "Attested", "pool": "worker",
					"identity": map[string]any{"ekSHA256": args[1]}}
				_, err = client.UpdateStatus(context.Background(), o, metav1.UpdateOptions{})
				ts.Check(err)
			},
			// event MACHINE UID REASON MESSAGE makes an Event of a Machine.
			"event": func(ts *testscript.TestScript, _ bool, args []string) {
				f := fixtures(ts)
				_, err := f.put(events, fmt.Sprintf(`
apiVersion: v1
kind: Event
metadata: {name: %[2]s.%[4]s, namespace: %[1]s}
involvedObject: {apiVersion: machine.openshift.io/v1beta1, kind: Machine, namespace: %[1]s, name: %[2]s, uid: %[3]s}
type: Warning
reason: %[4]s
message: %[5]q
count: 3
lastTimestamp: "2026-03-01T12:00:00Z"
`, f.namespace, args[0], args[1], args[2], args[3]))
				ts.Check(err)
			},
			// apply FILE applies a manifest, with the environment put in.
			"apply": func(ts *testscript.TestScript, _ bool, args []string) {
				text := os.Expand(ts.ReadFile(args[0]), ts.Getenv)
				out, err := c.KubectlAs("admin", text, "apply", "-f", "-")
				ts.Logf("%s", out)
				ts.Check(err)
			},
			// serviceaccount NAME is from now on who asks.
			"serviceaccount": func(ts *testscript.TestScript, _ bool, args []string) {
				ts.Setenv("KUBECONFIG", c.Kubeconfig("system:serviceaccount:"+ts.Getenv("OWN")+":"+args[0]))
			},
			"apiserver": func(ts *testscript.TestScript, _ bool, args []string) {
				if args[0] == "stop" {
					c.StopAPIServer()
				} else {
					ts.Check(c.StartAPIServer())
				}
			},
		},
	})
}

func TestCommandsOnACluster(t *testing.T) { scripts(t, "testdata/cluster", installed(t), true) }

func TestCommandsOnAClusterWithoutUs(t *testing.T) {
	c := cluster.Start(t)
	// One after the other: one of them takes the API server away.
	t.Run("scripts", func(t *testing.T) { scripts(t, "testdata/bare", c, false) })
}
