package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"

	kerrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/mcs-attest/mcs-attest/pkg/pointer"
	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
)

// rewrite puts the current provisioning token into a pointer config that nobody
// else writes.
func (c *Cluster) rewrite(ctx context.Context, k key) error {
	tokens, presence := c.Provisioning().At(c.o.Now())
	if presence != provisioning.Present || tokens.Current.Empty() || len(c.o.Origins) == 0 || strings.HasSuffix(k.name, managedSuffix) {
		c.leave(k, "")
		return nil
	}
	o, data, err := c.readSecret(ctx, k)
	if err != nil || o == nil {
		return err
	}
	owner := pointer.UserData{Name: k.name, Labels: o.GetLabels(), Annotations: o.GetAnnotations()}
	for _, r := range o.GetOwnerReferences() {
		owner.Owners = append(owner.Owners, r.Kind+"/"+r.Name)
	}
	if why := owner.Managed(); why != "" {
		c.leave(k, why)
		return nil
	}
	next, err := pointer.Provision(data["userData"], c.pointerToken(tokens, owner.Annotations[annotationWritten]))
	var left *pointer.LeftAlone
	if errors.As(err, &left) {
		why := left.Why
		if left.NotTaken {
			why = "" // as the policies have it
		}
		c.leave(k, why)
		return nil
	}
	if err != nil {
		return fmt.Errorf("user data %s: %w", k, err)
	}
	id := provisioning.ID(tokens.Current)
	if string(next) == string(data["userData"]) && owner.Annotations[annotationWritten] == id {
		c.leave(k, "")
		return nil
	}
	note(o, annotationWritten, id)
	c.tasks.limit.Accept()
	if err := c.writeSecret(ctx, k, o, map[string][]byte{"userData": next}); kerrors.IsForbidden(err) {
		c.leave(k, "the verifier may not update it; apply deploy/components/user-data")
		return nil // the next pass tries again
	} else if err != nil {
		return fmt.Errorf("user data %s: %w", k, err)
	}
	c.leave(k, "")
	c.log.Info("the pointer config has the current provisioning token", "secret", k.String())
	return nil
}

// leave notes why a pointer config stays as it is; "" if there is no reason.
func (c *Cluster) leave(k key, why string) {
	t := &c.tasks
	t.mu.Lock()
	news := t.leftAlone[k] != why
	if why == "" {
		delete(t.leftAlone, k)
	} else {
		t.leftAlone[k] = why
	}
	t.mu.Unlock()
	if news && why != "" {
		c.log.Warn("a pointer config is left alone and does not get the provisioning token", "secret", k.String(), "why", why)
	}
}
