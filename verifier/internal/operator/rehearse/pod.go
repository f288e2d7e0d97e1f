// SPDX-License-Identifier: Apache-2.0

package rehearse

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/mcs-attest/mcs-attest/pkg/firstboot"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	"github.com/mcs-attest/mcs-attest/verifier/internal/audit"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
	"github.com/mcs-attest/mcs-attest/verifier/internal/operator"
)

const (
	podPrefix = "mcs-attest-rehearsal-"
	podLabel  = "app.kubernetes.io/name"
	podName   = "mcs-attest-rehearsal"
	container = "agent"
	// agentsDir is where the verifier's image has the agents.
	agentsDir = "/usr/share/mcs-attest/agents/"
	// nodeConfig is a folder of the Node, and nodeConfigMount where the pod has it.
	nodeConfig      = "/etc/mcs-attest"
	nodeConfigMount = "/host" + nodeConfig
	securityFS      = "/sys/kernel/security"
	// maxOutput bounds what the agent prints.
	maxOutput = 64 << 10
	interval  = time.Second
)

// pod runs the agent on a Node.
type pod struct {
	*runner
	node    *corev1.Node
	name    string
	machine string
	out     output
}

// object is the pod. It is like that of "oc debug node": privileged, because a container has no access to the TPM
// otherwise. It has no credential of the API server.
func (p *pod) object() *corev1.Pod {
	yes, no, root := true, false, int64(0)
	seconds := int64(p.Timeout / time.Second)
	mount := func(name, path string) corev1.VolumeMount {
		return corev1.VolumeMount{Name: name, MountPath: path, ReadOnly: true}
	}
	host := func(name, path string) corev1.Volume {
		return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: path}}}
	}
	o := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: p.name, Namespace: p.Cluster.Own(),
			Labels: map[string]string{podLabel: podName, "app.kubernetes.io/part-of": "mcs-attest"},
			Annotations: map[string]string{
				"mcs-attest.dev/machine":    p.machine,
				"openshift.io/required-scc": "privileged",
				"kubernetes.io/description": "It rehearses the provisioning of its Node, and may be deleted.",
			},
		},
		Spec: corev1.PodSpec{
			NodeName: p.node.Name, HostNetwork: true, ImagePullSecrets: p.pullSecrets,
			// The Node's own resolver, which the initramfs has, too.
			DNSPolicy:                     corev1.DNSDefault,
			RestartPolicy:                 corev1.RestartPolicyNever,
			ActiveDeadlineSeconds:         &seconds,
			TerminationGracePeriodSeconds: new(int64),
			AutomountServiceAccountToken:  &no,
			EnableServiceLinks:            &no,
			Tolerations:                   []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers: []corev1.Container{{
				Name: container, Image: p.Image,
				Command: []string{agentsDir + firstboot.AgentPrefix + p.node.Status.NodeInfo.Architecture},
				Args:    []string{"rehearse", "-"},
				Env: []corev1.EnvVar{
					{Name: "MCS_ATTEST_AZURE_TOKEN_RESOURCE", Value: nodeConfigMount + "/azure-token-resource"},
				},
				Resources: corev1.ResourceRequirements{Requests: resources("10m", "32Mi"), Limits: resources("500m", "128Mi")},
				Stdin:     true, StdinOnce: true,
				SecurityContext: &corev1.SecurityContext{Privileged: &yes, RunAsUser: &root, RunAsNonRoot: &no,
					ReadOnlyRootFilesystem: &yes},
				VolumeMounts: []corev1.VolumeMount{mount("security", securityFS), mount("config", nodeConfigMount)},
			}},
			Volumes: []corev1.Volume{host("security", securityFS), host("config", nodeConfig)},
		},
	}
	return o
}

func resources(cpu, memory string) corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory),
	}
}

// run creates the pod, passes input to the agent, and waits until the agent has ended.
func (p *pod) run(ctx context.Context, input secret.Bytes) error {
	pods := p.api.CoreV1().Pods(p.Cluster.Own())
	if _, err := pods.Create(ctx, p.object(), metav1.CreateOptions{}); err != nil {
		return p.failed("create the pod on Node "+p.node.Name, err)
	}
	if err := p.wait(ctx, running()); err != nil {
		return p.stuck(ctx, err)
	}
	in := bytes.NewReader(input.Expose())
	err := p.attach(ctx, in)
	if err != nil && in.Len() > 0 {
		return err // the agent waits for its input
	}
	// The connection may break while the agent is at work.
	return errors.Join(p.wait(ctx, ended), ctx.Err())
}

