package cluster

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	corev1 "k8s.io/api/core/v1"

	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
)

// secretAPI is as much of an API as there is to one Secret, whatever its name,
// and to the lists and objects that a probe reads.
type secretAPI struct {
	server *httptest.Server

	mu           sync.Mutex
	data         map[string][]byte // nil: there is none
	version      int
	revision     int                // of lists
	away         bool               // every call fails
	acknowledged string             // the AttestationVerifier's annotation
	between      func(a *secretAPI) // called once, before a Secret is written
	writes       int
}

func newSecretAPI(t testing.TB) *secretAPI {
	t.Helper()
	a := &secretAPI{revision: 1}
	a.server = httptest.NewServer(a)
	t.Cleanup(a.server.Close)
	return a
}

// cluster has watches that are fed by the test, and calls this API.
func (a *secretAPI) cluster(t testing.TB) *Cluster {
	t.Helper()
	o := Options{Log: slog.New(slog.DiscardHandler)}
	o.ProvisioningToken.Secret = "openshift-config/machineconfig-auth"
	c, err := New(t.Context(), &rest.Config{Host: a.server.URL}, config.Kubernetes{
		Namespace: "own", MachineNamespaces: []string{"m"}, ServingSecret: "mco/tls", CAConfigMap: "mco/ca",
	}, o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (a *secretAPI) secret() *corev1.Secret {
	s := &corev1.Secret{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}, Data: a.data}
	s.Namespace, s.Name, s.ResourceVersion = "some", "secret", strconv.Itoa(a.version)
	return s
}

func (a *secretAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	answer := func(code int, v any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(v) // the caller sees what is missing
	}
	status := func(code int, reason metav1.StatusReason) {
		answer(code, &metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: int32(code), Reason: reason})
	}
	switch {
	case a.away:
		status(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable)
	case strings.HasSuffix(r.URL.Path, "/attestationpolicies"):
		answer(http.StatusOK, map[string]any{"apiVersion": "mcs-attest.dev/v1alpha1", "kind": "AttestationPolicyList",
			"metadata": map[string]any{"resourceVersion": strconv.Itoa(a.revision)}, "items": []any{}})
	case strings.Contains(r.URL.Path, "/attestationverifiers/"):
		annotations := map[string]any{}
		if a.acknowledged != "" {
			annotations[AnnotationRestoreSeen] = a.acknowledged
		}
		answer(http.StatusOK, map[string]any{"apiVersion": "mcs-attest.dev/v1alpha1", "kind": "AttestationVerifier",
			"metadata": map[string]any{"name": "cluster", "annotations": annotations}})
	case !strings.Contains(r.URL.Path, "/secrets"):
		status(http.StatusNotFound, metav1.StatusReasonNotFound)
	case r.Method == http.MethodGet && a.data == nil:
		status(http.StatusNotFound, metav1.StatusReasonNotFound)
	case r.Method == http.MethodGet:
		answer(http.StatusOK, a.secret())
	default:
		if f := a.between; f != nil {
			a.between = nil
			f(a)
		}
		var s corev1.Secret
		if err := json.NewDecoder(r.Body).Decode(&s); err != nil {
			status(http.StatusBadRequest, metav1.StatusReasonBadRequest)
			return
		}
		if r.Method == http.MethodPut && s.ResourceVersion != strconv.Itoa(a.version) {
			status(http.StatusConflict, metav1.StatusReasonConflict)
			return
		}
		a.data, a.version, a.writes = s.Data, a.version+1, a.writes+1
		answer(http.StatusOK, a.secret())
	}
}
