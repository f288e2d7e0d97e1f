package render_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/render"
)

// pullSecret is where 00-worker has one, as on every OpenShift.
const pullSecret = "/var/lib/kubelet/config.json"

func TestWhoIsInThePreApprovedPart(t *testing.T) {
	in := cluster(t)
	r := preApproved(t, "worker", in)
	c := valid(t, r)
	var paths []string
	for _, f := range c.Storage.Files {
		paths = append(paths, f.Path)
	}
	if want := []string{"/etc/containers/policy.json", "/etc/kubernetes/kubelet.conf", "/etc/kubernetes/cloud.conf", "/etc/containers/registries.conf"}; !slices.Equal(paths, want) {
		t.Errorf("files %v", paths)
	}
	if len(c.Systemd.Units) != 1 || c.Systemd.Units[0].Name != "kubelet.service" || len(c.Passwd.Users) != 0 {
		t.Errorf("units %v, users %v", c.Systemd.Units, c.Passwd.Users)
	}
	if whole := full(t, "worker", in); r.Config.Name != whole.Config.Name || !r.PreApproved || whole.PreApproved {
		t.Errorf("%s is not the name of the whole config, %s", r.Config.Name, whole.Config.Name)
	}
	if !r.Config.Spec.FIPS {
		t.Error("a node cannot turn FIPS mode on later, but it is left out")
	}
	if len(r.Config.Spec.KernelArguments) != 0 || len(r.Config.Spec.Extensions) != 0 {
		t.Error("a customer's kernel arguments or extensions are in it")
	}
}

func TestTheWorkersOwnConfigIsInWhereItsPullSecretIsAllowed(t *testing.T) {
	r := preApproved(t, "worker", cluster(t), pullSecret)
	c := valid(t, r)
	contentsOf(t, c, pullSecret)
	// The customer's version of the file is left out, the operator's is in.
	if got := contentsOf(t, c, "/etc/sysctl.d/arp.conf"); !strings.Contains(got, "2") {
		t.Errorf("/etc/sysctl.d/arp.conf is %s", got)
	}
}

func TestWhatPutsAMachineConfigInOrOut(t *testing.T) {
	const generated = "machineconfiguration.openshift.io/generated-by-controller-version: abc"
	const needs = `mcs-attest.dev/needed-before-node-approved: `
	spec := file("/etc/probe", "a setting")
	owned := func(apiVersion, kind string) string {
		return strings.Replace(customer("50-probe", "worker", spec, generated), "spec:",
			fmt.Sprintf("  ownerReferences:\n  - {apiVersion: %s, kind: %s, name: x, uid: u}\nspec:", apiVersion, kind), 1)
	}
	for _, tc := range []struct {
		name, config string
		in           bool
		why          string
	}{
		{"a customer's is out", customer("50-probe", "worker", spec), false, "no controller of the machine-config-operator generated it"},
		{"a customer's is in if its annotation says so", customer("50-probe", "worker", spec, needs+`"true"`), true, "annotation"},
		{"a customer's is in if its field says so", customer("50-probe", "worker", spec+"neededBeforeNodeApproved: true"), true, "spec.neededBeforeNodeApproved"},
		{"the annotation has more weight than the field", customer("50-probe", "worker", spec+"neededBeforeNodeApproved: true", needs+`"false"`), false, "annotation"},
		{"one that a ControllerConfig owns is in", owned("machineconfiguration.openshift.io/v1", "ControllerConfig"), true, "generated it"},
		{"one of a KubeletConfig, too", owned("machineconfiguration.openshift.io/v1", "KubeletConfig"), true, "generated it"},
		{"one of the cluster's Image configuration, too", owned("config.openshift.io/v1", "Image"), true, "generated it"},
		{"a copy without an owner is out", customer("50-probe", "worker", spec, generated), false, "none owns it"},
		{"one that something else owns is out", owned("apps/v1", "Deployment"), false, "none owns it"},
		{"a rendered one is out", owned("machineconfiguration.openshift.io/v1", "MachineConfigPool"), false, "none owns it"},
		{"a generated one that says no is out", strings.Replace(owned("config.openshift.io/v1", "Image"), generated, generated+"\n    "+needs+`"false"`, 1), false, "annotation"},
		{"a generated one with a secret is out", strings.Replace(owned("config.openshift.io/v1", "Image"), b64("a setting"), b64("password = hunter2"), 1), false, "it holds a password or token: the file /etc/probe"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := preApproved(t, "worker", cluster(t, tc.config))
			is := func(o render.Origin) bool { return o.Kind == "file" && o.Key == "/etc/probe" && o.From == "50-probe" }
			list := r.Left
			if tc.in {
				list = r.Origins
			}
			i := slices.IndexFunc(list, is)
			if i < 0 {
				t.Fatalf("in %v, left %v", r.Origins, r.Left)
			}
			contains(t, list[i].Why, tc.why)
			if slices.ContainsFunc(r.Origins, is) != tc.in {
				t.Error("it is in both lists")
			}
		})
	}
	t.Run("an annotation that is neither yes nor no stops the render", func(t *testing.T) {
		_, err := render.PreApproved("worker", cluster(t, customer("50-probe", "worker", spec, needs+`"yes"`)), render.Options{})
		contains(t, refusal(t, err), "MachineConfig 50-probe", `"true" or "false"`)
	})
	t.Run("a pool of customers' MachineConfigs only has no pre-approved part", func(t *testing.T) {
		in := cluster(t, customer("50-probe", "edge", spec), "apiVersion: machineconfiguration.openshift.io/v1\nkind: MachineConfigPool\nmetadata: {name: edge}\nspec: {machineConfigSelector: {matchLabels: {machineconfiguration.openshift.io/role: edge}}}\n")
		full(t, "edge", in)
		_, err := render.PreApproved("edge", in, render.Options{})
		contains(t, refusal(t, err), "none of its 1 MachineConfigs", "50-probe")
	})
}

