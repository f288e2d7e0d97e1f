// Package backend has the interfaces between the server and what it serves from. A backend is a folder with a
// database (package standalone), or a cluster (package front). The server imports neither, and they do not
// import the server.
package backend

import (
	"context"
	"crypto/x509"
	"net/http"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/credential"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
	"github.com/mcs-attest/mcs-attest/pkg/seal"
	"github.com/mcs-attest/mcs-attest/pkg/token"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
	"github.com/mcs-attest/mcs-attest/verifier/internal/view"
)

// Backend is what a verifier serves from: a folder with a database, or a cluster. It has the current state
// and keeps the records. Whatever differs between the two is a method here.
type Backend interface {
	// View is complete, or says that it is not.
	View() *view.View
	TokenKeys() token.KeySet
	SealKeys() seal.Ring
	// Provisioning is what is known of the provisioning token.
	Provisioning() provisioning.View
	Records() Records
	// Live reads what View may lack.
	Live() Live
	// Configs serves the backend's own configs: the whole ones, or the parts for machines that are not
	// approved. It is nil if there are none.
	Configs(preApproved bool) http.Handler
	// UpstreamRoots returns the authorities of the upstream. They may change.
	UpstreamRoots() (func() *x509.CertPool, error)
	// Credentials gives machines bootstrap credentials of their own. Nil: configs keep the shared one.
	Credentials() Credentials
	// ProtectMetrics lets only those read the metrics that may.
	ProtectMetrics(http.Handler) http.Handler
	// Run follows changes until ctx ends.
	Run(ctx context.Context) error
	// Checks names the parts that Unready reports, besides the records and the serving certificate.
	Checks() []string
	// Unready says what keeps it from serving a machine now.
	Unready(now time.Time) []string
	// Describe is for the log line at the start.
	Describe() string
	Close() error
}

// Live are reads of the current state, past what is cached. Each is nil if nothing is cached.
type Live struct {
	// Machine and MachineUID read a Machine again before a permanent denial. Their errors are temporary.
	Machine    func(context.Context, *machine.Machine) error
	MachineUID func(ctx context.Context, uid string) error
	// Outdated reports why nothing may be redeemed for this Machine.
	Outdated func(machineUID string) error
	// InTrouble reports whether the records were slow or silent a short time ago.
	InTrouble func() bool
	// Provisioning reads the provisioning token again.
	Provisioning func(context.Context) (provisioning.View, error)
}

// Credentials gives each machine a bootstrap credential of its own; see [gate.Config].
//
// [gate.Config]: github.com/mcs-attest/mcs-attest/pkg/gate
type Credentials interface {
	For(c token.Claims) bool
	Get(ctx context.Context, c token.Claims) (*credential.Credential, error)
}

// Records are those that the service and the gate read and write.
type Records interface {
	Attest(ctx context.Context, uid string, components []string, alive func(uid string) bool, change store.Change) error
	Update(ctx context.Context, uid string, change store.Change) error
	Holder(ctx context.Context, component string) (uid string, err error)
	Wait(ctx context.Context, now time.Time, p store.Pending) error
	Settled(ctx context.Context, ekSHA256 string) error
	Session(uid string) store.Session
}
