// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"context"
	"errors"
	"fmt"

	"github.com/mcs-attest/mcs-attest/agent/internal/metadata"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
)

// gather collects the required evidence of the cloud. A failure that may be temporary is a
// *cloudError; every other error is final. If partial is true, gather prints such an error and leaves that
// evidence out.
func (f *Flow) gather(ctx context.Context, kinds []evidence.Kind, b evidence.Binding,
	ch *mcsattestv1.CloudChallenge, partial bool) ([]*mcsattestv1.CloudEvidence, error) {
	var all []*mcsattestv1.CloudEvidence
	for _, kind := range kinds {
		if f.Cloud == nil || !f.Cloud.Makes(kind) {
			continue
		}
		if f.waitKey == "" {
			f.Console.Step("asking the cloud for evidence of this machine (%v)", kind)
		}
		ev, err := f.Cloud.Evidence(ctx, kind, b, ch)
		var fault *metadata.Fault
		switch {
		case err == nil:
			all = append(all, ev)
		case ctx.Err() != nil:
			return nil, fmt.Errorf("interrupted: %w", ctx.Err())
		case errors.As(err, &fault) && fault.Temporary:
			return nil, &cloudError{kind, err}
		case partial:
			f.Console.Step("%v", (&cloudError{kind, err}).missing())
			if fault != nil {
				f.Console.Hint(fault.Hint)
			}
		default:
			return nil, (&cloudError{kind, err}).missing()
		}
	}
	return all, nil
}

// cloudError is a failure of the metadata service that may be temporary.
type cloudError struct {
	kind evidence.Kind
	err  error
}

func (e *cloudError) Error() string { return fmt.Sprintf("%v: %v", e.kind, e.err) }
func (e *cloudError) Unwrap() error { return e.err }

// missing converts e into the final error for a failure that persists.
func (e *cloudError) missing() *MissingEvidence {
	return &MissingEvidence{Kinds: []evidence.Kind{e.kind}, Err: e.err}
}

// Cloud is the machine's cloud; package cloud implements it.
type Cloud interface {
	// Offers returns the kinds of evidence that the machine may have, in ascending order.
	Offers() []evidence.Kind
	// Makes reports whether Evidence supports a kind.
	Makes(evidence.Kind) bool
	// Evidence creates one kind of evidence. An error of the metadata service is a *metadata.Fault.
	Evidence(context.Context, evidence.Kind, evidence.Binding,
		*mcsattestv1.CloudChallenge) (*mcsattestv1.CloudEvidence, error)
}
