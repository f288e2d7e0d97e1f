// SPDX-License-Identifier: Apache-2.0

package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func write(t *testing.T, text string) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), "mcs-attest.yaml")
	if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestLoad_RequiresOnlyOrigins(t *testing.T) {
	p := write(t, "origins: [\"https://API-int.example:22623\"]\n")
	c, err := Load(p)
	if err != nil {
		t.Fatal(err)
	}
	if c.Origins[0] != "https://api-int.example:22623" || c.Data != filepath.Dir(p) || c.Listen != ":22623" ||
		c.KeyPublishDelay == 0 || c.RequestsPerSecond == 0 || c.MaxConnections == 0 {
		t.Errorf("got %+v", c)
	}
}

func TestErrorsNameTheField(t *testing.T) {
	const ok = "origins: [\"https://a:1\"]\n"
	const aws = "aws: {accounts: [\"123456789012\"], regions: [eu-central-1], "
	const vc = "{url: \"https://v/sdk\", username: u, passwordFile: p}"
	for text, want := range map[string]string{
		"":                                                       "EOF",
		"listen: x\n":                                            "origins:",
		"origins: [a]\n":                                         "https://api-int.example.com:22623",
		"origins: [\"http://a:1\"]\n":                            "is not an origin",
		ok + "orgins: [x]\n":                                     ":2: unknown field \"orgins\"",
		ok + "keyPublishDelay: soon\n":                           "line 2: \"soon\" is not a duration",
		ok + "upstream: http://x:1\n":                            "upstream",
		ok + "trustedProxies: [\"10.0.0.1\"]\n":                  "10.0.0.10/32",
		ok + "keepEvidence: -1\n":                                "negative",
		ok + "kubernetes: {secret: x}\n":                         ":2: unknown field \"kubernetes.secret\"",
		ok + "kubernetes: {namespace: A}\n":                      "kubernetes.namespace",
		ok + "kubernetes: {servingSecret: x}\n":                  "kubernetes.servingSecret: \"x\" is not namespace/name",
		ok + "kubernetes: {userDataSecrets: [a/b/c]}\n":          "kubernetes.userDataSecrets",
		ok + "kubernetes: {machineNamespaces: [\"*\", a]}\n":     "every namespace",
		ok + "provisioningToken: {grace: 169h}\n":                "is more than 168h",
		ok + "provisioningToken: {rotateEvery: 24h}\n":           "is only for clusters",
		ok + "kubernetes: {machineNamespaces: [../x]}\n":         "kubernetes.machineNamespaces",
		ok + "provisioningToken: {secret: x}\n":                  "provisioningToken.secret",
		ok + "provisioningToken: {grace: 2h, rotateEvery: 1h}\n": "shorter than grace",
		ok + aws + "sts: {url: \"https://a/sts\"}}\n":            "aws.sts.url: \"https://a/sts\" has a path",
		ok + aws + "sts: {url: \"https://a/?x\"}}\n":             "aws.sts",
		ok + aws + "ec2: {url: \"https://a:8/ec2/\"}}\n": "aws.ec2.url: \"https://a:8/ec2/\" has a path; AWS's " +
			"signatures require https://a:8/",
		ok + "vsphere: {servers: [" + vc + ", " + vc + "]}\n": "vsphere.servers[1]: https://v/sdk is listed twice",
		ok + "keyRotation: 10m\n":                             "twice keyPublishDelay",
		ok + "kubernetes: {}\nupstreamCA: tls/ca.crt\n": "upstreamCA is only for a verifier without a cluster; use " +
			"kubernetes.caConfigMap",
		ok + "kubernetes: {}\nkeepEvidence: 1\n": "keepEvidence is only for a verifier without a cluster",
		ok + "---\nupstream: https://a:2\n":      "a second YAML document",
	} {
		_, err := Load(write(t, text))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "mcs-attest.yaml") {
			t.Errorf("%q: got %v, want it to say %q and the file", text, err, want)
		}
	}
}

func TestEndpointsOfCloudsAreRead(t *testing.T) {
	for _, section := range []string{
		`aws: {accounts: ["123456789012"], regions: [eu-central-1], sts: {url: "https://a"}, ec2: {url: "https://a:8443/"}}`,
		`gcp: {projects: [demo], keys: {url: "https://a/oauth2/v3/certs"}, compute: {url: "https://a/compute/v1"}}`,
		`vsphere: {servers: [{url: "https://v/sdk", username: u, passwordFile: p}, {url: "https://w/sdk", username: u, passwordFile: p}]}`,
	} {
		if _, err := Load(write(t, "origins: [\"https://a:1\"]\n"+section+"\n")); err != nil {
			t.Errorf("%s: %v", section, err)
		}
	}
}

func TestOriginIsCanonical(t *testing.T) {
	for in, want := range map[string]string{
		"https://A.b": "https://a.b:443", "https://[FE80::1]:22623/": "https://[fe80::1]:22623",
		"https://10.0.2.2:22623": "https://10.0.2.2:22623",
	} {
		if got, err := Origin(in); err != nil || got != want {
			t.Errorf("%s: got %q, %v", in, got, err)
		}
	}
	for _, bad := range []string{"", "a:1", "http://a:1", "https://u@a:1", "https://a:1/x", "https://a:1?q",
		"https://:1"} {
		if got, err := Origin(bad); err == nil {
			t.Errorf("%q became %q", bad, got)
		}
	}
}

func TestCluster_NeedsOnlyItsSection(t *testing.T) {
	c, err := Load(write(t, "origins: [\"https://a:1\"]\n"))
	if err != nil || c.Kubernetes != nil {
		t.Fatalf("without the section: %+v, %v", c.Kubernetes, err)
	}
	p := write(t, "origins: [\"https://a:1\"]\nkubernetes: {kubeconfig: k}\nprovisioningToken: {rotateEvery: 24h}\n")
	if c, err = Load(p); err != nil {
		t.Fatal(err)
	}
	k := c.Kubernetes
	if k.Kubeconfig != filepath.Join(filepath.Dir(p), "k") || k.Namespace != "mcs-attest" ||
		len(k.MachineNamespaces) != 2 ||
		k.ServingSecret != "openshift-machine-config-operator/machine-config-server-tls" || len(k.UserDataSecrets) != 2 {
		t.Errorf("got %+v", k)
	}
	if c.ProvisioningToken.Secret != "openshift-config/machineconfig-auth" || c.ProvisioningToken.Grace == 0 ||
		c.KeyRotation == 0 {
		t.Errorf("got %+v, %v", c.ProvisioningToken, c.KeyRotation)
	}
}
