package cluster

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
)

// What a backup has of the provisioning token may be what was voided since, or
// nothing, which would open the pools that it alone opens. Unlike keys the verifier
// cannot make it anew by itself: machines and pointer configs carry it.
//
//	what came back was in force         it is again, without a word
//	else                                nobody knows of a token: who needs one waits
//	until the Secret has another token  that one counts, unless it comes with one of
//	                                    those that came back, as the previous one
//	or an administrator acknowledges    what is there counts, none if there is none
//
// Who wants the one that came back to be good for a grace acknowledges first.

var errHeld = errors.New("etcd was restored, and this provisioning token is not the one that was in force before")

// heldToken is what is to be compared with what came back.
type heldToken struct {
	epoch  uint32              // what is known since an earlier restore says nothing
	at     time.Time           // of the restore
	before provisioning.View   // what was in force
	looked bool                // the Secret was looked for since
	back   provisioning.Tokens // what there was then
	data   map[string][]byte   // what there is now; nil: no Secret
}

// holdToken begins to hold it; the lock is held.
func (s *secrets) holdToken(epoch uint32, now time.Time) {
	h := &heldToken{epoch: epoch, at: now, before: s.tokens}
	if s.held != nil {
		h.before = s.held.before
	}
	s.held = h
}

// look takes what there is now, and reports whether it counts, and what it is to
// be compared with. Tokens that are zero are none that can be used.
func (h *heldToken) look(now time.Time, data map[string][]byte, tokens provisioning.Tokens) (known provisioning.View, counts bool) {
	h.data = data
	known, asBefore := provisioning.View{}, h.asBefore(now, data, tokens)
	if asBefore {
		known = h.before
	}
	if !h.looked {
		h.looked, h.back = true, tokens
		return known, asBefore
	}
	return known, asBefore && data != nil || h.another(now, tokens)
}

// asBefore reports whether nothing is good that was not before the restore, or for
// longer.
func (h *heldToken) asBefore(now time.Time, data map[string][]byte, tokens provisioning.Tokens) bool {
	known, presence := h.before.At(now)
	if data == nil {
		return presence == provisioning.Absent
	}
	if tokens.Current.Empty() {
		return false
	}
	for _, token := range tokens.Valid(now) {
		switch known.Check(now, token.Expose()) {
		case provisioning.Current:
		case provisioning.Previous:
			if !equal(token, tokens.Current) && tokens.PreviousExpires.After(known.PreviousExpires) {
				return false
			}
		default:
			return false
		}
	}
	return true
}

// another reports whether somebody has made a token since, and nothing is good
// that came back.
func (h *heldToken) another(now time.Time, tokens provisioning.Tokens) bool {
	return !tokens.Current.Empty() && !slices.ContainsFunc(tokens.Valid(now), func(t secret.Bytes) bool {
		return equal(t, h.back.Current) || equal(t, h.back.Previous)
	})
}

// known is what the token's next state is to be compared with, and whether it
// counts. The lock is held.
func (s *secrets) known(epoch uint32, now time.Time, data map[string][]byte) (known provisioning.View, counts bool) {
	h := s.held
	if h == nil {
		return s.tokens, true
	}
	if epoch < h.epoch {
		return provisioning.View{}, false // from before the restore
	}
	var tokens provisioning.Tokens
	if data != nil {
		tokens, _ = provisioning.Parse(data) // whoever reads it reports what is wrong
	}
	if known, counts = h.look(now, maps.Clone(data), tokens); counts {
		s.held = nil
	}
	return known, counts
}

// holding reports whether the provisioning token is not taken since a restore.
func (c *Cluster) holding() bool {
	c.secrets.mu.Lock()
	defer c.secrets.mu.Unlock()
	return c.secrets.held != nil
}

// acknowledge lets what is there count, if the restore is older than at.
func (c *Cluster) acknowledge(at time.Time) {
	c.release(at)
	s := &c.secrets
	s.mu.Lock()
	h := s.held
	if h == nil || !h.looked || h.at.After(at) {
		s.mu.Unlock()
		return
	}
	s.held = nil
	if h.data == nil {
		s.tokens = provisioning.View{}.Gone(c.o.Now())
	} else {
		s.tokens, _ = provisioning.View{}.Read(c.o.Now(), h.data, time.Duration(c.o.ProvisioningToken.Grace))
	}
	s.mu.Unlock()
	c.log.Info("the restore of etcd is acknowledged: the provisioning token counts as it is")
	c.rewriteAll()
	c.changed()
}

// readAcknowledgement looks whether there is one. Each replica that holds something
// has to know.
func (c *Cluster) readAcknowledgement(ctx context.Context) {
	if !c.unacknowledged() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	o, err := c.dynamic.Resource(verifiersResource).Get(ctx, v1alpha1.VerifierName, metav1.GetOptions{})
	if err != nil {
		c.log.Debug("whether the restore of etcd is acknowledged", "error", err)
		return
	}
	at, err := time.Parse(time.RFC3339, o.GetAnnotations()[AnnotationRestoreSeen])
	if err == nil {
		c.acknowledge(at)
	}
}
