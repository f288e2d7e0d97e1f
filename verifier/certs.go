package main

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/pkg/mcscert"
	"github.com/mcs-attest/mcs-attest/pkg/pointer"
	"github.com/mcs-attest/mcs-attest/verifier/internal/certfolder"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/controllers/mcscertificates"
	"github.com/mcs-attest/mcs-attest/verifier/internal/operator"
	"github.com/mcs-attest/mcs-attest/verifier/internal/wholefile"
)

func (c *cli) certsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "certs",
		Short: "The Machine Config Server's CA and serving certificate",
		Long: `The CA that the pointer configs name, and the serving certificate that it signed.
Both are valid for ten years and renewed after eight.

On OpenShift the machine-config-operator renews them where there are MachineSets,
since 4.19; 'certs status' says whether it does. Elsewhere the verifier does, if its
configuration has certificates:, and in a folder these commands do.

A rotation has two steps, and machines boot through both: a new CA goes into the
bundle, and with the bundle into the pointer configs; later the serving certificate
is signed by it. docs/certificates.md tells it in full.`,
	}
	cmd.AddCommand(c.certsStatusCommand(), c.certsInitCommand(), c.certsRotateCommand(), c.certsPointerCommand())
	return cmd
}

// keeper keeps the certificates of a folder or of a cluster.
type keeper interface {
	look(context.Context) (mcscert.Status, error)
	init(ctx context.Context, force bool) (made string, s mcscert.Status, err error)
	rotate(ctx context.Context, now bool) (mcscert.Step, mcscert.Status, error)
	due(context.Context) ([]mcscert.Step, mcscert.Status, error)
	// after says what is left for a person to do after a step.
	after(mcscert.Step) string
}

func (c *cli) certsStatusCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "What there is, until when, who renews it, and what is next",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			k, err := c.openKeeper(cmd.Context(), nil)
			if err != nil {
				return err
			}
			s, err := k.look(cmd.Context())
			err = hintKey(err)
			if err != nil && s.Leaf == nil && s.CA == nil {
				return err
			}
			switch output {
			case "json":
				enc := json.NewEncoder(cmd.OutOrStdout())
				enc.SetIndent("", "  ")
				return errors.Join(err, enc.Encode(certsDocument(s)))
			case "", "text":
				return errors.Join(err, printCerts(cmd.OutOrStdout(), s))
			}
			return fmt.Errorf("output %q: it is text or json", output)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", `"text" or "json"`)
	c.where(cmd)
	return cmd
}

func (c *cli) certsInitCommand() *cobra.Command {
	var hosts []string
	var force bool
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Make CA and serving certificate where there are none",
		Long: `Make CA and serving certificate where there are none.

In a cluster it makes the objects that the verifier then keeps; the verifier's own
account may not make Secrets. Run it once, as an administrator. What is served stays,
and the CA that issued it goes into the bundle beside the new one, so that no machine
notices. It refuses where the machine-config-operator renews.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			k, err := c.openKeeper(cmd.Context(), hosts)
			if err != nil {
				return err
			}
			made, s, err := k.init(cmd.Context(), force)
			if errors.Is(err, mcscert.ErrNotOurs) {
				if s.Case == mcscert.CaseOperatorToCome {
					return hint(err, "if the cluster is older than 4.19, add --force")
				}
				return hint(err, "'certs status' shows them; certificates.rotate: Always takes them over")
			}
			if err != nil {
				return hintKey(err)
			}
			cmd.Println(made)
			return printCerts(cmd.OutOrStdout(), s)
		},
	}
	cmd.Flags().StringSliceVar(&hosts, "hostname", nil, "host name or address of the serving certificate (repeatable; default: those of the configuration)")
	cmd.Flags().BoolVar(&force, "force", false, "also where there are MachineSets, so that a machine-config-operator since 4.19 would do it")
	c.where(cmd)
	return cmd
}

func (c *cli) certsRotateCommand() *cobra.Command {
	var now, due bool
	cmd := &cobra.Command{
		Use:   "rotate",
		Short: "Take the next step of a rotation: a new CA, or a serving certificate signed by it",
		Long: `Take the next step of a rotation. The first makes a new CA and puts it into the
bundle and the pointer configs; what is served stays. The second, at least 25 hours
later, has the serving certificate signed by it: not before every pointer config that
is known here has the new CA. The old CA stays in the bundle until it has expired.

With --due take the steps that the calendar asks for, if any: for a timer. With --now
take the second step at once. Machines fail then, for good, that boot with a pointer
config of before the first step, and those whose clock is further behind than the new
CA is old: to them it is a certificate of the future.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			k, err := c.openKeeper(cmd.Context(), nil)
			if err != nil {
				return err
			}
			if due {
				steps, s, err := k.due(cmd.Context())
				for _, step := range steps {
					cmd.Println(tellStep(step) + "\n" + k.after(step))
				}
				if err == nil && len(steps) == 0 {
					cmd.Println("nothing is due")
					cmd.Println(nextStep(s))
				}
				return hintKey(err)
			}
			step, s, err := k.rotate(cmd.Context(), now)
			var early *mcscert.TooEarly
			switch {
			case errors.As(err, &early):
				return hint(err, "wait, or add --now if failing those machines is the smaller harm")
			case errors.Is(err, mcscert.ErrNotOurs):
				return hint(err, "on OpenShift: oc adm ocp-certificates regenerate-machine-config-server-serving-cert")
			case err != nil:
				return hintKey(err)
			}
			cmd.Println(tellStep(step) + "\n" + k.after(step))
			return printCerts(cmd.OutOrStdout(), s)
		},
	}
	cmd.Flags().BoolVar(&now, "now", false, "take the second step at once: machines fail that do not know the new CA yet")
	cmd.Flags().BoolVar(&due, "due", false, "only what the calendar asks for")
	cmd.MarkFlagsMutuallyExclusive("now", "due")
	c.where(cmd)
	return cmd
}

