package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/verifier/internal/cli"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
)

// THREATS T46, for what the gate puts into a config: neither a machine's own
// credential nor the one that all share is anywhere but in the answer. Of a bootstrap
// token, the API server has it in its Secret, too.
func TestAttack_T46_CredentialsAreInNoLogMetricEventRecordOrBundle(t *testing.T) {
	j := newJoining(t)
	j.install("credential-kubernetes")
	var secrets []string
	var text strings.Builder
	for name, section := range map[string]string{"token": "{}", "bootstrap": "{kind: BootstrapToken}"} {
		p := j.serve(0, "credential: "+section+"\n")
		uid, own := j.fetched(t, p, name)
		if own == j.shared {
			t.Fatalf("%s: the config has the shared credential", name)
		}
		secrets = append(secrets, own, own[strings.LastIndexByte(own, '.')+1:])
		j.hasEvents(uid, "Attested", "Fetched")
		if rec := j.record(uid); len(rec.Status.Credentials) != 1 {
			t.Errorf("%s: the record has %d credentials", name, len(rec.Status.Credentials))
		}
		metrics := newResponse()
		p.server.Metrics.Handler().ServeHTTP(metrics, mustRequest(t, "/metrics"))
		if !strings.Contains(metrics.body.String(), "mcs_attest_configs_served_total") {
			t.Error("the metrics are missing: nothing was searched")
		}
		p.stop() // the next replica makes credentials of another kind
		text.WriteString(p.log.everything() + metrics.body.String())
	}
	for uid, rec := range j.records() {
		fmt.Fprintf(&text, "%s %+v\n", uid, rec)
	}
	events, err := j.client.Resource(eventsResource).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(&text, events.Items)

	t.Setenv("KUBECONFIG", j.cluster.Kubeconfig("admin"))
	dir := filepath.Join(t.TempDir(), "bundle")
	if code := cli.Run(t.Context(), &env.Env{Name: "kubectl attest", Plugin: true}, []string{"support-bundle", "--output", dir + "/"}); code != 0 {
		t.Fatalf("support-bundle: exit status %d", code)
	}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		raw, err := os.ReadFile(path)
		fmt.Fprintf(&text, "%s\n%s\n", path, raw)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}

	everything := text.String()
	for _, want := range []string{"JTI=", "system:bootstrap:", "mcs-attest-bootstrap-", "contents.txt"} {
		if !strings.Contains(everything, want) {
			t.Errorf("%s is not there: nothing was searched", want)
		}
	}
	for _, secret := range append(secrets, j.shared, j.shared[strings.LastIndexByte(j.shared, '.')+1:]) {
		if i := strings.Index(everything, secret); i >= 0 {
			t.Errorf("%d characters of a credential stand after %q", len(secret), everything[max(0, i-200):i])
		}
	}
}
