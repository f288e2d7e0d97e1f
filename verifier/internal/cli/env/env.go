// SPDX-License-Identifier: Apache-2.0

// Package env is what the commands share: which program was called, on what it works (a folder or a
// cluster), the flags that say so, the forms of output, and the exit status of an error.
// A package of commands is one noun. It has everything it shares with other nouns from here.
package env

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/verifier/internal/admin"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
	"github.com/mcs-attest/mcs-attest/verifier/internal/operator"
)

// Verifier is the name of the program that is no plug-in.
const Verifier = "mcs-attest-verifier"

// Env is the program as it was called: the verifier, or a plug-in of kubectl or oc. The plug-in has
// only the administrator's commands, and works on a cluster.
type Env struct {
	// Name is what a person types: "mcs-attest-verifier", "kubectl attest", "oc attest".
	Name    string
	Plugin  bool
	Version string

	// The values of the flags that Where adds.
	Config     string
	Kubeconfig string
	Context    string
	Namespace  string
	Own        string
	// Everywhere: the Machines of all namespaces.
	Everywhere bool
}

// Of returns which program a file of this name is, and its arguments. They differ from args where
// kubectl asks for completions.
func Of(path string, args []string) (*Env, []string) {
	base := filepath.Base(path)
	for _, host := range []string{"kubectl", "oc"} {
		if strings.HasPrefix(base, host+"-attest") {
			return &Env{Name: host + " attest", Plugin: true}, args
		}
		// kubectl asks a program of this name what could come next.
		if strings.HasPrefix(base, host+"_complete-attest") {
			return &Env{Name: host + " attest", Plugin: true}, append([]string{cobra.ShellCompRequestCmd}, args...)
		}
	}
	return &Env{Name: Verifier}, args
}

// FieldManager is how the API server records who wrote.
func (e *Env) FieldManager() string { return strings.ReplaceAll(e.Name, " ", "-") }

// Examples puts the program's name into an Example.
func (e *Env) Examples(text string) string { return strings.ReplaceAll(text, "PROGRAM", e.Name) }

// Line is a command line that a person can copy: the program, a verb, the flags that lead where this one
// works, and the rest.
func (e *Env) Line(verb, rest string) string {
	line := []string{e.Name, verb}
	for _, f := range []struct{ flag, value string }{
		{"config", e.Config}, {"kubeconfig", e.Kubeconfig}, {"context", e.Context}, {"namespace", e.Namespace},
		{"verifier-namespace", e.Own},
	} {
		if f.value != "" && !(f.flag == "config" && f.value == os.Getenv("MCS_ATTEST_CONFIG")) {
			line = append(line, "--"+f.flag, quote(f.value))
		}
	}
	if rest != "" {
		line = append(line, rest)
	}
	return strings.Join(line, " ")
}

