// SPDX-License-Identifier: Apache-2.0

package command_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/agent/internal/command"
	"github.com/mcs-attest/mcs-attest/pkg/pointer"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
)

const (
	scrubOrigin = "https://api-int.example.com:22623"
	scrubToken  = "eyJhbGciOiJFUzI1NiJ9.e30.c2lnbmF0dXJl"
)

func pointerWith(entries string) string {
	return `{"ignition":{"version":"3.4.0","config":{"merge":[` + entries + `]}}}`
}

func dataSource(config string) string {
	return `{"source":"data:;base64,` + base64.StdEncoding.EncodeToString([]byte(config)) + `"}`
}

var base64Source = regexp.MustCompile(`data:;base64,([A-Za-z0-9+/=]+)`)

// unpacked returns a config, followed by each config in its data sources.
func unpacked(config []byte) []byte {
	out := bytes.Clone(config)
	for _, match := range base64Source.FindAllSubmatch(config, -1) {
		if inner, err := base64.StdEncoding.DecodeString(string(match[1])); err == nil {
			out = append(append(out, '\n'), unpacked(inner)...)
		}
	}
	return out
}

// scrub runs the command on a delivered pointer config and on Ignition's cache.
func scrub(t *testing.T, delivered, cached []byte) (status int, stdout, stderr string, after []byte) {
	t.Helper()
	dir := t.TempDir()
	cache := filepath.Join(dir, "ignition.json")
	user := filepath.Join(dir, "mcs-attest", "ignition", "user.ign")
	t.Setenv("MCS_ATTEST_RUN", filepath.Join(dir, "mcs-attest"))
	t.Setenv("MCS_ATTEST_IGNITION_JSON", cache)
	t.Setenv("MCS_ATTEST_TPM", filepath.Join(dir, "no-tpm"))
	for file, content := range map[string][]byte{user: delivered, cache: cached} {
		if content == nil {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var out, errs bytes.Buffer
	status = command.Main(context.Background(), []string{"scrub"}, &out, &errs)
	after, err := os.ReadFile(cache)
	if err != nil {
		t.Fatal(err)
	}
	// A failed scrub keeps the copy, so that the next run can search for its token.
	_, err = os.Stat(user)
	if kept := err == nil; kept != (status != 0 && delivered != nil) {
		t.Errorf("exit status %d, the agent's own copy: %v", status, err)
	}
	return status, out.String(), errs.String(), after
}

// The agent adds the token to configs in data sources, so the scrub must remove it there.
func TestAttack_T64_TokenInANestedConfigDoesNotSurviveTheScrub(t *testing.T) {
	const mcs = `{"source":"` + scrubOrigin + `/config/worker"}`
	for name, raw := range map[string]string{
		"no nested config": pointerWith(mcs),
		"one level":        pointerWith(dataSource(pointerWith(mcs))),
		"two levels":       pointerWith(dataSource(pointerWith(dataSource(pointerWith(mcs))))),
		"both levels":      pointerWith(mcs + "," + dataSource(pointerWith(mcs))),
		"a replace":        `{"ignition":{"version":"3.4.0","config":{"replace":` + dataSource(pointerWith(mcs)) + `}}}`,
		"beside another config": pointerWith(dataSource(`{"ignition":{"version":"3.4.0"}}`) + "," +
			dataSource(pointerWith(mcs))),
	} {
		t.Run(name, func(t *testing.T) {
			config, err := pointer.Parse([]byte(raw))
			if err != nil {
				t.Fatal(err)
			}
			delivered, err := config.AddBearer(scrubOrigin, "worker", secret.New([]byte(scrubToken)))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Contains(unpacked(delivered), []byte(scrubToken)) {
				t.Fatal("the test does not find the token where the agent put it")
			}
			// Ignition caches the sources of the outer config together with those of the inner
			// ones.
			status, out, errs, after := scrub(t, delivered, delivered)
			if status != 0 || errs != "" || !strings.Contains(out, "removed the token") {
				t.Errorf("exit status %d\n%s%s", status, out, errs)
			}
			if bytes.Contains(unpacked(after), []byte(scrubToken)) {
				t.Errorf("the token is still in\n%s", unpacked(after))
			}
		})
	}
}

// A token in a place that the scrub does not edit stops the boot and is never reported as removed.
func TestAttack_T64_TokenThatCannotBeRemovedIsReported(t *testing.T) {
	delivered := []byte(pointerWith(`{"source":"` + scrubOrigin +
		`/config/worker","httpHeaders":[{"name":"Authorization","value":"Bearer ` + scrubToken + `"}]}`))
	file := func(contents string) string {
		return `{"ignition":{"version":"3.4.0"},"storage":{"files":[{"path":"/a","contents":` + contents + `}]}}`
	}
	escaped := strings.Replace(scrubToken, "e", `\u0065`, 1)
	for name, cached := range map[string]string{
		"in a file":                  file(dataSource("x " + scrubToken)),
		"in a file, percent-encoded": file(`{"source":"data:,x%20` + strings.Replace(scrubToken, "e", "%65", 1) + `"}`),
		"in a file, escaped in JSON": file(`{"source":"data:,` + escaped + `"}`),
		"in a key":                   `{"ignition":{"version":"3.4.0"},"` + scrubToken + `":1}`,
		"in another header": pointerWith(`{"source":"https://a/config/b","httpHeaders":[{"name":"X","value":"` +
			scrubToken + `"}]}`),
		"in a config of a data source": pointerWith(dataSource(file(dataSource(scrubToken)))),
		"beside a header": strings.Replace(string(delivered), `"ignition"`,
			fmt.Sprintf(`"x":%q,"ignition"`, scrubToken), 1),
	} {
		t.Run(name, func(t *testing.T) {
			status, out, errs, _ := scrub(t, delivered, []byte(cached))
			if status == 0 || !strings.Contains(errs, "the token is still in it") || strings.Contains(out, "removed") {
				t.Errorf("exit status %d\n%s%s", status, out, errs)
			}
			if strings.Contains(out+errs, scrubToken) {
				t.Error("the message holds the token")
			}
			// The second run, for example before an emergency shell, reports it as well.
			var again, errsAgain bytes.Buffer
			if status := command.Main(context.Background(), []string{"scrub"}, &again, &errsAgain); status == 0 {
				t.Errorf("a second run succeeds\n%s%s", &again, &errsAgain)
			}
		})
	}
}

// The same for a token from the user data, of which the agent has no copy.
func TestAttack_T64_TokenOfTheUserDataThatCannotBeRemovedIsReported(t *testing.T) {
	const shared = "AAAA-bbb_CCCC-ddd_EEEE-fff_GGGG-hhh_IIII-jjj"
	source := scrubOrigin + "/config/worker"
	for name, entry := range map[string]string{
		"in a header": `{"source":"` + source + `","httpHeaders":[{"name":"Authorization","value":"Bearer ` +
			shared + `"}]}`,
		"in the URL":         `{"source":"` + source + `?token=` + shared + `"}`,
		"in a nested config": dataSource(pointerWith(`{"source":"` + source + `?token=` + shared + `"}`)),
	} {
		t.Run(name, func(t *testing.T) {
			clean := pointerWith(entry)
			if status, out, errs, after := scrub(t, nil, []byte(clean)); status != 0 ||
				bytes.Contains(unpacked(after), []byte(shared)) {
				t.Errorf("exit status %d\n%s%s%s", status, out, errs, after)
			}
			unchanged := strings.Replace(clean, `"ignition"`, fmt.Sprintf(`"x":%q,"ignition"`, shared), 1)
			status, out, errs, _ := scrub(t, nil, []byte(unchanged))
			if status == 0 || !strings.Contains(errs, "the token is still in it") || strings.Contains(out, "removed") {
				t.Errorf("exit status %d\n%s%s", status, out, errs)
			}
			if status := command.Main(context.Background(), []string{"scrub"}, &bytes.Buffer{}, &bytes.Buffer{}); status == 0 {
				t.Error("a second run succeeds")
			}
		})
	}
}
