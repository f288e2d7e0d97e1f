package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/mcs-attest/mcs-attest/pkg/approver"
	"github.com/mcs-attest/mcs-attest/verifier/internal/audit"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/operator"
)

func (c *cli) csrCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "csr",
		Short: "The kubelets' certificate signing requests",
		Long:  "The kubelets' certificate signing requests, and what the approver makes of them.",
	}
	cmd.AddCommand(c.csrExplain())
	return cmd
}

// Exit statuses of csr explain.
const (
	exitRefused = 1
	exitRetry   = 2
	exitForeign = 3
	exitFailed  = 4 // it could not be found out
)

func (c *cli) csrExplain() *cobra.Command {
	var output, attestation string
	var files fileRequest
	cmd := &cobra.Command{
		Use:   "explain [NAME]",
		Short: "What the approver would decide of a request, check by check",
		Long: `What the approver would decide of a certificate signing request, check by check,
and why. Nothing is changed.

NAME is a request of the cluster. With --file everything comes from files, and no
cluster is asked: the request itself, and the Machines, Nodes, MachineAttestations,
ConfigMaps, Network and HostSubnets that matter, as 'oc get -o yaml' writes them.
What is not in the files counts as not there. NAME is needed when they hold more
than one request. Files may be old: it is decided as of the request's creation
and one minute, or as of --at.

Exit status 0: it would be approved; 1: refused or denied; 2: tried again later;
3: it is not for this approver, or decided; 4: it could not be found out.`,
		Example: c.examples(`  PROGRAM csr explain csr-8vnps
  oc get csr/csr-8vnps -o yaml > csr.yaml
  oc get machines.machine.openshift.io,mcsa -A -o yaml > machines.yaml
  PROGRAM csr explain -f csr.yaml -f machines.yaml`),
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				files.name = args[0]
			}
			err := c.explainRequest(cmd, files, attestation, output)
			var exit *exitCode
			if err != nil && !errors.As(err, &exit) {
				return &exitCode{err, exitFailed}
			}
			return err
		},
	}
	c.where(cmd)
	f := cmd.Flags()
	f.StringVarP(&output, "output", "o", "text", `"text", "json" or "yaml"`)
	f.StringArrayVarP(&files.paths, "file", "f", nil, "file of manifests; may be given several times; - is standard input")
	f.StringVar(&files.certificate, "serving-certificate", "", "with --file: PEM file with the certificate that the kubelet serves now")
	f.StringVar(&files.authority, "kubelet-ca", "", "with --file: PEM file with the kubelets' authorities (default: the ConfigMap csr-controller-ca among the files)")
	f.StringVar(&files.at, "at", "", "with --file: as of when it is decided, such as 2026-11-21T10:02:00Z (default: one minute after the request's creation)")
	f.StringVar(&attestation, "attestation", "", `"Required" or "Off": decide as if the configuration said so`)
	return cmd
}

func (c *cli) explainRequest(cmd *cobra.Command, files fileRequest, attestation, output string) error {
	switch output {
	case "text", "json", "yaml":
	default:
		return fmt.Errorf(`output %q: must be "text" or "json" or "yaml"`, output)
	}
	mode := config.Attestation(attestation)
	switch mode {
	case "", config.AttestationRequired, config.AttestationOff:
	default:
		return fmt.Errorf("attestation %q: must be %q or %q", mode, config.AttestationRequired, config.AttestationOff)
	}
	var r *operator.Request
	var err error
	if len(files.paths) > 0 {
		r, err = c.requestFromFiles(files, mode, cmd.InOrStdin())
	} else {
		r, err = c.requestFromCluster(cmd.Context(), files, mode)
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), time.Minute)
	defer cancel()
	at := time.Now()
	if w, ok := r.World.(*fileWorld); ok {
		at = w.at
	}
	e := explainedRequest{request: r, d: approver.Decide(ctx, approver.FromCSR(r.CSR), r.World, r.Rules, at)}
	if output == "text" {
		e.print(cmd.OutOrStdout())
	} else if err := encode(cmd.OutOrStdout(), e.document(), output); err != nil {
		return err
	}
	return e.exit()
}

