// SPDX-License-Identifier: Apache-2.0

package pointer_test

import (
	"errors"
	"testing"

	"github.com/coreos/ignition/v2/config/v3_6"

	"github.com/mcs-attest/mcs-attest/pkg/pointer"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
)

func withStorage(storage string) string {
	return `{"ignition":{"version":"3.4.0","config":{"merge":[{"source":"https://api:22623/config/worker"}]}}` +
		storage + `}`
}

func TestAddNodePair(t *testing.T) {
	pair := secret.New([]byte("certificate and key"))
	for name, storage := range map[string]string{
		"no storage":        ``,
		"a null":            `,"storage":null`,
		"an empty storage":  `,"storage":{}`,
		"empty lists":       `,"storage":{"files":[],"links":[]}`,
		"null lists":        `,"storage":{"files":null,"links":null}`,
		"files":             `,"storage":{"files":[{"path":"/etc/motd","contents":{"source":"data:,hello"}}]}`,
		"links":             `, "storage" : { "links" : [ {"path":"/etc/a","target":"b"} ] }`,
		"files, disks":      `,"storage":{"files":[{"path":"/etc/a"}],"directories":[{"path":"/etc/b"}]},"systemd":{}`,
		"only directories ": `,"storage":{"directories":[{"path":"/var/lib/kubelet"}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			c, err := pointer.Parse([]byte(withStorage(storage)))
			if err != nil {
				t.Fatal(err)
			}
			before, _, err := v3_6.ParseCompatibleVersion([]byte(withStorage(storage)))
			if err != nil {
				t.Fatal(err)
			}
			out, err := c.AddNodePair(pair)
			if err != nil {
				t.Fatal(err)
			}
			after, _, err := v3_6.ParseCompatibleVersion(out)
			if err != nil {
				t.Fatalf("%v in %s", err, out)
			}
			file := after.Storage.Files[len(before.Storage.Files)]
			link := after.Storage.Links[len(before.Storage.Links)]
			if *file.Mode != 0o600 || file.Path != pointer.NodePair || !*file.Overwrite ||
				*file.Contents.Source != "data:;base64,Y2VydGlmaWNhdGUgYW5kIGtleQ==" {
				t.Errorf("%s", out)
			}
			if link.Path != pointer.NodeCurrent || *link.Target != pointer.NodePair || !*link.Overwrite || *link.Hard {
				t.Errorf("%s", out)
			}
			if len(after.Storage.Files) != len(before.Storage.Files)+1 ||
				len(after.Storage.Links) != len(before.Storage.Links)+1 ||
				len(after.Storage.Directories) != len(before.Storage.Directories) {
				t.Errorf("something else changed: %s", out)
			}
		})
	}
}

func TestAddNodePair_RejectsAConfigThatCannotCarryIt(t *testing.T) {
	for name, raw := range map[string]string{
		"replaced": `{"ignition":{"version":"3.4.0","config":{"replace":{"source":"https://api:22623/config/worker"}}}}`,
		"a file":   withStorage(`,"storage":{"files":[{"path":"` + pointer.NodePair + `"}]}`),
		"a link":   withStorage(`,"storage":{"links":[{"path":"` + pointer.NodeCurrent + `","target":"/x"}]}`),
		"a folder": withStorage(`,"storage":{"directories":[{"path":"` + pointer.NodeCurrent + `"}]}`),
	} {
		c, err := pointer.Parse([]byte(raw))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := c.Carries(); !errors.Is(err, pointer.ErrNoStorage) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := c.AddNodePair(secret.New([]byte("x"))); !errors.Is(err, pointer.ErrNoStorage) {
			t.Errorf("%s: %v", name, err)
		}
	}
	c, err := pointer.Parse([]byte(withStorage("")))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.AddNodePair(secret.Bytes{}); err == nil {
		t.Error("an empty pair was added")
	}
}
