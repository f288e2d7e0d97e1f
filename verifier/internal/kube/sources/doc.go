// SPDX-License-Identifier: Apache-2.0

// Package sources keeps objects of the Kubernetes API current in memory. The verifier's backend for a cluster uses
// it for everything that serving reads.
//
// A [Source] is one kind in one place: a namespace, a single object, or the whole cluster. Each source has its own
// controller-runtime cache. So a forbidden namespace does not stop the others, and staleness is tracked per
// namespace. A cache lives for one list and the watch that follows it. After an error the source starts a new
// cache, with exponential back-off.
//
// A source guarantees:
//
//   - Lists are consistent reads. Nothing is older than what was read before.
//   - A list is applied as a whole, after its last page. Objects that it lacks are deleted.
//   - An object that cannot be used keeps its last good state and is reported.
//   - Objects are reduced while a list is read, page by page. The cache stores only keys and versions, because the
//     consumer stores the values.
//   - A kind that the cluster does not have is requested periodically.
//   - A restore of etcd is detected before an object of the restored state is applied. [Revisions] decides what
//     follows.
//
// The service account needs list and watch on each source's resource, and get on namespaces. A source with a name
// uses the field selector metadata.name, so a rule with a resource name is sufficient.
package sources
