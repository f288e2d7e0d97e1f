package mcscerts

import (
	"context"
	"errors"
	"fmt"

	"github.com/openshift/library-go/pkg/operator/events"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	corev1listers "k8s.io/client-go/listers/core/v1"
)

// library-go reads through listers. These read the API itself, three objects a
// minute: a rotation never rests on a cache that is behind.

var errNoList = errors.New("single objects are read here")

type liveSecrets struct {
	ctx    context.Context
	client kubernetes.Interface
}

func (l liveSecrets) List(labels.Selector) ([]*corev1.Secret, error) { return nil, errNoList }
func (l liveSecrets) Secrets(namespace string) corev1listers.SecretNamespaceLister {
	return liveSecretsIn{l, namespace}
}

type liveSecretsIn struct {
	liveSecrets
	namespace string
}

func (l liveSecretsIn) Get(name string) (*corev1.Secret, error) {
	s, err := l.client.CoreV1().Secrets(l.namespace).Get(l.ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return s, nil
}

type liveConfigMaps struct {
	ctx    context.Context
	client kubernetes.Interface
}

func (l liveConfigMaps) List(labels.Selector) ([]*corev1.ConfigMap, error) { return nil, errNoList }
func (l liveConfigMaps) ConfigMaps(namespace string) corev1listers.ConfigMapNamespaceLister {
	return liveConfigMapsIn{l, namespace}
}

type liveConfigMapsIn struct {
	liveConfigMaps
	namespace string
}

func (l liveConfigMapsIn) Get(name string) (*corev1.ConfigMap, error) {
	m, err := l.client.CoreV1().ConfigMaps(l.namespace).Get(l.ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return m, nil
}

// steps are the words of library-go for what it does that somebody may want to know.
var steps = map[string]string{
	"SignerUpdateRequired":   "CARenewed",
	"CABundleUpdateRequired": "CABundleRenewed",
	"TargetUpdateRequired":   "ServingCertificateRenewed",
}

// recorder takes library-go's events. What it tells before it tries is told on when
// it was done; see told.
type recorder struct{ told []told }

type told struct{ reason, message string }

var _ events.Recorder = (*recorder)(nil)

func (r *recorder) Event(reason, message string) {
	if ours, ok := steps[reason]; ok {
		r.told = append(r.told, told{ours, message})
	}
}
func (r *recorder) Eventf(reason, format string, a ...any) {
	r.Event(reason, fmt.Sprintf(format, a...))
}
func (r *recorder) Warning(reason, message string) { r.Event(reason, message) }
func (r *recorder) Warningf(reason, format string, a ...any) {
	r.Event(reason, fmt.Sprintf(format, a...))
}
func (r *recorder) ForComponent(string) events.Recorder         { return r }
func (r *recorder) WithComponentSuffix(string) events.Recorder  { return r }
func (r *recorder) WithContext(context.Context) events.Recorder { return r }
func (r *recorder) ComponentName() string                       { return "mcs-attest-verifier" }
func (r *recorder) Shutdown()                                   {}
