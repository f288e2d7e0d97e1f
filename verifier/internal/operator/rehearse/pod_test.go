// SPDX-License-Identifier: Apache-2.0

package rehearse

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"

	"github.com/mcs-attest/mcs-attest/verifier/internal/operator"
)

// The kubelet tries again, for example after a registry did not answer.
func TestRunning_AnErrorThatTheKubeletRetriesIsFinalIfItPersists(t *testing.T) {
	for name, c := range map[string]struct {
		reasons []string // one every ten seconds; "" is a container that runs
		final   int      // the index of the reason with an error; -1 is none
	}{
		"a pull that fails once":     {[]string{"ErrImagePull", "ContainerCreating", ""}, -1},
		"a pull that fails for long": {[]string{"ErrImagePull", "ErrImagePull", "ErrImagePull", "ErrImagePull"}, 3},
		"errors that do not persist": {[]string{"CreateContainerError", "RunContainerError", "ContainerCreating",
			"CreateContainerError", "CreateContainerError", ""}, -1},
		"a pull that is given up":     {[]string{"ErrImagePull", "ImagePullBackOff"}, 1},
		"an invalid name":             {[]string{"InvalidImageName"}, 0},
		"a configuration that is not": {[]string{"CreateContainerConfigError"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				reached := running()
				for i, reason := range c.reasons {
					state := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
					if reason != "" {
						state = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}
					}
					ok, err := reached(&corev1.Pod{Status: corev1.PodStatus{
						ContainerStatuses: []corev1.ContainerStatus{{State: state}}}})
					if ok != (reason == "") || (err != nil) != (i == c.final) || err != nil && !strings.Contains(err.Error(), reason) {
						t.Errorf("%d, %s: %v, %v", i, reason, ok, err)
					}
					time.Sleep(10 * time.Second)
				}
			})
		})
	}
}

func TestVerifierImage_AnotherImageHasThePullSecretsOfTheDaemonSet(t *testing.T) {
	cluster, err := operator.OpenCluster(operator.ClusterOptions{Rest: &rest.Config{Host: "https://api.test"}})
	if err != nil {
		t.Fatal(err)
	}
	set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "mcs-attest", Name: "mcs-attest-verifier"}}
	set.Spec.Template.Spec = corev1.PodSpec{ImagePullSecrets: []corev1.LocalObjectReference{{Name: "registry"}},
		Containers: []corev1.Container{{Name: "verifier", Image: "registry.test/verifier"}}}
	for name, c := range map[string]struct {
		api         *fake.Clientset
		image, want string
		secrets     int
		fails       bool
	}{
		"no image":                  {fake.NewClientset(set), "", "registry.test/verifier", 1, false},
		"an image":                  {fake.NewClientset(set), "registry.test/other", "registry.test/other", 1, false},
		"an image and no DaemonSet": {fake.NewClientset(), "registry.test/other", "registry.test/other", 0, false},
		"nothing":                   {fake.NewClientset(), "", "", 0, true},
	} {
		r := &runner{Options: Options{Cluster: cluster, Image: c.image}, api: c.api}
		if err := r.verifierImage(t.Context()); (err != nil) != c.fails || r.Image != c.want ||
			len(r.pullSecrets) != c.secrets {
			t.Errorf("%s: %q with %v, %v", name, r.Image, r.pullSecrets, err)
		}
	}
}
