// SPDX-License-Identifier: Apache-2.0

// Package simulation runs whole verifiers in one process against a model of the API server. It has only tests.
//
// The processes run unmodified in a bubble of testing/synctest: several fronts and two controllers with one lease, as
// the commands serve and controller wire them. The model replaces the network: each process sends its requests through
// [backend.Parts.Transport]. The model has the semantics of an API server on one etcd: optimistic locking, watches,
// preconditions, subresources. It also has the failures: slow, refused and lost answers, late watch events,
// partitions, and a restore of etcd.
//
// The model also has the kubelets and the signer of kube-controller-manager. Half of the machines attest the first key
// of their kubelet and get a certificate for it from the verifier. The kubelets of the others request one with the
// bootstrap credential of the config that the gate served.
//
// Time is the scheduler. Each request and each watch event sleeps for a time that a hash of the seed and of its own
// name determines. So the order in which goroutines ask for their times has no effect.
//
// A seed repeats its schedule of failures, restarts, attackers and administrators. The runtime's own choices remain:
// the order of a map, the case that a select takes, and the order of goroutines that wake at one instant. That order
// also decides which of them gets which jitter. With -simulation.exact, the seed decides them as well: each seed has a
// process of its own, and a second run of it is the same ([TestReplay]). "make simulation" uses that. To see what a
// seed did, add -simulation.first=SEED -simulation.seeds=1 -simulation.trace.
//
// [backend.Parts.Transport]: github.com/mcs-attest/mcs-attest/verifier/internal/backend.Parts.Transport
package simulation
