// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"errors"
	"fmt"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/sources"
	"github.com/mcs-attest/mcs-attest/verifier/internal/view"
)

// FrontAccount is the service account of the processes that serve, in the verifier's namespace. deploy/base names it
// in an admission policy as well.
const FrontAccount = "mcs-attest-verifier"

// frontFindings returns what only the processes that serve may not read.
func (c *Inventory) frontFindings() []view.Finding {
	if all := c.front.Load(); all != nil {
		return *all
	}
	return nil
}

// reviewFront reviews the permissions of the processes that serve, once in each Pass, until ctx ends. They watch the
// same sources as this process, with another account, and write no status. What is unknown is no finding.
func (c *Inventory) reviewFront(ctx context.Context) {
	defer c.front.Store(nil)
	for ctx.Err() == nil {
		all, err := c.forbiddenToFront(ctx)
		if err != nil && ctx.Err() == nil {
			c.log.Warn("the permissions of the processes that serve are unknown", "error", err)
		}
		c.front.Store(&all)
		sources.Sleep(ctx, c.o.Pass)
	}
}

// forbiddenToFront returns what this process may read and the processes that serve may not. After an error it
// returns nothing.
func (c *Inventory) forbiddenToFront(ctx context.Context) (all []view.Finding, err error) {
	// If the account does not have the rules of deploy/base, another one serves.
	base := authorizationv1.ResourceAttributes{Verb: "list", Group: v1alpha1.GroupVersion.Group,
		Resource: attestationsResource.Resource}
	if serves, err := c.frontMay(ctx, base); err != nil || !serves {
		return nil, err
	}
	for _, s := range c.watches.Sources() {
		if !s.Current() { // a separate finding, or nothing to read
			continue
		}
		allowed := true
		for _, verb := range []string{"list", "watch"} {
			may, err := c.frontMay(ctx, authorizationv1.ResourceAttributes{
				Verb: verb, Group: s.Group, Resource: s.Resource, Namespace: s.Namespace, Name: s.Name,
			})
			if err != nil {
				return nil, err
			}
			allowed = allowed && may
		}
		if !allowed && (s.Namespace == "" || !c.namespaceGone(ctx, s.Namespace)) {
			all = append(all, view.Finding{Reason: "Forbidden", Text: fmt.Sprintf(
				"%s: forbidden to the processes that serve machines; %s", s, s.Rule("the service account "+FrontAccount))})
		}
	}
	return all, nil
}

// frontMay reports whether the account of the processes that serve has a permission.
func (c *Inventory) frontMay(ctx context.Context, what authorizationv1.ResourceAttributes) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	review, err := c.reviews.Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: "system:serviceaccount:" + c.config.Namespace + ":" + FrontAccount,
			Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + c.config.Namespace,
				"system:authenticated"},
			ResourceAttributes: &what,
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return false, err
	}
	if !review.Status.Allowed && review.Status.EvaluationError != "" {
		return false, errors.New(review.Status.EvaluationError)
	}
	return review.Status.Allowed, nil
}
