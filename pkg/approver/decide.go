package approver

import (
	"context"
	"time"
)

// Decide decides a request.
func Decide(ctx context.Context, r *Request, w World, c Config, now time.Time) *Decision {
	return &Decision{Kind: r.Kind, Outcome: Ignore, Node: r.Node(), CredentialID: r.CredentialID, PublicKeySHA256: r.PublicKeySHA256}
}
