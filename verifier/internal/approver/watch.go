package approver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/mcs-attest/mcs-attest/verifier/internal/cluster"
)

// watch watches the requests for one signer, and has them decided. Of each is kept
// who made it and whether it is decided: a request is read anew when its turn comes.
func (a *Approver) watch(ctx context.Context, signer string, q queue) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	only := fields.OneTermEqualSelector("spec.signerName", signer).String()
	requests := a.o.Client.CertificatesV1().CertificateSigningRequests()
	informer := cache.NewSharedInformer(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = only
			return requests.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = only
			return requests.Watch(ctx, o)
		},
	}, &certificatesv1.CertificateSigningRequest{}, 0)
	waiting := a.world.o.waiting
	take := func(obj any) {
		csr, ok := obj.(*certificatesv1.CertificateSigningRequest)
		if !ok {
			return
		}
		waiting.put(csr)
		if c := approval(csr); c != nil && c.Reason == ConditionReason || decided(csr) && c == nil {
			return // ours, or denied
		}
		q.Add(csr.Name)
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    take,
		UpdateFunc: func(_, obj any) { take(obj) },
		DeleteFunc: func(obj any) {
			name, err := cache.DeletionHandlingObjectToName(obj)
			if err != nil {
				return
			}
			waiting.drop(name.Name)
			a.mu.Lock()
			delete(a.said, name.Name)
			a.mu.Unlock()
		},
	})
	err = errors.Join(err, informer.SetTransform(trim), informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, _ *cache.Reflector, err error) {
		if ctx.Err() != nil || kerrors.IsResourceExpired(err) || kerrors.IsGone(err) {
			return
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		a.note(&a.watching, fmt.Sprintf("certificate signing requests cannot be watched: %v", err))
		a.deafAt = time.Now()
	}))
	if err != nil { // only if it were running already
		a.o.Log.Error("certificate signing requests cannot be watched", "error", err)
		return
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { informer.RunWithContext(ctx) })
	// Limits count what is there, so nothing is decided before all of it was read.
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return
	}
	for range workers {
		wg.Go(func() { a.work(ctx, q) })
	}
}

// credentialExtra is where the API server notes what a request was made with.
const credentialExtra = "authentication.kubernetes.io/credential-id"

// nodesGroup is the group of all nodes.
const nodesGroup = "system:nodes"

// mostMessage is as much of an approval's message as tells who approved.
const mostMessage = 100

// trim keeps of a request what tells whose it is.
func trim(obj any) (any, error) {
	csr, ok := obj.(*certificatesv1.CertificateSigningRequest)
	if !ok {
		return obj, nil
	}
	small := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: csr.Name, UID: csr.UID, ResourceVersion: csr.ResourceVersion, CreationTimestamp: csr.CreationTimestamp},
		Spec:       certificatesv1.CertificateSigningRequestSpec{SignerName: csr.Spec.SignerName, Username: csr.Spec.Username},
	}
	if v := csr.Spec.Extra[credentialExtra]; len(v) > 0 {
		small.Spec.Extra = map[string]certificatesv1.ExtraValue{credentialExtra: v}
	}
	if slices.Contains(csr.Spec.Groups, nodesGroup) {
		small.Spec.Groups = []string{nodesGroup}
	}
	for _, c := range csr.Status.Conditions {
		c.LastUpdateTime = metav1.Time{}
		if c.Type != certificatesv1.CertificateApproved {
			c.Message = ""
		}
		c.Message = c.Message[:min(len(c.Message), mostMessage)]
		small.Status.Conditions = append(small.Status.Conditions, c)
	}
	return small, nil
}

// Findings are what somebody should look at, while it runs.
func (a *Approver) Findings() (all []cluster.Finding) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, f := range []cluster.Finding{
		{Reason: "StockApproverActive", Text: a.stock},
		{Reason: "RequestsUnreadable", Text: a.watching},
		{Reason: "ApproverSwitchUnreadable", Text: a.unread},
		{Reason: "TooManyRequests", Text: a.crowd},
	} {
		if f.Text != "" {
			all = append(all, f)
		}
	}
	return all
}
