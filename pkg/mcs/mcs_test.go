// SPDX-License-Identifier: Apache-2.0

package mcs_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coreos/ignition/v2/config/v3_5"
	"github.com/coreos/ignition/v2/config/v3_5/types"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"github.com/vincent-petithory/dataurl"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/mcs-attest/mcs-attest/pkg/credential"
	"github.com/mcs-attest/mcs-attest/pkg/mcs"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/render"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	"github.com/mcs-attest/mcs-attest/pkg/specversion"
)

var update = flag.Bool("update", false, "update the golden files")

const ignition = `{"ignition":{"version":"3.5.0"},
 "passwd":{"users":[{"name":"core","sshAuthorizedKeys":["ssh-ed25519 AAAA"]}]},
 "storage":{"files":[
  {"path":"/etc/kubernetes/kubelet-ca.crt","contents":{"source":"data:;base64,b2xk","compression":""},"mode":420,"overwrite":true},
  {"path":"/etc/kubernetes/kubelet.conf","contents":{"source":"data:,kind%3A%20KubeletConfiguration"},"mode":420,"overwrite":true}]},
 "systemd":{"units":[{"name":"kubelet.service","enabled":true,"contents":"[Service]\nExecStart=/usr/bin/kubelet\n[Install]\nWantedBy=multi-user.target\n"}]}}`

// worker returns a pool's render with this Ignition config.
func worker(config string) *render.Rendered {
	return &render.Rendered{Pool: "worker", Config: &mcfgv1.MachineConfig{
		ObjectMeta: metav1.ObjectMeta{Name: "rendered-worker-0123456789abcdef0123456789abcdef"},
		Spec: mcfgv1.MachineConfigSpec{
			OSImageURL: "quay.example/os@sha256:1", BaseOSExtensionsContainerImage: "quay.example/ext@sha256:2",
			KernelArguments: []string{"systemd.unified_cgroup_hierarchy=1"}, Extensions: []string{}, KernelType: "default",
			Config: runtime.RawExtension{Raw: []byte(config)},
		},
	}}
}

func extras() mcs.Extras {
	return mcs.Extras{
		APIServer: "https://api-int.example:6443", CA: []byte("a CA\n"), Token: secret.New([]byte("shared-token")),
		KubeletCA: []byte("new kubelet CA\n"), CloudCA: []byte("cloud CA\n"),
	}
}

func version(major, minor int) specversion.Version {
	return specversion.Version{Major: major, Minor: minor}
}

var all = []specversion.Version{version(2, 2), version(3, 0), version(3, 1), version(3, 2), version(3, 3),
	version(3, 4), version(3, 5)}

func answer(t testing.TB, r *render.Rendered, x mcs.Extras, to specversion.Version) types.Config {
	t.Helper()
	raw, err := mcs.Config(r, x, to)
	if err != nil {
		t.Fatal(err)
	}
	c, report, err := v3_5.ParseCompatibleVersion(raw)
	if err != nil {
		t.Fatalf("%v: %s", err, report.String())
	}
	return c
}

