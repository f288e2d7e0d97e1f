// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/mcs-attest/mcs-attest/agent/internal/client"
	"github.com/mcs-attest/mcs-attest/agent/internal/metadata"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
)

// repeatLine is the interval at which the same reason is printed again.
const repeatLine = time.Minute

// waitHint says who can end a wait.
func waitHint(d *client.Denied) string {
	if i := d.Refused.Info(); i.Name == d.Refused.String() {
		return i.Hint
	}
	explain := fmt.Sprintf("run 'mcs-attest-verifier explain %s' on the cluster to see ", d.CorrelationID)
	if d.Class == mcsattestv1.DenialClass_DENIAL_CLASS_NOT_YET {
		return explain + "what is missing"
	}
	return "no action is needed on this machine; if it continues, " + explain + "the reason"
}

// attemptPart matches what differs between two attempts that fail for the same reason: the source address of a
// connection, the time at which a certificate was not valid, and the folder on which a drive was mounted.
var attemptPart = regexp.MustCompile(`\S+->|current time \S+|volume-\d+`)

// Reason returns the text of err without what differs between two attempts that fail for the same reason.
func Reason(err error) string { return attemptPart.ReplaceAllString(err.Error(), "") }

// waiting prints why the flow retries, and after what pause: immediately when the reason changes, then
// every repeatLine. A different correlation id is not a different reason.
func (f *Flow) waiting(err error, pause time.Duration) {
	key := Reason(err)
	var denied *client.Denied
	if errors.As(err, &denied) {
		key = denied.ClassName() + denied.Refused.String()
	}
	if key == f.waitKey && f.now()-f.waitLast < repeatLine {
		return
	}
	f.waitKey, f.waitLast = key, f.now()
	f.Console.Again("%v; trying again in %v", err, pause.Round(100*time.Millisecond))
	var fault *metadata.Fault
	switch {
	case errors.As(err, &fault):
		f.Console.Hint(fault.Hint)
	case denied != nil:
		f.Console.Hint(waitHint(denied))
	}
}

func (f *Flow) sleep(ctx context.Context, d time.Duration) error {
	if f.Sleep != nil {
		return f.Sleep(ctx, d)
	}
	return Pause(ctx, d)
}

func (f *Flow) offline(err error) bool {
	if f.Offline != nil {
		return f.Offline(err)
	}
	return client.Offline(err)
}

// Pause waits. It ends early with an error if the context ends.
func Pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return fmt.Errorf("interrupted: %w", ctx.Err())
	case <-time.After(d):
		return nil
	}
}

// started is the base of the monotonic time. The wall clock is never read.
var started = time.Now()

func (f *Flow) now() time.Duration {
	if f.Since != nil {
		return f.Since()
	}
	return time.Since(started)
}
