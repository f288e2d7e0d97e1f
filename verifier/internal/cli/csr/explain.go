// SPDX-License-Identifier: Apache-2.0

// Package csr has the commands about the kubelets' certificate signing requests.
package csr

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/pkg/approver"
	"github.com/mcs-attest/mcs-attest/verifier/internal/audit"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
	"github.com/mcs-attest/mcs-attest/verifier/internal/operator"
)

// Command is "csr".
func Command(e *env.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "csr",
		Short: "Explain the kubelets' certificate signing requests",
		Long:  "Explain the kubelets' certificate signing requests, and what the approver decides about them.",
	}
	cmd.AddCommand(explainCommand(e))
	return cmd
}

func explainCommand(e *env.Env) *cobra.Command {
	var attestation string
	var output *env.Output
	var files fileRequest
	cmd := &cobra.Command{
		Use:   "explain [NAME]",
		Short: "Show what the approver would decide about a request, check by check",
		Long: `Show what the approver would decide about a certificate signing request, check by
check, and why. The command changes nothing.

NAME is a request in the cluster. With --file the command reads only files and contacts
no cluster. The files contain the request, and the Machines, Nodes, MachineAttestations,
ConfigMaps, Network and HostSubnets that matter, as 'oc get -o yaml' writes them. An
object that is not in the files is treated as missing. NAME is required if the files
contain more than one request. Files may be old: the decision is that of one minute
after the request's creation, or of the time in --at.

Exit status 0: it would be approved; 1: refused or denied; 2: wrong command line;
3: already decided, or not for this approver; 4: the decision could not be determined;
5: the approver would try again later.`,
		Example: e.Examples(`  PROGRAM csr explain csr-8vnps
  oc get csr/csr-8vnps -o yaml > csr.yaml
  oc get machines.machine.openshift.io,mcsa -A -o yaml > machines.yaml
  PROGRAM csr explain -f csr.yaml -f machines.yaml`),
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				files.name = args[0]
			}
			err := explainRequest(cmd, e, files, config.Attestation(attestation), output)
			var exit *env.ExitError
			if err != nil && !errors.As(err, &exit) {
				return &env.ExitError{Err: err, Code: env.ExitUnknown}
			}
			return err
		},
	}
	e.Where(cmd)
	f := cmd.Flags()
	output = env.OutputFlag(cmd)
	f.StringArrayVarP(&files.paths, "file", "f", nil, "file of manifests (repeatable; - is standard input)")
	f.StringVar(&files.certificate, "serving-certificate", "",
		"with --file: PEM file with the certificate that the kubelet presents now")
	f.StringVar(&files.authority, "kubelet-ca", "",
		"with --file: PEM file with the kubelets' authorities (default: the ConfigMap csr-controller-ca among the files)")
	f.StringVar(&files.at, "at", "",
		"with --file: time of the decision, such as 2026-11-21T10:02:00Z (default: one minute after the request's "+
			"creation)")
	env.Choice(cmd, &attestation, "attestation", "", `"Required" or "Off": decide as if the configuration said so`,
		string(config.AttestationRequired), string(config.AttestationOff), "")
	return cmd
}

func explainRequest(cmd *cobra.Command, e *env.Env, files fileRequest, attestation config.Attestation,
	output *env.Output) error {
	var r *operator.Request
	var err error
	if len(files.paths) > 0 {
		r, err = requestFromFiles(cmd.Context(), e, files, attestation, cmd.InOrStdin())
	} else {
		r, err = requestFromCluster(cmd.Context(), e, files, attestation)
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), time.Minute)
	defer cancel()
	at := time.Now()
	if w, ok := r.Cluster.(*fileCluster); ok {
		at = w.at
	}
	x := explainedRequest{request: r, d: approver.Decide(ctx, approver.FromCSR(r.CSR), r.Cluster, r.Rules, at)}
	err = output.Print(cmd.OutOrStdout(), x.document(), []string{audit.Clean(r.CSR.Name)}, func(out io.Writer) error {
		x.print(out)
		return nil
	})
	if err != nil {
		return err
	}
	return x.exit()
}

func requestFromCluster(ctx context.Context, e *env.Env, files fileRequest,
	attestation config.Attestation) (*operator.Request, error) {
	if files.certificate != "" || files.authority != "" {
		return nil, env.Usagef("--serving-certificate and --kubelet-ca require --file; in a cluster the kubelet itself " +
			"is asked")
	}
	if files.at != "" {
		return nil, env.Usagef("--at requires --file; in a cluster the decision is for now")
	}
	if files.name == "" {
		return nil, env.Usage(hint.New(errors.New("no request was given"),
			"run 'kubectl get csr' for a list, or add --file FILE"))
	}
	b, err := e.Open()
	if err != nil {
		return nil, err
	}
	k, ok := b.(*operator.Cluster)
	if !ok {
		return nil, hint.New(errors.New("a folder has no certificate signing requests"),
			"add --kubeconfig FILE or --file FILE")
	}
	return k.Request(ctx, files.name, attestation)
}

