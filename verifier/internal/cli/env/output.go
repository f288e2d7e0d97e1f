// SPDX-License-Identifier: Apache-2.0

package env

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// The forms of output that every command has which lists or shows something.
const (
	Table = "table"
	JSON  = "json"
	YAML  = "yaml"
	Name  = "name"
)

// formerTable is how some commands spelled Table, and still may.
const formerTable = "text"

// Output is the value of the flag -o.
type Output struct{ form string }

// OutputFlag adds -o with the four forms, and more of a command's own.
func OutputFlag(cmd *cobra.Command, more ...string) *Output {
	return OutputOf(cmd, append([]string{Table, JSON, YAML, Name}, more...)...)
}

// OutputOf adds -o with these forms, the first of which is the default.
func OutputOf(cmd *cobra.Command, forms ...string) *Output {
	o := &Output{form: forms[0]}
	usage, accepted := quoted(forms), forms
	if forms[0] == Table {
		usage += `; "text" is the former name of "table"`
		accepted = slices.Concat(forms, []string{"", formerTable})
	}
	addChoice(cmd, &choice{"output", &o.form, accepted, quoted(accepted)}, "o", usage, forms...)
	return o
}

// Is reports whether this form was chosen.
func (o *Output) Is(form string) bool {
	return o.form == form || form == Table && (o.form == "" || o.form == formerTable)
}

// Print writes doc in the chosen form: encoded, as its names, or by table.
func (o *Output) Print(out io.Writer, doc any, names []string, table func(io.Writer) error) error {
	switch o.form {
	case JSON, YAML:
		return Encode(out, doc, o.form)
	case Name:
		for _, n := range names {
			if _, err := fmt.Fprintln(out, n); err != nil {
				return err
			}
		}
		return nil
	}
	w := &failing{to: out}
	return cmp.Or(table(w), w.err)
}

// failing remembers the first error of a writer, since what prints a table ignores them. A table that was cut by a full
// disk must not look whole.
type failing struct {
	to  io.Writer
	err error
}

// Write implements io.Writer.
func (f *failing) Write(p []byte) (int, error) {
	if f.err != nil {
		return 0, f.err
	}
	n, err := f.to.Write(p)
	f.err = err
	return n, err
}

// Encode prints v as JSON or YAML.
func Encode(out io.Writer, v any, form string) error {
	if form == YAML {
		raw, err := yaml.Marshal(v)
		if err != nil {
			return fmt.Errorf("encode: %w", err)
		}
		_, err = out.Write(raw)
		return err
	}
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
