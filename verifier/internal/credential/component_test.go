// SPDX-License-Identifier: Apache-2.0

package credential_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authentication "k8s.io/api/authentication/v1"
	core "k8s.io/api/core/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/mcs-attest/mcs-attest/deploy"
	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	pkgcredential "github.com/mcs-attest/mcs-attest/pkg/credential"
	"github.com/mcs-attest/mcs-attest/testvm/binaries"
	"github.com/mcs-attest/mcs-attest/testvm/cluster"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/credential"
)

// renderWith is an overlay with components, as an administrator puts them together
// in a folder beside deploy.
func renderWith(t *testing.T, overlay string, components ...string) []byte {
	t.Helper()
	bin, err := binaries.Kubernetes(t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "deploy"), os.DirFS(deploy.Dir(t))); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "my-cluster"), 0o755); err != nil {
		t.Fatal(err)
	}
	text := "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [../deploy/overlays/" + overlay +
		"]\ncomponents:\n"
	for _, c := range components {
		text += "- ../deploy/components/" + c + "\n"
	}
	if err := os.WriteFile(filepath.Join(dir, "my-cluster", "kustomization.yaml"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join(bin, "kubectl"), "kustomize",
		filepath.Join(dir, "my-cluster")).Output()
	if err != nil {
		t.Fatalf("kubectl kustomize %v: %v", components, err)
	}
	return out
}

// issuing is a cluster with an overlay and the component, and the two accounts in it: the controller makes
// credentials, the front serves them.
type issuing struct {
	*testing.T
	c                        *cluster.Cluster
	admin, controller, front kubernetes.Interface
	issuer                   *credential.Issuer
	reader                   *credential.Reader
}

const (
	published         = "mcs-attest-credentials"
	controllerAccount = "mcs-attest-controller"
)

func newIssuing(t *testing.T, overlay, component string, c config.Credential) *issuing {
	t.Helper()
	w := &issuing{T: t, c: cluster.Start(t)}
	w.c.InstallClusterAPI(t)
	w.c.InstallOpenShift(t)
	var objects []*unstructured.Unstructured
	for in := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(renderWith(t, overlay, component)), 4096); ; {
		var o unstructured.Unstructured
		if err := in.Decode(&o.Object); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		objects = append(objects, &o)
	}
	w.c.InstallOwn(t)
	w.c.KubectlApply(t, deploy.Prerequisites(objects))
	var wanted strings.Builder
	for _, o := range objects {
		// The Prometheus operator's kinds are not here.
		if strings.HasPrefix(o.GetAPIVersion(), "monitoring.coreos.com") {
			continue
		}
		raw, err := o.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&wanted, "---\n%s\n", raw)
	}
	w.c.KubectlApply(t, wanted.String())
	var err error
	if w.admin, err = kubernetes.NewForConfig(w.c.Admin()); err != nil {
		t.Fatal(err)
	}
	if w.front, err = kubernetes.NewForConfig(w.c.ServiceAccount(t, deploy.Namespace,
		deploy.ServiceAccount)); err != nil {
		t.Fatal(err)
	}
	if w.controller, err = kubernetes.NewForConfig(w.c.ServiceAccount(t, deploy.Namespace,
		controllerAccount)); err != nil {
		t.Fatal(err)
	}
	c.Lifetime = config.Duration(4 * time.Hour)
	w.issuer, err = credential.NewIssuer(credential.Options{Client: w.controller, Config: c, Namespace: published,
		Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	w.reader = credential.NewReader(credential.ReaderOptions{Client: w.front, Namespace: published, Timeout: time.Minute})
	return w
}

// serves makes a credential, publishes it, reads it as the front does, and revokes it.
func (w *issuing) serves(ctx context.Context) (own *pkgcredential.Credential) {
	w.Helper()
	const uid = "8a3f0b52-6c1e-4b8e-9a39-3d1d4f6f6a01"
	own, err := w.issuer.Issue(ctx, uid)
	if err != nil {
		w.Fatal(err)
	}
	if err := w.issuer.Publish(ctx, uid, tokenID, own); err != nil {
		w.Fatal(err)
	}
	got, err := w.reader.Get(ctx, claims(uid))
	if err != nil || got.ID != own.ID || !bytes.Equal(got.Token.Expose(), own.Token.Expose()) {
		w.Fatalf("the front reads %v: %v", got, err)
	}
	if err := w.issuer.Revoke(ctx, uid,
		[]v1alpha1.CredentialStatus{{Secret: own.Secret, SecretUID: own.SecretUID}}); err != nil {
		w.Fatal(err)
	}
	for _, name := range []string{own.Secret, published + "/" + uid} {
		namespace, name, _ := strings.Cut(name, "/")
		if _, err := w.admin.CoreV1().Secrets(namespace).Get(ctx, name, meta.GetOptions{}); !kerrors.IsNotFound(err) {
			w.Errorf("the Secret %s/%s after the revocation: %v", namespace, name, err)
		}
	}
	return own
}

// denied waits for the admission policies, which the API server takes up after a
// moment, to deny what try does; undo takes back what succeeded until then.
func (w *issuing) denied(what string, try func(context.Context) error, undo func(context.Context)) {
	w.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var last error
	for ctx.Err() == nil {
		last = try(ctx)
		if kerrors.IsForbidden(last) || kerrors.IsInvalid(last) {
			return
		}
		if last == nil && undo != nil {
			undo(ctx)
		}
		time.Sleep(50 * time.Millisecond)
	}
	w.Errorf("%s: %v", what, last)
}

// make is a Secret in the namespace, made as the controller.
func (w *issuing) make(namespace string, s core.Secret) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := w.controller.CoreV1().Secrets(namespace).Create(ctx, &s, meta.CreateOptions{})
		return err
	}
}

