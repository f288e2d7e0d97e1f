package cluster

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
)

// rotateToken writes back what an administrator's edit of the provisioning token
// means, and rotates it when it is time.
func (c *Cluster) rotateToken(ctx context.Context) error {
	namespace, name, ok := strings.Cut(c.o.ProvisioningToken.Secret, "/")
	if !ok {
		return nil
	}
	at := key{namespace, name}
	if c.guard.HoldsToken() {
		return nil // that would make the one that came back the previous one
	}
	t := &c.tasks
	t.mu.Lock()
	back := t.writeBack
	t.mu.Unlock()
	if back == nil && c.o.ProvisioningToken.RotateEvery == 0 {
		return nil
	}
	o, data, err := c.readSecret(ctx, at)
	if err != nil || o == nil {
		return err
	}
	read, err := provisioning.Parse(data)
	if err != nil {
		return nil // reported by the watch
	}
	now, grace := c.o.Now(), time.Duration(c.o.ProvisioningToken.Grace)
	next := read
	switch due, ok := read.Due(o.GetCreationTimestamp().Time, time.Duration(c.o.ProvisioningToken.RotateEvery), grace); {
	case back != nil:
		if o.GetResourceVersion() != strconv.FormatUint(back.version, 10) || !equal(back.tokens.Current, read.Current) {
			// It was changed again: the watch tells what that means. Perhaps the
			// previous token was taken out of it, which is then no oversight.
			t.written(back)
			return nil
		}
		next = back.tokens
	case ok && !now.Before(due):
		if next, err = read.Rotate(now, randReader, grace); errors.Is(err, provisioning.ErrRotating) {
			return nil
		} else if err != nil {
			return err
		}
	default:
		return nil
	}
	c.tasks.limit.Accept()
	if err := c.writeSecret(ctx, at, o, next.Data()); err != nil {
		return fmt.Errorf("write the provisioning token: %w", err)
	}
	t.written(back)
	c.log.Info("provisioning token", "edited", back != nil, "previous_until", next.PreviousExpires.Format(time.RFC3339))
	return nil
}

func equal(a, b secret.Bytes) bool { return string(a.Expose()) == string(b.Expose()) }
