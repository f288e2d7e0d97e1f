// SPDX-License-Identifier: Apache-2.0

// Package admin gives commands on the same host access to the state of a serving verifier, through a
// Unix socket in its folder. Only the owner of the folder may open the socket: to read and copy the
// records, and to delete the record of a machine.
package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/verifier/internal/audit"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
)

// State is the output of the commands status and explain, for a folder or a cluster.
type State struct {
	Time time.Time `json:"time"`
	// Cluster is the API server of the state. It is empty for a folder.
	Cluster string `json:"cluster,omitempty"`
	// Serving means that a verifier serves the folder. In a cluster, it means that the verifier is
	// Available.
	Serving bool `json:"serving"`
	// Conditions are those of a cluster's AttestationVerifier. Holder is the controller that leads.
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	Holder     string             `json:"holder,omitempty"`
	Machines   []Machine          `json:"machines"`
	Pending    []store.Pending    `json:"pending,omitempty"`
	// Denials are the latest ones that a serving verifier remembers, the newest first.
	Denials  []audit.Denial `json:"denials,omitempty"`
	Problems []string       `json:"problems,omitempty"`
	// Keys are the IDs of the keys and provisioning tokens that a verifier uses while it serves a folder.
	Keys []string `json:"keys,omitempty"`
}

// Machine is a Machine with its record.
type Machine struct {
	Name       string    `json:"name"` // namespace/name
	UID        string    `json:"uid"`
	Kind       string    `json:"kind"`
	Pools      []string  `json:"pools,omitempty"`
	EKSHA256   []string  `json:"ekSHA256,omitempty"`
	ProviderID string    `json:"providerID,omitempty"`
	Created    time.Time `json:"created"`
	// NodeRef is the Node of the Machine.
	NodeRef string `json:"nodeRef,omitempty"`
	// Ready is since when that Node has been ready. It is nil if the Node is not ready, or if that is not known.
	Ready       *time.Time `json:"ready,omitempty"`
	Deleting    bool       `json:"deleting,omitempty"`
	Quarantined bool       `json:"quarantined,omitempty"`
	// Reattest is when the grant to attest again expires.
	Reattest *time.Time `json:"reattest,omitempty"`
	// Rehearsal is the SHA-256 of the ticket of an open rehearsal.
	Rehearsal string `json:"rehearsal,omitempty"`
	// Record is nil if nothing was recorded yet.
	Record *v1alpha1.MachineAttestationStatus `json:"record,omitempty"`
}

// Node returns the Node that the machine is, or that its certificate is for.
func (m Machine) Node() string {
	if m.NodeRef == "" && m.Record != nil && m.Record.Certificate != nil {
		return m.Record.Certificate.Node
	}
	return m.NodeRef
}

