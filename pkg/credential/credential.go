// Package credential is a machine's own bootstrap credential: what takes the place
// of the shared one in the kubeconfig of its Ignition config, so that what the
// kubelet asks for with it can be told from what any other machine asks for
// (DESIGN, section 11.1).
//
// [Find] looks for the one file, /etc/kubernetes/kubeconfig, in a config of
// specification 2.x or 3.x; [Slot.With] gives the config with that file's token
// exchanged and every other byte as it was: of the file, its source and, where
// there is one, its hash change, in the encoding and compression that they have.
//
// Both follow the readers of what they change. Ignition's JSON decoder takes names
// in any case and the last of several, so a name that occurs twice on the way is
// refused. In the kubeconfig exactly one user has a token, it is the one of the
// current context, and nobody has another credential: otherwise the kubelet could
// go on with what all machines share. What a config merges from elsewhere is the
// administrator's, and is not looked at.
package credential

import (
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/secret"
)

// Path is the file that the kubelet bootstraps with.
const Path = "/etc/kubernetes/kubeconfig"

// Credential is one, with what a record keeps of it.
type Credential struct {
	// ID is how the kubelet's certificate signing requests name it: "JTI=" and the id of a
	// service account's token (the credential id in spec.extra), or the user of a
	// bootstrap token, "system:bootstrap:ID" (in spec.username).
	ID     string
	Issued time.Time
	Expiry time.Time
	// Secret is the "namespace/name" of the Secret whose deletion revokes it.
	Secret    string
	SecretUID string
	// Token is what goes into the kubeconfig.
	Token secret.Bytes
}
