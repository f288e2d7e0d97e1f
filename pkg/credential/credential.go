// SPDX-License-Identifier: Apache-2.0

// Package credential handles a machine's own bootstrap credential. The gate puts it into
// the kubeconfig of the machine's Ignition config in place of the shared one. So the
// approver can tell which machine's kubelet made a certificate signing request.
//
// [Find] finds the file /etc/kubernetes/kubeconfig in a config of specification 2.x or
// 3.x. [Slot.With] returns the config with another token in that file, [Slot.Without] with
// none. Only the file's
// source and its hash, if any, change, in their own encoding and compression. Every other
// byte is unchanged.
//
// Both are as strict as the programs that read the config require. Ignition's JSON decoder
// ignores the case of names and uses the last of duplicates, so duplicates are rejected. In
// the kubeconfig exactly one user has a token, that of the current context, and no user has
// another credential. Otherwise the kubelet could still use a shared credential. Configs
// that the config merges from elsewhere are the administrator's responsibility and are
// ignored.
package credential

import (
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/secret"
)

// Path is the kubeconfig with which the kubelet bootstraps.
const Path = "/etc/kubernetes/kubeconfig"

// Credential is a bootstrap credential, with what a record stores about it.
type Credential struct {
	// ID identifies the credential in the kubelet's certificate signing requests: "JTI=" and
	// the ID of a service account's token (the credential ID in spec.extra), or the user of a
	// bootstrap token, "system:bootstrap:ID" (in spec.username).
	ID     string
	Issued time.Time
	Expiry time.Time
	// Secret is the "namespace/name" of the Secret whose deletion revokes it.
	Secret    string
	SecretUID string
	// Token is the token for the kubeconfig.
	Token secret.Bytes
	// Key is the hash of the machine's attested key if the machine already has its node's
	// certificate. It then has no other credential, and all other fields are empty.
	Key string
}
