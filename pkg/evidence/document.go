package evidence

import (
	"context"
	"time"
)

// Document is one cloud's document as it was received. All of it is untrusted.
type Document struct {
	Kind         Kind
	Raw          []byte   // in the kind's own encoding (docs/evidence/<kind>.md)
	Certificates [][]byte // DER; candidates for intermediates, trusted for nothing
	Token        []byte   // a second document where the kind has one
}

// Binding is what a document must be bound to.
type Binding struct {
	Transcript [32]byte // package transcript's hash of this conversation
	Origin     string   // the verifier's, "https://host:port"
}

// Statement is what a cloud's documents say of the instance that they speak for.
// Every field is from verified bytes, or from the cloud's own answer.
type Statement struct {
	Kind Kind
	// ProviderID is the instance in the form of a Machine's spec.providerID.
	// Empty where nothing verified names it in that form yet.
	ProviderID string
	// InstanceID is the cloud's own name of the instance, which is never used
	// again: "aws:i-0123456789abcdef0", "gcp:1234567890123456789",
	// "azure:" and a vmId, "vsphere:" and a UUID. Empty where it is not known yet.
	InstanceID string
	// Created is when the instance came to be, as the cloud says; zero where it does not.
	Created time.Time
	// Bound: the document holds the transcript, so it was made in this
	// conversation. One that is not bound can be replayed.
	Bound bool
	// Summary holds verified claims, for a person.
	Summary map[string]string
	// Warnings are what was let pass, for the operator.
	Warnings []string
}

// Candidate is a Machine that a claim may be about.
type Candidate struct {
	// ProviderID of the Machine. It is the cluster's word; that the machine which is
	// speaking is this one is what is to be found out.
	ProviderID string
}

// Claim is a document that verified as far as it can be without asking anyone.
type Claim interface {
	// Statement is what the document says by itself.
	Statement() Statement
	// Confirm asks the cloud, in at most one call, about the candidate, and
	// returns the whole statement. It refuses what the cloud contradicts
	// (InstanceUnacceptable, InstanceNotFound), a document that is not about the
	// candidate (EvidenceDisagrees), and, for the time being, whatever it cannot
	// find out (ProviderUnavailable). A nil error means that ProviderID and
	// InstanceID are proven.
	Confirm(ctx context.Context, c Candidate) (Statement, error)
}

// Verifier verifies documents of one kind.
type Verifier interface {
	// Verify checks, in this order: syntax, anchors, signature, binding, and the
	// allow-lists of accounts and places. It calls nobody for a caller's sake; the
	// exception is a key set whose refresh is bounded by itself.
	Verify(ctx context.Context, d Document, b Binding, now time.Time) (Claim, error)
}
