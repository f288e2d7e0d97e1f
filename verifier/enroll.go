package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
)

type enrollOptions struct {
	identity  string
	ekSHA256  []string
	approve   string
	name      string
	namespace string
	pool      string
	machine   string
	replace   bool
}

func newEnrollCommand() *cobra.Command {
	var o enrollOptions
	var configPath string
	cmd := &cobra.Command{
		Use:   "enroll",
		Short: "Say which machine a TPM is in",
		Long: `Say which machine a TPM is in. The enrolment is a MachineAttestation, written to
the folder attestations/; a serving verifier takes it up by itself.

The TPM is named by what 'mcs-attest-agent identify' prints on the machine
(--identity), by the hash of its EK (--ek-sha256), or by the id of a machine that
waits for approval (--approve; 'status' lists them).

It belongs to an existing Machine (--machine NAMESPACE/NAME), or it stands in for
one where there are no Machines (--pool POOL).`,
		Example: `  mcs-attest-agent identify | ssh admin@cluster mcs-attest-verifier enroll --config DIR/mcs-attest.yaml --identity - --name rack7-u12 --pool worker
  mcs-attest-verifier enroll --config DIR/mcs-attest.yaml --approve 3f2a9c01d4e5b6a7 --machine openshift-machine-api/worker-7`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := loadConfig(configPath)
			if err != nil {
				return err
			}
			path, err := enroll(cmd.Context(), c, o, cmd.InOrStdin(), time.Now())
			if err != nil {
				return err
			}
			cmd.Println("wrote", path)
			return nil
		},
	}
	configFlag(cmd, &configPath)
	f := cmd.Flags()
	f.StringVar(&o.identity, "identity", "", `output of 'mcs-attest-agent identify', a file or "-" for standard input`)
	f.StringSliceVar(&o.ekSHA256, "ek-sha256", nil, "SHA-256 of the EK's SubjectPublicKeyInfo in hex (repeatable)")
	f.StringVar(&o.approve, "approve", "", "id of a machine that waits for approval")
	f.StringVar(&o.name, "name", "", "name of the enrolment (default: the Machine's)")
	f.StringVar(&o.namespace, "namespace", "", "its namespace (default: the Machine's, else default)")
	f.StringVar(&o.pool, "pool", "", "pool, for a machine without a Machine object (default with --approve: the one it asked for)")
	f.StringVar(&o.machine, "machine", "", "the Machine that the TPM belongs to, NAMESPACE/NAME")
	f.BoolVar(&o.replace, "replace", false, "replace an enrolment of the same name")
	cmd.MarkFlagsMutuallyExclusive("identity", "ek-sha256", "approve")
	cmd.MarkFlagsMutuallyExclusive("machine", "pool")
	cmd.MarkFlagsOneRequired("identity", "ek-sha256", "approve")
	return cmd
}

// dnsName is what Kubernetes allows as an object's name.
var dnsName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$`)

func enroll(ctx context.Context, c *config.Config, o enrollOptions, stdin io.Reader, now time.Time) (string, error) {
	hashes, pool, err := enrollIdentity(ctx, c, o, stdin)
	if err != nil {
		return "", err
	}
	m := v1alpha1.MachineAttestation{}
	m.APIVersion, m.Kind = v1alpha1.APIVersion, v1alpha1.KindMachineAttestation
	m.Name, m.Namespace = o.name, o.namespace
	m.CreationTimestamp = metav1.NewTime(now.UTC().Truncate(time.Second))
	m.Spec.EKSHA256 = hashes
	if o.machine != "" {
		namespace, name, ok := strings.Cut(o.machine, "/")
		if !ok {
			namespace, name = "default", o.machine
		}
		m.Spec.MachineRef = &v1alpha1.MachineReference{Namespace: namespace, Name: name}
		if m.Name == "" {
			m.Name = name
		}
		if m.Namespace == "" {
			m.Namespace = namespace
		}
	} else {
		m.Spec.Pool = pool
	}
	if m.Namespace == "" {
		m.Namespace = "default"
	}
	if m.Spec.MachineRef == nil && m.Spec.Pool == "" {
		return "", hint(errors.New("neither a Machine nor a pool is given"), "add --machine NAMESPACE/NAME, or --pool POOL where there are no Machine objects")
	}
	for flag, name := range map[string]string{"name": m.Name, "namespace": m.Namespace} {
		if !dnsName.MatchString(name) {
			return "", hint(fmt.Errorf("%q is not a name", name), "add --%s with lower-case letters, digits, '-' and '.'", flag)
		}
	}
	path := c.Path("attestations", m.Namespace+"."+m.Name+".yaml")
	if _, err := os.Lstat(path); err == nil && !o.replace {
		return "", hint(fmt.Errorf("%s exists", path), "choose another --name, or add --replace")
	}
	raw, err := enrolmentYAML(m)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", fmt.Errorf("make folder: %w", err)
	}
	return path, writeFile(path, 0o644, raw)
}

// enrolmentYAML leaves the status out: it is the verifier's.
func enrolmentYAML(m v1alpha1.MachineAttestation) ([]byte, error) {
	raw, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode enrolment: %w", err)
	}
	var fields map[string]any
	if err := json.Unmarshal(raw, &fields); err != nil {
		return nil, fmt.Errorf("encode enrolment: %w", err)
	}
	delete(fields, "status")
	return yaml.Marshal(fields)
}

// identified is the part of "mcs-attest-agent identify" that enrolment needs.
type identified struct {
	EKSHA256 []string `json:"ekSHA256"`
}

func enrollIdentity(ctx context.Context, c *config.Config, o enrollOptions, stdin io.Reader) (hashes []string, pool string, err error) {
	pool = o.pool
	switch {
	case o.approve != "":
		s, err := readStateOf(ctx, c)
		if err != nil {
			return nil, "", err
		}
		for _, p := range s.Pending {
			if p.ID == o.approve || p.EKSHA256 == o.approve {
				hashes = []string{p.EKSHA256}
				if pool == "" {
					pool = p.Pool
				}
			}
		}
		if hashes == nil {
			return nil, "", hint(fmt.Errorf("nobody waits under the id %q", o.approve), "'mcs-attest-verifier status' lists who waits")
		}
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
