// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
)

const inACluster = "origins: ['https://api-int.example.com:22623', 'https://10.0.0.5:22623']\nupstream: " +
	"https://127.0.0.1:22623\nkubernetes: {namespace: ours}\n"

func parse(t *testing.T, text string) *config.Config {
	t.Helper()
	c, err := config.Parse("mcs-attest.yaml", []byte(text), "/etc/mcs-attest")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestNodeSectionsAreOffByDefault(t *testing.T) {
	c := parse(t, inACluster)
	if c.Render != nil || c.Credential != nil || c.Approver != nil || c.Certificates != nil {
		t.Errorf("%+v", c)
	}
	// Without an upstream, and in a folder, no other component renders.
	if parse(t, strings.Replace(inACluster, "upstream: https://127.0.0.1:22623\n", "", 1)).Render == nil ||
		parse(t, "origins: ['https://a:1']\n").Render == nil {
		t.Error("nothing is rendered")
	}
}

func TestDefaultsOfNodeSections(t *testing.T) {
	c := parse(t, inACluster+"render: {}\ncredential: {}\napprover: {}\ncertificates: {}\n")
	if k := c.Credential; k.Kind != config.ServiceAccountToken ||
		k.ServiceAccount != "openshift-machine-config-operator/node-bootstrapper" ||
		time.Duration(k.Lifetime) != 4*time.Hour || k.Groups != nil {
		t.Errorf("%+v", k)
	}
	if a := c.Approver; a.Attestation != config.AttestationRequired || a.ConfigMap != "ours/mcs-attest-approver" ||
		time.Duration(a.MaxMachineAge) != 2*time.Hour || a.PendingPerMachine != 10 {
		t.Errorf("%+v", a)
	}
	if c.Render.KubeconfigConfigMap != "openshift-machine-config-operator/kubeconfig-data" ||
		c.Certificates.Rotate != config.RotateAuto {
		t.Errorf("%+v %+v", c.Render, c.Certificates)
	}
	if hosts := c.CertificateHosts(); !slices.Equal(hosts, []string{"api-int.example.com", "10.0.0.5"}) {
		t.Errorf("%v", hosts)
	}
	c = parse(t, inACluster+
		"credential: {kind: BootstrapToken}\napprover: {attestation: 'Off'}\ncertificates: {hostnames: [a.example.com]}\n")
	if len(c.Credential.Groups) != 1 ||
		c.Approver.ConfigMap != "openshift-cluster-machine-approver/machine-approver-config" ||
		c.CertificateHosts()[0] != "a.example.com" {
		t.Errorf("%+v %+v", c.Credential, c.Approver)
	}
}

func TestWrongNodeSections(t *testing.T) {
	for text, want := range map[string]string{
		"credential: {kind: Shared}\n":                                             "credential.kind",
		"credential: {mode: Certificates}\n":                                       "credential.mode",
		"credential: {mode: Certificate}\n":                                        "requires approver:",
		"credential: {mode: CertificateOrToken}\napprover: {attestation: 'Off'}\n": "requires approver:",
		"credential: {serviceAccount: other}\n":                                    "credential.serviceAccount",
		"credential: {lifetime: 5m}\n":                                             "credential.lifetime",
		"credential: {lifetime: 25h}\n":                                            "credential.lifetime",
		"approver: {}\n":                                                           "add credential:",
		"approver: {attestation: Maybe}\n":                                         "approver.attestation",
		"approver: {attestation: 'Off', kubeletCA: x}\n":                           "approver.kubeletCA",
		"approver: {attestation: 'Off', pendingPerMachine: -1}":                    "pendingPerMachine",
		"certificates: {rotate: Never}\n":                                          "certificates.rotate",
		"certificates: {signerKey: RSA-1024}\n":                                    "signerKey: \"RSA-1024\" is not one of",
		"render: {preApprovedAllows: [etc/x]}\n":                                   "preApprovedAllows",
		"render: {kubeconfigConfigMap: x}\n":                                       "kubeconfigConfigMap",
		"render: {unknown: 1}\n":                                                   "unknown",
	} {
		if _, err := config.Parse("f", []byte(inACluster+text), "/"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
	for _, section := range []string{"credential", "approver", "certificates"} {
		if _, err := config.Parse("f", []byte("origins: ['https://a:1']\n"+section+": {}\n"), "/"); err == nil ||
			!strings.Contains(err.Error(), "kubernetes") {
			t.Errorf("%s in a folder: %v", section, err)
		}
	}
}
