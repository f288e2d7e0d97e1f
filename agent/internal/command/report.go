package command

import (
	"errors"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/agent/internal/failure"
)

func (a *agent) report() *cobra.Command {
	return &cobra.Command{
		Use:   "report UNIT",
		Short: "Tell the verifier why a stage of Ignition failed",
		Long: `report runs as ExecStopPost= of Ignition's units. It does nothing unless systemd's
$SERVICE_RESULT says that the unit failed. It sends the unit's name, the result
and the last lines of Ignition's own log, without any config and without
anything that looks like a secret.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError{errors.New("report takes the name of one unit")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			result := os.Getenv("SERVICE_RESULT")
			if result == "" || result == "success" {
				return nil
			}
			// $EXIT_STATUS is a signal's name if one ended the process.
			status, err := strconv.ParseInt(os.Getenv("EXIT_STATUS"), 10, 32)
			if err != nil {
				status = -1
			}
			id, err := failure.Send(cmd.Context(), a.paths, failure.Failure{
				Unit: args[0], Result: result, Status: int32(status), BootID: a.bootID(),
			}, failure.ReadJournal)
			if errors.Is(err, failure.ErrNoNote) {
				return nil
			}
			if err != nil {
				return err
			}
			a.console.Step("reported the failure of %s to the verifier (correlation id %s)", args[0], id)
			return nil
		},
	}
}