// quote makes one word of s for a POSIX shell.
func quote(s string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./_-"
	if strings.Trim(s, plain) == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// Where adds the flags that say where a command works. The plug-in has them at its root, so that they
// may precede the command, too.
func (e *Env) Where(cmd *cobra.Command) {
	if e.Plugin {
		return
	}
	ConfigFlag(cmd, &e.Config)
	e.ClusterFlags(cmd.Flags())
}

// ConfigFlag adds --config.
func ConfigFlag(cmd *cobra.Command, path *string) {
	const usage = "the verifier's configuration file (default $MCS_ATTEST_CONFIG)"
	cmd.Flags().StringVar(path, "config", os.Getenv("MCS_ATTEST_CONFIG"), usage)
	cmd.Flags().Lookup("config").DefValue = "" // or the help has two defaults
}

// Flags are a command's own, or those that its subcommands have, too.
type Flags interface {
	StringVar(p *string, name, value, usage string)
	StringVarP(p *string, name, shorthand, value, usage string)
}

// ClusterFlags adds the flags that lead to a cluster.
func (e *Env) ClusterFlags(f Flags) {
	usage := "use the cluster of this kubeconfig instead of a folder"
	if e.Plugin {
		usage = "kubeconfig file (default: $KUBECONFIG, ~/.kube/config)"
	}
	f.StringVar(&e.Kubeconfig, "kubeconfig", "", usage)
	f.StringVar(&e.Context, "context", "", "context of the kubeconfig to use")
	f.StringVarP(&e.Namespace, "namespace", "n", "",
		"namespace of the Machines (default: openshift-machine-api and openshift-cluster-api, else all)")
	f.StringVar(&e.Own, "verifier-namespace", "", `namespace of the verifier itself (default "mcs-attest")`)
}

// Backend is where the commands work: [operator.Folder] or [operator.Cluster].
type Backend interface {
	// State is everything. Find is what a person calls name: a machine's namespace/name, name or UID,
	// or the id of one that waits for approval.
	State(context.Context) (*admin.State, error)
	Find(ctx context.Context, name string) (*admin.State, error)
	// MachineNamespace is where a Machine named without a namespace is, or will be.
	MachineNamespace(ctx context.Context, name string) (string, error)
	Enroll(context.Context, *v1alpha1.MachineAttestation, operator.Write) (operator.Written, error)
	// Quarantine stops a machine or releases it. Reattest grants one more attestation, or revokes the
	// grant if the time is zero.
	Quarantine(ctx context.Context, name string, stop bool, w operator.Write) ([]operator.Written, error)
	Reattest(ctx context.Context, name string, until time.Time, w operator.Write) ([]operator.Written, error)
	// Forget deletes the enrollments of a machine and its record. Left says what stays.
	Forget(ctx context.Context, name string, w operator.Write) (done []operator.Written, left []string, err error)
	// ForgetFormer deletes the record of the machine that an enrollment is about, if it is of another TPM, and
	// reports whether it did. It gets the enrollment that Enroll returned.
	ForgetFormer(context.Context, *v1alpha1.MachineAttestation) (bool, error)
	// Pools are those that something names. None: they are not known.
	Pools(context.Context) ([]string, error)
	Keys(context.Context) (operator.Keys, error)
	ChangeKeys(context.Context, func(operator.Keys) (operator.Keys, error)) error
	// Configuration is the verifier's.
	Configuration(context.Context) (*config.Config, error)
}

// Open chooses the backend: a cluster for the plug-in, with --kubeconfig or --context, or where the
// configuration names one; else the folder.
func (e *Env) Open() (Backend, error) {
	o := operator.ClusterOptions{
		Kubeconfig: e.Kubeconfig, Context: e.Context, Own: e.Own, FieldManager: e.FieldManager(), Now: time.Now,
	}
	if e.Everywhere {
		o.Namespaces = []string{"*"}
	} else if e.Namespace != "" {
		o.Namespaces = []string{e.Namespace}
	}
	if e.Plugin || e.Config == "" && (e.Kubeconfig != "" || e.Context != "") {
		return operator.OpenCluster(o)
	}
	k, err := LoadConfig(e.Config)
	if err != nil {
		return nil, err
	}
	if k.Kubernetes != nil || e.Kubeconfig != "" || e.Context != "" {
		if k.Kubernetes != nil {
			o = o.FromConfig(k.Kubernetes)
		}
		return operator.OpenCluster(o)
	}
	return &operator.Folder{Config: k, File: e.Config, Namespace: e.Namespace, Now: time.Now, Offline: offlineState}, nil
}

// LoadConfig reads the file of --config.
func LoadConfig(path string) (*config.Config, error) {
	if path == "" {
		return nil, Usage(hint.New(errors.New("no configuration file given"),
			"add --config DIR/mcs-attest.yaml; run 'mcs-attest-verifier init DIR' to create one"))
	}
	return config.Load(path)
}

// FolderConfig reads the file of --config, which must be that of a folder.
func FolderConfig(path string) (*config.Config, error) {
	c, err := LoadConfig(path)
	if err != nil {
		return nil, err
	}
	if c.Kubernetes != nil {
		return nil, hint.New(errors.New("the records of a cluster are objects of its API"), "back up and restore etcd")
	}
	return c, nil
}

// maxInput bounds what is read from a person's file.
const maxInput = 16 << 20

// ReadInput reads a file, or standard input where path is "-". An input of more than maxInput bytes is an error:
// a list without its end would leave machines out.
func ReadInput(path string, stdin io.Reader) ([]byte, error) {
	in := stdin
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("read input: %w", err)
		}
		defer f.Close()
		in = f
	}
	raw, err := io.ReadAll(io.LimitReader(in, maxInput+1))
	if err != nil {
		return nil, fmt.Errorf("read input: %w", err)
	}
	if len(raw) > maxInput {
		return nil, fmt.Errorf("read input: %s is larger than %d MiB, the limit of this command", path, maxInput>>20)
	}
	return raw, nil
}
