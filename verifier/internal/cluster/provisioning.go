package cluster

import (
	"context"
	"strings"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
)

// ReadProvisioning reads the provisioning token from the API: the view is what the
// watch brought, which may be a moment behind. An error says nothing of the token.
func (c *Cluster) ReadProvisioning(ctx context.Context) (provisioning.View, error) {
	view := c.Provisioning()
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
