// SPDX-License-Identifier: Apache-2.0

package render_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/render"
)

// secrets are realistic examples of each kind, with their sources.
var secrets = []struct{ name, text, what string }{
	{"a private key", "-----BEGIN PRIVATE KEY-----\nMIGH\n-----END PRIVATE KEY-----\n", "a private key"},
	{"an SSH key", "-----BEGIN OPENSSH PRIVATE KEY-----\nb3Blbn\n", "a private key"},
	{"a PGP key", "-----BEGIN PGP PRIVATE KEY BLOCK-----\n", "a private key"},
	{"a PuTTY key", "PuTTY-User-Key-File-3: ssh-ed25519\n", "a private key"},
	{"a pull secret", `{"auths":{"quay.io":{"auth":"dXNlcjpwYXNz"}}}`, "a registry's credentials"},
	{"a registry's identity token", `{"auths":{"x":{"identitytoken" : "abcdef"}}}`, "a registry's credentials"},
	{"a kubeconfig with a token", "kind: Config\nusers:\n- name: a\n  user:\n    token: abcdefghijkl\n",
		"a password or token"},
	{"a kubeconfig with a key", "users:\n- user:\n    client-key-data: LS0tLS1CRUdJTg\n", "a password or token"},
	{"a kubeconfig in one line of JSON", `{"users":[{"name":"token","user":{"token":"abcdefghijkl"}}]}`,
		"a password or token"},
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
	{"an option of a command", "foo --password hunter2 x\n", "a password in an argument"},
	{"a token as an option", "foo --token abcdef123456\n", "a password in an argument"},
	{"an option with a longer name", "foo --bind-password 'hunter2'\n", "a password in an argument"},
	{"options in a list", `{"command": ["foo", "--password", "hunter2"]}`, "a password in an argument"},
	{"curl's user", "curl -s -u admin:hunter2 https://x.example/\n", "a password in an argument"},
	{"curl's user, in long", "curl --user 'admin:hunter2' https://x.example/\n", "a password in an argument"},
	{"sshpass", "sshpass -p hunter2 ssh x\n", "a password in an argument"},
	{"a registry's password", "REGISTRY_PASS=hunter2\n", "a password or token"},
	{"a pwd", "Server=x;Uid=y;pwd=hunter2;\n", "a password or token"},
	{"a pass in camel case", "dbPass: hunter2\n", "a password or token"},
	{"an account key", "AccountName=x;AccountKey=abcdefgh+/==;\n", "a password or token"},
	{"a passcode", "passcode: 12345678\n", "a password or token"},
	{"chpasswd in a pipe", "echo 'core:hunter2' | chpasswd\n", "a password for chpasswd"},
	{"chpasswd with a here-string", "chpasswd <<< core:hunter2\n", "a password for chpasswd"},
	{"passwd --stdin", "echo hunter2 | passwd --stdin core\n", "a password for chpasswd"},
	{"a boot from iSCSI", "netroot=iscsi:user:hunter2@10.0.0.1::3260:1:iqn.x\n", "a password"},
	{"keepalived's", "auth_pass hunter2\n", "a password"},
	{"an element of XML", "<password>hunter2</password>\n", "a password"},
	{"a value on the next line", "password:\n  hunter2\n", "a password or token"},
	{"a block of text", "secret: |\n  hunter2hunter2\n", "a password or token"},
	{"a quoted value that begins as a variable", "password: \"$ecret99\"\n", "a password or token"},
	{"a quoted value that begins with a star", "password: \"*hunter2\"\n", "a password or token"},
	{"a quoted value that begins as a path", "password: \"/hunter2\"\n", "a password or token"},
	{"a quoted value that begins as a switch", "password='-hunter2'\n", "a password or token"},
	{"a quoted value that begins with an ampersand", "password: \"&hunter2\"\n", "a password or token"},
	{"a quoted value that begins with a parenthesis", "token: \"(hunter2)\"\n", "a password or token"},
}