// there is a Secret that the administrator made.
func (w *issuing) there(namespace string, s core.Secret) {
	w.Helper()
	if _, err := w.admin.CoreV1().Secrets(namespace).Create(w.Context(), &s, meta.CreateOptions{}); err != nil &&
		!kerrors.IsAlreadyExists(err) {
		w.Fatal(err)
	}
}

// The controller's account does what a machine's credential needs, and the component gives no more: by roles, and
// where roles cannot express it, by admission.
func TestAttack_T49_CredentialsForOpenShift(t *testing.T) {
	t.Parallel()
	const namespace, bootstrapper = "openshift-machine-config-operator", "node-bootstrapper"
	w := newIssuing(t, "openshift", "credential",
		config.Credential{Kind: config.ServiceAccountToken, ServiceAccount: namespace + "/" + bootstrapper})
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Minute)
	defer cancel()
	for _, name := range []string{bootstrapper, "machine-config-operator"} {
		w.c.ServiceAccount(t, namespace, name)
	}

	// The honest way, until all of it is taken up.
	w.serves(ctx)

	delete := func(name string) func(context.Context) error {
		return func(ctx context.Context) error {
			return w.controller.CoreV1().Secrets(namespace).Delete(ctx, name, meta.DeleteOptions{})
		}
	}
	remove := func(name string) func(context.Context) {
		return func(ctx context.Context) {
			_ = w.admin.CoreV1().Secrets(namespace).Delete(ctx, name, meta.DeleteOptions{})
		}
	}
	annotated := map[string]string{core.ServiceAccountNameKey: "machine-config-operator"}
	for _, s := range []core.Secret{
		{ObjectMeta: meta.ObjectMeta{Name: "other"}},
		{ObjectMeta: meta.ObjectMeta{GenerateName: "other-"}},
		{ObjectMeta: meta.ObjectMeta{Name: "mcs-attest-bootstrap-a", Annotations: annotated},
			Type: core.SecretTypeServiceAccountToken},
		{ObjectMeta: meta.ObjectMeta{Name: "mcs-attest-bootstrap-a", Annotations: annotated}},
		{ObjectMeta: meta.ObjectMeta{Name: "mcs-attest-bootstrap-a"}, Data: map[string][]byte{"a": []byte("b")}},
		{ObjectMeta: meta.ObjectMeta{Name: "machine-config-server-ca", Annotations: annotated},
			Type: core.SecretTypeServiceAccountToken},
		{ObjectMeta: meta.ObjectMeta{Name: "machine-config-server-tls"}, Type: core.SecretTypeOpaque},
	} {
		w.denied(fmt.Sprintf("make the Secret %s%s of type %q", s.Name, s.GenerateName, s.Type), w.make(namespace, s),
			remove(s.Name))
	}
	for _, name := range []string{"machine-config-server-tls", "node-bootstrapper-token", "pull"} {
		secret := core.Secret{ObjectMeta: meta.ObjectMeta{Name: name}}
		w.there(namespace, secret)
		w.denied("delete the Secret "+name, delete(name), func(context.Context) { w.there(namespace, secret) })
	}
	// The policies are about this account; the administrator does what they do.
	w.there(namespace, core.Secret{ObjectMeta: meta.ObjectMeta{Name: "anything"},
		Data: map[string][]byte{"a": []byte("b")}})

	w.there(namespace, core.Secret{ObjectMeta: meta.ObjectMeta{Name: "mcs-attest-bootstrap-here"}})
	request := func(account, kind, name string, seconds int64) func(context.Context) error {
		spec := authentication.TokenRequestSpec{ExpirationSeconds: &seconds}
		if kind != "" {
			spec.BoundObjectRef = &authentication.BoundObjectReference{APIVersion: "v1", Kind: kind, Name: name}
		}
		return func(ctx context.Context) error {
			_, err := w.controller.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, account,
				&authentication.TokenRequest{Spec: spec}, meta.CreateOptions{})
			return err
		}
	}
	if err := request(bootstrapper, "Secret", "mcs-attest-bootstrap-here", 86400)(ctx); err != nil {
		t.Errorf("a token for a day: %v", err)
	}
	w.denied("a token that nothing revokes", request(bootstrapper, "", "", 3600), nil)
	w.denied("a token bound to another Secret", request(bootstrapper, "Secret", "pull", 3600), nil)
	w.denied("a token for a month", request(bootstrapper, "Secret", "mcs-attest-bootstrap-here", 30*86400), nil)
	forAudience := func(audiences ...string) func(context.Context) error {
		return func(ctx context.Context) error {
			seconds := int64(3600)
			_, err := w.controller.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, bootstrapper,
				&authentication.TokenRequest{Spec: authentication.TokenRequestSpec{
					ExpirationSeconds: &seconds, Audiences: audiences,
					BoundObjectRef: &authentication.BoundObjectReference{APIVersion: "v1", Kind: "Secret",
						Name: "mcs-attest-bootstrap-here"},
				}}, meta.CreateOptions{})
			return err
		}
	}
	const issuer = "https://issuer.example.com/of-this-cluster"
	w.denied("a token for a cloud", forAudience("sts.amazonaws.com"), nil)
	w.denied("a token for a cloud, too", forAudience("https://kubernetes.default.svc", "sts.amazonaws.com"), nil)
	w.denied("a token for another issuer", forAudience(issuer), nil)
	if err := forAudience("https://kubernetes.default.svc")(ctx); err != nil {
		t.Errorf("a token for the API server: %v", err)
	}
	// After a change of the issuer, the API server's own audiences are those of both for a day.
	const former = "https://issuer.example.com/former"
	w.c.Kubectl(t, "patch", "kubeapiservers.operator.openshift.io", "cluster", "--subresource=status", "--type=merge",
		"-p", `{"status":{"serviceAccountIssuers":[{"name":"`+issuer+`"},{"name":"`+former+
			`","expirationTime":"2100-01-01T00:00:00Z"}]}}`)
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		err := forAudience(issuer, former)(ctx)
		if err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("a token for the API server of a cluster with an issuer of its own: %v", err)
		}
	}
	w.denied("another account's token", request("machine-config-operator", "Secret", "mcs-attest-bootstrap-here", 3600),
		nil)

	w.cannot(ctx, namespace)
}

