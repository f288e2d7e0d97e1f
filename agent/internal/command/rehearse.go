// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/mcs-attest/mcs-attest/agent/internal/client"
	"github.com/mcs-attest/mcs-attest/agent/internal/platform"
	"github.com/mcs-attest/mcs-attest/pkg/pointer"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/rehearsal"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
)

func (a *agent) rehearse() command {
	return command{
		name:  "rehearse",
		args:  "FILE",
		short: "ask the verifier whether it would attest this machine again",
		long: `rehearse presents the evidence of a first boot, and prints what the verifier would
decide now. It receives no token, and changes nothing on this machine. The verifier
writes the result to the record of the Machine.

FILE is the document with the ticket and the pointer config. Where it is "-", the
command reads its standard input. "kubectl attest rehearse" and "mcs-attest-verifier
rehearse" create the document. The exit status is 0 only if this machine would be
attested.`,
		run: func(ctx context.Context, args []string) error { return a.runRehearse(ctx, args[0]) },
	}
}

func (a *agent) runRehearse(ctx context.Context, file string) error {
	order, err := readOrder(file)
	if err != nil {
		return err
	}
	config, err := pointer.Parse(order.Pointer.Expose())
	if err != nil {
		return fmt.Errorf("the pointer config: %w", err)
	}
	target, authorities, err := a.onlyTarget(config)
	if err != nil {
		return err
	}
	if token, _ := config.Presented(target.Origin, target.Pool); !token.Empty() {
		return hinted{errors.New("the pointer config contains a provisioning token, which no rehearsal may send to a node"),
			"create the document with 'kubectl attest rehearse' or 'mcs-attest-verifier rehearse'"}
	}
	machine, err := platform.New(a.paths, os.Getenv("PLATFORM_ID"))
	if err != nil {
		return err
	}
	f, done, err := a.newFlow(ctx, machine, authorities)
	if err != nil {
		return err
	}
	defer func() { _ = done() }()
	res, err := f.Rehearse(ctx, target, order.Ticket)
	var denied *client.Denied
	switch {
	case errors.Is(err, client.ErrNotVerifier):
		return hinted{fmt.Errorf("%s: %w, or it has a version without rehearsals", target.Origin, err),
			"read the version in the AttestationVerifier, and where the pointer config leads"}
	case errors.As(err, &denied) && denied.Class == mcsattestv1.DenialClass_DENIAL_CLASS_CHALLENGE:
		return hinted{err, "start the rehearsal again: a ticket is for one rehearsal of one Machine, and expires"}
	case err != nil:
		return hinted{err, advice(err)}
	}
	for _, w := range res.GetWarnings() {
		a.console.Again("warning: %s", w)
	}
	if code := reason.Code(res.GetReason()); !res.GetPasses() {
		// The explanation of a denial can begin with its reason.
		why := strings.TrimPrefix(res.GetExplanation(), code.String()+": ")
		return hinted{fmt.Errorf("this machine would not be attested: %v: %s (correlation id %s)", code, why,
			res.GetCorrelationId()), code.Info().Hint}
	}
	a.console.Step("this machine would be attested (correlation id %s)", res.GetCorrelationId())
	return nil
}

// readOrder reads the order from a file or, for "-", from the standard input.
func readOrder(file string) (rehearsal.Order, error) {
	in := os.Stdin
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return rehearsal.Order{}, err
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	raw, err := io.ReadAll(io.LimitReader(in, rehearsal.MaxOrder+1))
	if err != nil {
		return rehearsal.Order{}, err
	}
	return rehearsal.ParseOrder(raw)
}
