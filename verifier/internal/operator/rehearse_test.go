// SPDX-License-Identifier: Apache-2.0

package operator_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/record"
	"github.com/mcs-attest/mcs-attest/pkg/rehearsal"
	"github.com/mcs-attest/mcs-attest/testvm/cluster"
)

const provisioningToken = "UmVoZWFyc2FsVG9rZW5PZlRoaXNDbHVzdGVyMDEyMzQ1Njc4OQ"

// kubelet answers for the Nodes of an API server without kubelets: it starts each pod, and runs agent in place of the
// container. The rest goes to the real API server.
type kubelet struct {
	t       *testing.T
	fixture fixture
	api     kubernetes.Interface
	// waiting is why the containers of a Node do not start.
	waiting map[string]string
	// events are about each pod, "TYPE REASON: MESSAGE", and its containers do not start.
	events []string
	// agent returns what the agent prints, or ends when stop is closed.
	agent func(node string, order rehearsal.Order, stop <-chan struct{}) string

	mu   sync.Mutex
	pods []corev1.Pod
}

// start returns a kubeconfig.
func (k *kubelet) start(c *cluster.Cluster) string {
	k.t.Helper()
	transport, err := rest.TransportFor(c.Admin())
	if err != nil {
		k.t.Fatal(err)
	}
	target, err := url.Parse(c.Admin().Host)
	if err != nil {
		k.t.Fatal(err)
	}
	if k.api, err = kubernetes.NewForConfig(c.Admin()); err != nil {
		k.t.Fatal(err)
	}
	real := httputil.NewSingleHostReverseProxy(target)
	real.Transport = transport
	real.ModifyResponse = func(res *http.Response) error {
		if res.Request.Method != http.MethodPost || !strings.HasSuffix(res.Request.URL.Path, "/pods") ||
			res.StatusCode != http.StatusCreated {
			return nil
		}
		raw, err := io.ReadAll(res.Body)
		if err == nil {
			err = k.created(raw, res.Header.Get("Content-Type"))
		}
		res.Body = io.NopCloser(bytes.NewReader(raw))
		return err
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/attach") {
			k.attach(w, r)
			return
		}
		r.Header.Set("Accept", "application/json")
		r.Header.Set("Accept-Encoding", "identity")
		real.ServeHTTP(w, r)
	}))
	k.t.Cleanup(s.Close)
	path := filepath.Join(k.t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, "+
		"user: u}}]\nclusters: [{name: c, cluster: {server: %q}}]\nusers: [{name: u, user: {}}]\n", s.URL)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		k.t.Fatal(err)
	}
	return path
}

// created starts a pod.
func (k *kubelet) created(raw []byte, contentType string) error {
	var o corev1.Pod
	if err := json.Unmarshal(raw, &o); err != nil {
		return fmt.Errorf("%s: %w", contentType, err)
	}
	k.mu.Lock()
	k.pods = append(k.pods, *o.DeepCopy())
	k.mu.Unlock()
	state := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	if why := k.waiting[o.Spec.NodeName]; why != "" {
		state = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: why, Message: "manifest unknown"}}
	}
	phase := corev1.PodRunning
	for _, text := range k.events {
		phase = corev1.PodPending
		kind, text, _ := strings.Cut(text, " ")
		why, text, _ := strings.Cut(text, ": ")
		_, err := k.api.CoreV1().Events(o.Namespace).Create(k.t.Context(), &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{GenerateName: o.Name + "-"},
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: o.Namespace, Name: o.Name, UID: o.UID},
			Type:           kind, Reason: why, Message: text, LastTimestamp: metav1.Now(),
		}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
	}
	return k.status(&o, phase, state)
}

func (k *kubelet) status(o *corev1.Pod, phase corev1.PodPhase, state corev1.ContainerState) error {
	o.Status.Phase = phase
	o.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "agent", State: state}}
	patch, err := json.Marshal(map[string]any{"status": o.Status})
	if err != nil {
		return err
	}
	_, err = k.api.CoreV1().Pods(o.Namespace).Patch(k.t.Context(), o.Name, "application/merge-patch+json", patch,
		metav1.PatchOptions{}, "status")
	return err
}

