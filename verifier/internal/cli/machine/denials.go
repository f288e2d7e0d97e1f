// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/verifier/internal/admin"
	"github.com/mcs-attest/mcs-attest/verifier/internal/audit"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
	"github.com/mcs-attest/mcs-attest/verifier/internal/operator"
)

const (
	// unknownFor is how long status shows a machine that is not enrolled after it last asked.
	unknownFor = time.Hour
	// maxUnknown bounds the machines that are not enrolled in a table.
	maxUnknown = 10
)

// denialReader is a backend whose denials are not in its state.
type denialReader interface {
	Denials(context.Context) ([]audit.Denial, error)
}

// readDenials adds the latest denials to s, where the backend has them elsewhere.
func readDenials(ctx context.Context, b env.Backend, s *admin.State) error {
	r, ok := b.(denialReader)
	if !ok {
		return nil
	}
	var err error
	s.Denials, err = r.Denials(ctx)
	return err
}

// unenrolled are the machines that asked a short time ago and that no enrollment names, one denial for each
// EK, the latest first.
func unenrolled(s *admin.State) []audit.Denial {
	known := map[string]bool{}
	for _, m := range s.Machines {
		for _, ek := range m.EKSHA256 {
			known[strings.ToLower(ek)] = true
		}
	}
	for _, p := range s.Pending {
		known[p.EKSHA256] = true
	}
	var all []audit.Denial
	for _, d := range s.Denials {
		if d.EKSHA256 == "" || d.Machine != "" || known[d.EKSHA256] || s.Time.Sub(d.Last) > unknownFor {
			continue
		}
		known[d.EKSHA256] = true
		all = append(all, d)
	}
	return all
}

// enrollLine is the command that enrolls the machine of a denial; in a cluster, for its Machine. A pool that
// is no name is left for the
// administrator to write: it came from the network.
func enrollLine(e *env.Env, s *admin.State, d audit.Denial) string {
	if s.Cluster != "" {
		return e.Line("enroll", "--ek-sha256 "+d.EKSHA256+" --machine NAME")
	}
	pool := d.Pool
	if len(validation.IsDNS1123Subdomain(pool)) > 0 {
		pool = "POOL"
	}
	return e.Line("enroll", "--ek-sha256 "+d.EKSHA256+" --name NAME --pool "+pool)
}

// printUnenrolled shows below the table how to enroll the machines that are not.
func printUnenrolled(out io.Writer, e *env.Env, s *admin.State, all []audit.Denial) {
	if len(all) == 0 {
		return
	}
	fmt.Fprintln(out, "\nTo enroll one of these machines, compare its EK with the one on its console, then run:")
	for _, d := range all[:min(len(all), maxUnknown)] {
		fmt.Fprintln(out, "  "+enrollLine(e, s, d))
	}
	if more := len(all) - maxUnknown; more > 0 {
		fmt.Fprintf(out, "  (%d more: '%s')\n", more, e.Line("status", "-o json"))
	}
}

// denied prints a denial of a caller that is no known machine.
func (x explained) denied(out io.Writer, d audit.Denial) {
	code, known := reason.Parse(d.Reason)
	title := audit.Clean(d.Reason)
	if known {
		title += ": " + code.Info().Title
	}
	fmt.Fprintf(out, "%s\n\n", title)
	line := func(k, v string) {
		if v != "" {
			fmt.Fprintf(out, "  %-15s %s\n", k, audit.Clean(v))
		}
	}
	again := "it may ask again"
	if !d.Temporary {
		again = "it does not ask again during this boot"
	}
	line("call", d.Event+", "+d.Outcome+"; "+again)
	line("EK", d.EKSHA256)
	line("machine", d.Machine)
	line("pool asked", d.Pool)
	line("from", d.Source)
	line("first", d.First.UTC().Format(time.RFC3339))
	line("last", fmt.Sprintf("%s, %d times", d.Last.UTC().Format(time.RFC3339), d.Count))
	line("detail", strings.TrimPrefix(d.Detail, d.Reason+": "))
	line("correlation ids", strings.Join(d.CorrelationIDs[max(0, len(d.CorrelationIDs)-4):], ", "))
	if known {
		fmt.Fprintln(out, "\nhint:", code.Info().Hint)
	}
	if len(unenrolled(&admin.State{Time: d.Last, Denials: []audit.Denial{d}})) > 0 {
		fmt.Fprintf(out, "\nTo enroll it, compare the EK with the one on its console, then run:\n  %s\n",
			enrollLine(x.env, x.state, d))
	}
}

// notFound is the error for a name that nothing has.
func (x explained) notFound(name string) error {
	err := fmt.Errorf("no machine has the name %q", name)
	var h *hint.Error
	switch {
	case x.denialsErr != nil:
		err = fmt.Errorf("%w, and the verifier's denials cannot be read: %w", err, x.denialsErr)
		if errors.As(x.denialsErr, &h) {
			return hint.New(err, "%s", h.Hint)
		}
		return err
	case !operator.IsHexID(name):
		return hint.New(err, "run '%s' for a list", x.env.Line("status", ""))
	case x.state.Cluster == "" && !x.state.Serving:
		return hint.New(fmt.Errorf("no machine has the EK or the correlation id %q", name),
			"no verifier serves this folder, and denials are only in its memory; search its audit log instead")
	}
	return hint.New(fmt.Errorf("no machine and no recent denial has the EK or the correlation id %q", name),
		"a verifier stores only the latest denials; search its audit log for older ones")
}
