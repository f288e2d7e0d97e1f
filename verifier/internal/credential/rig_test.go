// SPDX-License-Identifier: Apache-2.0

package credential_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/approver/approvertest"
	pkgcredential "github.com/mcs-attest/mcs-attest/pkg/credential"
	"github.com/mcs-attest/mcs-attest/pkg/token"
	"github.com/mcs-attest/mcs-attest/testvm/cluster"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/credential"
)

// site is a cluster's part that belongs to one test: the namespace of the service
// account whose tokens kubelets bootstrap with.
type site struct {
	testing.TB
	c         *cluster.Cluster
	admin     kubernetes.Interface
	namespace string
	published string // the namespace of the published credentials
	log       bytes.Buffer
	uids      []string // of its machines
}

// newSite gives the service account, and the groups of bootstrap tokens, what
// kubelets need: to make certificate signing requests.
func newSite(t testing.TB) *site {
	t.Helper()
	if t, ok := t.(*testing.T); ok {
		t.Parallel()
	}
	s := &site{TB: t, c: cluster.StartShared(t), namespace: "t-" + strings.ToLower(rand.Text()[:10])}
	var err error
	if s.admin, err = kubernetes.NewForConfig(s.c.Admin()); err != nil {
		t.Fatal(err)
	}
	ctx := s.context()
	s.published = s.namespace + "-published"
	for _, name := range []string{s.namespace, s.published} {
		_, err = s.admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}},
			metav1.CreateOptions{})
		s.ok(err)
	}
	_, err = s.admin.CoreV1().ServiceAccounts(s.namespace).Create(ctx,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "node-bootstrapper"}}, metav1.CreateOptions{})
	s.ok(err)
	_, err = s.admin.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: s.namespace},
		RoleRef: rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "ClusterRole",
			Name: "system:node-bootstrapper"},
		Subjects: []rbacv1.Subject{
			{Kind: "ServiceAccount", Namespace: s.namespace, Name: "node-bootstrapper"},
			{Kind: "Group", APIGroup: "rbac.authorization.k8s.io", Name: "system:bootstrappers:" + s.namespace},
		},
	}, metav1.CreateOptions{})
	s.ok(err)
	t.Cleanup(func() {
		s.ok(s.admin.RbacV1().ClusterRoleBindings().Delete(context.Background(), s.namespace, metav1.DeleteOptions{}))
		for _, name := range []string{s.namespace, s.published} {
			s.ok(s.admin.CoreV1().Namespaces().Delete(context.Background(), name, metav1.DeleteOptions{}))
		}
		for _, uid := range s.uids {
			own := metav1.ListOptions{LabelSelector: credential.LabelMachine + "=" + uid}
			s.ok(s.admin.CoreV1().Secrets("kube-system").DeleteCollection(context.Background(), metav1.DeleteOptions{}, own))
		}
	})
	return s
}

func (s *site) context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	s.Cleanup(cancel)
	return ctx
}