// file returns the contents of a config's file, which must exist once.
func file(t testing.TB, c types.Config, path string) string {
	t.Helper()
	var found []types.File
	for _, f := range c.Storage.Files {
		if f.Path == path {
			found = append(found, f)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%s exists %d times", path, len(found))
	}
	d, err := dataurl.DecodeString(*found[0].Contents.Source)
	if err != nil {
		t.Fatal(err)
	}
	return string(d.Data)
}

func paths(c types.Config) (all []string) {
	for _, f := range c.Storage.Files {
		all = append(all, f.Path)
	}
	return all
}

func TestConfig_AddsInTheServersOrder(t *testing.T) {
	c := answer(t, worker(ignition), extras(), version(3, 5))
	want := []string{
		mcs.KubeletCAPath, "/etc/kubernetes/kubelet.conf", mcs.CloudCAPath, mcs.NodeAnnotationsPath, mcs.KubeconfigPath,
		mcs.ContentPath, mcs.EncapsulatedPath,
	}
	if got := paths(c); !slices.Equal(got, want) {
		t.Errorf("files\n%q, want\n%q", got, want)
	}
	for _, f := range c.Storage.Files {
		if *f.Mode != 0o644 || !*f.Overwrite {
			t.Errorf("%s: mode %o, overwrite %t", f.Path, *f.Mode, *f.Overwrite)
		}
	}
	if got := file(t, c, mcs.KubeletCAPath); got != "new kubelet CA\n" {
		t.Errorf("kubelet's CA: %q", got)
	}
	if got := file(t, c, mcs.CloudCAPath); got != "cloud CA\n" {
		t.Errorf("the cloud's CA: %q", got)
	}
	if len(c.Systemd.Units) != 1 || len(c.Passwd.Users) != 1 {
		t.Error("existing content was removed")
	}
}

func TestGolden(t *testing.T) {
	for _, v := range []specversion.Version{version(3, 5), version(3, 2), version(2, 2)} {
		raw, err := mcs.Config(worker(ignition), extras(), v)
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if err := json.Indent(&b, raw, "", "  "); err != nil {
			t.Fatal(err)
		}
		name := filepath.Join("testdata", "worker-"+v.String()+".golden.json")
		if *update {
			if err := os.WriteFile(name, append(b.Bytes(), '\n'), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(append(b.Bytes(), '\n'), want) {
			t.Errorf("%s: differs; -update shows how", name)
		}
	}
}

func TestConfig_HasTheServersKubeconfig(t *testing.T) {
	c := answer(t, worker(ignition), extras(), version(3, 5))
	var k map[string]any
	if err := yaml.UnmarshalStrict([]byte(file(t, c, mcs.KubeconfigPath)), &k); err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(k)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"clusters":[{"cluster":{"certificate-authority-data":"YSBDQQo=","server":"https://api-int.example:6443"},"name":"local"}],` +
		`"contexts":[{"context":{"cluster":"local","user":"kubelet"},"name":"kubelet"}],"current-context":"kubelet","preferences":{},` +
		`"users":[{"name":"kubelet","user":{"token":"shared-token"}}]}`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}

	x := extras()
	x.Kubeconfig = secret.New([]byte("the whole file"))
	if got := file(t, answer(t, worker(ignition), x, version(3, 5)), mcs.KubeconfigPath); got != "the whole file" {
		t.Errorf("the bootstrap host's file: %q", got)
	}
	x = extras()
	x.Token = secret.Bytes{}
	if slices.Contains(paths(answer(t, worker(ignition), x, version(3, 5))), mcs.KubeconfigPath) {
		t.Error("a kubeconfig without a credential")
	}
	x = extras()
	x.APIServer = ""
	if _, err := mcs.Config(worker(ignition), x, version(3, 5)); reason.From(err).Code != reason.ConfigUnavailable {
		t.Errorf("a token and no API server: %v", err)
	}
}

// A pre-approved config never gets a credential, regardless of the wiring.
func TestAttack_T55_APreApprovedConfigGetsNoCredential(t *testing.T) {
	r := worker(ignition)
	r.PreApproved = true
	x := extras()
	x.Kubeconfig = secret.New([]byte("users: [{user: {token: shared-token}}]"))
	for _, v := range all {
		raw, err := mcs.Config(r, x, v)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(raw, []byte("shared-token")) || bytes.Contains(raw, []byte(mcs.KubeconfigPath)) {
			t.Errorf("%s: it has the credential", v)
		}
		if !bytes.Contains(raw, []byte(mcs.EncapsulatedPath)) || !bytes.Contains(raw, []byte(mcs.NodeAnnotationsPath)) {
			t.Errorf("%s: what the node needs is missing", v)
		}
	}
}

func TestConfig_HasTheNodesAnnotations(t *testing.T) {
	const name = "rendered-worker-0123456789abcdef0123456789abcdef"
	c := answer(t, worker(ignition), extras(), version(3, 5))
	var got map[string]string
	if err := json.Unmarshal([]byte(file(t, c, mcs.NodeAnnotationsPath)), &got); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"currentConfig", "desiredConfig", "firstPivotConfig"} {
		if got["machineconfiguration.openshift.io/"+key] != name {
			t.Errorf("%s: %q", key, got["machineconfiguration.openshift.io/"+key])
		}
	}
	if got["machineconfiguration.openshift.io/state"] != "Done" || len(got) != 4 {
		t.Errorf("annotations %v", got)
	}
}

// contents returns the files of a config of any version, by path.
func contents(t *testing.T, raw []byte) map[string]string {
	t.Helper()
	var c struct {
		Storage struct {
			Files []struct {
				Path     string
				Contents struct{ Source string }
			}
		}
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, f := range c.Storage.Files {
		d, err := dataurl.DecodeString(f.Contents.Source)
		if err != nil {
			t.Fatal(err)
		}
		all[f.Path] = string(d.Data)
	}
	return all
}

func encapsulated(t *testing.T, r *render.Rendered, x mcs.Extras, to specversion.Version,
	path string) mcfgv1.MachineConfig {
	t.Helper()
	raw, err := mcs.Config(r, x, to)
	if err != nil {
		t.Fatal(err)
	}
	var mc mcfgv1.MachineConfig
	if err := json.Unmarshal([]byte(contents(t, raw)[path]), &mc); err != nil {
		t.Fatal(err)
	}
	return mc
}

// Below 3.3 Ignition does not set kernel arguments, so the machine-config-daemon must.
func TestKernelArgumentsMoveForOldClients(t *testing.T) {
	r := worker(strings.Replace(ignition, `"passwd"`, `"kernelArguments":{"shouldExist":["quiet","nosmt"]},"passwd"`, 1))
	for _, v := range all {
		want := []string{"systemd.unified_cgroup_hierarchy=1"}
		if v.Major < 3 || v.Minor < 3 {
			want = append(want, "quiet", "nosmt")
		}
		for _, path := range []string{mcs.EncapsulatedPath, mcs.ContentPath} {
			if got := encapsulated(t, r, extras(), v, path).Spec.KernelArguments; !slices.Equal(got, want) {
				t.Errorf("%s, %s: %q, want %q", v, path, got, want)
			}
		}
	}
	if got := r.Config.Spec.KernelArguments; len(got) != 1 {
		t.Errorf("the render was changed: %q", got)
	}
}

// The daemon of an old boot image parses this config, and accepts only versions that it knows.
func TestConfig_EncapsulatesTheRequestedVersion(t *testing.T) {
	for _, v := range all {
		got := string(encapsulated(t, worker(ignition), extras(), v, mcs.EncapsulatedPath).Spec.Config.Raw)
		if want := `{"ignition":{"version":"` + v.String() + `"}}`; got != want {
			t.Errorf("%s: the encapsulated config is %s, want %s", v, got, want)
		}
	}
}

func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		name, from, to string
		version        specversion.Version
		says           string
	}{
		{"a kernel argument that should not exist has no place in a MachineConfig", `"passwd"`,
			`"kernelArguments":{"shouldNotExist":["quiet"]},"passwd"`, version(3, 2), "kernelArguments.shouldNotExist"},
		{"LUKS is unknown below 3.2", `"storage":{`, `"storage":{"luks":[{"name":"data","device":"/dev/x"}],`, version(3, 1),
			"storage.luks"},
		{"a config that does not parse", `"storage":{`, `"storage":[`, version(3, 5), "rendered-worker-"},
		{"the version is unknown", ``, ``, version(3, 6), "the version is unknown"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := mcs.Config(worker(strings.Replace(ignition, c.from, c.to, 1)), extras(), c.version)
			if reason.From(err).Code != reason.ConfigUnavailable || !strings.Contains(err.Error(), c.says) ||
				!strings.Contains(err.Error(), "pool worker") {
				t.Errorf("%v, want it to say %q", err, c.says)
			}
			if err != nil && strings.Contains(err.Error(), "shared-token") {
				t.Error("the credential is in the error")
			}
		})
	}
	if _, err := mcs.Config(&render.Rendered{Pool: "worker"}, extras(), version(3, 5)); err == nil {
		t.Error("a render without a MachineConfig is taken")
	}
}

// Errors go to logs and Events.
func TestAttack_T45_ErrorsHaveNoContentsOfFiles(t *testing.T) {
	for _, source := range []string{
		"data:hunter2", "data:;base64,hunter2%", `data:,hunter2\u0001`, `https://hunter2:\u007f@x`, "://hunter2",
		"data:,%zzhunter2", "hunter2:x",
		"data:;hunter2,", "data:;base65hunter2,x", "arn:hunter2",
	} {
		for _, v := range all {
			_, err := mcs.Config(worker(strings.Replace(ignition, "data:,kind%3A%20KubeletConfiguration", source, 1)),
				extras(), v)
			if err == nil {
				t.Errorf("%s: %s is taken", v, source)
			} else if strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "\n") ||
				!strings.Contains(err.Error(), "$.storage.files.1.contents.source") {
				t.Errorf("%s: %v", v, err)
			}
		}
	}
}

func FuzzConfig(f *testing.F) {
	f.Add([]byte(ignition))
	f.Add([]byte(`{"ignition":{"version":"3.0.0"}}`))
	f.Add([]byte(`{"ignition":{"version":"2.2.0"},"storage":{"files":[{"filesystem":"root","path":"/a"}]}}`))
	f.Add([]byte(`{"ignition":{"version":"3.5.0"},"storage":{"files":[{"path":"/etc/kubernetes/kubeconfig"}],"links":[{"path":"/etc","target":"x"}]}}`))
	f.Fuzz(func(t *testing.T, config []byte) {
		for _, v := range all {
			raw, err := mcs.Config(worker(string(config)), extras(), v)
			if err != nil {
				continue
			}
			if got, err := specversion.Of(raw); err != nil || got != v {
				t.Fatalf("%s: it is of %s, %v", v, got, err)
			}
			// The copy in the MachineConfig is indented, and each of its bytes may become three.
			if len(raw) > 64*len(config)+64<<10 {
				t.Fatalf("%s: %d bytes of %d", v, len(raw), len(config))
			}
		}
	})
}

// A render of an older machine-config-controller is accepted.
func TestCache_AnswersInAnOlderVersion(t *testing.T) {
	for _, written := range []string{"3.0.0", "3.2.0", "3.4.0"} {
		r := worker(strings.Replace(ignition, "3.5.0", written, 1))
		for _, v := range all {
			old, err := mcs.Config(r, extras(), v)
			if err != nil {
				t.Fatalf("written in %s: %v", written, err)
			}
			if got, err := specversion.Of(old); err != nil || got != v {
				t.Errorf("written in %s: served as %s, %v", written, got, err)
			}
		}
	}
	if _, err := mcs.Config(worker(strings.Replace(ignition, "3.5.0", "3.7.0-experimental", 1)), extras(),
		version(3, 5)); err == nil {
		t.Error("an experimental one is served")
	}
}

func TestConfig_KeepsItsOwnCAsWithoutNewOnes(t *testing.T) {
	x := extras()
	x.KubeletCA, x.CloudCA = nil, nil
	c := answer(t, worker(ignition), x, version(3, 5))
	if got := file(t, c, mcs.KubeletCAPath); got != "old" {
		t.Errorf("kubelet's CA: %q", got)
	}
	if slices.Contains(paths(c), mcs.CloudCAPath) {
		t.Error("an empty file was added")
	}
	c = answer(t, worker(strings.Replace(ignition, mcs.KubeletCAPath, "/etc/other", 1)), extras(), version(3, 5))
	if got := file(t, c, mcs.KubeletCAPath); got != "new kubelet CA\n" {
		t.Errorf("kubelet's CA, added: %q", got)
	}
}

// Two entries for one path would lead to the node's emergency shell.
func TestConfig_ReplacesAMachineConfigsFile(t *testing.T) {
	for _, path := range []string{mcs.KubeconfigPath, mcs.NodeAnnotationsPath, mcs.ContentPath, mcs.EncapsulatedPath} {
		r := worker(strings.Replace(ignition, "/etc/kubernetes/kubelet.conf", path, 1))
		for _, v := range all {
			if _, err := mcs.Config(r, extras(), v); err != nil {
				t.Errorf("%s, %s: %v", path, v, err)
			}
		}
		if got := file(t, answer(t, r, extras(), version(3, 5)), path); strings.HasPrefix(got, "kind: Kubelet") {
			t.Errorf("%s: it is the MachineConfig's", path)
		}
		// A credential that an administrator allowed in the pre-approved part stays in it.
		r.PreApproved = true
		if got := file(t, answer(t, r, extras(), version(3, 5)), path); (path == mcs.KubeconfigPath) != strings.HasPrefix(got,
			"kind: Kubelet") {
			t.Errorf("%s, pre-approved: %.60s", path, got)
		}
	}
}

// The gate replaces the token in one file, so there must not be a second one.
func TestAttack_T45_TheSharedCredentialIsInOneFile(t *testing.T) {
	r := worker(strings.Replace(strings.Replace(ignition, "/etc/kubernetes/kubelet.conf", mcs.KubeconfigPath, 1),
		"kind%3A%20KubeletConfiguration", "token%3A%20brought-along", 1))
	for _, x := range []mcs.Extras{extras(), {}} {
		for _, pre := range []bool{false, true} {
			r.PreApproved = pre
			c := answer(t, r, x, version(3, 5))
			for _, f := range c.Storage.Files {
				d, err := dataurl.DecodeString(*f.Contents.Source)
				if err != nil {
					t.Fatal(err)
				}
				for _, secret := range []string{"brought-along", "shared-token"} {
					if f.Path != mcs.KubeconfigPath && bytes.Contains(d.Data, []byte(secret)) {
						t.Errorf("%s is in %s", secret, f.Path)
					}
				}
			}
		}
	}
}

// The gate finds the place of a machine's own credential in the response.
func TestFind_FindsTheKubeconfigInEveryVersion(t *testing.T) {
	for _, v := range all {
		raw, err := mcs.Config(worker(ignition), extras(), v)
		if err != nil {
			t.Fatal(err)
		}
		slot, err := credential.Find(raw)
		if err != nil || slot == nil {
			t.Errorf("%s: %v, %v", v, slot, err)
			continue
		}
		parts, err := slot.With(raw, secret.New([]byte("its-own-token")))
		if err != nil {
			t.Fatal(err)
		}
		got, want := contents(t, bytes.Join(parts, nil)), contents(t, raw)
		if !strings.Contains(want[mcs.KubeconfigPath], "shared-token") {
			t.Fatalf("%s: the kubeconfig is %q", v, want[mcs.KubeconfigPath])
		}
		want[mcs.KubeconfigPath] = strings.Replace(want[mcs.KubeconfigPath], "shared-token", `"its-own-token"`, 1)
		if !maps.Equal(got, want) {
			t.Errorf("%s: more than the token changed; the kubeconfig is %q", v, got[mcs.KubeconfigPath])
		}
	}
}

// The Ignition of Debian 12, a release that OpenShift's boot images had, supports up to 3.3.
func TestFrom35_OldIgnitionAcceptsTheResult(t *testing.T) {
	for _, v := range []specversion.Version{version(3, 0), version(3, 1), version(3, 2), version(3, 3)} {
		raw, err := mcs.Config(worker(ignition), extras(), v)
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("ignition-validate", "-")
		cmd.Stdin = bytes.NewReader(raw)
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatalf("%v: the package ignition has it", err)
		}
		if err != nil || len(bytes.TrimSpace(out)) > 0 {
			t.Errorf("%s: %v: %s", v, err, out)
		}
	}
}
