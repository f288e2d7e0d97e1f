package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/verifier/internal/admin"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/operator"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
)

// cli is the program as it was called: the verifier, or a plug-in of kubectl or
// oc, which has the administrator's commands alone and works on a cluster.
type cli struct {
	// name is what a person types: "mcs-attest-verifier", "kubectl attest", "oc attest".
	name   string
	plugin bool

	config     string
	kubeconfig string
	context    string
	namespace  string
	everywhere bool
	own        string
}

const verifierName = "mcs-attest-verifier"

// programOf says which program a file of this name is, and the arguments that
// completion by kubectl stands for.
func programOf(path string, args []string) (*cli, []string) {
	base := filepath.Base(path)
	for _, host := range []string{"kubectl", "oc"} {
		if strings.HasPrefix(base, host+"-attest") {
			return &cli{name: host + " attest", plugin: true}, args
		}
		// kubectl asks a program of this name what could come next.
		if strings.HasPrefix(base, host+"_complete-attest") {
			return &cli{name: host + " attest", plugin: true}, append([]string{cobra.ShellCompRequestCmd}, args...)
		}
	}
	return &cli{name: verifierName}, args
}

// fieldManager is how the API server knows who wrote.
func (c *cli) fieldManager() string { return strings.ReplaceAll(c.name, " ", "-") }

// examples puts the program's name into an Example.
func (c *cli) examples(text string) string { return strings.ReplaceAll(text, "PROGRAM", c.name) }

// where adds the flags that say where a command works. The plug-in has them at its
// root, so that they may stand in front of the command, too.
func (c *cli) where(cmd *cobra.Command) {
	if c.plugin {
		return
	}
	configFlag(cmd, &c.config)
	c.clusterFlags(cmd.Flags())
}

// flags are a command's own, or those that its subcommands have, too.
type flags interface {
	StringVar(p *string, name, value, usage string)
	StringVarP(p *string, name, shorthand, value, usage string)
}

func (c *cli) clusterFlags(f flags) {
	f.StringVar(&c.kubeconfig, "kubeconfig", "", c.kubeconfigUsage())
	f.StringVar(&c.context, "context", "", "context of the kubeconfig")
	f.StringVarP(&c.namespace, "namespace", "n", "", "namespace of the Machines (default: openshift-machine-api and openshift-cluster-api, else all)")
	f.StringVar(&c.own, "verifier-namespace", "", `namespace of the verifier itself (default "mcs-attest")`)
}

func (c *cli) kubeconfigUsage() string {
	if c.plugin {
		return "kubeconfig file (default: $KUBECONFIG, ~/.kube/config)"
	}
	return "work on the cluster of this kubeconfig, not on a folder"
}

// backend is where the commands work; [operator.Folder] and [operator.Cluster].
type backend interface {
	// State is everything, Find what a person calls name: a machine's namespace/name,
	// name or UID, or the id of one that waits.
	State(context.Context) (*admin.State, error)
	Find(ctx context.Context, name string) (*admin.State, error)
	Waiting(ctx context.Context, id string) (store.Pending, error)
	// MachineNamespace is where a Machine named without a namespace is, or will be.
	MachineNamespace(ctx context.Context, name string) (string, error)
	Enrol(context.Context, *v1alpha1.MachineAttestation, operator.Write) (operator.Written, error)
	// Quarantine stops a machine or lets it go on. Reattest grants one more
	// attestation, or takes the grant back if the time is zero.
	Quarantine(ctx context.Context, name string, stop bool, w operator.Write) ([]operator.Written, error)
	Reattest(ctx context.Context, name string, until time.Time, w operator.Write) ([]operator.Written, error)
	Keys(context.Context) (operator.Keys, error)
	ChangeKeys(context.Context, func(operator.Keys) (operator.Keys, error)) error
	Issuer(context.Context) (string, error)
	PublishDelay(context.Context) (time.Duration, error)
}

// storyteller is a backend that has more to tell of a machine than its record.
type storyteller interface {
	Events(context.Context, admin.Machine) ([]operator.Event, error)
}