func (s *site) ok(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// issuer acts as client; nil is the administrator.
func (s *site) issuer(kind config.CredentialKind, change ...func(*credential.Options)) *credential.Issuer {
	s.Helper()
	o := credential.Options{
		Client: s.admin, Namespace: s.published,
		Config: config.Credential{Kind: kind, ServiceAccount: s.namespace + "/node-bootstrapper",
			Lifetime: config.Duration(time.Hour)},
		Log: slog.New(slog.NewTextHandler(&s.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		// The host may be busy.
		Timeout: time.Minute,
	}
	if kind == config.BootstrapToken {
		o.Config.Groups = []string{"system:bootstrappers:" + s.namespace}
	}
	for _, f := range change {
		f(&o)
	}
	i, err := credential.NewIssuer(o)
	s.ok(err)
	return i
}

func (s *site) issue(i *credential.Issuer, uid string) *pkgcredential.Credential {
	s.Helper()
	own, err := i.Issue(s.context(), uid)
	if err != nil || own == nil {
		s.Fatalf("Issue: %v, %v", own, err)
	}
	return own
}

// tokenID is of the attestation tokens that credentials are published for.
const tokenID = "t1"

func claims(uid string) token.Claims {
	return token.Claims{ID: tokenID, MachineUID: uid, Pool: "worker"}
}

// reader reads as the administrator.
func (s *site) reader(change ...func(*credential.ReaderOptions)) *credential.Reader {
	o := credential.ReaderOptions{Client: s.admin, Namespace: s.published, Timeout: time.Minute}
	for _, f := range change {
		f(&o)
	}
	return credential.NewReader(o)
}

// kept is what a record has of a credential.
func kept(own *pkgcredential.Credential) v1alpha1.CredentialStatus {
	return v1alpha1.CredentialStatus{ID: own.ID, Issued: metav1.NewTime(own.Issued), Expiry: metav1.NewTime(own.Expiry),
		Secret: own.Secret, SecretUID: own.SecretUID}
}

// request makes a certificate signing request as a kubelet with this credential.
func (s *site) ask(own *pkgcredential.Credential, node string) (*certificatesv1.CertificateSigningRequest, error) {
	s.Helper()
	admin := s.c.Admin()
	client, err := kubernetes.NewForConfig(&rest.Config{
		Host: admin.Host, QPS: -1, BearerToken: string(own.Token.Expose()),
		TLSClientConfig: rest.TLSClientConfig{CAFile: admin.CAFile},
	})
	s.ok(err)
	ask := approvertest.Client(s, node, approvertest.NewKey(s))
	ask.GenerateName = "csr-"
	csr, err := client.CertificatesV1().CertificateSigningRequests().Create(s.context(), ask, metav1.CreateOptions{})
	if err == nil {
		s.Cleanup(func() {
			s.ok(s.admin.CertificatesV1().CertificateSigningRequests().Delete(context.Background(), csr.Name,
				metav1.DeleteOptions{}))
		})
	}
	return csr, err
}

// request is ask of a credential that works. The API server may not have seen a new Secret or role yet. It may also
// remember for a moment the Secret that had its name before.
func (s *site) request(own *pkgcredential.Credential, node string) (*certificatesv1.CertificateSigningRequest, error) {
	s.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		csr, err := s.ask(own, node)
		if !kerrors.IsUnauthorized(err) && !kerrors.IsForbidden(err) || time.Now().After(end) {
			return csr, err
		}
	}
}

// refused waits until the API server's authentication has seen a revocation.
func (s *site) refused(own *pkgcredential.Credential) {
	s.Helper()
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		_, err := s.ask(own, "a")
		if kerrors.IsUnauthorized(err) {
			return
		}
		if time.Now().After(end) {
			s.Fatalf("a revoked credential still works: %v", err)
		}
	}
}

// secrets are those of machines, by name.
func (s *site) secrets(namespace, uid string) map[string]corev1.Secret {
	s.Helper()
	list, err := s.admin.CoreV1().Secrets(namespace).List(s.context(),
		metav1.ListOptions{LabelSelector: credential.LabelMachine + "=" + uid})
	s.ok(err)
	out := map[string]corev1.Secret{}
	for _, o := range list.Items {
		out[o.Namespace+"/"+o.Name] = o
	}
	return out
}

// machine is the UID of one more machine.
func (s *site) machine() string {
	var b [16]byte
	rand.Read(b[:])
	uid := fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
	s.uids = append(s.uids, uid)
	return uid
}

// both runs a test for each kind of credential.
func both(t *testing.T, f func(*testing.T, *site, config.CredentialKind)) {
	t.Parallel()
	for _, kind := range []config.CredentialKind{config.ServiceAccountToken, config.BootstrapToken} {
		t.Run(string(kind), func(t *testing.T) { f(t, newSite(t), kind) })
	}
}

// A kubelet's request carries the id that the record has.
func TestRequestsNameTheCredential(t *testing.T) {
	both(t, func(t *testing.T, s *site, kind config.CredentialKind) {
		i, uid := s.issuer(kind), s.machine()
		own := s.issue(i, uid)
		csr, err := s.request(own, "worker-a")
		if err != nil {
			t.Fatal(err)
		}
		switch kind {
		case config.ServiceAccountToken:
			if got := csr.Spec.Extra["authentication.kubernetes.io/credential-id"]; len(got) != 1 || got[0] != own.ID {
				t.Errorf("the request has %q, the record %q", got, own.ID)
			}
			if want := "system:serviceaccount:" + s.namespace + ":node-bootstrapper"; csr.Spec.Username != want {
				t.Errorf("the request is by %s", csr.Spec.Username)
			}
		case config.BootstrapToken:
			if csr.Spec.Username != own.ID {
				t.Errorf("the request is by %q, the record has %q", csr.Spec.Username, own.ID)
			}
		}
		if life := own.Expiry.Sub(own.Issued); life != time.Hour &&
			(kind == config.ServiceAccountToken || life < 59*time.Minute || life > time.Hour) {
			t.Errorf("it lives for %v", life)
		}
		if since := time.Since(own.Issued); since < -time.Minute || since > 10*time.Minute {
			t.Errorf("issued %v ago", since)
		}
		made, ok := s.secrets(strings.Split(own.Secret, "/")[0], uid)[own.Secret]
		if !ok || string(made.UID) != own.SecretUID {
			t.Errorf("Secret %s with the UID %s: %v", own.Secret, own.SecretUID, made.ObjectMeta)
		}
		if kind == config.ServiceAccountToken && len(made.Data) > 0 {
			t.Errorf("the Secret has data: %d keys", len(made.Data))
		}
	})
}

// A second attestation: another token, on the same Secret, and both work.
func TestSecondCredential_DoesNotRevokeTheFirst(t *testing.T) {
	both(t, func(t *testing.T, s *site, kind config.CredentialKind) {
		uid := s.machine()
		i := s.issuer(kind)
		first := s.issue(i, uid)
		second := s.issue(i, uid)
		if first.ID == second.ID || bytes.Equal(first.Token.Expose(), second.Token.Expose()) {
			t.Error("one credential, twice")
		}
		if same := first.Secret == second.Secret &&
			first.SecretUID == second.SecretUID; same != (kind == config.ServiceAccountToken) {
			t.Errorf("Secrets %s and %s", first.Secret, second.Secret)
		}
		for _, own := range []*pkgcredential.Credential{first, second} {
			if _, err := s.request(own, "worker-a"); err != nil {
				t.Error(err)
			}
		}
		// One that was not published is discarded, and the other still works.
		i.Discard(s.context(), second)
		if _, err := s.request(first, "worker-a"); err != nil {
			t.Error(err)
		}
		if kind == config.BootstrapToken {
			s.refused(second)
		}
	})
}

// While a machine is an object of both Machine APIs, its token may name either, and
// its Secret is that of the one record.
func TestPublish_MachineOfBothAPIsHasOneSecret(t *testing.T) {
	s := newSite(t)
	older, newer := s.machine(), s.machine()
	i := s.issuer(config.ServiceAccountToken)
	own := s.issue(i, older)
	s.ok(i.Publish(s.context(), older, tokenID, own))
	reader := s.reader(func(o *credential.ReaderOptions) {
		o.Owner = func(uid string) string {
			if uid == newer {
				return older
			}
			return uid
		}
	})
	for _, uid := range []string{older, newer} {
		if got, err := reader.Get(s.context(), claims(uid)); err != nil || got.ID != own.ID {
			t.Errorf("%s: %v", uid, err)
		}
	}
	s.ok(i.Revoke(s.context(), older, []v1alpha1.CredentialStatus{kept(own)}))
	s.refused(own)
}

// A record may go before anybody could look at it: of a bootstrap token its id is
// enough.
func TestBootstrapToken_IsRevokedByItsID(t *testing.T) {
	s := newSite(t)
	uid := s.machine()
	i := s.issuer(config.BootstrapToken)
	own := s.issue(i, uid)
	for _, id := range []string{"system:bootstrap:../x", "system:bootstrap:", "system:bootstrap:ABCDEF", "JTI=x"} {
		s.ok(i.Revoke(s.context(), uid, []v1alpha1.CredentialStatus{{ID: id}}))
	}
	s.ok(i.Revoke(s.context(), uid, []v1alpha1.CredentialStatus{{ID: own.ID}}))
	s.refused(own)
}

// The Secret may go behind the record's back.
func TestDeletedSecret_IsRecreated(t *testing.T) {
	s := newSite(t)
	uid := s.machine()
	i := s.issuer(config.ServiceAccountToken)
	first := s.issue(i, uid)
	s.ok(s.admin.CoreV1().Secrets(s.namespace).Delete(s.context(), credential.SecretPrefix+uid, metav1.DeleteOptions{}))
	second := s.issue(i, uid)
	if second.SecretUID == first.SecretUID {
		t.Error("the credential is of a Secret that is gone")
	}
	// For a moment the API server remembers the Secret that had the name before.
	if _, err := s.request(second, "worker-a"); err != nil {
		t.Error(err)
	}
	s.refused(first)
}

// Replicas that know nothing of each other, at the same moment: no one's token is
// bound to what another one deleted.
func TestIssue_ConcurrentReplicasShareTheSecret(t *testing.T) {
	s := newSite(t)
	uid := s.machine()
	made := make([]*pkgcredential.Credential, 12)
	var wg sync.WaitGroup
	for n := range made {
		i := s.issuer(config.ServiceAccountToken)
		wg.Go(func() {
			own, err := i.Issue(s.context(), uid)
			if err != nil {
				t.Error(err)
				return
			}
			made[n] = own
			if n%3 == 0 { // some are not recorded, and discard what they made
				i.Discard(s.context(), own)
			}
		})
	}
	wg.Wait()
	ids := map[string]bool{}
	for _, own := range made {
		if own == nil {
			t.Fatal("not all were made")
		}
		ids[own.ID] = true
		if own.SecretUID != made[0].SecretUID {
			t.Errorf("bound to the Secrets %s and %s", own.SecretUID, made[0].SecretUID)
		}
		if _, err := s.request(own, "worker-a"); err != nil {
			t.Error(err)
		}
	}
	if len(ids) != len(made) {
		t.Errorf("%d ids of %d tokens", len(ids), len(made))
	}
}

// Quarantine and the Machine's end.
func TestAttack_T54_ARevokedCredentialOpensNothing(t *testing.T) {
	both(t, func(t *testing.T, s *site, kind config.CredentialKind) {
		i, uid, neighbor := s.issuer(kind), s.machine(), s.machine()
		first, second, other := s.issue(i, uid), s.issue(i, uid), s.issue(i, neighbor)
		if _, err := s.request(first, "worker-a"); err != nil {
			t.Fatal(err)
		}
		all := []v1alpha1.CredentialStatus{kept(first), kept(second)}
		s.ok(i.Publish(s.context(), uid, tokenID, second))
		s.ok(i.Revoke(s.context(), uid, all))
		if left := s.secrets(s.published, uid); len(left) > 0 {
			t.Error("the published credential is left")
		}
		s.refused(first)
		s.refused(second)
		if _, err := s.request(other, "worker-b"); err != nil {
			t.Errorf("the neighbor's is revoked, too: %v", err)
		}
		if left := s.secrets(strings.Split(first.Secret, "/")[0], uid); len(left) > 0 {
			t.Errorf("left: %d Secrets", len(left))
		}
		s.ok(i.Revoke(s.context(), uid, all)) // again
		s.ok(i.Revoke(s.context(), uid, nil))

		// Released, the machine gets another, and the old ones stay dead.
		fresh := s.issue(i, uid)
		if _, err := s.request(fresh, "worker-a"); err != nil {
			t.Error(err)
		}
		s.refused(first)
	})
}

// A service account's token is revoked even when the record has lost it.
func TestRevocationNeedsNoRecord(t *testing.T) {
	s := newSite(t)
	i, uid := s.issuer(config.ServiceAccountToken), s.machine()
	own := s.issue(i, uid)
	s.ok(i.Revoke(s.context(), uid, nil))
	s.refused(own)
}

// Who can write records cannot have the verifier delete what it pleases.
func TestAttack_T49_ARecordCannotHaveOtherSecretsDeleted(t *testing.T) {
	s := newSite(t)
	i, uid, neighbor := s.issuer(config.ServiceAccountToken), s.machine(), s.machine()
	own, other := s.issue(i, uid), s.issue(i, neighbor)
	token := s.issue(s.issuer(config.BootstrapToken), neighbor)
	ctx := s.context()
	for _, name := range []string{"pull-secret", "mcs-attest-bootstrap-"} {
		_, err := s.admin.CoreV1().Secrets(s.namespace).Create(ctx,
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name + "x"}}, metav1.CreateOptions{})
		s.ok(err)
	}
	with := func(secret, uid string) v1alpha1.CredentialStatus {
		c := kept(own)
		c.Secret, c.SecretUID = secret, uid
		return c
	}
	s.ok(i.Revoke(ctx, uid, []v1alpha1.CredentialStatus{
		with(s.namespace+"/pull-secretx", ""), with("pull-secretx", ""), with(s.namespace+"/mcs-attest-bootstrap-x", ""),
		with(other.Secret, other.SecretUID), with(token.Secret, ""), with(token.Secret, own.SecretUID), with("", ""),
		with("/", ""),
	}))
	for _, secret := range []string{s.namespace + "/pull-secretx", s.namespace + "/mcs-attest-bootstrap-x", other.Secret,
		token.Secret} {
		namespace, name, _ := strings.Cut(secret, "/")
		if _, err := s.admin.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{}); err != nil {
			t.Errorf("%s: %v", secret, err)
		}
	}
	s.refused(own) // its own is gone
}

// No log has a token in it.
func TestAttack_T46_TheCredentialIsInNoLogAndNoError(t *testing.T) {
	both(t, func(t *testing.T, s *site, kind config.CredentialKind) {
		i, uid := s.issuer(kind), s.machine()
		own := s.issue(i, uid)
		i.Log.Info("made", "credential", own, "again", *own)
		i.Discard(s.context(), own)
		s.ok(i.Publish(s.context(), uid, tokenID, own))
		s.ok(i.Revoke(s.context(), uid, []v1alpha1.CredentialStatus{kept(own), {Secret: "a/b"}}))
		text := s.log.String() + fmt.Sprintf("%v %+v %#v", own, *own, *own)
		key := string(own.Token.Expose())
		for _, part := range []string{key, key[strings.LastIndexByte(key, '.')+1:]} {
			if strings.Contains(text, part) {
				t.Errorf("%d characters of the token are in the log", len(part))
			}
		}
		if !strings.Contains(text, "it is not deleted") {
			t.Error("the log does not report a Secret that is not ours")
		}
	})
}
