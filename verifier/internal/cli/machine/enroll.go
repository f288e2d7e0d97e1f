// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/verifier/internal/admin"
	"github.com/mcs-attest/mcs-attest/verifier/internal/audit"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
	"github.com/mcs-attest/mcs-attest/verifier/internal/operator"
)

type enrollOptions struct {
	identity string
	ekSHA256 []string
	approve  string
	name     string
	pool     string
	machine  string
	file     string
	force    bool
	wait     *time.Duration
	write    *env.Write
	warned   map[string]bool // the warnings that were printed
}

// warn prints a warning, once for each command.
func (o enrollOptions) warn(cmd *cobra.Command, text string) {
	if !o.warned[text] {
		o.warned[text] = true
		cmd.PrintErrln("warning:", audit.Clean(text))
	}
}

func enrollCommand(e *env.Env) *cobra.Command {
	var o enrollOptions
	cmd := &cobra.Command{
		Use:   "enroll",
		Short: "Record which machine a TPM is in",
		Long: `Record which machine a TPM is in. The enrollment is a MachineAttestation: a file in
the folder attestations/, or an object in the cluster. A running verifier reads it. For
a folder, enroll waits until the verifier uses it.

Name the TPM by the output of 'mcs-attest-agent identify' on the machine (--identity),
by the hash of its EK (--ek-sha256), or by the id of a machine that waits for approval
(--approve; 'status' lists the ids).

The TPM belongs to an existing Machine (--machine NAMESPACE/NAME). Without Machine
objects, the enrollment is a stand-in for one (--pool POOL).

The command rejects an EK of another machine, and a pool or a Machine that looks
misspelled. Use --replace for a replaced TPM: it also deletes the record of the former
TPM. In a cluster the record of a Machine is deleted with the Machine, and the command
prints how.

To enroll many machines, use -f DIR with a file NAME.yaml of each machine's identity, or
-f FILE with a list that has a machine and its EK in each line. With --pool each of them
is a stand-in; otherwise each belongs to the Machine of that name. The command checks
all of them before it writes the first, and skips those that are already enrolled.`,
		//nolint:lll // an example is one line
		Example: e.Examples(`  mcs-attest-agent identify | ssh admin@cluster PROGRAM enroll --identity - --name rack7-u12 --pool worker
  PROGRAM enroll --ek-sha256 2c87d5a92a9a6ed68bf6b23b0d53cfeb74cef1d3c4d8284f2edc8a18ae8df7a0 --machine openshift-machine-api/worker-7
  PROGRAM enroll --approve 3f2a9c01d4e5b6a7 --machine openshift-machine-api/worker-7
  PROGRAM enroll -f identities/ --pool worker`),
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return enroll(cmd, e, o) },
	}
	e.Where(cmd)
	f := cmd.Flags()
	f.StringVar(&o.identity, "identity", "", `output of 'mcs-attest-agent identify', a file or "-" for standard input`)
	f.StringSliceVar(&o.ekSHA256, "ek-sha256", nil, "SHA-256 of the EK's SubjectPublicKeyInfo in hex (repeatable)")
	f.StringVar(&o.approve, "approve", "", "id of a machine that waits for approval")
	f.StringVarP(&o.file, "filename", "f", "",
		`a folder of identities, each named after its machine, or a list with "NAME EK-SHA256" in each line`)
	enrollmentFlags(cmd, e, &o)
	cmd.MarkFlagsMutuallyExclusive("identity", "ek-sha256", "approve", "filename")
	cmd.MarkFlagsOneRequired("identity", "ek-sha256", "approve", "filename")
	cmd.MarkFlagsMutuallyExclusive("filename", "name")
	cmd.MarkFlagsMutuallyExclusive("filename", "machine")
	return cmd
}

func enrollmentFlags(cmd *cobra.Command, e *env.Env, o *enrollOptions) {
	f := cmd.Flags()
	f.StringVar(&o.name, "name", "", "name of the enrollment (default: the name of the Machine)")
	e.PoolFlag(cmd, &o.pool,
		"pool of a machine without a Machine object (default with --approve: the pool that it requested)")
	f.StringVar(&o.machine, "machine", "", "the Machine that the TPM belongs to, NAMESPACE/NAME")
	o.write = env.WriteFlags(cmd)
	f.BoolVar(&o.write.Replace, "replace", false,
		"replace an enrollment of the same name, and delete the record of the former TPM")
	f.BoolVar(&o.force, "force", false, "enroll although the pool or the Machine looks misspelled")
	o.wait = env.WaitFlag(cmd)
	cmd.MarkFlagsMutuallyExclusive("machine", "pool")
}

func enroll(cmd *cobra.Command, e *env.Env, o enrollOptions) error {
	b, err := e.Open()
	if err != nil {
		return err
	}
	o.warned = map[string]bool{}
	if o.file != "" {
		return enrollMany(cmd, e, b, o)
	}
	hashes, pool, err := enrollIdentity(cmd.Context(), b, o, cmd.InOrStdin())
	if err != nil {
		return err
	}
	defer env.UntilSignal(cmd)() // a replacement becomes complete
	ctx := cmd.Context()
	m := &v1alpha1.MachineAttestation{}
	m.Name, m.Namespace = o.name, e.Namespace
	m.Spec.EKSHA256 = hashes
	if o.machine != "" {
		if err := nameMachine(ctx, b, m, o.machine); err != nil {
			return err
		}
	} else {
		m.Spec.Pool = pool
	}
	if err := operator.CheckEnrollment(m); err != nil {
		return env.Usage(err)
	}
	if _, err := checkEnrollments(cmd, b, o, m); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("interrupted: %w", err)
	}
	done, err := write(ctx, b, o, m)
	if err != nil {
		return err
	}
	if err := o.write.Report(cmd, done); err != nil || o.write.Dry() {
		return err
	}
	return finish(cmd, b, o, done.Object)
}

