// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"

	"github.com/mcs-attest/mcs-attest/testvm/freeport"
)

// startEtcd tries another port if the first one is already in use.
func (c *Cluster) startEtcd() error {
	etcd, err := lookPath("etcd")
	if err != nil {
		return err
	}
	for try := 1; ; try++ {
		peer, err := freeport.Pick()
		if err != nil {
			return err
		}
		if c.etcdPort, err = freeport.Pick(); err != nil {
			return err
		}
		client, peers := fmt.Sprintf("http://127.0.0.1:%d", c.etcdPort), fmt.Sprintf("http://127.0.0.1:%d", peer)
		c.etcd, err = start("etcd", c.path("etcd.log"), c.dir, etcd,
			"--name", "one", "--data-dir", c.path("etcd"), "--unsafe-no-fsync",
			"--listen-client-urls", client, "--advertise-client-urls", client,
			"--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", "one="+peers,
			// 100 000 Machines with their records need more than the default of 2 GiB.
			"--quota-backend-bytes", "8589934592", "--log-level", "warn")
		if err != nil {
			return err
		}
		err = c.etcd.ready(func() error { return get(http.DefaultClient, client+"/health") })
		if err == nil {
			return nil
		}
		c.etcd.kill()
		if try == 5 || !strings.Contains(err.Error(), "address already in use") {
			return err
		}
	}
}

// Snapshot saves the current content of etcd.
func (c *Cluster) Snapshot(path string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.etcdctl("--endpoints", fmt.Sprintf("http://127.0.0.1:%d", c.etcdPort), "snapshot", "save", path)
}

// Restore restores a snapshot, as an administrator does after a disaster: everything stops, the
// data is replaced, everything starts.
func (c *Cluster) Restore(path string) error {
	c.mu.Lock()
	c.api.kill()
	c.etcd.kill()
	err := os.RemoveAll(c.path("etcd"))
	if err == nil {
		err = c.etcdctl("snapshot", "restore", path, "--data-dir", c.path("etcd"), "--name", "one",
			"--initial-cluster", "one=http://127.0.0.1:1", "--initial-advertise-peer-urls", "http://127.0.0.1:1")
	}
	if err == nil {
		err = c.startEtcd()
	}
	c.mu.Unlock()
	if err != nil {
		return err
	}
	return c.StartAPIServer()
}

func (c *Cluster) etcdctl(args ...string) error {
	program, err := lookPath("etcdctl")
	if err != nil {
		return err
	}
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), "ETCDCTL_API=3")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("etcdctl %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}
