package main

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/verifier/internal/operator"
)

type enrollOptions struct {
	identity string
	ekSHA256 []string
	approve  string
	name     string
	pool     string
	machine  string
	output   string
	write    operator.Write
}

func (c *cli) enrollCommand() *cobra.Command {
	var o enrollOptions
	cmd := &cobra.Command{
		Use:   "enroll",
		Short: "Say which machine a TPM is in",
		Long: `Say which machine a TPM is in. The enrolment is a MachineAttestation: a file in
the folder attestations/, or an object of the cluster. A serving verifier takes it
up by itself.

The TPM is named by what 'mcs-attest-agent identify' prints on the machine
(--identity), by the hash of its EK (--ek-sha256), or by the id of a machine that
waits for approval (--approve; 'status' lists them).

It belongs to an existing Machine (--machine NAMESPACE/NAME), or it stands in for
one where there are no Machines (--pool POOL).`,
		Example: c.examples(`  mcs-attest-agent identify | ssh admin@cluster PROGRAM enroll --identity - --name rack7-u12 --pool worker
  PROGRAM enroll --ek-sha256 2c87d5a92a9a6ed68bf6b23b0d53cfeb74cef1d3c4d8284f2edc8a18ae8df7a0 --machine openshift-machine-api/worker-7
  PROGRAM enroll --approve 3f2a9c01d4e5b6a7 --machine openshift-machine-api/worker-7`),
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.enroll(cmd, o) },
	}
	c.where(cmd)
	f := cmd.Flags()
	f.StringVar(&o.identity, "identity", "", `output of 'mcs-attest-agent identify', a file or "-" for standard input`)
	f.StringSliceVar(&o.ekSHA256, "ek-sha256", nil, "SHA-256 of the EK's SubjectPublicKeyInfo in hex (repeatable)")
	f.StringVar(&o.approve, "approve", "", "id of a machine that waits for approval")
	enrolmentFlags(cmd, &o)
	cmd.MarkFlagsMutuallyExclusive("identity", "ek-sha256", "approve")
	cmd.MarkFlagsOneRequired("identity", "ek-sha256", "approve")
	return cmd
}

func (c *cli) approveCommand() *cobra.Command {
	var o enrollOptions
	cmd := &cobra.Command{
		Use:   "approve ID",
		Short: "Let a machine in that waits: say whose its TPM is",
		Long: `Let a machine in that waits for approval ('status' lists them by id). Its TPM is
genuine; whose machine it is in, only you know: look at 'explain ID' first.

It belongs to an existing Machine (--machine), or becomes one of a pool's where
there are no Machines (--name, and --pool if it shall not be the one it asked for).
The same as 'enroll --approve ID'.`,
		Example: c.examples(`  PROGRAM explain 3f2a9c01d4e5b6a7
  PROGRAM approve 3f2a9c01d4e5b6a7 --machine openshift-machine-api/worker-7
  PROGRAM approve 3f2a9c01d4e5b6a7 --name rack7-u12`),
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: c.waitingNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.approve = args[0]
			return c.enroll(cmd, o)
		},
	}
	c.where(cmd)
	enrolmentFlags(cmd, &o)
	return cmd
}

func enrolmentFlags(cmd *cobra.Command, o *enrollOptions) {
	f := cmd.Flags()
	f.StringVar(&o.name, "name", "", "name of the enrolment (default: the Machine's)")
	f.StringVar(&o.pool, "pool", "", "pool, for a machine without a Machine object (default for one that waits: the one it asked for)")
	f.StringVar(&o.machine, "machine", "", "the Machine that the TPM belongs to, NAMESPACE/NAME")
	f.BoolVar(&o.write.Replace, "replace", false, "replace an enrolment of the same name")
	dryRunFlag(cmd, &o.write)
	writeOutputFlag(cmd, &o.output)
	cmd.MarkFlagsMutuallyExclusive("machine", "pool")
}

func (c *cli) enroll(cmd *cobra.Command, o enrollOptions) error {
	if err := checkDryRun(o.write); err != nil {
		return err
	}
	b, err := c.open()
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	hashes, pool, err := enrollIdentity(ctx, b, o, cmd.InOrStdin())
	if err != nil {
		return err
	}
	m := &v1alpha1.MachineAttestation{}
	m.Name, m.Namespace = o.name, c.namespace
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
	done, err := b.Enrol(ctx, m, o.write)
	if err != nil {
		return err
	}
	return told(cmd, o.write, o.output, done)
}

// identified is the part of "mcs-attest-agent identify" that enrolment needs.
type identified struct {
	EKSHA256 []string `json:"ekSHA256"`
}

func enrollIdentity(ctx context.Context, b backend, o enrollOptions, stdin io.Reader) (hashes []string, pool string, err error) {
	pool = o.pool
	switch {
	case o.approve != "":
		p, err := b.Waiting(ctx, o.approve)
		if err != nil {
			return nil, "", err
		}
		hashes, pool = []string{p.EKSHA256}, cmp.Or(pool, p.Pool)
	case o.identity != "":
		raw, err := readInput(o.identity, stdin)
		if err != nil {
			return nil, "", err
		}
		var id identified
		if err := yaml.Unmarshal(raw, &id); err != nil {
			return nil, "", hint(fmt.Errorf("%s is not an identity: %w", o.identity, err), "it must be what 'mcs-attest-agent identify' prints")
		}
		hashes = id.EKSHA256
	default:
		hashes = o.ekSHA256
	}
	if len(hashes) == 0 {
		return nil, "", hint(errors.New("the identity names no EK"), "it must be what 'mcs-attest-agent identify' prints")
	}
	for i, h := range hashes {
		h = strings.ToLower(strings.TrimSpace(h))
		if b, err := hex.DecodeString(h); err != nil || len(b) != 32 {
			return nil, "", hint(fmt.Errorf("%q is not a SHA-256 hash", h), "64 hexadecimal digits, as 'mcs-attest-agent identify' prints them")
		}
		hashes[i] = h
	}
	return hashes, pool, nil
}

// maxInput bounds what is read from a person's file.
const maxInput = 16 << 20

func readInput(path string, stdin io.Reader) ([]byte, error) {
	in := stdin
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("read input: %w", err)
		}
		defer f.Close()
		in = f
	}
	raw, err := io.ReadAll(io.LimitReader(in, maxInput))
	if err != nil {
		return nil, fmt.Errorf("read input: %w", err)
	}
	return raw, nil
}
