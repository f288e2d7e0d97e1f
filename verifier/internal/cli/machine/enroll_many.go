// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
	"github.com/mcs-attest/mcs-attest/verifier/internal/operator"
)

// enrollMany enrolls the machines of a folder or of a list. It writes none unless all of them may be written.
func enrollMany(cmd *cobra.Command, e *env.Env, b env.Backend, o enrollOptions) error {
	all, err := readMany(cmd.Context(), b, e.Namespace, o, cmd.InOrStdin())
	if err != nil {
		return err
	}
	defer env.UntilSignal(cmd)() // it reports how many machines it enrolled
	ctx := cmd.Context()
	s, err := checkEnrollments(cmd, b, o, all...)
	if err != nil {
		return err
	}
	todo := all
	if s != nil {
		todo = slices.DeleteFunc(slices.Clone(all),
			func(m *v1alpha1.MachineAttestation) bool { return operator.Enrolled(s, m) })
	}
	if !o.write.Dry() {
		if err := tryMany(ctx, b, o, todo); err != nil {
			return err
		}
	}
	var bar *progressbar.ProgressBar
	if o.write.Output.Is("") { // else the objects are the output
		bar = progressBar(cmd.ErrOrStderr(), "enrolling", len(todo))
	}
	var written []*v1alpha1.MachineAttestation
	for _, m := range todo {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("after %d of %d machines: interrupted: %w", len(written), len(todo), err)
		}
		done, err := write(ctx, b, o, m)
		if err != nil {
			return fmt.Errorf("after %d of %d machines: %s: %w", len(written), len(todo), m.Name, err)
		}
		written = append(written, done.Object)
		if bar != nil {
			_ = bar.Add(1)
		} else if err := o.write.Report(cmd, done); err != nil {
			return err
		}
	}
	if o.write.Dry() {
		cmd.PrintErrf("%d machines would be enrolled, %d are already enrolled\n", len(written), len(all)-len(todo))
		return nil
	}
	cmd.PrintErrf("%d machines enrolled, %d were already enrolled\n", len(written), len(all)-len(todo))
	return finish(cmd, b, o, written...)
}

// tryMany checks whether each of the enrollments can be written, and writes none. An enrollment of the same name that
// exists is an error: it is of another TPM, or it cannot be read.
func tryMany(ctx context.Context, b env.Backend, o enrollOptions, all []*v1alpha1.MachineAttestation) error {
	dry := operator.Write{Replace: o.write.Replace, DryRun: operator.DryRunServer}
	for _, m := range all {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("nothing was written: interrupted: %w", err)
		}
		if _, err := b.Enroll(ctx, m.DeepCopy(), dry); err != nil {
			return fmt.Errorf("nothing was written: %s: %w", m.Name, err)
		}
	}
	return nil
}

// progressBar is a bar on a terminal, nil elsewhere: there each machine has its line.
func progressBar(out io.Writer, what string, n int) *progressbar.ProgressBar {
	if !terminal(out) {
		return nil
	}
	return progressbar.NewOptions(n, progressbar.OptionSetWriter(out), progressbar.OptionSetDescription(what),
		progressbar.OptionShowCount(), progressbar.OptionFullWidth(), progressbar.OptionClearOnFinish())
}

// readMany reads the folder or the list of --filename.
func readMany(ctx context.Context, b env.Backend, namespace string, o enrollOptions,
	stdin io.Reader) ([]*v1alpha1.MachineAttestation, error) {
	entries, err := os.ReadDir(o.file)
	var named []namedEK
	if err == nil {
		named, err = readIdentities(o.file, entries)
	} else {
		var raw []byte
		if raw, err = env.ReadInput(o.file, stdin); err == nil {
			named, err = readList(o.file, raw)
		}
	}
	if err != nil {
		return nil, err
	}
	if len(named) == 0 {
		return nil, hint.New(fmt.Errorf("%s names no machine", o.file),
			"give a folder of files NAME.yaml from 'mcs-attest-agent identify', or a list with lines NAME EK-SHA256")
	}
	var all []*v1alpha1.MachineAttestation
	where := map[string]string{}
	for _, n := range named {
		for _, key := range append([]string{"the machine " + n.name}, n.eks...) {
			if first, ok := where[key]; ok {
				return nil, hint.New(fmt.Errorf("%s is in %s and in %s", key, first, n.from),
					"each machine has its own TPM; remove one of the two")
			}
			where[key] = n.from
		}
		m := &v1alpha1.MachineAttestation{}
		m.Spec.EKSHA256 = n.eks
		m.Namespace = namespace
		if o.pool != "" {
			m.Name, m.Spec.Pool = n.name, o.pool
		} else if err := nameMachine(ctx, b, m, n.name); err != nil {
			return nil, err
		}
		if err := operator.CheckEnrollment(m); err != nil {
			return nil, fmt.Errorf("%s: %w", n.from, err)
		}
		all = append(all, m)
	}
	return all, nil
}

// namedEK are the EKs of one machine, and where they were read.
type namedEK struct {
	name, from string
	eks        []string
}

// readIdentities reads a folder with a file of "mcs-attest-agent identify" for each machine.
func readIdentities(dir string, entries []os.DirEntry) ([]namedEK, error) {
	var all []namedEK
	for _, entry := range entries {
		ext := filepath.Ext(entry.Name())
		if entry.IsDir() || strings.HasPrefix(entry.Name(), ".") || !slices.Contains([]string{".yaml", ".yml",
			".json"}, ext) {
			continue
		}
		path := filepath.Join(dir, entry.Name())
		raw, err := env.ReadInput(path, nil)
		if err != nil {
			return nil, err
		}
		eks, err := parseIdentity(path, raw)
		if err != nil {
			return nil, err
		}
		all = append(all, namedEK{strings.TrimSuffix(entry.Name(), ext), path, eks})
	}
	return all, nil
}

// readList reads lines with a machine and its EK. Commas separate, too; "#" begins a comment.
func readList(file string, raw []byte) ([]namedEK, error) {
	var all []namedEK
	number := 0
	for line := range strings.Lines(string(raw)) {
		number++
		text, _, _ := strings.Cut(line, "#")
		fields := strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(", \t\r\n", r) })
		if len(fields) == 0 {
			continue
		}
		from := fmt.Sprintf("%s:%d", file, number)
		if len(fields) == 1 {
			return nil, hint.New(fmt.Errorf("%s: %q has no EK", from, fields[0]), "write NAME EK-SHA256")
		}
		eks, err := ekHashes(fields[1:])
		if err != nil {
			var h *hint.Error
			errors.As(err, &h)
			return nil, hint.New(fmt.Errorf("%s: %w", from, err), "%s", h.Hint)
		}
		all = append(all, namedEK{fields[0], from, eks})
	}
	return all, nil
}