// harmless are texts of real nodes that resemble secrets.
var harmless = []struct{ name, text string }{
	{"nsswitch.conf", "passwd:     files sss systemd\nshadow:     files\ngroup:      files sss\n"},
	{"a token from a command",
		"TOKEN=$(curl -s -X PUT http://169.254.169.254/latest/api/token)\ncurl -H \"X-aws-ec2-metadata-token: $TOKEN\"\n"},
	{"a token from a file", "token: /var/run/secrets/token\ntokenFile: /etc/x\n"},
	{"a variable in a header", "curl -H \"Authorization: Bearer ${TOKEN}\"\n"},
	{"no password at all", "password=\nsecret: \"\"\ntoken: null\n"},
	{"a test of a variable", "if [ \"$password\" == \"\" ]; then exit; fi\n"},
	{"prose in a comment",
		"# The password: see the manual for what it may be.\n# uses a bearer token-authentication scheme\n"},
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
	{"vSphere's cloud.conf",
		"[Global]\nsecret-name = \"vsphere-creds\"\nsecret-namespace = \"kube-system\"\ninsecure-flag = \"1\"\n"},
	{"Azure's cloud.conf",
		`{"cloud":"AzurePublicCloud","aadClientSecret":"","useManagedIdentityExtension":true,"resourceGroup":"x-rg"}`},
	{"Google's cloud.conf", "[global]\nproject-id = x\ntoken-url = nil\nregional = true\n"},
	{"a credential provider", "kind: CredentialProviderConfig\nproviders:\n- name: ecr-credential-provider\n  " +
		"matchImages: [\"*.dkr.ecr.*.amazonaws.com\"]\n  tokenAttributes:\n    requireServiceAccount: true\n"},
	{"a template of keepalived's",
		"authentication {\n    auth_type PASS\n    auth_pass {{ .Cluster.Name }}_ingress_vip\n}\n"},
	{"a signature policy", `{"transports":{"docker":{"x":[{"type":"sigstoreSigned","keyData":"LS0tLS1CRUdJTiBQVUJMSUMgS0VZLS0tLS0KTUZrd0V3WUhLb1pJemowQ0FRWUlLb1pJemowREFRY0RRZ0FF"}]}}}`},
	{"CRI-O's configuration", "#stream_tls_key = \"\"\n# Path to the key file used to serve the encrypted " +
		"stream.\nglobal_auth_file = \"/var/lib/kubelet/config.json\"\n"},
	{"an option that names a file", "foo --password-file /etc/x --token /run/token --token-ttl 5m --secret $SECRET\n"},
	{"an option without a value", "foo --password-stdin --token --verbose\n"},
	{"curl's user from variables", "curl -u \"$USER:$PASS\" https://x.example/\ncurl -u ${U}:${P} https://x:8443/\n"},
	{"chpasswd from a variable", "echo \"core:$PASSWORD\" | chpasswd\n"},
	{"words that end in pass", "bypass: enabled-for-all\ncompass=north\nNO_PASS=false\n"},
	{"a working directory", "PWD=/var/tmp\nOLDPWD=\"/root/x\"\n"},
	{"a PAM stack", "password    requisite     pam_pwquality.so try_first_pass\npassword    include       " +
		"system-auth\nauth [success=1 default=ignore] pam_unix.so nullok\n"},
	{"a mapping on the next line", "token:\n  secretName: x\n  audience: y\nsecret:\n- name: x\npassword:\nnext: value\n"},
	{"a variable in quotes", "password=\"$password\"\ntoken=\"${1}\"\nsecret: \"$SECRET\"\ntoken='$TOKEN'\n"},
	{"a path in quotes", "token: \"/var/run/secrets/token\"\npassword=\"/etc/x\"\nsecret: '/run/x/${NAME}'\n"},
	{"a boot from iSCSI without a password",
		"netroot=iscsi:@10.0.0.1::3260:1:iqn.x rd.luks.key=/etc/keyfile rd.luks.uuid=x\n"},
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
			if found := parse(t, "f.yaml",
				needed("50-probe", file("/etc/probe", tc.text))).Configs[0].Secrets(); len(found) > 0 {
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

// TestAttack_T55_APreApprovedConfigHasNoSecret puts each secret into a MachineConfig that is
// marked as needed, in every place and encoding.
func TestAttack_T55_APreApprovedConfigHasNoSecret(t *testing.T) {
	unit := func(text string) string {
		return "config:\n  ignition:\n    version: 3.4.0\n  systemd:\n    units:\n    - name: probe.service\n      " +
			"contents: " + quoted("[Service]\nEnvironment=X="+continued(text)) + "\n"
	}
	dropin := func(text string) string {
		return "config:\n  ignition:\n    version: 3.4.0\n  systemd:\n    units:\n    - name: probe.service\n      " +
			"dropins:\n      - name: x.conf\n        contents: " + quoted("[Service]\nEnvironment=X="+continued(text)) + "\n"
	}
	packed := func(text string) string {
		return "config:\n  ignition:\n    version: 3.4.0\n  storage:\n    files:\n    - path: /etc/probe\n      " +
			"contents:\n        compression: gzip\n        source: data:;base64," + b64(gz(text)) + "\n"
	}
	inFile := func(text string) string { return file("/etc/probe", text) }
	for _, wrap := range []struct {
		name  string
		spec  func(string) string
		where string
	}{
		{"as it is", inFile, "the file /etc/probe"},
		{"percent-encoded", func(text string) string {
			return "config:\n  ignition:\n    version: 3.4.0\n  storage:\n    files:\n    - path: /etc/probe\n      " +
				"contents:\n        source: " + quoted("data:,"+percent(text)) + "\n"
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
		for i, tc := range secrets {
			t.Run(wrap.name+"/"+tc.name, func(t *testing.T) {
				in := cluster(t, needed("50-probe", wrap.spec(tc.text)))
				if i == 0 { // Full does not look for secrets
					if _, err := render.Full("worker", in); err != nil {
						t.Fatal("who attested may have it:", err)
					}
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
		{"a user's password hash", head + "  passwd:\n    users:\n    - name: core\n      passwordHash: $6$x$y",
			"a password hash: the user core"},
		{"a group's", head + "  passwd:\n    groups:\n    - name: g\n      passwordHash: abc", "the group g"},
		{"the key of a LUKS volume", head + "  storage:\n    luks:\n    - name: data\n      device: /dev/sdb\n      " +
			"keyFile:\n        source: data:,x", "the key of an encrypted disk: the LUKS volume data"},
		{"a clevis pin", head + "  storage:\n    luks:\n    - name: data\n      device: /dev/sdb\n      clevis:\n        " +
			"custom:\n          pin: sss\n          config: '{}'", "clevis pin: the LUKS volume data"},
		{"a header of a remote file", head + "  storage:\n    files:\n    - path: /etc/x\n      contents:\n        " +
			"source: https://x.example/y\n        httpHeaders:\n        - name: Authorization\n          value: anything",
			"HTTP header: the file /etc/x"},
		{"a password in a remote file's URL", head +
			"  storage:\n    files:\n    - path: /etc/x\n      contents:\n        source: https://u:pw@x.example/y",
			"a password in a URL"},
		{"a proxy's password",
			"config:\n  ignition:\n    version: 3.4.0\n    proxy:\n      httpProxy: http://u:pw@proxy.example",
			"ignition.proxy"},
		{"a header of a merged config", "config:\n  ignition:\n    version: 3.4.0\n    config:\n      merge:\n      - " +
			"source: https://x.example/y\n        httpHeaders:\n        - name: X-Token\n          value: abc",
			"ignition.config"},
		{"a kernel argument", "kernelArguments: [rd.probe.password=hunter2]", "the kernel argument rd.probe.password"},
		{"an argument of Ignition's", head + "  kernelArguments:\n    shouldExist: [probe.token=hunter2]",
			"the kernel argument probe.token"},
		{"a kernel argument of dracut's", "kernelArguments: [rd.luks.key=hunter2]", "the kernel argument rd.luks.key"},
		{"iSCSI's", "kernelArguments: ['netroot=iscsi:user:hunter2@10.0.0.1::3260:1:iqn']", "the kernel argument netroot"},
		{"a mount option", head + "  storage:\n    filesystems:\n    - device: /dev/sdb\n      path: /var/x\n      " +
			"format: ext4\n      mountOptions: [user=x, password=hunter2]", "the filesystem /dev/sdb.mountOptions"},
		{"an option of mkfs, in two", head + "  storage:\n    filesystems:\n    - device: /dev/sdb\n      path: /var/x\n  " +
			"    format: ext4\n      options: [--password, hunter2]", "the filesystem /dev/sdb.options"},
		{"an option of a RAID", head + "  storage:\n    raid:\n    - name: data\n      level: raid1\n      devices: " +
			"[/dev/sdb, /dev/sdc]\n      options: [--token=hunter2]", "the raid data.options"},
		{"an option of a LUKS volume", head +
			"  storage:\n    luks:\n    - name: data\n      device: /dev/sdb\n      options: [--token=hunter2]",
			"the luks data.options"},
		{"an option to open one", head + "  storage:\n    luks:\n    - name: data\n      device: /dev/sdb\n      " +
			"openOptions: [--token=hunter2]", "the luks data.openOptions"},
		{"a tang server's URL", head + "  storage:\n    luks:\n    - name: data\n      device: /dev/sdb\n      clevis:\n  " +
			"      tang:\n        - url: https://u:hunter2@tang.example\n          thumbprint: x",
			"a password in a URL: the luks data.clevis.tang.url"},
		{"a user's comment", head + "  passwd:\n    users:\n    - name: core\n      gecos: 'password=hunter2'",
			"the user core.gecos"},
		{"an image's address", "osImageURL: https://u:hunter2@registry.example/os", "the MachineConfig's spec.osImageURL"},
		{"an empty shadow file, by its path", file("/etc/shadow", "x"), "password hashes: the file /etc/shadow"},
		{"a host key, by its path", file("/etc/ssh/ssh_host_ed25519_key", "x"), "the host's SSH key"},
		{"a private key's folder", file("/etc/pki/tls/private/x/y.pem", "x"), "private keys"},
		{"a home's SSH key", file("/var/home/core/.ssh/id_ed25519", "x"), "an SSH key"},
		{"a kubeconfig, by its path", file("/root/.kube/config", "x"), "a kubeconfig"},
		{"an archive", file("/etc/x.zip", "PK\x03\x04..."), "a zip archive, which is not searched"},
		{"contents that do not unpack", strings.Replace(file("/etc/x", "no gzip"), "        source:",
			"        compression: gzip\n        source:", 1), "cannot be searched (the data is not gzip)"},
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
	// One MachineConfig has compressed contents without the field compression, which look
	// harmless; the other one sets the field.
	half := strings.Replace(file("/etc/probe", gz("password = hunter2")), "/etc/probe", "/etc/probe", 1)
	in := cluster(t, needed("50-a", half), needed("50-b",
		"config:\n  ignition:\n    version: 3.4.0\n  storage:\n    files:\n    - path: /etc/probe\n      contents:\n      "+
			"  compression: gzip"))
	_, err := render.PreApproved("worker", in, render.Options{})
	contains(t, refusal(t, err), "the file /etc/probe")
}

func TestPreApproved_PermitsSecretsInAllowedFiles(t *testing.T) {
	config := needed("50-probe", file("/etc/probe", "password = hunter2"))
	r := preApproved(t, "worker", cluster(t, config), "/etc/probe")
	contentsOf(t, valid(t, r), "/etc/probe")
	for _, allow := range []string{"/etc", "/etc/", "/etc/prob", "/etc/probe/", "*", ""} {
		if _, err := render.PreApproved("worker", cluster(t, config), render.Options{Allow: []string{allow}}); err == nil {
			t.Errorf("%q allows /etc/probe", allow)
		}
	}
	// A secret outside of files cannot be allowed.
	_, err := render.PreApproved("worker", cluster(t, needed("50-probe", "kernelArguments: [a.password=hunter2]")),
		render.Options{Allow: []string{""}})
	refusal(t, err)
}