// said are the parts of a render that another one may have, too: by value, not by name.
func said(t *testing.T, r *render.Rendered) map[string]string {
	t.Helper()
	c := valid(t, r)
	out := map[string]string{}
	put := func(kind, key string, v any) {
		raw, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		out[kind+" "+key] = string(raw)
	}
	for _, f := range c.Storage.Files {
		put("file", f.Path, f)
	}
	for _, u := range c.Systemd.Units {
		put("unit", u.Name, u.Contents)
		for _, d := range u.Dropins {
			put("dropin", u.Name+"/"+d.Name, d)
		}
	}
	for _, u := range c.Passwd.Users {
		put("user", u.Name, u)
	}
	for _, a := range r.Config.Spec.KernelArguments {
		put("argument", a, nil)
	}
	return out
}

func TestThePreApprovedPartIsAStrictSubsetOfTheWhole(t *testing.T) {
	// Pools of MachineConfigs made at random, none of which overrides another: what is
	// in the part is in the whole with the same value, what is not allowed is not in the
	// part, and the part is less.
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 5))
		var configs []string
		for i := range 3 + rng.IntN(12) {
			name := fmt.Sprintf("%02d-probe", i)
			spec := file(fmt.Sprintf("/etc/probe/%d", i), fmt.Sprint("value ", rng.IntN(1000)))
			if rng.IntN(2) == 0 {
				spec += fmt.Sprintf("kernelArguments: [probe.%d]\n", i)
			}
			switch rng.IntN(3) {
			case 0:
				configs = append(configs, needed(name, spec))
			case 1:
				configs = append(configs, customer(name, "worker", spec))
			case 2:
				configs = append(configs, strings.ReplaceAll(needed(name, spec), `"true"`, `"false"`))
			}
		}
		in := cluster(t, configs...)
		whole, part := full(t, "worker", in), preApproved(t, "worker", in)
		all, some := said(t, whole), said(t, part)
		for key, value := range some {
			if all[key] != value {
				t.Errorf("seed %d: %s is %s in the part and %s in the whole", seed, key, value, all[key])
			}
		}
		if len(some) >= len(all) {
			t.Errorf("seed %d: the part is not less than the whole", seed)
		}
		for i, text := range configs {
			_, inside := some[fmt.Sprintf("file /etc/probe/%d", i)]
			if want := strings.Contains(text, `approved: "true"`); inside != want {
				t.Errorf("seed %d: config %d is inside: %t", seed, i, inside)
			}
		}
		if got, want := len(part.Origins)+len(part.Left), len(whole.Origins); got != want {
			t.Errorf("seed %d: %d parts are explained of %d", seed, got, want)
		}
	}
}

