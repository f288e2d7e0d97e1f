// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	authentication "k8s.io/api/authentication/v1"
	core "k8s.io/api/core/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Admin returns the config of a member of system:masters, without a rate limit.
func (c *Cluster) Admin() *rest.Config { return c.certified("admin") }

func (c *Cluster) certified(name string) *rest.Config {
	return &rest.Config{
		Host: c.host(), QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{
			CAFile: c.ca.path("ca.crt"), CertFile: c.ca.path(name + ".crt"), KeyFile: c.ca.path(name + ".key"),
		},
	}
}

// ServiceAccount returns the config of a ServiceAccount with a token that the API server issued, so
// RBAC decides what it may do. It creates the namespace and the ServiceAccount if needed.
func (c *Cluster) ServiceAccount(t TB, namespace, name string) *rest.Config {
	t.Helper()
	config, err := c.serviceAccount(namespace, name)
	if err != nil {
		t.Fatalf("cluster: service account %s/%s: %v", namespace, name, err)
	}
	return config
}

func (c *Cluster) serviceAccount(namespace, name string) (*rest.Config, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client, err := kubernetes.NewForConfig(c.Admin())
	if err != nil {
		return nil, err
	}
	_, err = client.CoreV1().Namespaces().Create(ctx, &core.Namespace{ObjectMeta: meta.ObjectMeta{Name: namespace}},
		meta.CreateOptions{})
	if err != nil && !kerrors.IsAlreadyExists(err) {
		return nil, err
	}
	accounts := client.CoreV1().ServiceAccounts(namespace)
	_, err = accounts.Create(ctx, &core.ServiceAccount{ObjectMeta: meta.ObjectMeta{Name: name}}, meta.CreateOptions{})
	if err != nil && !kerrors.IsAlreadyExists(err) {
		return nil, err
	}
	day := int64(24 * 60 * 60)
	answer, err := accounts.CreateToken(ctx, name, &authentication.TokenRequest{
		Spec: authentication.TokenRequestSpec{ExpirationSeconds: &day},
	}, meta.CreateOptions{})
	if err != nil {
		return nil, err
	}
	return &rest.Config{
		Host: c.host(), BearerToken: answer.Status.Token, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAFile: c.ca.path("ca.crt")},
	}, nil
}

// Kubeconfig returns the path of a kubeconfig file for "admin" or for
// "system:serviceaccount:NAMESPACE:NAME" (see [Cluster.ServiceAccount]). It panics for another
// name, or without the API.
func (c *Cluster) Kubeconfig(user string) string {
	if user == "admin" {
		return c.path("admin.kubeconfig")
	}
	parts := strings.Split(user, ":")
	if len(parts) != 4 || parts[0] != "system" || parts[1] != "serviceaccount" {
		panic(fmt.Sprintf("cluster: no kubeconfig for %q", user))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if path, ok := c.accounts[user]; ok {
		return path
	}
	config, err := c.serviceAccount(parts[2], parts[3])
	if err == nil {
		err = c.writeKubeconfig(parts[2]+"."+parts[3], config)
	}
	if err != nil {
		panic(fmt.Sprintf("cluster: kubeconfig for %s: %v", user, err))
	}
	c.accounts[user] = c.path(parts[2] + "." + parts[3] + ".kubeconfig")
	return c.accounts[user]
}

func (c *Cluster) writeKubeconfig(name string, config *rest.Config) error {
	out := clientcmdapi.NewConfig()
	out.Clusters["test"] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthority: config.CAFile}
	out.AuthInfos[name] = &clientcmdapi.AuthInfo{
		Token: config.BearerToken, ClientCertificate: config.CertFile, ClientKey: config.KeyFile,
	}
	out.Contexts[name] = &clientcmdapi.Context{Cluster: "test", AuthInfo: name}
	out.CurrentContext = name
	return clientcmd.WriteToFile(*out, c.path(name+".kubeconfig"))
}

// Kubectl runs kubectl as the administrator and returns its standard output.
func (c *Cluster) Kubectl(t TB, args ...string) string {
	t.Helper()
	out, err := c.KubectlAs("admin", "", args...)
	// "kubectl wait" fails on an object that is so new that it has no conditions yet.
	for try := 0; try < 20 && err != nil && strings.Contains(err.Error(), "conditions accessor error: <nil>"); try++ {
		time.Sleep(250 * time.Millisecond)
		out, err = c.KubectlAs("admin", "", args...)
	}
	if err != nil {
		t.Fatalf("%v", err)
	}
	return out
}

