// SPDX-License-Identifier: Apache-2.0

package pointer

import (
	"encoding/base64"
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/mcs-attest/mcs-attest/pkg/jsonspan"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
)

// The kubelet reads its first client certificate from NodeCurrent. It replaces that link when it
// renews the certificate, and cannot replace a file (client-go, util/certificate). So the pair is in
// a file beside it.
const (
	NodePair    = "/var/lib/kubelet/pki/kubelet-client-mcs-attest.pem"
	NodeCurrent = "/var/lib/kubelet/pki/kubelet-client-current.pem"
)

// ErrNoStorage means that a pointer config cannot carry files of its own.
var ErrNoStorage = errors.New("the pointer config cannot carry the node's certificate")

// Carries returns nil if [Config.AddNodePair] can add to the config: the config is not replaced by
// another one, and has nothing at the two paths.
func (c *Config) Carries() error {
	if c.parsed.Ignition.Config.Replace.Source != nil {
		return fmt.Errorf("%w: ignition.config.replace drops its other parts", ErrNoStorage)
	}
	s := c.parsed.Storage
	var taken []string
	for _, f := range s.Files {
		taken = append(taken, f.Path)
	}
	for _, l := range s.Links {
		taken = append(taken, l.Path)
	}
	for _, d := range s.Directories {
		taken = append(taken, d.Path)
	}
	for _, p := range taken {
		if p = path.Clean(p); p == NodePair || p == NodeCurrent {
			return fmt.Errorf("%w: it has %s", ErrNoStorage, p)
		}
	}
	return nil
}

// AddNodePair returns the config with a certificate and its key, in PEM, where the kubelet reads them.
func (c *Config) AddNodePair(pair secret.Bytes) ([]byte, error) {
	if err := c.Carries(); err != nil {
		return nil, err
	}
	if pair.Empty() {
		return nil, fmt.Errorf("%w: it is empty", ErrNoStorage)
	}
	url := "data:;base64," + base64.StdEncoding.EncodeToString(pair.Expose())
	file := `{"path":` + quote(NodePair) + `,"mode":384,"overwrite":true,"contents":{"source":` + quote(url) + `}}`
	link := `{"path":` + quote(NodeCurrent) + `,"overwrite":true,"hard":false,"target":` + quote(NodePair) + `}`
	storage, ok, err := c.doc.get("storage")
	if err != nil {
		return nil, err
	}
	var edits []edit
	if !ok || storage.None() {
		edits = []edit{c.doc.set("storage", storage, ok, `{"files":[`+file+`],"links":[`+link+`]}`)}
	} else {
		// Two insertions into one empty object would need a comma between them.
		members := []string{}
		for _, m := range []struct{ name, entry string }{{"files", file}, {"links", link}} {
			list, ok, err := storage.get(m.name)
			if err != nil {
				return nil, err
			}
			if !ok {
				members = append(members, quote(m.name)+":["+m.entry+"]")
				continue
			}
			all := []string{}
			for _, e := range list.elements() {
				all = append(all, string(e.Raw()))
			}
			edits = append(edits, list.with("["+strings.Join(append(all, m.entry), ",")+"]"))
		}
		if len(members) > 0 {
			edits = append(edits, storage.append(strings.Join(members, ",")))
		}
	}
	out := jsonspan.Apply(c.doc.Text, edits)
	if err := c.checkNodePair(out); err != nil {
		return nil, err
	}
	return out, nil
}

// checkNodePair parses the result with Ignition's own package, so that an error in this package's
// parser cannot go unnoticed.
func (c *Config) checkNodePair(out []byte) error {
	again, err := Parse(out)
	if err != nil {
		return fmt.Errorf("the changed pointer config: %w", err)
	}
	was, is := c.parsed.Storage, again.parsed.Storage
	if len(is.Files) != len(was.Files)+1 || len(is.Links) != len(was.Links)+1 ||
		is.Files[len(is.Files)-1].Path != NodePair || is.Links[len(is.Links)-1].Path != NodeCurrent {
		return errors.New("the changed pointer config: Ignition does not read the node's certificate as it was written")
	}
	return nil
}