// secrets are honest examples of each kind, and where they come from.
var secrets = []struct{ name, text, what string }{
	{"a private key", "-----BEGIN PRIVATE KEY-----\nMIGH\n-----END PRIVATE KEY-----\n", "a private key"},
	{"an SSH key", "-----BEGIN OPENSSH PRIVATE KEY-----\nb3Blbn\n", "a private key"},
	{"a PGP key", "-----BEGIN PGP PRIVATE KEY BLOCK-----\n", "a private key"},
	{"a PuTTY key", "PuTTY-User-Key-File-3: ssh-ed25519\n", "a private key"},
	{"a pull secret", `{"auths":{"quay.io":{"auth":"dXNlcjpwYXNz"}}}`, "a registry's credentials"},
	{"a registry's identity token", `{"auths":{"x":{"identitytoken" : "abcdef"}}}`, "a registry's credentials"},
	{"a kubeconfig with a token", "kind: Config\nusers:\n- name: a\n  user:\n    token: abcdefghijkl\n", "a password or token"},
	{"a kubeconfig with a key", "users:\n- user:\n    client-key-data: LS0tLS1CRUdJTg\n", "a password or token"},
	{"a kubeconfig in one line of JSON", `{"users":[{"name":"token","user":{"token":"abcdefghijkl"}}]}`, "a password or token"},
	{"a Secret", "apiVersion: v1\nkind: Secret\nmetadata: {}\n", "a Kubernetes Secret"},
	{"a crypt hash", "core:$6$rounds=4096$saltsalt$hashhashhashhashhash:1::\n", "a password hash"},
	{"a yescrypt hash", "core:$y$j9T$abcdefgh$ijklmnopqrstuvwxyz0123:\n", "a password hash"},
	{"a bcrypt hash", "admin:$2y$05$abcdefghijklmnopqrstuvABCDEFGHIJKLMNOPQRSTUVWXYZ01234\n", "a password hash"},
	{"a hash of GRUB", "password_pbkdf2 root grub.pbkdf2.sha512.10000.ABCD\n", "a password hash"},
	{"a bearer token", "curl -H 'Authorization: Bearer 0123456789abcdefABCDEF'\n", "a bearer token"},
	{"basic authentication", "Authorization: Basic dXNlcjpwYXNzd29yZA==\n", "a password in a header"},
	{"a JWT", "x eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJub2RlIn0.c2lnbmF0dXJl y\n", "a token"},
	{"a token of OpenShift's", "sha256~ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopq\n", "a token"},
	{"a token of GitHub's", "ghp_ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghij\n", "a token"},
	{"an access key", "AKIAIOSFODNN7EXAMPLE\n", "a cloud's access key"},
	{"a bootstrap token", "kubeadm join --discovery 07401b.f395accd246ae52d\n", "a bootstrap token"},
	{"a proxy's password", "HTTP_PROXY=http://user:s3cret@proxy.example:3128\n", "a password in a URL"},
	{"a signed URL", "https://x.blob.example/a?sv=1&sig=abcdefghijklmnop%3D\n", "a signed URL"},
	{"a Ceph key", "[client.admin]\n\tkey = AQCvCbtToC6MDhAATtuT70Sl+DymPCfDSsyV4w==\n", "a Ceph key"},
	{"a DNS key", "key k {\n  secret \"c2VjcmV0\";\n};\n", "a key of a name server"},
	{"a netrc", "machine x.example login me password abc\n", "a password"},
	{"a password in an ini file", "[global]\nadmin-password = correct horse\n", "a password or token"},
	{"a password in YAML", "db:\n  password: \"correct horse\"\n", "a password or token"},
	{"a Wi-Fi key", "[wifi-security]\nkey-mgmt=wpa-psk\npsk=12345678\n", "a password or token"},
	{"a WireGuard key", "[Interface]\nPrivateKey = yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=\n", "a password or token"},
	{"a client secret", `{"aadClientId":"x","aadClientSecret":"abc~def"}`, "a password or token"},
	{"JSON within JSON", `{"x":"{\"password\":\"hunter2\"}"}`, "a password or token"},
	{"one in a comment", "# password: hunter2\n", "a password or token"},
}