// The account that serves configs can neither make a credential nor read any Secret but the ones it serves by name.
func TestAttack_T49_AStolenFrontMakesNoCredential(t *testing.T) {
	t.Parallel()
	const mco, bootstrapper = "openshift-machine-config-operator", "node-bootstrapper"
	w := newIssuing(t, "openshift", "credential",
		config.Credential{Kind: config.ServiceAccountToken, ServiceAccount: mco + "/" + bootstrapper})
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Minute)
	defer cancel()
	w.c.ServiceAccount(t, mco, bootstrapper)
	w.serves(ctx)

	w.there(mco, core.Secret{ObjectMeta: meta.ObjectMeta{Name: "mcs-attest-bootstrap-here"}})
	for _, bound := range []*authentication.BoundObjectReference{nil,
		{APIVersion: "v1", Kind: "Secret", Name: "mcs-attest-bootstrap-here"}} {
		_, err := w.front.CoreV1().ServiceAccounts(mco).CreateToken(ctx, bootstrapper,
			&authentication.TokenRequest{Spec: authentication.TokenRequestSpec{BoundObjectRef: bound}}, meta.CreateOptions{})
		if !kerrors.IsForbidden(err) {
			t.Errorf("a token of %s that is bound to %v: %v", bootstrapper, bound, err)
		}
	}
	w.frontCannotEnroll()
	w.frontCannot(ctx, mco, "kube-system", "default", "openshift-machine-api", "openshift-config", deploy.Namespace,
		published)
	w.onlyTheControllerPublishes()
}