// attach passes the input to the agent, and collects its output.
func (p *pod) attach(ctx context.Context, input io.Reader) error {
	url := p.api.CoreV1().RESTClient().Post().Resource("pods").Namespace(p.Cluster.Own()).Name(p.name).
		SubResource("attach").VersionedParams(&corev1.PodAttachOptions{
		Container: container, Stdin: true, Stdout: true, Stderr: true,
	}, scheme.ParameterCodec).URL()
	config := *p.rest
	config.Timeout = 0 // ctx ends it
	sockets, err := remotecommand.NewWebSocketExecutor(&config, "GET", url.String())
	if err != nil {
		return p.failed("attach to the pod", err)
	}
	spdy, err := remotecommand.NewSPDYExecutor(&config, "POST", url)
	if err != nil {
		return p.failed("attach to the pod", err)
	}
	// As kubectl does: API servers before 1.30 and some proxies have no WebSocket for it.
	executor, err := remotecommand.NewFallbackExecutor(sockets, spdy, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
	if err != nil {
		return p.failed("attach to the pod", err)
	}
	err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{
		Stdin: input, Stdout: &p.out, Stderr: &p.out,
	})
	return p.failed("attach to the pod", err)
}

// The reasons of a container that does not start. A transient one is final only if it persists.
var (
	persistent = []string{"ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError"}
	transient  = []string{"ErrImagePull", "CreateContainerError", "RunContainerError"}
)

// persists is how long a transient error lasts before it is final.
const persists = 30 * time.Second

// running returns a function that reports whether the agent waits for its input. The error says why it never will.
func running() func(*corev1.Pod) (bool, error) {
	var since time.Time // when the error began
	return func(o *corev1.Pod) (bool, error) {
		for _, s := range o.Status.ContainerStatuses {
			w := s.State.Waiting
			switch {
			case w == nil || !slices.Contains(transient, w.Reason):
				since = time.Time{}
			case since.IsZero():
				since = time.Now()
			}
			switch {
			case s.State.Running != nil:
				return true, nil
			case s.State.Terminated != nil:
				return false, fmt.Errorf("the agent ended before it had its input: %s",
					audit.Clean(strings.TrimSpace(s.State.Terminated.Reason+" "+s.State.Terminated.Message)))
			case w != nil && (slices.Contains(persistent, w.Reason) || !since.IsZero() && time.Since(since) >= persists):
				return false, hint.New(fmt.Errorf("the pod does not start: %s: %s", w.Reason, audit.Clean(w.Message)),
					"check that Nodes can pull the verifier's image, or name another one by --image")
			}
		}
		if o.Status.Phase == corev1.PodFailed {
			return false, fmt.Errorf("the Node rejects the pod: %s",
				audit.Clean(strings.TrimSpace(o.Status.Reason+" "+o.Status.Message)))
		}
		return false, nil
	}
}

func ended(o *corev1.Pod) (bool, error) {
	return o.Status.Phase == corev1.PodSucceeded || o.Status.Phase == corev1.PodFailed, nil
}

// wait waits for a state of the pod.
func (p *pod) wait(ctx context.Context, reached func(*corev1.Pod) (bool, error)) error {
	last := "the pod was not seen"
	err := wait.PollUntilContextCancel(ctx, interval, true, func(ctx context.Context) (bool, error) {
		o, err := p.api.CoreV1().Pods(p.Cluster.Own()).Get(ctx, p.name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return false, errors.New("the pod was deleted")
		case err != nil && (apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err)):
			return false, p.failed("read the pod", err)
		case err != nil:
			last = err.Error() // the API server may be restarting
			return false, nil
		}
		last = "the pod is " + string(o.Status.Phase)
		return reached(o)
	})
	if ctx.Err() != nil {
		return errors.New(last)
	}
	return err
}

// stuck adds to the error of a pod that did not start in time what its last warning says. Only its Events show that a
// Node cannot create a sandbox, or mount a volume.
func (p *pod) stuck(ctx context.Context, err error) error {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return err
	}
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
	defer stop()
	list, listErr := p.api.CoreV1().Events(p.Cluster.Own()).List(ctx, metav1.ListOptions{FieldSelector: fields.Set{
		"involvedObject.kind": "Pod", "involvedObject.name": p.name, "type": corev1.EventTypeWarning}.String()})
	if listErr != nil || len(list.Items) == 0 {
		return err // the Events only explain it
	}
	last := slices.MaxFunc(list.Items, func(a, b corev1.Event) int {
		return a.LastTimestamp.Compare(b.LastTimestamp.Time)
	})
	return fmt.Errorf("%w: %s: %s", err, audit.Clean(last.Reason), audit.Clean(last.Message))
}

