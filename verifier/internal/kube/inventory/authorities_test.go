// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"bytes"
	"crypto/x509"
	"log/slog"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	"github.com/mcs-attest/mcs-attest/pkg/pki"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
)

// The verifier's own CA may have signed the served certificate. If its ConfigMap is deleted by mistake, every replica
// keeps it. Only a process that has never read it uses the installer's CA.
func TestUpstreamCAs_StayAfterTheConfigMapWasDeleted(t *testing.T) {
	process := func(log *bytes.Buffer) *Inventory {
		c, err := New(&rest.Config{Host: "https://127.0.0.1:1"}, config.Kubernetes{
			Namespace: "own", MachineNamespaces: []string{"m"}, ServingSecret: "mco/tls",
			CAConfigMap: config.MCONamespace + "/machine-config-server-ca",
		}, Options{Log: slog.New(slog.NewTextHandler(log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	configMap := func(namespace, name, key string) (*unstructured.Unstructured, string) {
		ca, err := pki.NewCA(name, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap",
			"metadata": map[string]any{"namespace": namespace, "name": name, "resourceVersion": "1"},
			"data":     map[string]any{key: string(ca.Certificate)}}}, string(ca.Certificate)
	}
	current, own := configMap(config.MCONamespace, "machine-config-server-ca", "ca-bundle.crt")
	legacy, installers := configMap(legacyCANamespace, legacyCAName, "ca.crt")
	check := func(c *Inventory, what, want string) {
		t.Helper()
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM([]byte(want))
		got, err := c.Authorities()
		if err != nil || string(got) != want || !c.UpstreamCAs().Equal(roots) {
			t.Errorf("%s: other CAs, %v", what, err)
		}
	}
	var log bytes.Buffer
	c := process(&log)
	at := c.watching(t, configMapKind, config.MCONamespace)
	c.watching(t, configMapKind, legacyCANamespace).list(t, 1, legacy)
	at.list(t, 1)
	check(c, "the ConfigMap has never existed", installers)
	if log.Len() > 0 {
		t.Errorf("nothing was deleted: %s", &log)
	}
	at.receive(t, current)
	check(c, "it exists", own)
	at.remove(current)
	at.list(t, 2)
	check(c, "it was deleted", own)
	if n := strings.Count(log.String(), "machine-config-server-ca"); n != 1 {
		t.Errorf("%d reports: %s", n, &log)
	}
	next, renewed := configMap(config.MCONamespace, "machine-config-server-ca", "ca-bundle.crt")
	at.receive(t, next)
	check(c, "it was created again", renewed)

	c = process(&log)
	c.watching(t, configMapKind, legacyCANamespace).list(t, 1, legacy)
	c.watching(t, configMapKind, config.MCONamespace).list(t, 1)
	check(c, "another process", installers)
}