// frontCannotEnroll: a record that the front creates enrolls no machine and grants nothing.
func (w *issuing) frontCannotEnroll() {
	w.Helper()
	const namespace = "openshift-machine-api"
	objects, err := dynamic.NewForConfig(w.c.ServiceAccount(w.T, deploy.Namespace, deploy.ServiceAccount))
	if err != nil {
		w.Fatal(err)
	}
	resource := v1alpha1.GroupVersion.WithResource("machineattestations")
	create := func(spec string) func(context.Context) error {
		return func(ctx context.Context) error {
			var o unstructured.Unstructured
			if err := yaml.Unmarshal([]byte("apiVersion: "+v1alpha1.APIVersion+"\nkind: MachineAttestation\n"+
				"metadata: {name: m}\nspec: {"+spec+"}\n"), &o.Object); err != nil {
				return err
			}
			_, err := objects.Resource(resource).Namespace(namespace).Create(ctx, &o, meta.CreateOptions{})
			return err
		}
	}
	remove := func(context.Context) {
		w.c.Kubectl(w.T, "-n", namespace, "delete", "machineattestations.mcs-attest.dev", "m")
	}
	for _, spec := range []string{"pool: worker", "pool: master, ekSHA256: [" + strings.Repeat("ab", 32) + "]",
		"machineRef: {name: m}, reattest: {until: '2036-01-01T00:00:00Z'}",
		"machineRef: {name: m}, expectedProviderID: 'aws:///a/i'",
		"machineRef: {name: m}, quarantined: true"} {
		w.denied("the front creates a MachineAttestation with "+spec, create(spec), remove)
	}
	for _, spec := range []string{"", "machineRef: {name: m}"} {
		if err := create(spec)(w.Context()); err != nil {
			w.Errorf("the front creates a record with %q: %v", spec, err)
			continue
		}
		remove(w.Context())
	}
}

// frontCannot tries what no role gives to the front.
func (w *issuing) frontCannot(ctx context.Context, namespaces ...string) {
	w.Helper()
	for _, namespace := range namespaces {
		if _, err := w.admin.CoreV1().Namespaces().Create(ctx, &core.Namespace{ObjectMeta: meta.ObjectMeta{Name: namespace}},
			meta.CreateOptions{}); err != nil && !kerrors.IsAlreadyExists(err) {
			w.Fatal(err)
		}
		const name = "somebody-elses"
		w.there(namespace, core.Secret{ObjectMeta: meta.ObjectMeta{Name: name}})
		secrets := w.front.CoreV1().Secrets(namespace)
		for what, try := range map[string]func() error{
			"create": func() error {
				_, err := secrets.Create(ctx, &core.Secret{ObjectMeta: meta.ObjectMeta{Name: "new"}}, meta.CreateOptions{})
				return err
			},
			"list":   func() error { _, err := secrets.List(ctx, meta.ListOptions{}); return err },
			"watch":  func() error { _, err := secrets.Watch(ctx, meta.ListOptions{}); return err },
			"delete": func() error { return secrets.Delete(ctx, name, meta.DeleteOptions{}) },
			"update": func() error {
				_, err := secrets.Update(ctx, &core.Secret{ObjectMeta: meta.ObjectMeta{Name: name}}, meta.UpdateOptions{})
				return err
			},
			"get": func() error {
				if namespace == published { // by name, as it serves them
					return kerrors.NewForbidden(core.Resource("secrets"), name, nil)
				}
				_, err := secrets.Get(ctx, name, meta.GetOptions{})
				return err
			},
		} {
			if err := try(); !kerrors.IsForbidden(err) {
				w.Errorf("the front can %s Secrets in %s: %v", what, namespace, err)
			}
		}
	}
	for what, try := range map[string]func() error{
		"list":  func() error { _, err := w.front.CoreV1().Secrets("").List(ctx, meta.ListOptions{}); return err },
		"watch": func() error { _, err := w.front.CoreV1().Secrets("").Watch(ctx, meta.ListOptions{}); return err },
	} {
		if err := try(); !kerrors.IsForbidden(err) {
			w.Errorf("the front can %s all Secrets: %v", what, err)
		}
	}
}

