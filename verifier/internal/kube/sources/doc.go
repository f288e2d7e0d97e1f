// Package sources keeps objects of the Kubernetes API current in memory. The
// verifier's backend for a cluster uses it for everything that serving reads.
//
// A [Source] is one kind in one place: a namespace, a single object, or the whole
// cluster. Each source has a controller-runtime cache of its own, so that a namespace
// that is forbidden stops no other, and so that staleness is known per namespace.
// A cache lives for one list and the watch that follows it. After an error the source
// starts a new cache, with exponential back-off.
//
// A source promises:
//
//   - Lists are consistent reads. Nothing is older than what was seen before.
//   - A list is taken in as a whole, after its last page. What it lacks is dropped.
//   - An object that cannot be used keeps its last good state and is reported.
//   - Objects are reduced while a list is read, page by page. The cache stores keys
//     and versions, and not a second copy of what the consumer stores.
//   - A kind that the cluster does not have is looked for periodically.
//   - A restore of etcd is noticed before an object of the restored state is taken in.
//     [Revisions] decides what follows.
//
// The service account needs list and watch on each source's resource, and get on
// namespaces. A source with a name uses the field selector metadata.name, so a rule
// with a resource name is sufficient.
package sources