// harmless are texts of real nodes that look a little like secrets.
var harmless = []struct{ name, text string }{
	{"nsswitch.conf", "passwd:     files sss systemd\nshadow:     files\ngroup:      files sss\n"},
	{"a token from a command", "TOKEN=$(curl -s -X PUT http://169.254.169.254/latest/api/token)\ncurl -H \"X-aws-ec2-metadata-token: $TOKEN\"\n"},
	{"a token from a file", "token: /var/run/secrets/token\ntokenFile: /etc/x\n"},
	{"a variable in a header", "curl -H \"Authorization: Bearer ${TOKEN}\"\n"},
	{"no password at all", "password=\nsecret: \"\"\ntoken: null\n"},
	{"a test of a variable", "if [ \"$password\" == \"\" ]; then exit; fi\n"},
	{"prose in a comment", "# The password: see the manual for what it may be.\n# uses a bearer token-authentication scheme\n"},
	{"a certificate", "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"},
	{"a public key", "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIExample admin@example.com\n-----BEGIN PUBLIC KEY-----\n"},
	{"the kubelet's configuration", "kind: KubeletConfiguration\nserverTLSBootstrap: true\nrotateCertificates: true\n"},
	{"sudoers", "core ALL=(ALL) NOPASSWD: ALL\n"},
	{"NetworkManager's flags", "key-mgmt=wpa-psk\npsk-flags=1\npassword-flags=0\n"},
	{"a volume of a Secret", "volumes:\n- secret:\n    secretName: x\n"},
	{"a digest", "quay.io/x@sha256:2222222222222222222222222222222222222222222222222222222222222222\n"},
	{"a proxy without a password", "HTTP_PROXY=http://proxy.example:3128\nssh://git@x.example/y\n"},
	{"a script's expression", "password = os.environ['P']\ntoken = get_token()\n"},
	{"a placeholder", "password: ********\ntoken: <your token>\n"},
	{"vSphere's cloud.conf", "[Global]\nsecret-name = \"vsphere-creds\"\nsecret-namespace = \"kube-system\"\ninsecure-flag = \"1\"\n"},
	{"Azure's cloud.conf", `{"cloud":"AzurePublicCloud","aadClientSecret":"","useManagedIdentityExtension":true,"resourceGroup":"x-rg"}`},
	{"Google's cloud.conf", "[global]\nproject-id = x\ntoken-url = nil\nregional = true\n"},
	{"a credential provider", "kind: CredentialProviderConfig\nproviders:\n- name: ecr-credential-provider\n  matchImages: [\"*.dkr.ecr.*.amazonaws.com\"]\n  tokenAttributes:\n    requireServiceAccount: true\n"},
	{"a template of keepalived's", "authentication {\n    auth_type PASS\n    auth_pass {{ .Cluster.Name }}_ingress_vip\n}\n"},
	{"a signature policy", `{"transports":{"docker":{"x":[{"type":"sigstoreSigned","keyData":"LS0tLS1CRUdJTiBQVUJMSUMgS0VZLS0tLS0KTUZrd0V3WUhLb1pJemowQ0FRWUlLb1pJemowREFRY0RRZ0FF"}]}}}`},
	{"CRI-O's configuration", "#stream_tls_key = \"\"\n# Path to the key file used to serve the encrypted stream.\nglobal_auth_file = \"/var/lib/kubelet/config.json\"\n"},
	{"a unit's name", "run-r0123456789abcdef0123456789abcdef.scope kubelet.conf.d openat.service\n"},
}

func TestSecretsThatAreFound(t *testing.T) {
	for _, tc := range secrets {
		for _, path := range []string{"/etc/probe"} {
			t.Run(tc.name, func(t *testing.T) {
				found := parse(t, "f.yaml", needed("50-probe", file(path, tc.text))).Configs[0].Secrets()
				if !slices.ContainsFunc(found, func(s render.Secret) bool { return s.What == tc.what && s.Path == path }) {
					t.Errorf("found %v", found)
				}
				if s := fmt.Sprint(found); strings.Contains(s, "hunter2") || strings.Contains(s, "s3cret") {
					t.Errorf("what is found tells the secret: %s", s)
				}
			})
		}
	}
}