// onlyTheControllerPublishes: not even an administrator publishes by mistake, and the controller publishes nothing
// else.
func (w *issuing) onlyTheControllerPublishes() {
	w.Helper()
	secret := func(kind core.SecretType, immutable bool) core.Secret {
		return core.Secret{ObjectMeta: meta.ObjectMeta{Name: "m"}, Type: kind, Immutable: &immutable}
	}
	remove := func(ctx context.Context) {
		_ = w.admin.CoreV1().Secrets(published).Delete(ctx, "m", meta.DeleteOptions{})
	}
	w.denied("the administrator publishes a credential", func(ctx context.Context) error {
		s := secret(credential.SecretType, true)
		_, err := w.admin.CoreV1().Secrets(published).Create(ctx, &s, meta.CreateOptions{})
		return err
	}, remove)
	w.denied("the controller makes another Secret", w.make(published, secret(core.SecretTypeOpaque, true)), remove)
	w.denied("the controller publishes what can change", w.make(published, secret(credential.SecretType, false)), remove)

	// A migration to another storage version, and encrypting again, write an object as it is.
	ctx := w.Context()
	if err := w.make(published, secret(credential.SecretType, true))(ctx); err != nil {
		w.Fatal(err)
	}
	defer remove(ctx)
	update := func(ctx context.Context, change func(*core.Secret)) error {
		s, err := w.admin.CoreV1().Secrets(published).Get(ctx, "m", meta.GetOptions{})
		if err != nil {
			return err
		}
		change(s)
		_, err = w.admin.CoreV1().Secrets(published).Update(ctx, s, meta.UpdateOptions{})
		return err
	}
	if err := update(ctx, func(*core.Secret) {}); err != nil {
		w.Errorf("the administrator writes a published credential as it is: %v", err)
	}
	w.denied("the administrator gives a credential to another attestation token", func(ctx context.Context) error {
		return update(ctx, func(s *core.Secret) { s.Annotations = map[string]string{credential.AnnotationToken: "another"} })
	}, nil)
}

// cannot tries what no role gives.
func (w *issuing) cannot(ctx context.Context, namespace string) {
	w.Helper()
	secrets := w.controller.CoreV1().Secrets(namespace)
	for what, try := range map[string]func() error{
		"list": func() error { _, err := secrets.List(ctx, meta.ListOptions{}); return err },
		"get":  func() error { _, err := secrets.Get(ctx, "mcs-attest-bootstrap-here", meta.GetOptions{}); return err },
		"deletecollection": func() error {
			return secrets.DeleteCollection(ctx, meta.DeleteOptions{}, meta.ListOptions{})
		},
		"update": func() error {
			_, err := secrets.Update(ctx, &core.Secret{ObjectMeta: meta.ObjectMeta{Name: "mcs-attest-bootstrap-here"}},
				meta.UpdateOptions{})
			return err
		},
		"make in another namespace": func() error {
			_, err := w.controller.CoreV1().Secrets("default").Create(ctx,
				&core.Secret{ObjectMeta: meta.ObjectMeta{Name: "mcs-attest-bootstrap-here"}}, meta.CreateOptions{})
			return err
		},
	} {
		if err := try(); !kerrors.IsForbidden(err) {
			w.Errorf("%s Secrets: %v", what, err)
		}
	}
}