// attach speaks version 5 of the protocol of "kubectl attach": the first byte of a message is its stream.
func (k *kubelet) attach(w http.ResponseWriter, r *http.Request) {
	const stdout, failure = 1, 3
	up := websocket.Upgrader{Subprotocols: []string{"v5.channel.k8s.io"}}
	conn, err := up.Upgrade(w, r, nil)
	if err != nil {
		k.t.Error(err)
		return
	}
	defer conn.Close()
	var input []byte
	for !bytes.HasSuffix(input, []byte("\n")) {
		_, message, err := conn.ReadMessage()
		if err != nil || len(message) == 0 || message[0] != 0 {
			k.t.Errorf("message %v: %v", message, err)
			return
		}
		input = append(input, message[1:]...)
	}
	stop := make(chan struct{})
	go func() {
		defer close(stop)
		for {
			if _, _, err := conn.ReadMessage(); err != nil {
				return
			}
		}
	}()
	order, err := rehearsal.ParseOrder(input)
	if err != nil {
		k.t.Errorf("input: %v", err)
		return
	}
	name := strings.Split(r.URL.Path, "/")[6]
	k.mu.Lock()
	o := k.pods[slices.IndexFunc(k.pods, func(p corev1.Pod) bool { return p.Name == name })]
	k.mu.Unlock()
	out := k.agent(o.Spec.NodeName, order, stop)
	for _, m := range [][]byte{append([]byte{stdout}, out...), append([]byte{failure}, `{"status":"Success"}`...)} {
		if err := conn.WriteMessage(websocket.BinaryMessage, m); err != nil {
			return
		}
	}
	if err := k.status(&o, corev1.PodSucceeded, corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{}}); err != nil {
		k.t.Error(err)
	}
	_ = conn.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""),
		time.Now().Add(time.Minute))
}

// rehearsing is a cluster with Nodes, a verifier's configuration and user data.
func rehearsing(t *testing.T, name string, nodes ...string) (*kubelet, *cluster.Cluster) {
	t.Helper()
	c := installed(t)
	f, _ := room(t, c, name)
	pointer := func(origin string) string {
		return base64.StdEncoding.EncodeToString([]byte(`{"ignition":{"version":"3.4.0","config":{"merge":[{"source":"` +
			origin + `/config/worker","httpHeaders":[{"name":"Authorization","value":"Bearer ` + provisioningToken +
			`"}]}]}}}`))
	}
	c.KubectlApply(t, fmt.Sprintf(`
apiVersion: v1
kind: ServiceAccount
metadata: {name: default, namespace: %[2]s}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: mcs-attest-config, namespace: %[2]s}
data: {mcs-attest.yaml: "origins: [\"https://api-int.test:22623\"]\n"}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: mcs-attest-verifier, namespace: %[2]s}
spec:
  selector: {matchLabels: {app: v}}
  template:
    metadata: {labels: {app: v}}
    spec:
      imagePullSecrets: [{name: registry}]
      containers: [{name: verifier, image: registry.test/verifier}]
---
apiVersion: v1
kind: Secret
metadata: {name: worker-user-data, namespace: %[1]s}
data: {userData: %[3]s}
---
apiVersion: v1
kind: Secret
metadata: {name: other-user-data, namespace: %[1]s}
data: {userData: %[4]s}
`, f.namespace, f.own, pointer("https://api-int.test:22623"), pointer("https://elsewhere.test:22623")))
	for _, node := range nodes {
		ready := "True"
		if strings.HasPrefix(node, "down") {
			ready = "False"
		}
		if _, err := f.put(schema.GroupVersionResource{Version: "v1", Resource: "nodes"}, fmt.Sprintf(`
apiVersion: v1
kind: Node
metadata: {name: %s}
status:
  conditions: [{type: Ready, status: %q}]
  nodeInfo: {architecture: arm64, bootID: "", containerRuntimeVersion: "", kernelVersion: "", kubeProxyVersion: "",
    kubeletVersion: "", machineID: "", operatingSystem: linux, osImage: "", systemUUID: ""}
`, node, ready)); err != nil {
			t.Fatal(err)
		}
	}
	return &kubelet{t: t, fixture: f, waiting: map[string]string{}}, c
}