func (c *cli) requestFromCluster(ctx context.Context, files fileRequest, attestation config.Attestation) (*operator.Request, error) {
	if files.certificate != "" || files.authority != "" {
		return nil, errors.New("--serving-certificate and --kubelet-ca go with --file; in a cluster the kubelet itself is asked")
	}
	if files.at != "" {
		return nil, errors.New("--at goes with --file; a cluster is as it is now")
	}
	if files.name == "" {
		return nil, hint(errors.New("no request is named"), "'kubectl get csr' lists them; or give files with --file")
	}
	b, err := c.open()
	if err != nil {
		return nil, err
	}
	k, ok := b.(*operator.Cluster)
	if !ok {
		return nil, hint(errors.New("a folder has no certificate signing requests"), "add --kubeconfig FILE, or give files with --file")
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
	approver.Approve: "approved", approver.Refuse: "refused: it waits for a human", approver.Deny: "denied",
	approver.Retry: "not now: it is tried again", approver.Ignore: "not ours: nothing is done with it",
}

func (e explainedRequest) print(out io.Writer) {
	csr, d := e.request.CSR, e.d
	fmt.Fprintf(out, "%s: %s, by %s\n", audit.Clean(csr.Name), audit.Clean(csr.Spec.SignerName), audit.Clean(csr.Spec.Username))
	fmt.Fprintf(out, "created %s\n", csr.CreationTimestamp.UTC().Format(time.RFC3339))
	if !e.request.Running {
		fmt.Fprintln(out, "no approver is configured here; this is what one would decide")
	}
	if !e.request.Rules.Attestation {
		fmt.Fprintln(out, "attestation is off: the stock approver's checks alone")
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
		code = exitRefused
	case approver.Retry:
		code = exitRetry
	case approver.Ignore:
		code = exitForeign
	}
	err := fmt.Errorf("%s would not be approved", audit.Clean(e.request.CSR.Name))
	if e.d.Denial != nil {
		err = hint(err, "%s", e.d.Denial.Code.Info().Hint)
	}
	return &exitCode{err, code}
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
		Attestation: e.request.Rules.Attestation, Configured: e.request.Running, Outcome: d.Outcome, Machine: d.Machine.String(),
		RecordUID: d.RecordUID, CredentialID: d.CredentialID, PublicKeySHA256: d.PublicKeySHA256, Proven: d.Proven, Checks: d.Checks,
	}
	if d.Denial != nil {
		i := d.Denial.Code.Info()
		doc.Reason, doc.Message, doc.Hint = i.Name, strings.TrimPrefix(d.Denial.Error(), i.Name+": "), i.Hint
	}
	return doc
}

// fileRequest is what the flags say of files.
type fileRequest struct {
	name                   string
	paths                  []string
	certificate, authority string
	at                     string
}

// requestFromFiles reads everything from files. The configuration, if there is one,
// says by which rules.
func (c *cli) requestFromFiles(files fileRequest, attestation config.Attestation, stdin io.Reader) (*operator.Request, error) {
	k, err := operator.DefaultApprover("mcs-attest")
	if err != nil {
		return nil, err
	}
	if c.config != "" {
		own, err := loadConfig(c.config)
		if err != nil {
			return nil, err
		}
		if own.Approver != nil {
			k = own
		}
	}
	operator.DecideWith(k, attestation)
	r := &operator.Request{Running: true, Rules: operator.Rules(k)}
	w := newFileWorld(k.Approver, r.Rules)
	for _, path := range files.paths {
		raw, err := readInput(path, stdin)
		if err != nil {
			return nil, err
		}
		if err := w.read(path, raw); err != nil {
			return nil, err
		}
	}
	for path, into := range map[string]*[]byte{files.certificate: &w.certificate, files.authority: &w.authority} {
		if path == "" {
			continue
		}
		if *into, err = os.ReadFile(path); err != nil {
			return nil, fmt.Errorf("read PEM file: %w", err)
		}
	}
	if r.CSR, err = chosen(w.requests, files.name); err != nil {
		return nil, err
	}
	if w.at, err = files.asOf(r.CSR); err != nil {
		return nil, err
	}
	r.World = w
	return r, nil
}

// asOf is when files are taken to be of. A record's credentials end, and what waits
// is counted for an hour: of an old must-gather nothing would be left today.
func (f fileRequest) asOf(csr *certificatesv1.CertificateSigningRequest) (time.Time, error) {
	if f.at != "" {
		at, err := time.Parse(time.RFC3339, f.at)
		if err != nil {
			return at, hint(fmt.Errorf("--at %q is not a time", f.at), "write it as 2026-11-21T10:02:00Z")
		}
		return at, nil
	}
	if csr.CreationTimestamp.IsZero() {
		return time.Now(), nil
	}
	return csr.CreationTimestamp.Add(time.Minute), nil
}

// chosen is the request of this name, or the only one.
func chosen(all []certificatesv1.CertificateSigningRequest, name string) (*certificatesv1.CertificateSigningRequest, error) {
	for i := range all {
		if name == "" && len(all) == 1 || all[i].Name == name {
			return &all[i], nil
		}
	}
	switch {
	case len(all) == 0:
		return nil, hint(errors.New("the files hold no CertificateSigningRequest"), "'oc get csr NAME -o yaml' writes one")
	case name == "":
		var names []string
		for i := range all {
			names = append(names, audit.Clean(all[i].Name))
		}
		return nil, fmt.Errorf("the files hold %d requests; name one of them: %s", len(all), strings.Join(names, ", "))
	}
	return nil, fmt.Errorf("no request in the files is called %q", name)
}
