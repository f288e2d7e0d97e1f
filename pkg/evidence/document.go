// SPDX-License-Identifier: Apache-2.0

package evidence

import (
	"context"
	"time"
)

// Document is a cloud's document as received. All of it is untrusted.
type Document struct {
	Kind         Kind
	Raw          []byte   // in the encoding of its kind (docs/evidence/<kind>.md)
	Certificates [][]byte // DER; untrusted candidates for intermediates
	Token        []byte   // a second document, if the kind has one
}

// Binding is the conversation to which a document must be bound.
type Binding struct {
	Transcript [32]byte // package transcript's hash of this conversation
	Origin     string   // the verifier's, "https://host:port"
}

// Statement is what a cloud's documents state about their instance. Every field comes from verified
// bytes or from the cloud's own answer.
type Statement struct {
	Kind Kind
	// ProviderID is the instance in the form of a Machine's spec.providerID. It is empty if no
	// verified value has that form yet.
	ProviderID string
	// InstanceID is the cloud's own id of the instance, which is never reused:
	// "aws:i-0123456789abcdef0", "gcp:1234567890123456789", "azure:" and a vmId, "vsphere:" and a
	// UUID. It is empty if it is not known yet.
	InstanceID string
	// Created is when the instance was created, according to the cloud; zero if the cloud does not
	// return it.
	Created time.Time
	// Bound is true if the document contains the transcript, so it was created in this
	// conversation. Other documents can be replayed.
	Bound bool
	// Summary has verified claims for the administrator.
	Summary map[string]string
	// Warnings are the accepted problems, for the administrator.
	Warnings []string
}

// Candidate is a Machine that a claim may be about.
type Candidate struct {
	// ProviderID is that of the Machine, according to the cluster. Whether the caller is this
	// machine is still to be proven.
	ProviderID string
}

// Claim is a document that is verified as far as possible without a request to the cloud.
type Claim interface {
	// Statement returns what the document states by itself.
	Statement() Statement
	// Confirm asks the cloud about the candidate, in at most one call, and returns the complete
	// statement. It denies what the cloud contradicts (InstanceUnacceptable, InstanceNotFound), a
	// document about another machine (EvidenceDisagrees), and, temporarily, everything that it
	// cannot find out (ProviderUnavailable). A nil error means that ProviderID and InstanceID are
	// proven.
	Confirm(ctx context.Context, c Candidate) (Statement, error)
}

// Verifier verifies documents of one kind.
type Verifier interface {
	// Verify checks, in this order: syntax, anchors, signature, binding, and the allow-lists of
	// accounts and places. A caller cannot make it send a request. The only exception is a key set
	// that limits its own refreshes.
	Verify(ctx context.Context, d Document, b Binding, now time.Time) (Claim, error)
}
