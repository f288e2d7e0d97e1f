// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"errors"
	"os"
	"strconv"

	"github.com/mcs-attest/mcs-attest/agent/internal/failure"
)

func (a *agent) report() command {
	return command{
		name:  "report",
		args:  "UNIT",
		short: "report to the verifier why a stage of Ignition failed",
		long: `report runs as ExecStopPost= of Ignition's units. It does nothing unless systemd's
$SERVICE_RESULT says that the unit failed. It sends the unit's name, the result
and the last lines of Ignition's own log, without any config and without
anything that looks like a secret.`,
		run: func(ctx context.Context, args []string) error { return a.runReport(ctx, args[0]) },
	}
}

func (a *agent) runReport(ctx context.Context, unit string) error {
	result := os.Getenv("SERVICE_RESULT")
	if result == "" || result == "success" {
		return nil
	}
	// If a signal ended the process, $EXIT_STATUS is the signal's name.
	status, err := strconv.ParseInt(os.Getenv("EXIT_STATUS"), 10, 32)
	if err != nil {
		status = -1
	}
	id, err := failure.Send(ctx, a.paths, failure.Failure{
		Unit: unit, Result: result, Status: int32(status), BootID: a.bootID(),
	}, failure.ReadJournal)
	if errors.Is(err, failure.ErrNoNote) {
		return nil
	}
	if err != nil {
		return err
	}
	a.console.Step("reported the failure of %s to the verifier (correlation id %s)", unit, id)
	return nil
}