// said is why the agent had no result, in its own words. They are untrusted, so they are no fix.
func (p *pod) said() error {
	const fix = "check that the Node reaches the verifier's origin, and that the verifier is not older than this command"
	text, advice := "", ""
	for line := range strings.Lines(p.out.String()) {
		line = audit.Clean(strings.TrimSpace(line))
		switch problem, isError := strings.CutPrefix(line, "error: "); {
		case isError && text == "":
			text = problem
		case strings.HasPrefix(line, "hint: ") && advice == "":
			advice = " (" + line + ")"
		}
	}
	if text == "" {
		return hint.New(errors.New("the agent reported no error, and the verifier recorded no result"), fix)
	}
	return hint.New(fmt.Errorf("the verifier recorded no result; the agent on the Node says: %s%s", text, advice), fix)
}

// delete deletes the pod. It need not exist.
func (p *pod) delete(ctx context.Context) error {
	err := p.api.CoreV1().Pods(p.Cluster.Own()).Delete(ctx, p.name, *metav1.NewDeleteOptions(0))
	if apierrors.IsNotFound(err) {
		return nil
	}
	return p.failed("delete the pod "+p.Cluster.Own()+"/"+p.name, err)
}

// deleteFinished deletes pods of commands that were killed. Another command may still read a younger pod.
func (r *runner) deleteFinished(ctx context.Context) error {
	pods := r.api.CoreV1().Pods(r.Cluster.Own())
	list, err := pods.List(ctx, metav1.ListOptions{LabelSelector: podLabel + "=" + podName})
	if err != nil {
		return r.failed("list pods", err)
	}
	for _, o := range list.Items {
		if done, _ := ended(&o); !done || time.Since(o.CreationTimestamp.Time) < MaxTimeout {
			continue
		}
		if err := pods.Delete(ctx, o.Name, *metav1.NewDeleteOptions(0)); err != nil && !apierrors.IsNotFound(err) {
			return r.failed("delete the pod "+o.Name, err)
		}
	}
	return nil
}

// verifierImage sets the Secrets that pull the verifier's image, which contains the agents. It sets the image, too, if
// the options name none.
func (r *runner) verifierImage(ctx context.Context) error {
	const name = "mcs-attest-verifier"
	set, err := r.api.AppsV1().DaemonSets(r.Cluster.Own()).Get(ctx, name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return r.failed("read DaemonSet "+name, err)
	}
	if err == nil {
		pod := set.Spec.Template.Spec
		r.pullSecrets = pod.ImagePullSecrets
		for _, c := range pod.Containers {
			if c.Name == "verifier" {
				r.Image = cmp.Or(r.Image, c.Image)
			}
		}
	}
	if r.Image == "" {
		return hint.New(fmt.Errorf("no DaemonSet %s/%s has a container verifier", r.Cluster.Own(), name),
			"name the image of the verifier by --image, or its namespace by --verifier-namespace")
	}
	return nil
}

// node reads a Node that can run a pod.
func (r *runner) node(ctx context.Context, name string) (*corev1.Node, error) {
	o, err := r.api.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, hint.New(fmt.Errorf("the Machine names Node %s, which does not exist", name),
			"if the Node was deleted, delete the Machine, too")
	}
	if err != nil {
		return nil, r.failed("read Node "+name, err)
	}
	for _, c := range o.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
			return o, nil
		}
	}
	return nil, hint.New(fmt.Errorf("the Node %s is not ready", name), "repair the Node, then rehearse again")
}

// failed is an error of the API server about a pod or a Node, for a person.
func (r *runner) failed(what string, err error) error {
	switch {
	case err == nil:
		return nil
	case operator.Forbidden(err):
		return hint.New(fmt.Errorf("%s: %w", what, err), "docs/kubectl-plugin.md lists the permissions; a "+
			"cluster administrator has it")
	}
	return fmt.Errorf("%s: %w", what, err)
}

// output keeps the beginning of what the agent prints.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

var _ io.Writer = (*output)(nil)

// Write implements io.Writer.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.buf.Write(p[:min(len(p), maxOutput-o.buf.Len())])
	return len(p), nil
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}
