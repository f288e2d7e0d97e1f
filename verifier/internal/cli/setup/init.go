// SPDX-License-Identifier: Apache-2.0

package setup

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/mcs-attest/mcs-attest/pkg/pointer"
	"github.com/mcs-attest/mcs-attest/pkg/seal"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	"github.com/mcs-attest/mcs-attest/pkg/token"
	"github.com/mcs-attest/mcs-attest/verifier/internal/certfolder"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
	"github.com/mcs-attest/mcs-attest/verifier/internal/wholefile"
)

// InitOptions are the flags of init.
type InitOptions struct {
	Origins       []string
	Pools         []string
	Listen        string
	HealthListen  string
	MetricsListen string
	Upstream      string
}

func initCommand() *cobra.Command {
	var o InitOptions
	cmd := &cobra.Command{
		Use:   "init DIR --origin https://HOST:PORT",
		Short: "Create a working folder: CA, certificate, keys, policy, pointer configs",
		Long: `Create a working folder for a standalone verifier. Then start the verifier:

    mcs-attest-verifier serve --config DIR/mcs-attest.yaml

Give the file DIR/pointers/POOL.ign to the machines as their user-data, put the full
config into DIR/configs/POOL.ign, and enroll the machines.

The command overwrites nothing. A folder with a configuration, records or manifests
exists. There it only creates keys and certificates that are missing, and the files of
each pool that --pool adds.`,
		Example: `  mcs-attest-verifier init /var/lib/mcs-attest --origin https://api-int.example.com:22623 --pool worker --pool master`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			defer env.UntilSignal(cmd)() // the folder becomes complete
			return Init(cmd.OutOrStdout(), args[0], o, time.Now())
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&o.Origins, "origin", nil,
		"https://host:port at which the machines reach the verifier (repeatable)")
	f.StringSliceVar(&o.Pools, "pool", nil,
		"pool to create a pointer and a sample config for (repeatable; default worker in a new folder)")
	f.StringVar(&o.Listen, "listen", "", `address to serve on (default ":22623")`)
	f.StringVar(&o.HealthListen, "health-listen", "", `address for health, on the loopback (default "127.0.0.1:22681")`)
	f.StringVar(&o.MetricsListen, "metrics-listen", "", `address for metrics (default "127.0.0.1:9622")`)
	f.StringVar(&o.Upstream, "upstream", "",
		"serve the configs of this Machine Config Server, https://host:port, instead of the folder's")
	return cmd
}

const (
	configFile    = "mcs-attest.yaml"
	defaultPolicy = "policies/default.yaml"
)

// folders is the layout of a verifier's folder; docs/operating.md describes it.
var folders = []string{"tls", "keys", "machines", "attestations", "policies", "reference-values", "ek-roots", "configs",
	"pointers", "state"}

// Init makes a working folder, and prints what it wrote.
func Init(out io.Writer, dir string, o InitOptions, now time.Time) error {
	if len(o.Origins) == 0 {
		return env.Usage(hint.New(errors.New("no origin given"),
			"add --origin https://HOST:PORT, at which the machines reach this verifier"))
	}
	hosts, err := o.check(dir)
	if err != nil {
		return env.Usage(err)
	}
	w := folderWriter{dir: dir, out: out}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	for _, f := range folders {
		if err := wholefile.MkdirAll(filepath.Join(dir, f), 0o700); err != nil {
			return err
		}
	}
	if err := w.certificates(hosts, now); err != nil {
		return err
	}
	if err := w.keys(now); err != nil {
		return err
	}
	if err := w.samples(o); err != nil {
		return err
	}
	if w.exists(configFile) {
		fmt.Fprintf(out, "\nnext: mcs-attest-verifier serve --config %s\n", filepath.Join(dir, configFile))
	}
	return nil
}

