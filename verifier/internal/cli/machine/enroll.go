package machine

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/verifier/internal/admin"
	"github.com/mcs-attest/mcs-attest/verifier/internal/audit"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
	"github.com/mcs-attest/mcs-attest/verifier/internal/operator"
)

type enrollOptions struct {
	identity string
	ekSHA256 []string
	approve  string
	name     string
	pool     string
	machine  string
	wait     time.Duration
	write    *env.Write
}

func enrollCommand(e *env.Env) *cobra.Command {
	var o enrollOptions
	cmd := &cobra.Command{
		Use:   "enroll",
		Short: "Say which machine a TPM is in",
		Long: `Say which machine a TPM is in. The enrolment is a MachineAttestation: a file in
the folder attestations/, or an object of the cluster. A serving verifier reads it
by itself; of a folder, enroll waits until it has.

The TPM is named by what 'mcs-attest-agent identify' prints on the machine
(--identity), by the hash of its EK (--ek-sha256), or by the id of a machine that
waits for approval (--approve; 'status' lists them).

It belongs to an existing Machine (--machine NAMESPACE/NAME), or it stands in for
one where there are no Machines (--pool POOL).`,
		//nolint:lll // an example is one line
		Example: e.Examples(`  mcs-attest-agent identify | ssh admin@cluster PROGRAM enroll --identity - --name rack7-u12 --pool worker
  PROGRAM enroll --ek-sha256 2c87d5a92a9a6ed68bf6b23b0d53cfeb74cef1d3c4d8284f2edc8a18ae8df7a0 --machine openshift-machine-api/worker-7
  PROGRAM enroll --approve 3f2a9c01d4e5b6a7 --machine openshift-machine-api/worker-7`),
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return enroll(cmd, e, o) },
	}
	e.Where(cmd)
	f := cmd.Flags()
	f.StringVar(&o.identity, "identity", "", `output of 'mcs-attest-agent identify', a file or "-" for standard input`)
	f.StringSliceVar(&o.ekSHA256, "ek-sha256", nil, "SHA-256 of the EK's SubjectPublicKeyInfo in hex (repeatable)")
	f.StringVar(&o.approve, "approve", "", "id of a machine that waits for approval")
	enrolmentFlags(cmd, &o)
	cmd.MarkFlagsMutuallyExclusive("identity", "ek-sha256", "approve")
	cmd.MarkFlagsOneRequired("identity", "ek-sha256", "approve")
	return cmd
}

func enrolmentFlags(cmd *cobra.Command, o *enrollOptions) {
	f := cmd.Flags()
	f.StringVar(&o.name, "name", "", "name of the enrolment (default: the Machine's)")
	f.StringVar(&o.pool, "pool", "",
		"pool, for a machine without a Machine object (default for one that waits: the one it asked for)")
	f.StringVar(&o.machine, "machine", "", "the Machine that the TPM belongs to, NAMESPACE/NAME")
	o.write = env.WriteFlags(cmd)
	f.BoolVar(&o.write.Replace, "replace", false, "replace an enrolment of the same name")
	f.DurationVar(&o.wait, "wait", 15*time.Second,
		"how long to wait until the verifier that serves the folder uses it; 0: do not wait")
	cmd.MarkFlagsMutuallyExclusive("machine", "pool")
}

func enroll(cmd *cobra.Command, e *env.Env, o enrollOptions) error {
	b, err := e.Open()
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	hashes, pool, err := enrollIdentity(ctx, b, o, cmd.InOrStdin())
	if err != nil {
		return err
	}
	m := &v1alpha1.MachineAttestation{}
	m.Name, m.Namespace = o.name, e.Namespace
	m.Spec.EKSHA256 = hashes
	if o.machine != "" {
		namespace, name, ok := strings.Cut(o.machine, "/")
		if !ok {
			name = o.machine
			if namespace, err = b.MachineNamespace(ctx, name); err != nil {
				return err
			}
		}
		m.Spec.MachineRef = &v1alpha1.MachineReference{Namespace: namespace, Name: name}
		m.Name, m.Namespace = cmp.Or(m.Name, name), cmp.Or(m.Namespace, namespace)
	} else {
		m.Spec.Pool = pool
	}
	done, err := b.Enrol(ctx, m, o.write.Write)
	if err != nil {
		return err
	}
	if err := o.write.Report(cmd, done); err != nil || o.write.DryRun != operator.DryRunNone {
		return err
	}
	return waitInForce(cmd, b, done.Object, o.wait)
}

// waitInForce waits until a serving verifier uses an enrollment. Its messages are for a person, so they go to
// standard error.
func waitInForce(cmd *cobra.Command, b env.Backend, m *v1alpha1.MachineAttestation, patience time.Duration) error {
	w, ok := b.(interface {
		InForce(context.Context, *v1alpha1.MachineAttestation) ([]string, error)
	})
	if !ok || patience <= 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), patience)
	defer cancel()
	problems, err := w.InForce(ctx, m)
	switch {
	case err == nil:
		cmd.PrintErrln("in force")
		return nil
	case errors.Is(err, admin.ErrNotServing):
		cmd.PrintErrln("no verifier is serving; it is in force when one does")
		return nil
	}
	for _, p := range problems {
		cmd.PrintErrln("problem:", audit.Clean(p))
	}
	return hint.New(fmt.Errorf("the verifier does not use %s/%s yet, after %v", m.Namespace, m.Name, patience),
		"it is written; 'status' shows when it is in force, and what is wrong with it")
}

// identified is the part of "mcs-attest-agent identify" that enrolment needs.
type identified struct {
	EKSHA256 []string `json:"ekSHA256"`
}

func enrollIdentity(ctx context.Context, b env.Backend, o enrollOptions,
	stdin io.Reader) (hashes []string, pool string, err error) {
	pool = o.pool
	switch {
	case o.approve != "":
		p, err := b.Waiting(ctx, o.approve)
		if err != nil {
			return nil, "", err
		}
		hashes, pool = []string{p.EKSHA256}, cmp.Or(pool, p.Pool)
	case o.identity != "":
		raw, err := env.ReadInput(o.identity, stdin)
		if err != nil {
			return nil, "", err
		}
		var id identified
		if err := yaml.Unmarshal(raw, &id); err != nil {
			return nil, "", hint.New(fmt.Errorf("%s is not an identity: %w", o.identity, err),
				"it must be what 'mcs-attest-agent identify' prints")
		}
		hashes = id.EKSHA256
	default:
		hashes = o.ekSHA256
	}
	if len(hashes) == 0 {
		return nil, "", hint.New(errors.New("the identity names no EK"), "it must be what 'mcs-attest-agent identify' prints")
	}
	for i, h := range hashes {
		h = strings.ToLower(strings.TrimSpace(h))
		if b, err := hex.DecodeString(h); err != nil || len(b) != 32 {
			return nil, "", hint.New(fmt.Errorf("%q is not a SHA-256 hash", h),
				"64 hexadecimal digits, as 'mcs-attest-agent identify' prints them")
		}
		hashes[i] = h
	}
	return hashes, pool, nil
}