// Sort sorts the Machines by name.
func (s *State) Sort() {
	slices.SortFunc(s.Machines, func(a, b Machine) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
}

// BreakGlass returns a break-glass token, which has a record and no Machine.
func BreakGlass(a *v1alpha1.MachineAttestation) Machine {
	return Machine{Name: a.Namespace + "/" + a.Name, UID: a.Status.MachineUID, Kind: "BreakGlass",
		Pools: []string{a.Status.Pool}, Created: a.CreationTimestamp.Time, Record: &a.Status}
}

// About returns a Machine with its record, which may be nil.
func About(m *machine.Machine, record *v1alpha1.MachineAttestation) Machine {
	entry := Machine{
		Name: m.String(), UID: m.UID, Kind: m.Kind, Pools: m.Pools, EKSHA256: m.EKSHA256, ProviderID: m.ProviderID,
		Created: m.Created, NodeRef: m.NodeRef, Deleting: m.Deleting, Quarantined: m.Quarantined(),
	}
	if e := m.Enrollment; e != nil && e.Spec.Reattest != nil {
		until := e.Spec.Reattest.Until.Time
		entry.Reattest = &until
	}
	if e := m.Enrollment; e != nil && e.Spec.Rehearsal != nil {
		entry.Rehearsal = e.Spec.Rehearsal.TicketSHA256
	}
	if record != nil {
		entry.Record = &record.Status
		entry.Quarantined = entry.Quarantined || record.Status.Quarantined
	}
	return entry
}

// ErrNotServing means that no verifier listens on the socket.
var ErrNotServing = errors.New("no verifier is serving this folder")

// Answers are the functions behind the socket.
type Answers struct {
	State func(context.Context) (*State, error)
	// Backup writes a copy of the record database; see [store.Store.Backup].
	Backup func(ctx context.Context, w io.Writer, start func(size int64)) error
	// Forget deletes the record of the machine with this UID.
	Forget func(ctx context.Context, uid string) error
}

// Serve serves the socket at path until ctx ends.
func Serve(ctx context.Context, path string, answers Answers, log *slog.Logger) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/state", func(w http.ResponseWriter, r *http.Request) {
		s, err := answers.State(r.Context())
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(s); err != nil {
			log.Debug("admin answer not sent", "error", err)
		}
	})
	mux.HandleFunc("GET /v1/backup", func(w http.ResponseWriter, r *http.Request) {
		err := answers.Backup(r.Context(), w,
			func(size int64) { w.Header().Set("Content-Length", strconv.FormatInt(size, 10)) })
		if err != nil {
			log.Error("backup not sent", "error", err)
			panic(http.ErrAbortHandler) // so that the client detects a truncated copy
		}
	})
	mux.HandleFunc("DELETE /v1/records/{uid}", func(w http.ResponseWriter, r *http.Request) {
		if err := answers.Forget(r.Context(), r.PathValue("uid")); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	return serve(ctx, path, mux)
}

// ServePage serves the web page on a socket of its own at path until ctx ends. A tunnel to this socket gives access to
// nothing else.
func ServePage(ctx context.Context, path string, page http.Handler) error {
	return serve(ctx, path, loopback(page))
}

// serve serves h on a socket at path that only its owner may open, until ctx ends.
func serve(ctx context.Context, path string, h http.Handler) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove old socket: %w", err)
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", path, err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		_ = l.Close()
		return fmt.Errorf("protect %s: %w", path, err)
	}
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	if err := srv.Serve(l); err != nil && !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", path, err)
	}
	return nil
}

// loopback returns h for browsers that reach the socket through a port of their own host. Otherwise a site whose name
// leads to that port could read the page (DNS rebinding).
func loopback(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := (&url.URL{Host: r.Host}).Hostname()
		if ip, err := netip.ParseAddr(host); host != "localhost" && (err != nil || !ip.IsLoopback()) {
			http.Error(w, "the page is served to localhost", http.StatusMisdirectedRequest)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// maxState is the maximum size of a state: records of 100 000 machines.
const maxState = 1 << 30

// Ask returns the state of the verifier behind the socket.
func Ask(ctx context.Context, path string) (*State, error) {
	res, err := call(ctx, path, http.MethodGet, "/v1/state", 30*time.Second)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	var s State
	if err := json.NewDecoder(io.LimitReader(res.Body, maxState)).Decode(&s); err != nil {
		return nil, fmt.Errorf("read the verifier's answer: %w", err)
	}
	return &s, nil
}

// backupTime is sufficient for a gigabyte on a slow disk.
const backupTime = 10 * time.Minute

// Backup copies the record database of the verifier behind the socket.
func Backup(ctx context.Context, path string, to io.Writer) error {
	res, err := call(ctx, path, http.MethodGet, "/v1/backup", backupTime)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if _, err := io.Copy(to, res.Body); err != nil {
		return fmt.Errorf("read the verifier's answer: %w", err)
	}
	return nil
}

// Forget deletes the record of a machine.
func Forget(ctx context.Context, path, uid string) error {
	res, err := call(ctx, path, http.MethodDelete, "/v1/records/"+url.PathEscape(uid), 30*time.Second)
	if err != nil {
		return err
	}
	return res.Body.Close()
}

// call sends a request. It returns only successful answers.
func call(ctx context.Context, path, method, what string, timeout time.Duration) (*http.Response, error) {
	client := &http.Client{Timeout: timeout, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		},
	}}
	req, err := http.NewRequestWithContext(ctx, method, "http://verifier"+what, nil)
	if err != nil {
		return nil, err
	}
	res, err := client.Do(req)
	if err != nil {
		if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
			return nil, ErrNotServing
		}
		return nil, fmt.Errorf("send a request to the verifier: %w", err)
	}
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(res.Body, 4096))
		_ = res.Body.Close()
		return nil, fmt.Errorf("the verifier returned %s: %s", res.Status, text)
	}
	return res, nil
}
