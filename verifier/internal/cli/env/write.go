// SPDX-License-Identifier: Apache-2.0

package env

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
	"github.com/mcs-attest/mcs-attest/verifier/internal/operator"
)

// Write is how far a command writes, and how it says what it wrote.
type Write struct {
	operator.Write
	Output  *Output
	printed int // objects
}

// WriteFlags adds --dry-run as kubectl has it, and -o.
func WriteFlags(cmd *cobra.Command) *Write {
	w := &Write{Output: OutputOf(cmd, "", YAML, JSON, Name)}
	cmd.Flags().Lookup("output").Usage = `"yaml" or "json" prints the object, "name" prints its location`
	w.DryRun = operator.DryRunNone
	values := []string{string(operator.DryRunNone), string(operator.DryRunClient), string(operator.DryRunServer), ""}
	addChoice(cmd, &choice{"dry-run", (*string)(&w.DryRun), values, "none, client or server"}, "",
		`"none", "client" (send nothing) or "server" (have the API server check it)`, values...)
	cmd.Flags().Lookup("dry-run").NoOptDefVal = string(operator.DryRunClient)
	return w
}

// Dry reports whether nothing is written. An empty --dry-run is "none", as in package operator.
func (w *Write) Dry() bool {
	return w.DryRun == operator.DryRunClient || w.DryRun == operator.DryRunServer
}

// Report says what was written.
func (w *Write) Report(cmd *cobra.Command, all ...operator.Written) error {
	for _, done := range all {
		switch {
		case done.Object == nil && (w.Output.Is(YAML) || w.Output.Is(JSON)):
			continue // it is no object any more
		case w.Output.Is(Name):
			cmd.Println(done.Where)
			continue
		case w.Output.Is(YAML), w.Output.Is(JSON):
			if err := w.print(cmd, done); err != nil {
				return err
			}
			continue
		}
		suffix := ""
		if w.Dry() {
			suffix = " (" + string(w.DryRun) + " dry run)"
		}
		if done.File && done.Done != "unchanged" && done.Done != "deleted" && suffix == "" {
			cmd.Println("wrote", done.Where)
			continue
		}
		cmd.Println(done.Where, done.Done+suffix)
	}
	return nil
}

// print prints an object. Objects of one command are documents of one stream.
func (w *Write) print(cmd *cobra.Command, done operator.Written) error {
	raw, err := operator.YAML(done.Object)
	if err != nil {
		return err
	}
	if w.Output.Is(JSON) {
		if raw, err = yaml.YAMLToJSON(raw); err != nil {
			return err
		}
		raw = append(raw, '\n')
	} else if w.printed > 0 {
		raw = append([]byte("---\n"), raw...)
	}
	w.printed++
	_, err = cmd.OutOrStdout().Write(raw)
	return err
}

// MayReplace reports whether a command may write its output to a file: if nothing exists there, or a regular file
// with --force. A rename would also replace a device, a socket or a link.
func MayReplace(file string, force bool) error {
	info, err := os.Lstat(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return hint.New(fmt.Errorf("%s exists and is not a regular file", file), "name another file, or remove it")
	case !force:
		return hint.New(fmt.Errorf("%s exists", file), "add --force to replace it")
	}
	return nil
}