func TestAttack_T49_CredentialsForKubernetes(t *testing.T) {
	t.Parallel()
	const namespace, group = "kube-system", "system:bootstrappers:mcs-attest"
	w := newIssuing(t, "kubernetes", "credential-kubernetes", config.Credential{
		Kind: config.BootstrapToken, ServiceAccount: "a/b", Groups: []string{group},
	})
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Minute)
	defer cancel()
	w.serves(ctx)

	valid := func() core.Secret {
		return core.Secret{
			ObjectMeta: meta.ObjectMeta{Name: "bootstrap-token-abcdef", Labels: map[string]string{credential.LabelMachine: "m"}},
			Type:       core.SecretTypeBootstrapToken,
			Data: map[string][]byte{
				"token-id": []byte("abcdef"), "token-secret": []byte("0123456789abcdef"),
				"expiration":                     []byte(time.Now().Add(24 * time.Hour).UTC().Format(time.RFC3339)),
				"usage-bootstrap-authentication": []byte("true"), "auth-extra-groups": []byte(group),
			},
		}
	}
	remove := func(ctx context.Context) {
		_ = w.admin.CoreV1().Secrets(namespace).Delete(ctx, "bootstrap-token-abcdef", meta.DeleteOptions{})
	}
	if err := w.make(namespace, valid())(ctx); err != nil {
		t.Fatalf("the honest one: %v", err)
	}
	remove(ctx)
	for name, change := range map[string]func(*core.Secret){
		"another type": func(s *core.Secret) { s.Type = core.SecretTypeOpaque },
		"a service account's token": func(s *core.Secret) {
			s.Type, s.Annotations = core.SecretTypeServiceAccountToken, map[string]string{core.ServiceAccountNameKey: "default"}
		},
		"no label": func(s *core.Secret) { s.Labels = nil },
		"no end": func(s *core.Secret) {
			s.Data["expiration"] = nil
			s.Data = map[string][]byte{"token-id": s.Data["token-id"]}
		},
		"another group": func(s *core.Secret) {
			s.Data["auth-extra-groups"] = []byte("system:bootstrappers:kubeadm:default-node-token")
		},
		"one group more": func(s *core.Secret) { s.Data["auth-extra-groups"] = []byte(group + ",system:bootstrappers:a") },
		"an end in two days": func(s *core.Secret) {
			s.Data["expiration"] = []byte(time.Now().Add(48 * time.Hour).UTC().Format(time.RFC3339))
		},
		"an end in ten years":        func(s *core.Secret) { s.Data["expiration"] = []byte("2036-01-01T00:00:00Z") },
		"an end that is no time":     func(s *core.Secret) { s.Data["expiration"] = []byte("20 characters, never") },
		"an end with an offset":      func(s *core.Secret) { s.Data["expiration"] = []byte("2026-01-01T00:00:00-12:00") },
		"an empty end":               func(s *core.Secret) { s.Data["expiration"] = []byte{} },
		"the signing of the cluster": func(s *core.Secret) { s.Data["usage-bootstrap-signing"] = []byte("true") },
	} {
		s := valid()
		change(&s)
		w.denied("a bootstrap token with "+name, w.make(namespace, s), remove)
	}
	others := valid()
	others.Name, others.Labels = "bootstrap-token-012345", nil
	others.Data["token-id"] = []byte("012345")
	for _, s := range []core.Secret{others, {ObjectMeta: meta.ObjectMeta{Name: "anything"}}} {
		w.there(namespace, s)
		w.denied("delete the Secret "+s.Name, func(ctx context.Context) error {
			return w.controller.CoreV1().Secrets(namespace).Delete(ctx, s.Name, meta.DeleteOptions{})
		}, func(context.Context) { w.there(namespace, s) })
	}
	w.cannot(ctx, namespace)
	w.onlyTheControllerPublishes()
	w.frontCannot(ctx, "kube-system", "default", published)

	// The group may what kubelets need.
	for _, verb := range []string{"create", "get"} {
		out, _ := w.c.KubectlAs("admin", "", "auth", "can-i", verb, "certificatesigningrequests.certificates.k8s.io", "--as",
			"system:bootstrap:abcdef", "--as-group", group)
		if strings.TrimSpace(out) != "yes" {
			t.Errorf("%s requests: %s", verb, out)
		}
	}
	out, _ := w.c.KubectlAs("admin", "", "auth", "can-i", "create", "certificatesigningrequests.certificates.k8s.io",
		"--subresource=nodeclient", "--as", "system:bootstrap:abcdef", "--as-group", group)
	if strings.TrimSpace(out) != "no" {
		t.Errorf("its requests are approved by themselves: %s", out)
	}
}
