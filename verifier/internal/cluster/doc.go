// Package cluster is everything that the verifier of a cluster has to do with the
// Kubernetes API: what it knows from it, and what it writes there.
//
// What it knows comes by watches and is kept small: Machines of either API,
// BareMetalHosts, Nodes and MachineAttestations go into a [machine.Registry],
// policies, reference values, keys and certificates become values that are
// replaced as a whole. Every object stands by itself. One that cannot be used
// keeps its last good state, is reported (a condition where the kind is our own,
// an Event, a metric) and stops no other. A kind that the cluster does not have
// is no error; one that the verifier may not read is, with the missing rule.
//
// What it writes are records and claims, live and by resourceVersion: nothing is
// granted on what a watch says of a record. While the API is away what is known
// stays in force, and nothing can be granted, since nothing can be written.
//
// Work that one replica does for all (keys, conditions, clean-up, latches) is done
// by the holder of a Lease. Serving never depends on it.
package cluster