// hintKey adds what to do about a key that is none.
func hintKey(err error) error {
	if errors.Is(err, certfolder.ErrKey) {
		return hint(err, "restore it from where it is kept, or move it away: without one, 'certs rotate' makes a new CA")
	}
	return err
}

func (c *cli) certsPointerCommand() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "pointer FILE...",
		Short: "Put the CA bundle into pointer configs that are files",
		Long: `Put the CA bundle into pointer configs that are files, in place of the CA that is
there, and change nothing else in them: for user data that an administrator hands
out. Those in a cluster's Secrets follow by themselves.

A file whose CA is none of the bundle's stays as it is: it may be that of another
server, which hands the pointer config out. --force replaces it all the same.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, files []string) error {
			k, err := c.openKeeper(cmd.Context(), nil)
			if err != nil {
				return err
			}
			s, err := k.look(cmd.Context())
			if len(s.Bundle) == 0 {
				return errors.Join(err, errors.New("there is no CA bundle"))
			}
			for _, file := range files {
				if err := renewPointer(cmd, file, s.Bundle, force); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "also in place of a CA that is none of the bundle's")
	c.where(cmd)
	return cmd
}

func renewPointer(cmd *cobra.Command, file string, bundle []*x509.Certificate, force bool) error {
	info, err := os.Stat(file)
	if err != nil {
		return fmt.Errorf("read pointer config: %w", err)
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read pointer config: %w", err)
	}
	var next []byte
	if force {
		next, err = pointer.ForceAuthorities(raw, mcscert.Encode(bundle...))
	} else {
		next, err = pointer.SetAuthorities(raw, mcscert.Encode(bundle...))
	}
	if err != nil {
		return hint(fmt.Errorf("%s: %w", file, err), "if its one CA is, or was, the Machine Config Server's, add --force")
	}
	if string(next) == string(raw) {
		cmd.Println("unchanged", file)
		return nil
	}
	if err := wholefile.Write(file, info.Mode().Perm(), next); err != nil {
		return err
	}
	cmd.Println("wrote", file)
	return nil
}

func tellStep(s mcscert.Step) string {
	if s == mcscert.StepCA {
		return "a new CA is in the bundle; what is served has not changed"
	}
	return "a new serving certificate is signed by the newest CA"
}

// openKeeper chooses as the other commands do. Hosts are in place of the configuration's.
func (c *cli) openKeeper(ctx context.Context, hosts []string) (keeper, error) {
	b, err := c.open()
	if err != nil {
		return nil, err
	}
	if f, ok := b.(*operator.Folder); ok {
		if hosts == nil {
			hosts = f.Config.CertificateHosts()
		}
		return folderKeeper{&certfolder.Folder{Dir: f.Config.Data, Hosts: hosts}}, nil
	}
	cluster, ok := b.(*operator.Cluster)
	if !ok {
		return nil, errors.New("there are no certificates here")
	}
	k, err := c.clusterConfig(ctx, cluster)
	if err != nil {
		return nil, err
	}
	if k.Kubernetes == nil {
		return nil, hint(errors.New("the configuration of the cluster's verifier has no section kubernetes"), "it is in the ConfigMap mcs-attest-config; without that section it is a folder's")
	}
	api, err := kube.NewClient(cluster.Rest())
	if err != nil {
		return nil, err
	}
	// An administrator may list what the verifier's account may not.
	r, err := mcscertificates.New(mcscertificates.Options{Client: api, Config: k, Hostnames: hosts, ListUserData: true})
	return clusterKeeper{r}, err
}

func (c *cli) clusterConfig(ctx context.Context, cluster *operator.Cluster) (*config.Config, error) {
	if c.config != "" && !c.plugin {
		k, err := loadConfig(c.config)
		if err != nil || k.Kubernetes != nil {
			return k, err
		}
	}
	return cluster.Configuration(ctx)
}

type folderKeeper struct{ f *certfolder.Folder }

func (k folderKeeper) look(context.Context) (mcscert.Status, error) { return k.f.Inspect() }

func (k folderKeeper) init(context.Context, bool) (string, mcscert.Status, error) {
	made, err := k.f.Init()
	if err != nil {
		return "", mcscert.Status{}, hint(err, "restore what is missing, or remove the whole folder tls/ to begin with new certificates")
	}
	s, err := k.f.Inspect()
	if made {
		return "wrote tls/", s, err
	}
	return "kept tls/", s, err
}

func (k folderKeeper) rotate(_ context.Context, now bool) (mcscert.Step, mcscert.Status, error) {
	return k.f.Rotate(now)
}

func (k folderKeeper) due(context.Context) ([]mcscert.Step, mcscert.Status, error) {
	return k.f.Due()
}

func (folderKeeper) after(step mcscert.Step) string {
	if step == mcscert.StepCA {
		return "now: give pointers/*.ign to every machine that is yet to boot, in place of its user data of before;\nthen, 25 hours later at the earliest, 'certs rotate' again"
	}
	return "the verifier takes it up within a second; machines need a pointer config with the bundle of tls/ca.crt"
}

type clusterKeeper struct{ c *mcscertificates.Reconciler }

func (k clusterKeeper) look(ctx context.Context) (mcscert.Status, error) { return k.c.Inspect(ctx) }

func (k clusterKeeper) init(ctx context.Context, force bool) (string, mcscert.Status, error) {
	s, err := k.c.Init(ctx, force)
	return "the objects are there; a verifier with certificates: in its configuration keeps them", s, err
}

func (k clusterKeeper) rotate(ctx context.Context, now bool) (mcscert.Step, mcscert.Status, error) {
	return k.c.Rotate(ctx, now)
}

func (k clusterKeeper) due(context.Context) ([]mcscert.Step, mcscert.Status, error) {
	return nil, mcscert.Status{}, errors.New("in a cluster the verifier does what is due by itself")
}

func (clusterKeeper) after(step mcscert.Step) string {
	if step == mcscert.StepCA {
		return "pointer configs outside the cluster (user data that an administrator hands out) need the new bundle, too: 'certs pointer FILE';\n25 hours later at the earliest: 'certs rotate' again, or leave it to the calendar"
	}
	return "the replicas take it up at once"
}

// nextStep says what comes next, by itself or by hand.
func nextStep(s mcscert.Status) string {
	switch {
	case s.Case != "" && !s.Case.Ours():
		return "nothing to do here"
	case s.CA == nil && s.Case == mcscert.CaseFolder && s.Leaf != nil && len(s.Bundle) > 0:
		return fmt.Sprintf("the CA's key is kept elsewhere: bring it to tls/ca.key for what has to be signed (other host names, the second step of 'certs rotate');\nwithout it 'certs rotate' makes a new CA, which is due after %s", mcscert.Renewal(mcscert.Newest(s.Bundle)).UTC().Format(time.DateOnly))
	case s.CA == nil || s.Leaf == nil:
		return "'certs init' makes what is missing"
	case s.Leaf.CheckSignatureFrom(s.CA) != nil:
		text := fmt.Sprintf("the serving certificate follows the new CA after %s, or by 'certs rotate' after %s",
			mcscert.Follows(s.Leaf, s.CA, s.Hosts).UTC().Format(time.DateOnly), s.CA.NotBefore.Add(mcscert.Publish).UTC().Format(time.RFC3339))
		var waits []string
		for _, u := range s.PointerConfigs {
			if u.Failed || u.Lacks {
				waits = append(waits, u.Name)
			}
		}
		if len(waits) > 0 {
			text += ";\nit waits for pointer configs that do not have that CA: " + strings.Join(waits, ", ")
		}
		return text
	}
	return "a new CA after " + mcscert.Renewal(s.CA).UTC().Format(time.DateOnly) + ", or by 'certs rotate'"
}

// fingerprint is the SHA-256 of a certificate.
func fingerprint(c *x509.Certificate) string {
	sum := sha256.Sum256(c.Raw)
	return hex.EncodeToString(sum[:])
}

// tellCert tells certificates of one name apart.
func tellCert(c *x509.Certificate) string {
	return fmt.Sprintf("%s, SHA-256 %.12s, issued %s, until %s", c.Subject.CommonName, fingerprint(c), c.NotBefore.UTC().Format(time.DateOnly), c.NotAfter.UTC().Format(time.DateOnly))
}

func printCerts(out io.Writer, s mcscert.Status) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	line := func(name, text string) { fmt.Fprintf(w, "%s\t%s\n", name, text) }
	line("renewed by", s.Case.String())
	one := func(c *x509.Certificate) string {
		if c == nil {
			return "none"
		}
		return tellCert(c) + ", renewed after " + mcscert.Renewal(c).UTC().Format(time.DateOnly)
	}
	ca := one(s.CA)
	if s.CA == nil && s.Case == mcscert.CaseFolder && len(s.Bundle) > 0 {
		ca = "its key, tls/ca.key, is kept elsewhere"
	}
	line("CA", ca)
	for _, c := range s.Bundle {
		line("  in the bundle", tellCert(c))
	}
	line("serving", one(s.Leaf))
	if s.Leaf != nil {
		line("  for", strings.Join(mcscert.Hosts(s.Leaf), ", "))
		if missing := mcscert.Missing(s.Leaf, s.Hosts); len(missing) > 0 {
			line("  NOT FOR", strings.Join(missing, ", ")+": the next one is")
		}
		have := mcscert.Hosts(s.Leaf)
		if more := slices.DeleteFunc(have, func(h string) bool { return slices.Contains(s.Hosts, h) }); s.Case.Ours() && len(more) > 0 {
			line("  not configured", strings.Join(more, ", ")+": the next one is not for them (certificates.hostnames)")
		}
		if s.CA != nil {
			by := "the CA above"
			if s.Leaf.CheckSignatureFrom(s.CA) != nil {
				by = s.Leaf.Issuer.CommonName + ", an older CA"
			}
			line("  signed by", by)
		}
	}
	for _, u := range s.PointerConfigs {
		text := "has the bundle"
		if u.Left != "" {
			text = "DOES NOT: " + u.Left
		}
		line("pointer "+u.Name, text)
	}
	for i, text := range strings.Split(nextStep(s), "\n") {
		line([]string{"next", ""}[min(i, 1)], text)
	}
	return w.Flush()
}

// certsJSON is the form of -o json.
type certsJSON struct {
	Case     mcscert.Case   `json:"case,omitempty"`
	Renews   bool           `json:"verifierRenews"`
	CA       *certJSON      `json:"ca,omitempty"`
	Bundle   []certJSON     `json:"bundle"`
	Serving  *certJSON      `json:"serving,omitempty"`
	Pointers []pointersJSON `json:"pointers"`
	Next     string         `json:"next"`
}

type certJSON struct {
	Subject   string    `json:"subject"`
	SHA256    string    `json:"sha256"`
	Issuer    string    `json:"issuer"`
	Hosts     []string  `json:"hosts,omitempty"`
	NotBefore time.Time `json:"notBefore"`
	NotAfter  time.Time `json:"notAfter"`
	Renewal   time.Time `json:"renewal"`
}

type pointersJSON struct {
	Name string `json:"name"`
	Has  bool   `json:"hasBundle"`
	Why  string `json:"leftAlone,omitempty"`
}

func certsDocument(s mcscert.Status) certsJSON {
	one := func(c *x509.Certificate) *certJSON {
		if c == nil {
			return nil
		}
		return &certJSON{c.Subject.CommonName, fingerprint(c), c.Issuer.CommonName, mcscert.Hosts(c), c.NotBefore.UTC(), c.NotAfter.UTC(), mcscert.Renewal(c).UTC()}
	}
	d := certsJSON{Case: s.Case, Renews: s.Case.Ours(), CA: one(s.CA), Serving: one(s.Leaf), Bundle: []certJSON{}, Pointers: []pointersJSON{}, Next: strings.ReplaceAll(nextStep(s), "\n", " ")}
	for _, c := range s.Bundle {
		d.Bundle = append(d.Bundle, *one(c))
	}
	for _, u := range s.PointerConfigs {
		d.Pointers = append(d.Pointers, pointersJSON{u.Name, u.Left == "", u.Left})
	}
	return d
}