// open chooses the backend: a cluster for the plug-in, with --kubeconfig or
// --context, or where the configuration names one; else the folder.
func (c *cli) open() (backend, error) {
	o := operator.ClusterOptions{Kubeconfig: c.kubeconfig, Context: c.context, Own: c.own, FieldManager: c.fieldManager(), Now: time.Now}
	if c.everywhere {
		o.Namespaces = []string{"*"}
	} else if c.namespace != "" {
		o.Namespaces = []string{c.namespace}
	}
	if c.plugin || c.config == "" && (c.kubeconfig != "" || c.context != "") {
		return operator.OpenCluster(o)
	}
	k, err := loadConfig(c.config)
	if err != nil {
		return nil, err
	}
	if k.Kubernetes != nil || c.kubeconfig != "" || c.context != "" {
		if k.Kubernetes != nil {
			o = o.FromConfig(k.Kubernetes)
		}
		return operator.OpenCluster(o)
	}
	return &operator.Folder{Config: k, Namespace: c.namespace, Now: time.Now, Offline: offlineState}, nil
}

func loadConfig(path string) (*config.Config, error) {
	if path == "" {
		return nil, hint(errors.New("no configuration file given"), "add --config DIR/mcs-attest.yaml; 'mcs-attest-verifier init DIR' makes one")
	}
	return config.Load(path)
}

// completeTimeout bounds what a person who presses Tab waits for.
const completeTimeout = 3 * time.Second

// machineNames completes the name of a machine; with its namespace where the name
// alone would be ambiguous, or where that is how it was begun.
func (c *cli) machineNames(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	return c.complete(cmd, args, prefix, func(s *admin.State) []string {
		count := map[string]int{}
		for _, m := range s.Machines {
			count[m.Name[strings.Index(m.Name, "/")+1:]]++
		}
		var names []string
		for _, m := range s.Machines {
			short := m.Name[strings.Index(m.Name, "/")+1:]
			if strings.Contains(prefix, "/") || count[short] > 1 {
				short = m.Name
			}
			names = append(names, short)
		}
		return names
	})
}

// waitingNames completes the id of a machine that waits for approval.
func (c *cli) waitingNames(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	return c.complete(cmd, args, prefix, func(s *admin.State) []string {
		var names []string
		for _, p := range s.Pending {
			names = append(names, p.ID)
		}
		return names
	})
}

func (c *cli) complete(cmd *cobra.Command, args []string, prefix string, list func(*admin.State) []string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completeTimeout)
	defer cancel()
	b, err := c.open()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	s, err := b.State(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	names := slices.DeleteFunc(list(s), func(n string) bool { return !strings.HasPrefix(n, prefix) })
	return names, cobra.ShellCompDirectiveNoFileComp
}

// dryRunFlag adds kubectl's --dry-run.
func dryRunFlag(cmd *cobra.Command, w *operator.Write) {
	cmd.Flags().StringVar((*string)(&w.DryRun), "dry-run", string(operator.DryRunNone), `"none", "client" (send nothing) or "server" (have the API server check it)`)
	cmd.Flags().Lookup("dry-run").NoOptDefVal = string(operator.DryRunClient)
}

func checkDryRun(w operator.Write) error {
	switch w.DryRun {
	case "", operator.DryRunNone, operator.DryRunClient, operator.DryRunServer:
		return nil
	}
	return fmt.Errorf("dry-run %q: must be none, client or server", w.DryRun)
}

// told says what was written, as a person or a pipe wants it.
func told(cmd *cobra.Command, w operator.Write, output string, all ...operator.Written) error {
	for i, done := range all {
		if output == "yaml" {
			raw, err := operator.YAML(done.Object)
			if err != nil {
				return err
			}
			if i > 0 {
				cmd.Println("---")
			}
			cmd.Print(string(raw))
			continue
		}
		suffix := ""
		if w.DryRun == operator.DryRunClient || w.DryRun == operator.DryRunServer {
			suffix = " (" + string(w.DryRun) + " dry run)"
		}
		switch {
		case done.File && done.Done != "unchanged" && suffix == "":
			cmd.Println("wrote", done.Where)
		default:
			cmd.Println(done.Where, done.Done+suffix)
		}
	}
	return nil
}

func writeOutputFlag(cmd *cobra.Command, output *string) {
	cmd.Flags().StringVarP(output, "output", "o", "", `"yaml" prints the object`)
}
