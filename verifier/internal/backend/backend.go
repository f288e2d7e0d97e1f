// SPDX-License-Identifier: Apache-2.0

// Package backend has the interfaces between the server and the source of its data. A backend is a
// folder with a database (package standalone), or a cluster (package front). The server and the
// backends do not import each other.
package backend

import (
	"context"
	"crypto/x509"
	"net/http"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/credential"
	"github.com/mcs-attest/mcs-attest/pkg/gate"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
	"github.com/mcs-attest/mcs-attest/pkg/seal"
	"github.com/mcs-attest/mcs-attest/pkg/token"
	"github.com/mcs-attest/mcs-attest/verifier/internal/admin"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
	"github.com/mcs-attest/mcs-attest/verifier/internal/view"
)

// Backend is the source of a serving verifier's data: a folder with a database, or a cluster. It has
// the current state and stores the records. Each difference between the two is a method here.
type Backend interface {
	// View returns a view that is complete or reports that it is not.
	View() *view.View
	TokenKeys() token.KeySet
	SealKeys() seal.Ring
	// Provisioning returns the cached state of the provisioning token.
	Provisioning() provisioning.View
	Records() Records
	// Live returns the functions that read past the cache.
	Live() Live
	// Configs serves the backend's own configs: the full ones, or the parts for machines that are not
	// approved. It returns nil if there are none.
	Configs(preApproved bool) *gate.Source
	// Authorities returns the CAs that pointer configs name, in PEM. The error is temporary.
	Authorities() ([]byte, error)
	// UpstreamRoots returns the current CAs of the upstream, or nil if they have not been read. Each call returns the
	// same pool until they change.
	UpstreamRoots() *x509.CertPool
	// Credentials returns the source of the machines' own bootstrap credentials, or nil if configs keep
	// the shared one.
	Credentials() Credentials
	// ProtectMetrics returns a handler that authorizes the readers of the metrics.
	ProtectMetrics(http.Handler) http.Handler
	// ProtectPage lets only those read the web page at path that may. Nil: the operators' listener does not have it.
	ProtectPage(path string, page http.Handler) http.Handler
	// State is what status shows. Only the web page needs it, and only if the configuration asks for that.
	State(context.Context) (*admin.State, error)
	// Run follows changes until ctx ends.
	Run(ctx context.Context) error
	// Checks returns the names of the parts that Unready reports, besides the records and the serving
	// certificate.
	Checks() []string
	// Unready returns the reasons why the backend cannot serve a machine now.
	Unready(now time.Time) []string
	// Describe returns a description for the log line at the start.
	Describe() string
	Close() error
}

// Live has functions that read the current state, past the cache. A function is nil if its subject is
// not cached.
type Live struct {
	// Machine and MachineUID read a Machine again before a permanent denial. Their errors are
	// temporary.
	Machine    func(context.Context, *machine.Machine) error
	MachineUID func(ctx context.Context, uid string) error
	// Outdated reports why no token may be redeemed for this Machine.
	Outdated func(machineUID string) error
	// Failing reports whether the records were recently slow or did not answer.
	Failing func() bool
	// NodeNames reads the names that the Node of a Machine may have. Nil if machines get no certificate
	// from the verifier.
	NodeNames func(ctx context.Context, machineUID string) ([]string, error)
	// Provisioning reads the provisioning token again.
	Provisioning func(context.Context) (provisioning.View, error)
}

// Credentials returns the bootstrap credential of each machine; see [gate.Config].
//
// [gate.Config]: github.com/mcs-attest/mcs-attest/pkg/gate
type Credentials interface {
	For(c token.Claims) bool
	Get(ctx context.Context, c token.Claims) (*credential.Credential, error)
}

// Records is the store that the service and the gate use.
type Records interface {
	Attest(ctx context.Context, uid string, components []string, alive func(uid string) bool, change store.Change) error
	Update(ctx context.Context, uid string, change store.Change) error
	Holder(ctx context.Context, component string) (uid string, err error)
	AddPending(ctx context.Context, now time.Time, p store.Pending) error
	DeletePending(ctx context.Context, ekSHA256 string) error
	Session(uid string) store.Session
}
