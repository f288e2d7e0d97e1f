// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	kerrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
)

const machine = `apiVersion: machine.openshift.io/v1beta1
kind: Machine
metadata:
  name: worker-0
  namespace: openshift-machine-api
  labels:
    machine.openshift.io/cluster-api-machine-role: worker
spec:
  providerID: aws:///eu-central-1a/i-0123456789abcdef0
  providerSpec: {}
`

// dieIn is the variable for the folder of a cluster whose process ends as soon as it is ready.
const dieIn = "CLUSTER_TEST_DIE_IN"

func TestMain(m *testing.M) {
	dir := os.Getenv(dieIn)
	if dir == "" {
		os.Exit(m.Run())
	}
	c, err := StartMain(dir, func(string, ...any) {})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(c.etcd.cmd.Process.Pid, c.api.cmd.Process.Pid)
	if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
		fmt.Println(err)
	}
}

func client(t *testing.T, c *Cluster, user string) *kubernetes.Clientset {
	t.Helper()
	config := c.Admin()
	if user != "" {
		namespace, name, _ := strings.Cut(user, "/")
		config = c.ServiceAccount(t, namespace, name)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func TestOpenShiftsAPI(t *testing.T) {
	c := StartShared(t, Audit(), Controllers("garbage-collector-controller"))
	c.InstallOpenShift(t)
	c.InstallClusterAPI(t)
	c.InstallMetal3(t)
	c.KubectlApply(t, machine)
	if got := c.Kubectl(t, "-n", "openshift-machine-api", "get", "machines.machine.openshift.io", "-o",
		"name"); got != "machine.machine.openshift.io/worker-0\n" {
		t.Errorf("the Machines are %q", got)
	}
	for _, kind := range []string{"machineconfigs", "machineconfigpools", "controllerconfigs",
		"securitycontextconstraints",
		"servicemonitors", "prometheusrules", "machines.cluster.x-k8s.io", "baremetalhosts"} {
		c.Kubectl(t, "get", kind, "-A")
	}
	if got := c.Kubectl(t, "version"); strings.Count(got, "v1.36.3") != 2 {
		t.Errorf("the versions are\n%s", got)
	}
}

func TestServiceAccountHasOnlyItsRole(t *testing.T) {
	c := StartShared(t)
	ctx := context.Background()
	someone := client(t, c, "mcs-attest/someone")
	list := func() error {
		_, err := someone.CoreV1().ConfigMaps("mcs-attest").List(ctx, meta.ListOptions{})
		return err
	}
	if err := list(); !kerrors.IsForbidden(err) {
		t.Fatalf("without a role: %v", err)
	}
	c.Kubectl(t, "-n", "mcs-attest", "create", "role", "reader", "--verb=list", "--resource=configmaps")
	c.Kubectl(t, "-n", "mcs-attest", "create", "rolebinding", "reader", "--role=reader",
		"--serviceaccount=mcs-attest:someone")
	if err := eventually(list); err != nil {
		t.Errorf("with it: %v", err)
	}
	if _, err := someone.CoreV1().Secrets("mcs-attest").List(ctx, meta.ListOptions{}); !kerrors.IsForbidden(err) {
		t.Errorf("and for Secrets: %v", err)
	}
	const user = "system:serviceaccount:mcs-attest:someone"
	if out, err := c.KubectlAs(user, "", "auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"); err != nil ||
		out != user {
		t.Errorf("the kubeconfig is for %q: %v", out, err)
	}
	if !slices.ContainsFunc(c.Requests(t), func(r Request) bool {
		return r.User == user && r.Verb == "list" && r.Resource == "secrets" && r.Code == 403
	}) {
		t.Error("the audit log does not have the denial")
	}
	if left := c.Requests(t); slices.ContainsFunc(left, func(r Request) bool { return r.User == user }) {
		t.Errorf("requests are returned twice: %v", left)
	}
}

// eventually waits for what the API server receives by its own watch.
func eventually(check func() error) error {
	deadline := time.Now().Add(time.Minute)
	for {
		err := check()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func TestDependentsOfADeletedObjectAreDeleted(t *testing.T) {
	c := StartShared(t)
	c.Kubectl(t, "create", "configmap", "owner")
	uid := c.Kubectl(t, "get", "configmap", "owner", "-o", "jsonpath={.metadata.uid}")
	c.KubectlApply(t, `{apiVersion: v1, kind: ConfigMap, metadata: {name: owned, ownerReferences: [{apiVersion: v1, kind: ConfigMap, name: owner, uid: `+uid+`}]}}`)
	c.Kubectl(t, "delete", "configmap", "owner")
	c.Kubectl(t, "wait", "--for=delete", "configmap/owned", "--timeout=10m")
}

func TestEverythingEndsWithTheProcess(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cluster")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), dieIn+"="+dir)
	out, err := cmd.Output()
	var etcd, api int
	if _, scan := fmt.Sscan(string(out), &etcd, &api); scan != nil || err == nil {
		t.Fatalf("it said %q and ended with %v", out, err)
	}
	for name, pid := range map[string]int{"etcd": etcd, "kube-apiserver": api} {
		err := eventually(func() error {
			// A zombie that its new parent has not collected yet has no command line.
			if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil && strings.Contains(string(b), name) {
				return errors.New("it still runs")
			}
			return nil
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	err = eventually(func() error {
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("the folder is still there: %w", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestStoppedAPIServerRestartsAtTheSameAddress(t *testing.T) {
	c := Start(t)
	admin := client(t, c, "")
	ctx := context.Background()
	before := c.Admin().Host
	c.Kubectl(t, "create", "configmap", "kept")

	c.StopAPIServer()
	if _, err := admin.CoreV1().ConfigMaps("default").Get(ctx, "kept", meta.GetOptions{}); err == nil ||
		!strings.Contains(err.Error(), "connection refused") {
		t.Errorf("stopped: %v", err)
	}
	if err := c.StartAPIServer(); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.CoreV1().ConfigMaps("default").Get(ctx, "kept", meta.GetOptions{}); err != nil {
		t.Errorf("started again: %v", err)
	}

	resume := c.PauseAPIServer()
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if _, err := admin.CoreV1().ConfigMaps("default").Get(short, "kept", meta.GetOptions{}); err == nil {
		t.Error("a paused API server answers")
	}
	if err := resume(); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.CoreV1().ConfigMaps("default").Get(ctx, "kept", meta.GetOptions{}); err != nil {
		t.Errorf("resumed: %v", err)
	}

	snapshot := filepath.Join(t.TempDir(), "snapshot")
	if err := c.Snapshot(snapshot); err != nil {
		t.Fatal(err)
	}
	c.Kubectl(t, "delete", "configmap", "kept")
	c.Kubectl(t, "create", "configmap", "later")
	if err := c.Restore(snapshot); err != nil {
		t.Fatal(err)
	}
	names := c.Kubectl(t, "get", "configmaps", "-o", "name")
	if !strings.Contains(names, "configmap/kept") || strings.Contains(names, "configmap/later") {
		t.Errorf("after the restore there are %q", names)
	}
	if got := c.Admin().Host; got != before {
		t.Errorf("it moved from %s to %s", before, got)
	}
}

func TestInformerSeesExistingAndNewObjects(t *testing.T) {
	c := StartShared(t)
	c.Kubectl(t, "create", "namespace", "watched")
	c.Kubectl(t, "-n", "watched", "create", "configmap", "before")
	factory := informers.NewSharedInformerFactoryWithOptions(client(t, c, ""), 0, informers.WithNamespace("watched"))
	lister := factory.Core().V1().ConfigMaps().Lister().ConfigMaps("watched")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	start := time.Now()
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	t.Logf("in sync after %v", time.Since(start))
	if _, err := lister.Get("before"); err != nil {
		t.Error(err)
	}
	c.Kubectl(t, "-n", "watched", "create", "configmap", "after")
	if err := eventually(func() error { _, err := lister.Get("after"); return err }); err != nil {
		t.Error(err)
	}
}

// backend answers each connection with its name.
func backend(t *testing.T, name string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			// The load balancer's checks close the connection before they read.
			_, _ = io.WriteString(conn, name)
			conn.Close()
		}
	}()
	return l
}

func TestHAProxy_DropsADeadBackend(t *testing.T) {
	c := StartShared(t)
	one, two := backend(t, "one"), backend(t, "two")
	both := []string{one.Addr().String(), two.Addr().String()}
	h := c.NewHAProxy(t, HAProxyOptions{Backends: both})
	h.WaitUp(t, 2)
	ask := func() string {
		conn, err := net.Dial("tcp", h.Addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		b, err := io.ReadAll(conn)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	seen := map[string]int{}
	for range 20 {
		seen[ask()]++
	}
	if seen["one"] == 0 || seen["two"] == 0 || len(seen) != 2 {
		t.Errorf("twenty connections went to %v", seen)
	}
	one.Close()
	for range 20 {
		if got := ask(); got != "two" {
			t.Errorf("with one of them dead: %q", got)
		}
	}
	h.WaitUp(t, 1)
	if up := h.Up(t); up[0] != both[1] {
		t.Errorf("up is %v", up)
	}
	three := backend(t, "three")
	h.Reload(t, HAProxyOptions{Backends: []string{three.Addr().String()}})
	h.WaitUp(t, 1)
	if got := ask(); got != "three" {
		t.Errorf("after a reload: %q", got)
	}
}