func TestTextsThatHoldNoSecret(t *testing.T) {
	for _, tc := range harmless {
		t.Run(tc.name, func(t *testing.T) {
			if found := parse(t, "f.yaml", needed("50-probe", file("/etc/probe", tc.text))).Configs[0].Secrets(); len(found) > 0 {
				t.Errorf("found %v", found)
			}
		})
	}
	t.Run("what the cluster's own MachineConfigs hold besides the pull secret", func(t *testing.T) {
		for _, m := range cluster(t).Configs {
			for _, s := range m.Secrets() {
				if s.Path != pullSecret {
					t.Errorf("%s: %v", m.Name, s)
				}
			}
		}
	})
}

// TestAttack_T55_ASecretNeverGoesToAnyone puts each secret into a MachineConfig that
// says anyone may have it, in every place and wrapping.
func TestAttack_T55_ASecretNeverGoesToAnyone(t *testing.T) {
	unit := func(text string) string {
		return "config:\n  ignition:\n    version: 3.4.0\n  systemd:\n    units:\n    - name: probe.service\n      contents: " + quoted("[Service]\nEnvironment=X="+continued(text)) + "\n"
	}
	dropin := func(text string) string {
		return "config:\n  ignition:\n    version: 3.4.0\n  systemd:\n    units:\n    - name: probe.service\n      dropins:\n      - name: x.conf\n        contents: " + quoted("[Service]\nEnvironment=X="+continued(text)) + "\n"
	}
	packed := func(text string) string {
		return "config:\n  ignition:\n    version: 3.4.0\n  storage:\n    files:\n    - path: /etc/probe\n      contents:\n        compression: gzip\n        source: data:;base64," + b64(gz(text)) + "\n"
	}
	inFile := func(text string) string { return file("/etc/probe", text) }
	for _, wrap := range []struct {
		name  string
		spec  func(string) string
		where string
	}{
		{"as it is", inFile, "the file /etc/probe"},
		{"percent-encoded", func(text string) string {
			return "config:\n  ignition:\n    version: 3.4.0\n  storage:\n    files:\n    - path: /etc/probe\n      contents:\n        source: " + quoted("data:,"+percent(text)) + "\n"
		}, "the file /etc/probe"},
		{"with the compression of Ignition", packed, "the file /etc/probe"},
		{"as a gzip file", func(text string) string { return inFile(gz(text)) }, "the file /etc/probe"},
		{"in base64 in a script", func(text string) string {
			return inFile("#!/bin/sh\nx=" + b64("  "+text+strings.Repeat(" ", 20)) + "\n")
		}, "the file /etc/probe"},
		{"in base64 of several lines", func(text string) string {
			return inFile("data: |\n  " + lines(b64(gz(text+strings.Repeat(" ", 200)))) + "\n")
		}, "the file /etc/probe"},
		{"in UTF-16", func(text string) string { return inFile(utf16le(text)) }, "the file /etc/probe"},
		{"in a unit", unit, "the unit probe.service"},
		{"in a drop-in", dropin, "the drop-in probe.service/x.conf"},
	} {
		for _, tc := range secrets {
			t.Run(wrap.name+"/"+tc.name, func(t *testing.T) {
				in := cluster(t, needed("50-probe", wrap.spec(tc.text)))
				if _, err := render.Full("worker", in); err != nil {
					t.Fatal("who attested may have it:", err)
				}
				_, err := render.PreApproved("worker", in, render.Options{Allow: []string{"/etc/other"}})
				contains(t, refusal(t, err), "MachineConfig 50-probe", wrap.where)
				if strings.Contains(err.Error(), tc.text) {
					t.Error("the denial tells the secret")
				}
				var e *render.Exposed
				if !errors.As(err, &e) || e.Secrets[0].MachineConfig != "50-probe" {
					t.Errorf("exposed: %v", e)
				}
			})
		}
	}
}