// nameMachine makes m the enrollment of an existing Machine.
func nameMachine(ctx context.Context, b env.Backend, m *v1alpha1.MachineAttestation, machine string) (err error) {
	namespace, name, ok := strings.Cut(machine, "/")
	if !ok {
		name = machine
		if namespace, err = b.MachineNamespace(ctx, name); err != nil {
			return err
		}
	}
	m.Spec.MachineRef = &v1alpha1.MachineReference{Namespace: namespace, Name: name}
	m.Name, m.Namespace = cmp.Or(m.Name, name), cmp.Or(m.Namespace, namespace)
	return nil
}

// checkEnrollments prints what is doubtful about enrollments, and returns why one of them must not be written. The
// state is nil if it was not read: in a dry run of the client, or if the administrator may not read it.
func checkEnrollments(cmd *cobra.Command, b env.Backend, o enrollOptions,
	all ...*v1alpha1.MachineAttestation) (*admin.State, error) {
	if o.write.DryRun == operator.DryRunClient {
		return nil, nil
	}
	ctx := cmd.Context()
	s, err := b.State(ctx)
	var pools []string
	if err == nil {
		pools, err = b.Pools(ctx)
	}
	if operator.Forbidden(err) {
		cmd.PrintErrln("warning: could not check whether another machine has this EK:", audit.Clean(err.Error()))
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, m := range all {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("interrupted: %w", err)
		}
		if err := addMachine(ctx, b, s, m.Spec.MachineRef); err != nil {
			return nil, err
		}
		warnings, err := operator.CheckAgainst(s, pools, m, o.write.Replace, o.force)
		if err != nil {
			return nil, err
		}
		for _, text := range warnings {
			o.warn(cmd, text)
		}
	}
	return s, nil
}

// addMachine adds to s the Machine of an enrollment, which may be in a namespace that s does not have.
func addMachine(ctx context.Context, b env.Backend, s *admin.State, ref *v1alpha1.MachineReference) error {
	if ref == nil {
		return nil
	}
	name := ref.Namespace + "/" + ref.Name
	is := func(m admin.Machine) bool { return m.Kind == "Machine" && m.Name == name }
	if slices.ContainsFunc(s.Machines, is) {
		return nil
	}
	found, err := b.Find(ctx, name)
	if err != nil {
		return err
	}
	for _, m := range found.Machines {
		if is(m) {
			s.Machines = append(s.Machines, m)
		}
	}
	return nil
}

// write writes an enrollment. If it replaces another TPM, the record of that one is deleted first: it would
// deny the new TPM for good. A dry run before that shows whether the enrollment can be written. After the deletion, an
// interrupt does not stop write.
func write(ctx context.Context, b env.Backend, o enrollOptions,
	m *v1alpha1.MachineAttestation) (operator.Written, error) {
	if o.write.Replace && !o.write.Dry() {
		dry := operator.Write{Replace: true, DryRun: operator.DryRunServer}
		tried, err := b.Enroll(ctx, m.DeepCopy(), dry)
		if err != nil {
			return operator.Written{}, err
		}
		forgot, err := b.ForgetFormer(ctx, tried.Object)
		switch {
		case err != nil && forgot:
			return operator.Written{}, err
		case err != nil:
			return operator.Written{}, fmt.Errorf("nothing was written: %w", err)
		case forgot:
			ctx = context.WithoutCancel(ctx)
		}
	}
	return b.Enroll(ctx, m, o.write.Write)
}

// finish waits until enrollments are in force. The former TPM may have attested once more meanwhile.
func finish(cmd *cobra.Command, b env.Backend, o enrollOptions, all ...*v1alpha1.MachineAttestation) error {
	for i, m := range all {
		var s *admin.State
		enrolled := func(now *admin.State) bool {
			s = now
			return operator.Enrolled(s, m)
		}
		if err := env.WaitInForce(cmd, b, m.Namespace+"/"+m.Name, *o.wait, i == len(all)-1, enrolled); err != nil {
			return err
		}
		if !o.write.Replace {
			warnFormer(cmd, b, o, s, m)
			continue
		}
		if forgot, err := b.ForgetFormer(cmd.Context(), m); err != nil && forgot {
			return err
		} else if err != nil {
			return fmt.Errorf("the enrollment was written, but the record of the former TPM was not deleted: %w", err)
		}
	}
	return nil
}

// warnFormer warns if an enrollment that is now in force meets the record of another TPM, which denies the enrolled
// one. A folder keeps the record of a machine for minutes after its enrollment was deleted, and until there is an
// enrollment again, the state does not have it. A nil state was not read, since no verifier serves.
func warnFormer(cmd *cobra.Command, b env.Backend, o enrollOptions, s *admin.State, m *v1alpha1.MachineAttestation) {
	if f, ok := b.(*operator.Folder); ok && s == nil {
		s, _ = f.State(cmd.Context())
	}
	if s == nil {
		return
	}
	warnings, _ := operator.CheckAgainst(s, nil, m, false, true) // its errors were reported before
	for _, text := range warnings {
		o.warn(cmd, text)
	}
}