// check returns an error if serve would not accept the flags, and the hosts of the origins. It makes the origins
// canonical.
func (o *InitOptions) check(dir string) (hosts []string, err error) {
	for _, origin := range o.Origins {
		if err := checkPort(origin, o.Listen); err != nil {
			return nil, err
		}
	}
	for _, pool := range o.Pools {
		if len(validation.IsDNS1123Subdomain(pool)) > 0 {
			return nil, hint.New(fmt.Errorf("%q is not a pool", pool),
				"a pool has only lower-case letters, digits, '-' and '.'")
		}
	}
	c, err := config.Parse("the flags", configText(*o), dir)
	if err != nil {
		return nil, err
	}
	o.Origins = c.Origins
	for _, origin := range o.Origins {
		u, err := url.Parse(origin)
		if err != nil {
			return nil, err
		}
		hosts = append(hosts, u.Hostname())
	}
	return hosts, nil
}

// checkPort returns an error if the machines would ask a port that the verifier does not listen on: an origin
// without a port is port 443.
func checkPort(origin, listen string) error {
	u, err := url.Parse(origin)
	if err != nil || u.Hostname() == "" || u.Port() != "" {
		return nil // config.Origin reports it
	}
	listen = cmp.Or(listen, config.DefaultListen)
	_, port, err := net.SplitHostPort(listen)
	if err != nil || port == "443" {
		return nil
	}
	return hint.New(fmt.Errorf("the origin %s has no port: machines would connect to port 443, and the verifier "+
		"listens on %s", origin, listen), "write --origin https://%s, or :443 if a load balancer forwards that port",
		net.JoinHostPort(u.Hostname(), port))
}

// folderWriter writes the files that do not exist yet, and reports each file.
type folderWriter struct {
	dir string
	out io.Writer
}

func (w folderWriter) exists(name string) bool {
	_, err := os.Lstat(filepath.Join(w.dir, name))
	return err == nil
}

func (w folderWriter) write(name string, mode os.FileMode, content []byte, what string) error {
	if w.exists(name) {
		fmt.Fprintf(w.out, "kept  %-28s %s\n", name, what)
		return nil
	}
	if err := wholefile.Write(filepath.Join(w.dir, name), mode, content); err != nil {
		return err
	}
	fmt.Fprintf(w.out, "wrote %-28s %s\n", name, what)
	return nil
}

func (w folderWriter) certificates(hosts []string, now time.Time) error {
	f := certfolder.Folder{Dir: w.dir, Hosts: hosts, Now: func() time.Time { return now }}
	made, err := f.Init()
	if err != nil {
		return hint.New(err, "restore it, or remove the whole folder tls/ to create new certificates")
	}
	for _, f := range []struct{ name, what string }{
		{"tls/ca.key", "key of the CA; may be kept elsewhere"},
		{"tls/ca.crt", "the CA that the pointer configs name"},
		{"tls/tls.key", "key of the serving certificate"},
		{"tls/tls.crt", fmt.Sprintf("serving certificate for %v", hosts)},
	} {
		if made {
			fmt.Fprintf(w.out, "wrote %-28s %s\n", f.name, f.what)
		} else if w.exists(f.name) {
			fmt.Fprintf(w.out, "kept  %s\n", f.name)
		}
	}
	return nil
}

func (w folderWriter) keys(now time.Time) error {
	ring, err := seal.Ring{}.Rotate(rand.Reader, now, 0, 0)
	if err != nil {
		return err
	}
	sealDoc, err := ring.EncodeSecret()
	if err != nil {
		return err
	}
	set, err := token.KeySet{}.Rotate(now, rand.Reader, 0)
	if err != nil {
		return err
	}
	tokenDoc, err := set.EncodeSecret()
	if err != nil {
		return err
	}
	for _, f := range []struct {
		name, what string
		doc        secret.Bytes
	}{
		{"keys/seal.json", "keys that seal challenges", sealDoc},
		{"keys/token.json", "keys that sign tokens", tokenDoc},
	} {
		if err := w.write(f.name, 0o600, f.doc.Expose(), f.what); err != nil {
			return err
		}
	}
	return nil
}