// kubectlAttest runs "kubectl attest" to its end.
func kubectlAttest(t *testing.T, kubeconfig string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := command(t, kubeconfig, args...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errOut.String(), cmd.ProcessState.ExitCode()
}

func command(t *testing.T, kubeconfig string, args ...string) *exec.Cmd {
	t.Helper()
	dir, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "kubectl-attest"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	return cmd
}

// result records the result of the rehearsal with this ticket, as the verifier does. Without a denial it passes.
func (k *kubelet) result(order rehearsal.Order, denial error, warnings ...string) error {
	hash := rehearsal.TicketHash(order.Ticket.Expose())
	client := k.fixture.d.Resource(attestations).Namespace(k.fixture.namespace)
	list, err := client.List(k.t.Context(), metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, o := range list.Items {
		var a v1alpha1.MachineAttestation
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &a); err != nil {
			return err
		}
		if a.Spec.Rehearsal == nil || a.Spec.Rehearsal.TicketSHA256 != hash {
			continue
		}
		next, err := record.Rehearse(&a, record.Rehearsal{
			Machine:      &machine.Machine{Namespace: a.Namespace, Name: a.Spec.MachineRef.Name, UID: a.Name},
			TicketSHA256: hash, Pool: "worker", AgentVersion: "v1.2.3", Warnings: warnings,
			Denial: reason.From(denial), Proven: true, Identity: v1alpha1.RecordedIdentity{EKSHA256: ek},
		}, time.Now())
		if err != nil {
			return err
		}
		if o.Object, err = runtime.DefaultUnstructuredConverter.ToUnstructured(next); err == nil {
			_, err = client.UpdateStatus(k.t.Context(), &o, metav1.UpdateOptions{})
		}
		return err
	}
	return errors.New("no open rehearsal has this ticket")
}

// left reports the pods and tickets that a command left.
func (k *kubelet) left() []string {
	k.t.Helper()
	var left []string
	pods, err := k.api.CoreV1().Pods(k.fixture.own).List(k.t.Context(), metav1.ListOptions{})
	if err != nil {
		k.t.Fatal(err)
	}
	for _, o := range pods.Items {
		left = append(left, "pod "+o.Name)
	}
	list, err := k.fixture.d.Resource(attestations).Namespace(k.fixture.namespace).List(k.t.Context(),
		metav1.ListOptions{})
	if err != nil {
		k.t.Fatal(err)
	}
	for _, o := range list.Items {
		if spec, _ := o.Object["spec"].(map[string]any); spec["rehearsal"] != nil {
			left = append(left, "ticket of "+o.GetName())
		}
	}
	return left
}

func TestRehearse_TableNamesEachReasonOnceWithItsFix(t *testing.T) {
	k, c := rehearsing(t, "rehearse", "good", "bad-0", "bad-1", "cut-off", "down", "no-image", "misled",
		"hostile", "failed")
	for i, node := range []string{"good", "bad-0", "bad-1", "cut-off", "down", "no-image", "", "absent"} {
		if _, err := k.fixture.machine(fmt.Sprintf("worker-%d", i), node); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := k.fixture.put(machines, fmt.Sprintf(`
apiVersion: machine.openshift.io/v1beta1
kind: Machine
metadata: {name: misled-0, namespace: %s, labels: {machine.openshift.io/cluster-api-machine-role: worker}}
spec: {providerSpec: {value: {userDataSecret: {name: other-user-data}}}}
status: {phase: Running, nodeRef: {kind: Node, name: misled}}
`, k.fixture.namespace)); err != nil {
		t.Fatal(err)
	}
	if _, err := k.fixture.put(machines, fmt.Sprintf(`
apiVersion: machine.openshift.io/v1beta1
kind: Machine
metadata: {name: failed-0, namespace: %s, labels: {machine.openshift.io/cluster-api-machine-role: worker}}
spec: {providerSpec: {value: {userDataSecret: {name: worker-user-data}}}}
status: {phase: Failed, nodeRef: {kind: Node, name: failed}}
`, k.fixture.namespace)); err != nil {
		t.Fatal(err)
	}
	if _, err := k.fixture.machine("hostile-0", "hostile"); err != nil {
		t.Fatal(err)
	}
	here := []string{"-n", k.fixture.namespace, "--verifier-namespace", k.fixture.own}
	if _, stderr, code := kubectlAttest(t, c.Kubeconfig("admin"), append(here, "quarantine", "hostile-0")...); code != 0 {
		t.Fatal(stderr)
	}
	k.waiting["no-image"] = "ImagePullBackOff"
	var tickets []string
	var mu sync.Mutex
	k.agent = func(node string, order rehearsal.Order, _ <-chan struct{}) string {
		mu.Lock()
		tickets = append(tickets, base64.StdEncoding.EncodeToString(order.Ticket.Expose()))
		mu.Unlock()
		// A node that runs may be the reason for which the token was rotated.
		if config := string(order.Pointer.Expose()); strings.Contains(config, provisioningToken) ||
			!strings.Contains(config, "https://api-int.test:22623/config/worker") {
			t.Errorf("the pointer config of %s is %s", node, config)
		}
		var err error
		switch {
		case node == "good":
			err = k.result(order, nil, "this boot is not the first boot")
		case strings.HasPrefix(node, "bad"):
			err = k.result(order, reason.Deny(reason.EKUntrusted, "no root for \x1b[2Jthe EK"))
		default:
			return "mcs-attest: asking\nerror: dial api-int.test:22623: no route to host\nhint: check the firewall\n"
		}
		if err != nil {
			t.Errorf("%s: %v", node, err)
		}
		return "would pass\n"
	}
	kubeconfig := k.start(c)
	stdout, stderr, code := kubectlAttest(t, kubeconfig, append(here, "rehearse", "--all")...)
	if code != 1 || !strings.Contains(stderr, "error: 3 of 10 machines would fail") {
		t.Errorf("exit status %d\n%s", code, stderr)
	}
	ns := k.fixture.namespace + "/"
	for _, want := range []string{
		`(?m)^MACHINE +NODE +POOL +RESULT +REASON +AGE\n` + ns + `misled-0 +misled +worker +FAIL +OriginUnknown +-$`,
		`(?m)^` + ns + `worker-1 +bad-0 +worker +FAIL +EKUntrusted +\d+[sm]$`,
		`(?m)^` + ns + `worker-3 +cut-off +worker +unknown +- +-$`,
		`(?m)^` + ns + `worker-0 +good +worker +pass +- +\d+[sm]$`,
		`(?m)^OriginUnknown: the pointer config in the Secret other-user-data refers to https://elsewhere.test:22623, ` +
			`and the verifier serves https://api-int.test:22623$`,
		`(?m)^EKUntrusted: no root for \?\[2Jthe EK\n  machines: ` + ns + `worker-1, ` + ns +
			`worker-2\n  fix: Add the root to ek-roots`,
		`(?m)^did not rehearse: .*the agent on the Node says: dial api-int.test:22623: no route to host ` +
			`\(hint: check the firewall\)\n  machines: ` + ns + `worker-3\n  fix: check that the Node reaches`,
		`(?m)^did not rehearse: the Node down is not ready$`,
		`(?m)^` + ns + `hostile-0 +hostile +worker +unknown +Quarantined +-$`,
		`(?m)^` + ns + `failed-0 +failed +worker +unknown +MachineDeleting +-$`,
		`(?m)^did not rehearse: the pod does not start: ImagePullBackOff: manifest unknown$`,
		`(?m)^did not rehearse: the Machine names Node absent, which does not exist$`,
		`(?m)^warning: this boot is not the first boot\n  machines: ` + ns + `worker-0$`,
	} {
		if !regexp.MustCompile(want).MatchString(stdout) {
			t.Errorf("not in the table: %s", want)
		}
	}
	if strings.Contains(stdout, "worker-6") || strings.Count(stdout, "EKUntrusted:") != 1 || t.Failed() {
		t.Errorf("table:\n%s", stdout)
	}
	if left := k.left(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	mu.Lock()
	secrets := append(slices.Clone(tickets), provisioningToken)
	mu.Unlock()
	if len(secrets) != 5 {
		t.Errorf("%d agents ran", len(secrets)-1)
	}
	k.mu.Lock()
	pods := slices.Clone(k.pods)
	k.mu.Unlock()
	for _, o := range pods {
		if slices.Contains([]string{"hostile", "failed", "misled", "down"}, o.Spec.NodeName) {
			t.Errorf("a pod was created on Node %s", o.Spec.NodeName)
		}
	}
	k.secrets(secrets, stdout+stderr)

	// A single machine that passes, with another image.
	stdout, stderr, code = kubectlAttest(t, kubeconfig, append(here, "rehearse", "worker-0", "-o", "json", "--image",
		"registry.test/other")...)
	var doc struct {
		Rehearsals []struct{ Machine, Result, AgentVersion string }
	}
	if err := json.Unmarshal([]byte(stdout), &doc); err != nil || code != 0 || len(doc.Rehearsals) != 1 ||
		doc.Rehearsals[0].Result != "pass" || doc.Rehearsals[0].AgentVersion != "v1.2.3" {
		t.Errorf("exit status %d, %v\n%s%s", code, err, stdout, stderr)
	}
	k.mu.Lock()
	last := k.pods[len(k.pods)-1].Spec
	k.mu.Unlock()
	if last.Containers[0].Image != "registry.test/other" || len(last.ImagePullSecrets) != 1 ||
		last.ImagePullSecrets[0].Name != "registry" {
		t.Errorf("image %s with %v", last.Containers[0].Image, last.ImagePullSecrets)
	}
	stdout, _, _ = kubectlAttest(t, kubeconfig, append(here, "status", "-o", "wide")...)
	if !regexp.MustCompile(`worker-0 .*  \d+[sm] pass  `).MatchString(stdout) ||
		!regexp.MustCompile(`worker-1 .*  \d+[sm] FAIL EKUntrusted  `).MatchString(stdout) {
		t.Errorf("status:\n%s", stdout)
	}
	// A machine that cannot rehearse.
	if _, stderr, code = kubectlAttest(t, kubeconfig, append(here, "rehearse", "worker-4")...); code != 4 {
		t.Errorf("exit status %d of a Node that is not ready\n%s", code, stderr)
	}
}

// A runtime that cannot create the sandbox of a pod shows only in the pod's Events.
func TestRehearse_ReportsWhyAPodDoesNotStart(t *testing.T) {
	k, c := rehearsing(t, "rehearsestuck", "stuck")
	if _, err := k.fixture.machine("worker-0", "stuck"); err != nil {
		t.Fatal(err)
	}
	k.waiting["stuck"] = "ContainerCreating"
	k.events = []string{"Normal Pulled: present", "Warning FailedCreatePodSandBox: open /etc/hosts: no such file"}
	stdout, stderr, code := kubectlAttest(t, k.start(c), "-n", k.fixture.namespace, "--verifier-namespace", k.fixture.own,
		"rehearse", "worker-0", "--timeout", "30s")
	const want = `(?m)^did not rehearse: no result after 30s: the pod is Pending: FailedCreatePodSandBox: ` +
		`open /etc/hosts: no such file\n  machines: \S+/worker-0\n  fix: check that the Node can start pods`
	if code != 4 || !regexp.MustCompile(want).MatchString(stdout) {
		t.Errorf("exit status %d\n%s%s", code, stdout, stderr)
	}
}

// secrets reports a ticket or a provisioning token in what was printed, or in a pod. The pods have no credential.
func (k *kubelet) secrets(secrets []string, printed string) {
	k.t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.pods) == 0 {
		k.t.Error("no pod was created")
	}
	for _, o := range k.pods {
		raw, err := json.Marshal(o)
		if err != nil {
			k.t.Fatal(err)
		}
		printed += string(raw)
		if s := o.Spec; s.AutomountServiceAccountToken == nil || *s.AutomountServiceAccountToken || !s.HostNetwork ||
			s.Containers[0].Image != "registry.test/verifier" || s.ImagePullSecrets[0].Name != "registry" ||
			s.Containers[0].Command[0] != "/usr/share/mcs-attest/agents/mcs-attest-agent-arm64" ||
			s.ActiveDeadlineSeconds == nil {
			k.t.Errorf("pod %s", raw)
		}
	}
	for _, secret := range secrets {
		if strings.Contains(printed, secret) {
			k.t.Errorf("%s was printed, or is in a pod", secret)
		}
	}
}

func TestRehearse_AnInterruptionRemovesTicketsAndPods(t *testing.T) {
	k, c := rehearsing(t, "rehearsestop", "stops-0", "stops-1")
	for i := range 2 {
		if _, err := k.fixture.machine(fmt.Sprintf("worker-%d", i), fmt.Sprintf("stops-%d", i)); err != nil {
			t.Fatal(err)
		}
	}
	running := make(chan struct{}, 2)
	k.agent = func(_ string, _ rehearsal.Order, stop <-chan struct{}) string {
		running <- struct{}{}
		<-stop
		return ""
	}
	cmd := command(t, k.start(c), "rehearse", "--all", "-n", k.fixture.namespace, "--verifier-namespace", k.fixture.own)
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for range 2 {
		select {
		case <-running:
		case <-ended:
			t.Fatalf("the command ended:\n%s", errOut.String())
		}
	}
	if left := k.left(); len(left) != 4 {
		t.Errorf("two machines rehearse with %v", left)
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	<-ended
	if code := cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(errOut.String(), "error: interrupted: 0 of 2") {
		t.Errorf("exit status %d\n%s", code, errOut.String())
	}
	if left := k.left(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// A second administrator's ticket outlives the command of the first.
func TestRehearse_LeavesTheTicketOfAnotherAdministrator(t *testing.T) {
	f, b := room(t, installed(t), "rehearsetwo")
	uid, err := f.machine("worker-0", "node")
	if err != nil {
		t.Fatal(err)
	}
	all, err := b.Rehearsables(t.Context(), "worker-0")
	if err != nil || len(all) != 1 {
		t.Fatalf("%d machines, %v", len(all), err)
	}
	hash := []string{strings.Repeat("1", 64), strings.Repeat("2", 64)}
	first, err := b.OpenRehearsal(t.Context(), all[0], hash[0], time.Now().Add(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	second, err := b.OpenRehearsal(t.Context(), all[0], hash[1], time.Now().Add(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	if err := b.CloseRehearsal(t.Context(), first); err != nil {
		t.Error(err)
	}
	ticket := func() any {
		t.Helper()
		o, err := f.d.Resource(attestations).Namespace(f.namespace).Get(t.Context(), uid, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		spec, _ := o.Object["spec"].(map[string]any)
		r, _ := spec["rehearsal"].(map[string]any)
		return r["ticketSHA256"]
	}
	if got := ticket(); got != hash[1] {
		t.Errorf("the second ticket is %v", got)
	}
	for range 2 { // closing twice is no error
		if err := b.CloseRehearsal(t.Context(), second); err != nil {
			t.Error(err)
		}
	}
	if got := ticket(); got != nil {
		t.Errorf("the ticket is %v", got)
	}
}
