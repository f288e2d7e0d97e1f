// SPDX-License-Identifier: Apache-2.0

package standalone

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/pki"
	"github.com/mcs-attest/mcs-attest/pkg/policy"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/folder"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
)

// expiresSoon is how long before its end a certificate is a problem.
const expiresSoon = 30 * 24 * time.Hour

// problems returns what is wrong with certificates and keys that can be used.
func problems(c *config.Config, now time.Time) []string {
	return slices.Concat(certificateProblems(c, now), keyProblems(c))
}

// certificateProblems reports a serving certificate that has expired or soon will.
func certificateProblems(c *config.Config, now time.Time) []string {
	var pair [][]byte
	for _, name := range []string{"tls.crt", "tls.key"} {
		raw, err := os.ReadFile(c.Path("tls", name))
		if err != nil {
			return nil // the reader of the certificate reports it
		}
		pair = append(pair, raw)
	}
	serving, err := pki.ParseServing(pair)
	if err != nil || serving.Leaf == nil {
		return nil
	}
	end := serving.Leaf.NotAfter
	at := end.UTC().Format(time.DateOnly)
	const remedy = "'mcs-attest-verifier certs status' shows the next step"
	switch {
	case now.After(end):
		return []string{"CertificateExpired: the serving certificate expired on " + at + ", and machines reject it; " +
			remedy}
	case now.Add(expiresSoon).After(end):
		return []string{"CertificateExpiresSoon: the serving certificate expires on " + at + "; " + remedy}
	}
	return nil
}

// keyProblems reports private keys that any user of this host can read.
func keyProblems(c *config.Config) []string {
	var readable []string
	for _, pattern := range []string{"tls/*.key", "keys/*"} {
		found, _ := fs.Glob(os.DirFS(c.Data), pattern) // the patterns are valid
		for _, name := range found {
			file := c.Path(name)
			if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o004 != 0 &&
				reachable(c.Data, file) {
				readable = append(readable, file)
			}
		}
	}
	if len(readable) == 0 {
		return nil
	}
	return []string{"KeyReadable: every user of this host can read " + strings.Join(readable, ", ") +
		": run 'chmod o-rwx' on it, and replace the keys if anyone did"}
}

// reachable reports whether others may enter each folder from the data folder to a file.
func reachable(data, file string) bool {
	for dir := filepath.Dir(file); ; dir = filepath.Dir(dir) {
		if info, err := os.Stat(dir); err == nil && info.Mode().Perm()&0o001 == 0 {
			return false
		}
		if dir == data || dir == filepath.Dir(dir) {
			return true
		}
	}
}

// configProblems reports pools whose machines attest, and that have no config to serve. Rendered are the pools
// that have a config made of MachineConfigs.
func configProblems(c *config.Config, s *folder.Snapshot, rendered []string) []string {
	if c.Upstream != "" {
		return nil
	}
	pools := slices.Clone(s.Policies.Pools())
	for _, m := range s.Machines.Machines() {
		pools = append(pools, m.Pools...)
	}
	slices.Sort(pools)
	var all []string
	for _, pool := range slices.Compact(pools) {
		if pool == "*" || slices.Contains(rendered, pool) {
			continue
		}
		if _, err := os.Stat(c.Path("configs", pool+".ign")); errors.Is(err, fs.ErrNotExist) {
			all = append(all, fmt.Sprintf("ConfigMissing: pool %s has no config, so its machines attest and then wait: "+
				"write configs/%s.ign, or set upstream", pool, pool))
		}
	}
	return all
}

// agentProblems reports pools whose pre-approved config should carry the agent, and does not.
func agentProblems(c *config.Config, policies *policy.Set) []string {
	text := policies.WithoutAgents()
	if c.Agents != nil || text == "" {
		return nil
	}
	return []string{"AgentsMissing: " + text + ": add agents to the configuration"}
}

// newRecords describes a database that was created although machines are enrolled; "" otherwise.
func newRecords(created bool, s *folder.Snapshot) string {
	if !created || len(s.Enrollments) == 0 {
		return ""
	}
	return fmt.Sprintf("RecordsNew: the record database was created at this start, and %d enrollments exist: every "+
		"enrolled "+
		"machine may attest again. If records were lost, stop the verifier and restore a backup", len(s.Enrollments))
}

// problems are those of the folder and of the database.
func (b *Backend) problems() []string {
	c := b.parts.Config
	snapshot := b.Keeper.Snapshot()
	all := slices.Concat(problems(c, b.parts.Now()), configProblems(c, snapshot, b.rendered.Pools()),
		agentProblems(c, snapshot.Policies))
	if b.created != "" {
		all = append(all, b.created)
	}
	return all
}

// reportProblems logs each problem once.
func (b *Backend) reportProblems() {
	all := b.problems()
	for _, text := range all {
		if !slices.Contains(b.reported, text) {
			b.parts.Log.Error("the folder needs attention", "problem", text)
		}
	}
	b.reported = all
}

// initHint is for a folder that is not complete.
const initHint = "run 'mcs-attest-verifier init DIR --origin ORIGIN' " +
	"with this folder and an origin of its configuration"

// pointerHint is for a folder whose pointer configs have the CA of certificates that are lost.
const pointerHint = "run 'mcs-attest-verifier certs pointer --force pointers/*.ign', " +
	"and give pointers/*.ign to every machine"

// permissionHint is for a file that another user owns.
const permissionHint = "give the file to the user that the verifier runs as, with chown"

// certificateHint adds what to do about a serving certificate that cannot be used.
func certificateHint(c *config.Config, err error) error {
	exists := func(name string) bool {
		_, err := os.Lstat(c.Path("tls", name))
		return err == nil
	}
	if !slices.ContainsFunc([]string{"ca.crt", "ca.key", "tls.crt", "tls.key"}, exists) {
		return hint.New(err, initHint+"; if pointers/ has files from before, also "+pointerHint)
	}
	if errors.Is(err, fs.ErrPermission) {
		return hint.New(err, permissionHint)
	}
	return hint.New(err, "restore tls/tls.crt and tls/tls.key; if only tls/tls.key is lost and tls/ca.key exists, run "+
		"'mcs-attest-verifier certs rotate --due'; otherwise move the folder tls/ away, run 'mcs-attest-verifier certs "+
		"init', and "+pointerHint)
}

// keyHint adds what to do about keys that cannot be used.
func keyHint(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return hint.New(err, initHint)
	}
	if errors.Is(err, fs.ErrPermission) {
		return hint.New(err, permissionHint)
	}
	return hint.New(err, "restore the file; or remove it and run 'mcs-attest-verifier init' again: tokens, "+
		"challenges and "+
		"report tickets that were made with the former key are void then")
}