// samples writes what an administrator replaces, and the configuration. In an existing folder it writes only what the
// flags name: a policy would be in force beside those of the administrator.
func (w folderWriter) samples(o InitOptions) error {
	sample := o.Upstream == ""
	existing, err := w.existing()
	if err != nil {
		return err
	}
	if existing {
		serves, err := w.servesConfigs()
		if err != nil && len(o.Pools) > 0 {
			return err
		}
		return w.pools(o, serves)
	}
	if len(o.Pools) == 0 {
		o.Pools = []string{"worker"}
	}
	if err := w.pools(o, sample); err != nil {
		return err
	}
	if err := w.write(defaultPolicy, 0o644, []byte(samplePolicy),
		"policy: an enrolled TPM for every pool"); err != nil {
		return err
	}
	return w.write(configFile, 0o644, configText(o), "configuration")
}

// existing reports whether an administrator or a verifier uses the folder. It has the configuration, which init writes
// last, or if that is elsewhere, records or manifests.
func (w folderWriter) existing() (bool, error) {
	if w.exists(configFile) || w.exists("state/records.db") {
		return true, nil
	}
	for _, dir := range []string{"policies", "machines", "attestations", "machineconfigs"} {
		files, err := fs.Glob(os.DirFS(w.dir), dir+"/[^.]*")
		if err != nil {
			return false, err
		}
		files = slices.DeleteFunc(files, func(f string) bool { return strings.HasSuffix(f, defaultPolicy) })
		if len(files) > 0 {
			return true, nil
		}
	}
	return false, nil
}

// pools writes the files of each pool. sample is true if the verifier serves the files in configs/.
func (w folderWriter) pools(o InitOptions, sample bool) error {
	ca, err := os.ReadFile(filepath.Join(w.dir, "tls", "ca.crt"))
	if err != nil {
		return fmt.Errorf("read CA: %w", err)
	}
	for _, pool := range o.Pools {
		config, err := pointer.New(o.Origins[0], pool, ca)
		if err != nil {
			return err
		}
		if err := w.write("pointers/"+pool+".ign", 0o644, config, "pointer config: the machines' user-data"); err != nil {
			return err
		}
		if sample {
			if err := w.write("configs/"+pool+".ign", 0o600, []byte(sampleConfig),
				"full config of pool "+pool+": replace this sample"); err != nil {
				return err
			}
		}
	}
	return nil
}

// servesConfigs reports whether the files in configs/ are the only configs that the verifier serves. If the
// configuration is elsewhere, it returns false.
func (w folderWriter) servesConfigs() (bool, error) {
	c, err := config.Load(filepath.Join(w.dir, configFile))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	rendered, err := fs.Glob(os.DirFS(c.Data), "machineconfigs/*")
	return c.Upstream == "" && len(rendered) == 0, err
}

func configText(o InitOptions) []byte {
	text := "# mcs-attest-verifier; every field is described in docs/operating.md\norigins:\n"
	for _, origin := range o.Origins {
		text += fmt.Sprintf("  - %q\n", origin)
	}
	for _, f := range []struct{ name, value string }{
		{"listen", o.Listen}, {"healthListen", o.HealthListen}, {"metricsListen", o.MetricsListen}, {"upstream", o.Upstream},
	} {
		if f.value != "" {
			text += fmt.Sprintf("%s: %q\n", f.name, f.value)
		}
	}
	return []byte(text)
}

const samplePolicy = `apiVersion: mcs-attest.dev/v1alpha1
kind: AttestationPolicy
metadata:
  name: default
spec:
  # "*": every pool that no other policy names.
  pools: ["*"]
  # "Off" (with the quotes), Audit or Enforce.
  mode: Enforce
  evidence:
    - all: [tpm2]
  tpm2:
    # enrolled: an administrator named the EK ("mcs-attest-verifier enroll").
    # Add manufacturer to have genuine TPMs wait for approval instead; it needs
    # the manufacturer's roots in ek-roots/.
    endorsements: [enrolled]
    # identity-only, secure-boot, release or strict.
    profile: identity-only
`

const sampleConfig = `{
  "ignition": {"version": "3.2.0"},
  "storage": {"files": [{
    "path": "/etc/mcs-attest-sample",
    "mode": 420,
    "contents": {"source": "data:,replace%20configs%2FPOOL.ign%0A"}
  }]}
}
`
