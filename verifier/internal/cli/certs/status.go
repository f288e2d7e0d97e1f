// SPDX-License-Identifier: Apache-2.0

package certs

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/pkg/mcscert"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
)

func statusCommand(e *env.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the certificates, when they expire, who renews them, and the next step",
		Args:  cobra.NoArgs,
	}
	e.Where(cmd)
	output := env.OutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		k, err := openKeeper(cmd.Context(), e, nil)
		if err != nil {
			return err
		}
		s, err := k.Inspect(cmd.Context())
		err = hintKey(err)
		if err != nil && s.Leaf == nil && s.CA == nil {
			return err
		}
		doc := certsDocument(s)
		return errors.Join(err, output.Print(cmd.OutOrStdout(), doc, doc.names(), func(out io.Writer) error {
			return printCerts(out, s)
		}))
	}
	return cmd
}

// nextStep says what comes next, by itself or by hand.
func nextStep(s mcscert.Status) string {
	switch {
	case s.Case != "" && !s.Case.Ours():
		return "nothing to do here"
	case s.CA == nil && s.Case == mcscert.CaseFolder && s.Leaf != nil && len(s.Bundle) > 0:
		return fmt.Sprintf("the CA's key is kept elsewhere: copy it to tls/ca.key when it must sign (other host names, the "+
			"second step of 'certs rotate');\nwithout it 'certs rotate' creates a new CA, which is due after %s",
			mcscert.Renewal(mcscert.Newest(s.Bundle)).UTC().Format(time.DateOnly))
	case s.Leaf == nil && s.Case == mcscert.CaseFolder && s.CA != nil:
		return "'certs rotate' signs a new serving certificate with a new key"
	case s.Leaf == nil && s.Case == mcscert.CaseFolder && len(s.Bundle) > 0:
		return "restore tls/tls.key, or copy the CA's key to tls/ca.key and run 'certs rotate';\n" +
			"without it 'certs rotate' creates a new CA, which every machine needs"
	case s.CA == nil || s.Leaf == nil:
		return "run 'certs init' to create what is missing"
	case s.Leaf.CheckSignatureFrom(s.CA) != nil:
		text := fmt.Sprintf("the new CA signs the serving certificate after %s, or by 'certs rotate' after %s",
			mcscert.Follows(s.Leaf, s.CA, s.Hosts).UTC().Format(time.DateOnly),
			s.CA.NotBefore.Add(mcscert.Publish).UTC().Format(time.RFC3339))
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

// expiresSoon is how long before its end a certificate is marked.
const expiresSoon = 30 * 24 * time.Hour

// describeCert distinguishes certificates of one name.
func describeCert(c *x509.Certificate, now time.Time) string {
	text := fmt.Sprintf("%s, SHA-256 %.12s, issued %s, until %s", c.Subject.CommonName, fingerprint(c),
		c.NotBefore.UTC().Format(time.DateOnly), c.NotAfter.UTC().Format(time.DateOnly))
	switch left := c.NotAfter.Sub(now); {
	case left <= 0:
		text += ", EXPIRED"
	case left < expiresSoon:
		text += fmt.Sprintf(", EXPIRES IN %d DAYS", int(left.Hours()/24))
	}
	return text
}

func printCerts(out io.Writer, s mcscert.Status) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	line := func(name, text string) { fmt.Fprintf(w, "%s\t%s\n", name, text) }
	line("renewed by", s.Case.String())
	one := func(c *x509.Certificate) string {
		if c == nil {
			return "none"
		}
		return describeCert(c, s.At) + ", renewal after " + mcscert.Renewal(c).UTC().Format(time.DateOnly)
	}
	ca := one(s.CA)
	if s.CA == nil && s.Case == mcscert.CaseFolder && len(s.Bundle) > 0 {
		ca = "its key, tls/ca.key, is kept elsewhere"
	}
	line("CA", ca)
	if s.CA != nil {
		line("  its key", string(mcscert.KeyTypeOf(s.CA.PublicKey)))
	}
	for _, c := range s.Bundle {
		line("  in the bundle", describeCert(c, s.At))
	}
	serving := one(s.Leaf)
	if s.Leaf == nil && s.Case == mcscert.CaseFolder && len(s.Bundle) > 0 {
		serving = "its key, tls/tls.key, DOES NOT EXIST or is another certificate's"
	}
	line("serving", serving)
	if s.Leaf != nil {
		line("  for", strings.Join(mcscert.Hosts(s.Leaf), ", "))
		if missing := mcscert.Missing(s.Leaf, s.Hosts); len(missing) > 0 {
			line("  NOT FOR", strings.Join(missing, ", ")+": the next certificate has them")
		}
		have := mcscert.Hosts(s.Leaf)
		more := slices.DeleteFunc(have, func(h string) bool { return slices.Contains(s.Hosts, h) })
		if s.Case.Ours() && len(more) > 0 {
			line("  not configured", strings.Join(more, ", ")+
				": the next certificate does not have them (certificates.hostnames)")
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

// names are the SHA-256 hashes of the certificates that are served and trusted.
func (d certsJSON) names() []string {
	var names []string
	if d.Serving != nil {
		names = append(names, d.Serving.SHA256)
	}
	for _, c := range d.Bundle {
		names = append(names, c.SHA256)
	}
	return names
}

type certJSON struct {
	Subject   string    `json:"subject"`
	SHA256    string    `json:"sha256"`
	Issuer    string    `json:"issuer"`
	Key       string    `json:"key"`
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
		return &certJSON{c.Subject.CommonName, fingerprint(c), c.Issuer.CommonName,
			string(mcscert.KeyTypeOf(c.PublicKey)), mcscert.Hosts(c), c.NotBefore.UTC(),
			c.NotAfter.UTC(), mcscert.Renewal(c).UTC()}
	}
	d := certsJSON{Case: s.Case, Renews: s.Case.Ours(), CA: one(s.CA), Serving: one(s.Leaf), Bundle: []certJSON{},
		Pointers: []pointersJSON{}, Next: strings.ReplaceAll(nextStep(s), "\n", " ")}
	for _, c := range s.Bundle {
		d.Bundle = append(d.Bundle, *one(c))
	}
	for _, u := range s.PointerConfigs {
		d.Pointers = append(d.Pointers, pointersJSON{u.Name, u.Left == "", u.Left})
	}
	return d
}