// explainedRequest is a decision for a person.
type explainedRequest struct {
	request *operator.Request
	d       *approver.Decision
}

// words for outcomes.
var verdicts = map[approver.Outcome]string{
	approver.Approve: "approved", approver.Refuse: "refused: it waits for an administrator", approver.Deny: "denied",
	approver.Retry: "not now: the approver tries again", approver.Ignore: "not for this approver: it does nothing with it",
}

func (e explainedRequest) print(out io.Writer) {
	csr, d := e.request.CSR, e.d
	fmt.Fprintf(out, "%s: %s, by %s\n", audit.Clean(csr.Name), audit.Clean(csr.Spec.SignerName),
		audit.Clean(csr.Spec.Username))
	fmt.Fprintf(out, "created %s\n", csr.CreationTimestamp.UTC().Format(time.RFC3339))
	if !e.request.Running {
		fmt.Fprintln(out, "no approver is configured; this is what it would decide")
	}
	if !e.request.Rules.Attestation {
		fmt.Fprintln(out, "attestation is off: only the stock approver's checks")
	}
	fmt.Fprintln(out)
	marks := map[approver.Result]string{approver.Passed: "ok", approver.Failed: "NO", approver.Skipped: "--"}
	for _, c := range d.Checks {
		fmt.Fprintf(out, "  %s  %-10s  %s\n", marks[c.Result], c.Name, audit.Clean(c.Detail))
	}
	fmt.Fprintln(out)
	fmt.Fprintln(out, e.verdict())
}

// verdict is one line.
func (e explainedRequest) verdict() string {
	s := verdicts[e.d.Outcome]
	if e.d.Denial != nil {
		i := e.d.Denial.Code.Info()
		s += ": " + i.Name + ": " + i.Title
	} else if e.d.Outcome == approver.Ignore {
		s += ": " + audit.Clean(e.d.Checks[len(e.d.Checks)-1].Detail)
	}
	return s
}

// exit is the exit status, and what to do.
func (e explainedRequest) exit() error {
	code := 0
	switch e.d.Outcome {
	case approver.Approve:
		return nil
	case approver.Refuse, approver.Deny:
		code = env.ExitFailed
	case approver.Retry:
		code = env.ExitLater
	case approver.Ignore:
		code = env.ExitForeign
	}
	err := fmt.Errorf("%s would not be approved", audit.Clean(e.request.CSR.Name))
	if e.d.Denial != nil {
		err = hint.New(err, "%s", e.d.Denial.Code.Info().Hint)
	}
	return &env.ExitError{Err: err, Code: code}
}

// requestDocument is the decision for a program.
type requestDocument struct {
	Name            string           `json:"name"`
	Signer          string           `json:"signer"`
	Username        string           `json:"username"`
	Kind            approver.Kind    `json:"kind,omitempty"`
	Node            string           `json:"node,omitempty"`
	Attestation     bool             `json:"attestation"`
	Configured      bool             `json:"configured"`
	Outcome         approver.Outcome `json:"outcome"`
	Reason          string           `json:"reason,omitempty"`
	Message         string           `json:"message,omitempty"`
	Hint            string           `json:"hint,omitempty"`
	Machine         string           `json:"machine,omitempty"`
	RecordUID       string           `json:"recordUID,omitempty"`
	CredentialID    string           `json:"credentialID,omitempty"`
	PublicKeySHA256 string           `json:"publicKeySHA256,omitempty"`
	Proven          bool             `json:"proven"`
	Checks          []approver.Check `json:"checks"`
}

func (e explainedRequest) document() requestDocument {
	csr, d := e.request.CSR, e.d
	doc := requestDocument{
		Name: csr.Name, Signer: csr.Spec.SignerName, Username: csr.Spec.Username, Kind: d.Kind, Node: d.Node,
		Attestation: e.request.Rules.Attestation, Configured: e.request.Running, Outcome: d.Outcome,
		Machine: d.Machine.String(), RecordUID: d.RecordUID, CredentialID: d.CredentialID,
		PublicKeySHA256: d.PublicKeySHA256, Proven: d.Proven, Checks: d.Checks,
	}
	if d.Denial != nil {
		i := d.Denial.Code.Info()
		doc.Reason, doc.Message, doc.Hint = i.Name, strings.TrimPrefix(d.Denial.Error(), i.Name+": "), i.Hint
	}
	return doc
}
