// SPDX-License-Identifier: Apache-2.0

package standalone

import (
	"context"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
)

// heldRecords are the records of a database that may have been restored. Until an administrator
// acknowledges that, they admit no machine, because an older database lacks joins, claims and used
// grants.
type heldRecords struct{ *store.Store }

func (h heldRecords) held() error {
	if r := h.Restored(); r != nil {
		return reason.Deny(reason.StoreUnavailable, "%s, and no administrator has acknowledged it", r.Why)
	}
	return nil
}

// Attest implements service.Records.
func (h heldRecords) Attest(
	ctx context.Context, uid string, components []string, alive func(uid string) bool, change store.Change,
) error {
	if err := h.held(); err != nil {
		return err
	}
	return h.Store.Attest(ctx, uid, components, alive, change)
}

// Record implements redeem.Records. Older records would permanently deny a token that newer ones
// accept, and would accept in a preflight what Update then denies.
func (h heldRecords) Record(ctx context.Context, uid string) (*v1alpha1.MachineAttestation, error) {
	if err := h.held(); err != nil {
		return nil, err
	}
	return h.Store.Record(ctx, uid)
}

// Update implements redeem.Records. In older records, a token has its uses back.
func (h heldRecords) Update(ctx context.Context, uid string, change store.Change) error {
	if err := h.held(); err != nil {
		return err
	}
	return h.Store.Update(ctx, uid, change)
}

// Session implements redeem.Records.
func (h heldRecords) Session(uid string) store.Session { return store.NewSession(h, uid) }

func (b *Backend) reportHeld() {
	for _, text := range HeldProblems(b.records.Restored()) {
		b.parts.Log.Error("machines are not admitted", "why", text)
	}
}
