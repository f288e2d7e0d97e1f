package cluster

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/pointer"
	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
)

// annotationWritten on a user-data Secret is the short id of the provisioning token
// in it. By it the verifier knows its own after that token was voided.
const annotationWritten = "mcs-attest.dev/provisioning-token"

// pointerToken says how the current token gets into a pointer config: for the
// pools whose policy lists it, and in place of a token that is, or was, ours.
func (c *Cluster) pointerToken(tokens provisioning.Tokens, written string) pointer.Provisioning {
	policies := c.View().Policies
	return pointer.Provisioning{
		Token: tokens.Current, Origins: c.o.Origins,
		Pool: func(pool string) (takes, inURL bool) {
			p, err := policies.For(pool)
			return err == nil && slices.Contains(p.Kinds(), evidence.ProvisioningToken), p.URLParameter
		},
		Ours: func(token secret.Bytes) bool {
			return tokens.Check(c.o.Now(), token.Expose()) != provisioning.None || provisioning.ID(token) == written
		},
	}
}

func note(o *unstructured.Unstructured, name, value string) {
	all := o.GetAnnotations()
	if all == nil {
		all = map[string]string{}
	}
	all[name] = value
	o.SetAnnotations(all)
}

// No redemption without the API: the token counts while the API has answered a moment ago.
var errSilent = errors.New("the Kubernetes API has not answered for some time")

var errHeld = errors.New("etcd was restored, and this provisioning token is not the one that was in force before")

// tokenInUse reports whether there is a provisioning token, as far as is known.
func (c *Cluster) tokenInUse() bool {
	c.secrets.mu.Lock()
	defer c.secrets.mu.Unlock()
	_, presence := c.secrets.tokens.At(c.o.Now())
	return presence == provisioning.Present
}

// ReadProvisioning reads the provisioning token from the API: the view is what the
// watch brought, which may be a moment behind. An error says nothing of the token.
func (c *Cluster) ReadProvisioning(ctx context.Context) (provisioning.View, error) {
	c.secrets.mu.Lock()
	view, held := c.secrets.tokens, c.guard.HoldsToken()
	c.secrets.mu.Unlock()
	if held {
		return provisioning.View{}.Failed(errHeld), nil // the watch will tell when it counts
	}
	namespace, name, ok := strings.Cut(c.o.ProvisioningToken.Secret, "/")
	if !ok {
		return view, nil
	}
	o, data, err := c.readSecret(ctx, key{namespace, name})
	if err != nil {
		return provisioning.View{}, err
	}
	if o == nil {
		return view.Gone(c.o.Now()), nil
	}
	view, _ = view.Read(c.o.Now(), data, time.Duration(c.o.ProvisioningToken.Grace)) // the watch writes an edit back
	return view, nil
}