// KubectlApply applies manifests as the administrator.
func (c *Cluster) KubectlApply(t TB, manifests string) string {
	t.Helper()
	out, err := c.KubectlAs("admin", manifests, "apply", "-f", "-")
	if err != nil {
		t.Fatalf("%v\n%s", err, manifests)
	}
	return out
}

// KubectlAs runs kubectl as a user of [Cluster.Kubeconfig]; stdin may be empty. The error contains
// its standard error. A change of a CRD closes the API server's connection to the old storage. A request that
// uses it at this moment ends after a minute, with a status or with a reset stream. Commands that may run twice are
// then repeated, at most three times.
func (c *Cluster) KubectlAs(user, stdin string, args ...string) (string, error) {
	out, err := c.kubectl(user, stdin, args...)
	for try := 0; try < 3 && err != nil && repeatable(args, err.Error()); try++ {
		out, err = c.kubectl(user, stdin, args...)
	}
	return out, err
}

// repeatable reports whether a command that ended with this error may run again.
func repeatable(args []string, text string) bool {
	if len(args) > 2 && args[0] == "-n" {
		args = args[2:]
	}
	again := slices.Contains([]string{"apply", "get", "wait", "patch", "annotate", "label"}, args[0]) &&
		!slices.Contains(args, "--type=json")
	return again && (strings.Contains(text, "Error from server (Timeout)") ||
		strings.Contains(text, "INTERNAL_ERROR; received from peer") || strings.Contains(text, "TLS handshake timeout"))
}

func (c *Cluster) kubectl(user, stdin string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.KubectlPath(), args...)
	// A separate home folder, in which kubectl caches its discovery.
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig(user), "HOME="+c.dir,
		"PATH="+c.plugins()+":"+os.Getenv("PATH"))
	cmd.Stdin = strings.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("kubectl %s: %w\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return stdout.String(), nil
}

// AddPlugin installs a program as "kubectl NAME".
func (c *Cluster) AddPlugin(t TB, name, program string) {
	t.Helper()
	err := os.MkdirAll(c.plugins(), 0o755)
	if err == nil {
		err = os.Symlink(program, filepath.Join(c.plugins(), "kubectl-"+name))
	}
	if err != nil {
		t.Fatalf("cluster: plugin %s: %v", name, err)
	}
}

func (c *Cluster) plugins() string { return c.path("plugins") }

// KubectlPath returns the path of the program, which has the API server's version.
func (c *Cluster) KubectlPath() string { return filepath.Join(c.bin, "kubectl") }

// auditPolicy logs each request once, without its content.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
`

// Request is a request that the API server has answered.
type Request struct {
	User, Verb, Group, Resource, Subresource, Namespace, Name string
	Code                                                      int
}

// Requests returns the requests to the API server since the last call of Requests. It needs
// [Audit]. A watch appears when it begins, and when it ends.
func (c *Cluster) Requests(t TB) []Request {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	requests, lines, err := readAudit(c.path("audit.log"), c.audit)
	if err != nil {
		t.Fatalf("cluster: audit log: %v", err)
	}
	c.audit = lines
	return requests
}

func readAudit(path string, skip int) (requests []Request, lines int, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	for in := bufio.NewReader(f); ; lines++ {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return requests, lines, nil // an unfinished line is read next time
		}
		if lines < skip {
			continue
		}
		var event struct {
			Verb string
			User struct{ Username string }
			// This is absent for a path that is not a resource, such as /readyz.
			ObjectRef      *struct{ APIGroup, Resource, Subresource, Namespace, Name string }
			ResponseStatus struct{ Code int }
		}
		if err := json.Unmarshal(line, &event); err != nil {
			return nil, 0, errors.Join(err, errors.New(string(line)))
		}
		if o := event.ObjectRef; o != nil {
			requests = append(requests, Request{
				event.User.Username, event.Verb, o.APIGroup, o.Resource, o.Subresource, o.Namespace, o.Name,
				event.ResponseStatus.Code,
			})
		}
	}
}
