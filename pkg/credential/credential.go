// Package credential is a machine's own bootstrap credential: what takes the place
// of the shared one in the kubeconfig of its Ignition config, so that what the
// kubelet asks for with it can be told from what any other machine asks for
// (DESIGN, section 11.1).
//
// [Find] looks for the one file, /etc/kubernetes/kubeconfig, in a config of any
// specification; [Slot.With] gives the config with that file's token exchanged and
// every other byte as it was.
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
	// Fresh: the Secret was made for this credential, and no other rests on it.
	Fresh bool
}
