// SPDX-License-Identifier: Apache-2.0

package env

import (
	"log/slog"
	"os"

	"github.com/spf13/cobra"
)

// Log is what the flags --log-format and --log-level say.
type Log struct{ format, level string }

// LogFlags adds the flags of a command that runs until it is stopped.
func LogFlags(cmd *cobra.Command) *Log {
	l := &Log{format: "json", level: "info"}
	Choice(cmd, &l.format, "log-format", "", `"json" or "text"`, "json", "text")
	cmd.Flags().StringVar(&l.level, "log-level", l.level, `"debug", "info", "warn" or "error"`)
	return l
}

// Logger returns a logger that writes to the standard error.
func (l *Log) Logger() (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(l.level)); err != nil {
		return nil, Usagef("log level %q: must be debug, info, warn or error", l.level)
	}
	o := &slog.HandlerOptions{Level: level}
	if l.format == "text" {
		return slog.New(slog.NewTextHandler(os.Stderr, o)), nil
	}
	return slog.New(slog.NewJSONHandler(os.Stderr, o)), nil
}