func TestAttack_T55_OtherPlacesOfASecret(t *testing.T) {
	const head = "config:\n  ignition:\n    version: 3.4.0\n"
	for _, tc := range []struct{ name, spec, want string }{
		{"a user's password hash", head + "  passwd:\n    users:\n    - name: core\n      passwordHash: $6$x$y", "a password hash: the user core"},
		{"a group's", head + "  passwd:\n    groups:\n    - name: g\n      passwordHash: abc", "the group g"},
		{"the key of a LUKS volume", head + "  storage:\n    luks:\n    - name: data\n      device: /dev/sdb\n      keyFile:\n        source: data:,x", "the key of an encrypted disk: the LUKS volume data"},
		{"a clevis pin", head + "  storage:\n    luks:\n    - name: data\n      device: /dev/sdb\n      clevis:\n        custom:\n          pin: sss\n          config: '{}'", "clevis pin: the LUKS volume data"},
		{"a header of a remote file", head + "  storage:\n    files:\n    - path: /etc/x\n      contents:\n        source: https://x.example/y\n        httpHeaders:\n        - name: Authorization\n          value: anything", "HTTP header: the file /etc/x"},
		{"a password in a remote file's URL", head + "  storage:\n    files:\n    - path: /etc/x\n      contents:\n        source: https://u:pw@x.example/y", "a password in a URL"},
		{"a proxy's password", "config:\n  ignition:\n    version: 3.4.0\n    proxy:\n      httpProxy: http://u:pw@proxy.example", "ignition.proxy"},
		{"a header of a merged config", "config:\n  ignition:\n    version: 3.4.0\n    config:\n      merge:\n      - source: https://x.example/y\n        httpHeaders:\n        - name: X-Token\n          value: abc", "ignition.config"},
		{"a kernel argument", "kernelArguments: [rd.probe.password=hunter2]", "the kernel argument rd.probe.password"},
		{"an argument of Ignition's", head + "  kernelArguments:\n    shouldExist: [probe.token=hunter2]", "the kernel argument probe.token"},
		{"an empty shadow file, by its path", file("/etc/shadow", "x"), "password hashes: the file /etc/shadow"},
		{"a host key, by its path", file("/etc/ssh/ssh_host_ed25519_key", "x"), "the host's SSH key"},
		{"a private key's folder", file("/etc/pki/tls/private/x/y.pem", "x"), "private keys"},
		{"a home's SSH key", file("/var/home/core/.ssh/id_ed25519", "x"), "an SSH key"},
		{"a kubeconfig, by its path", file("/root/.kube/config", "x"), "a kubeconfig"},
		{"an archive", file("/etc/x.zip", "PK\x03\x04..."), "a zip archive, which is not searched"},
		{"contents that do not unpack", strings.Replace(file("/etc/x", "no gzip"), "        source:", "        compression: gzip\n        source:", 1), "cannot be searched (not gzip)"},
		{"more than is searched", file("/etc/x", gz(strings.Repeat("a", 17<<20))), "more than 16 MiB"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := render.PreApproved("worker", cluster(t, needed("50-probe", tc.spec)), render.Options{})
			contains(t, refusal(t, err), "MachineConfig 50-probe")
			var e *render.Exposed
			if !errors.As(err, &e) {
				t.Fatal(err)
			}
			all := ""
			for _, s := range e.Secrets {
				all += s.What + ": " + s.Where + "\n"
			}
			contains(t, all, tc.want)
			if strings.Contains(err.Error(), "hunter2") {
				t.Error("the denial tells the secret")
			}
		})
	}
}

func TestAttack_T55_TwoHalvesOfASecret(t *testing.T) {
	// One MachineConfig has packed contents that nothing says are packed and that look
	// like nothing; the other says how they are packed.
	half := strings.Replace(file("/etc/probe", gz("password = hunter2")), "/etc/probe", "/etc/probe", 1)
	in := cluster(t, needed("50-a", half), needed("50-b", "config:\n  ignition:\n    version: 3.4.0\n  storage:\n    files:\n    - path: /etc/probe\n      contents:\n        compression: gzip"))
	_, err := render.PreApproved("worker", in, render.Options{})
	contains(t, refusal(t, err), "the file /etc/probe")
}

func TestAllowedFilesMayHoldSecrets(t *testing.T) {
	config := needed("50-probe", file("/etc/probe", "password = hunter2"))
	r := preApproved(t, "worker", cluster(t, config), "/etc/probe")
	contentsOf(t, valid(t, r), "/etc/probe")
	for _, allow := range []string{"/etc", "/etc/", "/etc/prob", "/etc/probe/", "*", ""} {
		if _, err := render.PreApproved("worker", cluster(t, config), render.Options{Allow: []string{allow}}); err == nil {
			t.Errorf("%q allows /etc/probe", allow)
		}
	}
	// What is in no file cannot be allowed.
	_, err := render.PreApproved("worker", cluster(t, needed("50-probe", "kernelArguments: [a.password=hunter2]")), render.Options{Allow: []string{""}})
	refusal(t, err)
}
