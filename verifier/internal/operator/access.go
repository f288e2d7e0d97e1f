// SPDX-License-Identifier: Apache-2.0

package operator

import "k8s.io/client-go/rest"

// Rest is how the cluster is reached, for commands with clients of their own.
func (c *Cluster) Rest() *rest.Config { return rest.CopyConfig(c.rest) }

// Own is the namespace of the cluster's verifier.
func (c *Cluster) Own() string { return c.o.Own }
