// SPDX-License-Identifier: Apache-2.0

package env

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/mcs-attest/mcs-attest/pkg/spelling"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
)

// choice is a flag that has one of some values. It implements pflag.Value.
type choice struct {
	name   string
	value  *string
	values []string
	listed string // the values as an error lists them
}

// notAChoice is the error of a value that the flag does not have.
type notAChoice struct{ text string }

func (n *notAChoice) Error() string { return n.text }

// Choice adds a flag that accepts only these values; value has the default.
func Choice(cmd *cobra.Command, value *string, name, shorthand, usage string, values ...string) {
	addChoice(cmd, &choice{name, value, values, quoted(values)}, shorthand, usage, values...)
}

// addChoice adds a flag of which the shell completes these values.
func addChoice(cmd *cobra.Command, c *choice, shorthand, usage string, completions ...string) {
	cmd.Flags().VarP(c, c.name, shorthand, usage)
	CompleteFlag(cmd, c.name, cobra.FixedCompletions(slices.DeleteFunc(slices.Clone(completions), func(v string) bool {
		return v == ""
	}), cobra.ShellCompDirectiveNoFileComp))
}

// String implements pflag.Value.
func (c *choice) String() string {
	if c.value == nil {
		return "" // pflag asks a zero value for the default
	}
	return *c.value
}

// Type implements pflag.Value.
func (c *choice) Type() string { return "string" }

// Set implements pflag.Value.
func (c *choice) Set(v string) error {
	if !slices.Contains(c.values, v) {
		return &notAChoice{fmt.Sprintf("%s %q: must be %s", c.name, v, c.listed)}
	}
	*c.value = v
	return nil
}

// quoted lists the values that are not empty.
func quoted(values []string) string {
	var all []string
	for _, v := range values {
		if v != "" {
			all = append(all, fmt.Sprintf("%q", v))
		}
	}
	return strings.Join(all, " or ")
}

// FlagError is what cobra calls with an error of parsing flags. It adds the flag that was probably meant.
func FlagError(f *pflag.FlagSet, err error) error {
	var wrong *notAChoice
	var unknown *pflag.NotExistError
	switch {
	case errors.As(err, &wrong):
		return Usage(wrong)
	case errors.As(err, &unknown):
		var names []string
		f.VisitAll(func(f *pflag.Flag) {
			if !f.Hidden {
				names = append(names, f.Name)
			}
		})
		var like []string
		for _, n := range spelling.Near(unknown.GetSpecifiedName(), names) {
			like = append(like, "--"+n)
		}
		if len(like) > 0 {
			return Usage(hint.New(err, "did you mean %s?", strings.Join(like, " or ")))
		}
	}
	return Usage(err)
}
