// SPDX-License-Identifier: Apache-2.0

package render

import (
	"bytes"
	"path"
	"regexp"
	"slices"
	"strings"
)

// paths are files whose contents always count as secret. A directory ends in a slash. A
// test compares the list with docs/configs.md.
var paths = []struct{ pattern, what string }{
	{"/var/lib/kubelet/config.json", "the pull secret"},
	{"/etc/mco/internal-registry-pull-secret.json", "the pull secret of the internal registry"},
	{"/root/.docker/config.json", "a pull secret"},
	{"/etc/containers/auth.json", "a pull secret"},
	{"/run/containers/0/auth.json", "a pull secret"},
	{"*/.dockercfg", "a pull secret"},
	{"*/.dockerconfigjson", "a pull secret"},
	{"/etc/kubernetes/kubeconfig", "a kubeconfig"},
	{"/var/lib/kubelet/kubeconfig", "a kubeconfig"},
	{"*/.kube/config", "a kubeconfig"},
	{"/etc/kubernetes/bootstrap-secrets/", "the control plane's keys"},
	{"/var/lib/kubelet/pki/", "the kubelet's keys"},
	{"/etc/shadow", "password hashes"},
	{"/etc/gshadow", "password hashes"},
	{"/etc/ssh/ssh_host_*_key", "the host's SSH key"},
	{"*/.ssh/id_*", "an SSH key"},
	{"/etc/pki/tls/private/", "private keys"},
	{"/etc/pki/entitlement/", "a subscription's keys"},
	{"/etc/wireguard/", "a WireGuard key"},
	{"/etc/ipsec.secrets", "IPsec secrets"},
	{"/etc/ipsec.d/*.secrets", "IPsec secrets"},
	{"/etc/luks/", "the key of an encrypted disk"},
	{"/etc/clevis/", "the configuration of a clevis pin"},
	{"/etc/krb5.keytab", "a Kerberos key"},
	{"*/*.keytab", "a Kerberos key"},
	{"*/*.p12", "a key store"},
	{"*/*.pfx", "a key store"},
	{"*/*.jks", "a key store"},
	{"*/.aws/credentials", "a cloud's credentials"},
	{"*/.netrc", "passwords"},
	{"*/.pgpass", "passwords"},
	{"*/.git-credentials", "passwords"},
}

// secretPath returns which secret a file at this path contains, or "" if the path does not tell.
func secretPath(file string) string {
	for _, p := range paths {
		switch {
		case strings.HasSuffix(p.pattern, "/"):
			if strings.HasPrefix(file, p.pattern) && !strings.HasSuffix(file, ".pub") {
				return p.what
			}
		case strings.HasPrefix(p.pattern, "*/"):
			// The last elements, in any directory.
			want := strings.Count(p.pattern, "/")
			elements := strings.Split(file, "/")
			if len(elements) < want+1 || strings.HasSuffix(file, ".pub") {
				continue
			}
			if ok, _ := path.Match(p.pattern[2:], strings.Join(elements[len(elements)-want:], "/")); ok {
				return p.what
			}
		default:
			if ok, _ := path.Match(p.pattern, file); ok {
				return p.what
			}
		}
	}
	return ""
}

// pattern finds one kind of secret in a text. For speed, the text must contain one of needs
// before the expression is tried.
type pattern struct {
	what  string
	needs []string
	re    *regexp.Regexp
	// right checks a match's groups; if it is nil, every match counts.
	right func(groups [][]byte) bool
}

func (p *pattern) in(text []byte) bool {
	if !slices.ContainsFunc(p.needs, func(n string) bool { return bytes.Contains(text, []byte(n)) }) && len(p.needs) > 0 {
		return false
	}
	if p.right == nil {
		return p.re.Match(text)
	}
	return slices.ContainsFunc(p.re.FindAllSubmatch(text, -1), p.right)
}

// patterns are the secrets that are visible in a text. docs/configs.md lists them.
var patterns = []pattern{
	{"a private key", []string{"PRIVATE KEY"}, regexp.MustCompile(`-----BEGIN [A-Z0-9 ]*PRIVATE KEY( BLOCK)?-----`), nil},
	{"a private key", []string{"PuTTY-User-Key-File-"}, regexp.MustCompile(`PuTTY-User-Key-File-\d`), nil},
	{"a registry's credentials", []string{"auth", "identitytoken", "registrytoken"},
		regexp.MustCompile(`"(?:auth|identitytoken|registrytoken)"\s*:\s*"[^"]+"`), nil},
	{"a Kubernetes Secret", []string{"Secret"}, regexp.MustCompile(`kind"?\s*:\s*"?Secret\b`), nil},
	{"a password hash", []string{"$"},
		regexp.MustCompile(
			`\$(?:1|2[abxy]?|5|6|7|y|gy|sha1|argon2(?:id|i|d)|scrypt|pbkdf2[a-z0-9-]*)\$[./A-Za-z0-9=,+$-]{20,}`), nil},
	{"a password hash", []string{"grub.pbkdf2."}, regexp.MustCompile(`grub\.pbkdf2\.sha512\.\d+\.`), nil},
	{"a bearer token", []string{"earer", "EARER"}, regexp.MustCompile(`(?i)\bbearer[ \t]+([A-Za-z0-9._~+/=-]{16,})`),
		func(g [][]byte) bool { return bytes.ContainsAny(g[1], "0123456789") }},
	{"a password in a header", []string{"asic", "ASIC"},
		regexp.MustCompile(`(?i)authorization["']?[ \t]*[:=]?[ \t]*["']?basic[ \t]+[A-Za-z0-9+/]{8,}`), nil},
	{"a token", []string{"eyJ"}, regexp.MustCompile(`\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}`), nil},
	{"a token", []string{"gh", "glpat-", "xox", "AIza", "sha256~", "hvs.", "dckr_pat_"}, regexp.MustCompile(
		`\bgh[pousr]_[A-Za-z0-9]{36}|\bgithub_pat_[A-Za-z0-9_]{40}|\bglpat-[A-Za-z0-9_-]{20}|\bxox[abprs]-[A-Za-z0-9-]{10}|\bAIza[A-Za-z0-9_-]{35}|\bsha256~[A-Za-z0-9_-]{40}|\bhvs\.[A-Za-z0-9_-]{24}|\bdckr_pat_[A-Za-z0-9_-]{20}`), nil},
	{"a cloud's access key", []string{"AKIA", "ASIA"}, regexp.MustCompile(`\b(?:AKIA|ASIA)[A-Z0-9]{16}\b`), nil},
	{"a password in a URL", []string{"://"},
		regexp.MustCompile(`\b[A-Za-z][A-Za-z0-9+.-]{1,15}://[^\s/:@"'<>]*:([^\s/@"'<>]+)@`),
		func(g [][]byte) bool { return !bytes.ContainsAny(g[1][:1], "${<") }},
	{"a signed URL", []string{"ignature=", "sig="},
		regexp.MustCompile(`[?&](?:X-Amz-Signature|X-Goog-Signature|Signature|sig)=[A-Za-z0-9%+/=_-]{16,}`), nil},
	{"a Ceph key", []string{"key"}, regexp.MustCompile(`(?m)^\s*key\s*=\s*[A-Za-z0-9+/]{38}==`), nil},
	{"a key of a name server", []string{"secret"}, regexp.MustCompile(`(?m)^\s*secret\s+"[^"]+"`), nil},
	{"a password", []string{"machine"}, regexp.MustCompile(`\bmachine\s+\S+\s+login\s+\S+\s+password\s+\S+`), nil},
	{"a password in an argument", []string{"-"}, regexp.MustCompile(
		`(?i)(?:^|[\s"'\[,])--?(?:[a-z0-9]+[-_])*(?:password|passphrase|passwd|pass|pwd|token|secret|api-?key|access-?key|secret-?key|account-?key)["']?[ \t,]+["']?([^\s"',]+)`), argument},
	{"a password in an argument", []string{"sshpass"}, regexp.MustCompile(`\bsshpass\s+-p\s*["']?([^\s"']+)`), argument},
	{"a password in an argument", []string{"curl", "wget"}, regexp.MustCompile(
		`\b(?:curl|wget)\b[^\n|;]*?\s(?:-[A-Za-z]*[uU]|--user|--proxy-user)[ \t=]*["']?[^\s:"'$/=-][^\s:"']*:["']?([^\s"']+)`), argument},
	{"a password for chpasswd", []string{"passwd"},
		regexp.MustCompile(`[a-z_][a-z0-9_.-]*:([^\s:'"]+)(?:\\n)?['"]?\s*\|[^|\n]*\bchpasswd\b`), argument},
	{"a password for chpasswd", []string{"chpasswd"},
		regexp.MustCompile(`\bchpasswd\b[^\n]*<<<?[^\n:]*(?:\n\s*[a-z_][a-z0-9_.-]*)?:([^\s:'"]+)`), argument},
	{"a password for chpasswd", []string{"--stdin"},
		regexp.MustCompile(`(?:echo|printf)\s+["']?([^\s"'|]+)["']?\s*\|[^|\n]*\bpasswd\b[^\n]*--stdin`), argument},
	{"a password", []string{"iscsi:"}, regexp.MustCompile(`\biscsi:[^\s:@]+:([^\s:@]+)(?::[^\s@]*)?@`), argument},
	{"a password", []string{"assword", "assphrase", "asswd", "auth_pass", "requirepass", "rootpw"}, regexp.MustCompile(
		`(?im)(?:^[ \t]*(?:password|passphrase|passwd)|\b(?:auth_pass|requirepass|rootpw(?:[ \t]+--plaintext)?))[ \t]+["']?([^\s"':=]+)["']?[ \t]*$`), argument},
	{"a password", []string{"</"},
		regexp.MustCompile(`<(?:[A-Za-z]+:)?[A-Za-z]*(?i:password|passphrase|token|secret)>\s*([^<\s][^<]*)</`), argument},
}

// argument reports whether an option's value is a literal, and not a variable, a path or
// the next option.
func argument(groups [][]byte) bool { return literal(strings.TrimRight(string(groups[1]), ";,\\")) }

// names are suffixes of the names of passwords and tokens in assignments, in lower case and
// without dashes.
// pass and pwd are handled separately, because other words end in them: bypass.
var names = []string{"password", "passphrase", "passwd", "psk", "secret", "apikey", "secretkey", "accesskey", "token",
	"accountkey", "passcode", "luks.key", "clientkeydata", "privatekey", "presharedkey", "wepkey0", "wepkey1", "wepkey2",
	"wepkey3"}

// longest is the size of the longest name, with dashes, a quote and blanks after it.
const longestName = 32

// assigned reports whether a text assigns a literal to the name of a secret:
// name = value, name: value, "name": "value".
func assigned(text []byte) bool {
	for at := 0; ; at++ {
		next := bytes.IndexAny(text[at:], ":=")
		if next < 0 {
			return false
		}
		at += next
		name := nameBefore(text, at)
		if name == "" || text[at] == ':' && name == "passwd" { // nsswitch.conf and sudoers use it for something else
			continue
		}
		before := bytes.TrimSpace(text[bytes.LastIndexByte(text[:at], '\n')+1 : at])
		after := bytes.TrimLeft(text[at+1:], " \t")
		if end := bytes.IndexAny(after, "\r\n"); end >= 0 {
			after = after[:end]
		}
		value := strings.TrimPrefix(strings.TrimRight(string(after), ",; \t"), `\`)
		if text[at] == ':' {
			value = below(text[at+1:], value)
		}
		if len(value) > 1 && (value[0] == '"' || value[0] == '\'') {
			quote := value[0]
			value, _, _ = strings.Cut(value[1:], value[:1])
			value = strings.TrimSuffix(value, `\`)
			if quotedLiteral(value, text[at] == '=' && quote == '"') {
				return true
			}
		} else if isComment(before) && len(strings.Fields(value)) > 1 {
			continue // prose
		}
		if literal(value) {
			return true
		}
	}
}

// nameBefore returns which of the names precedes a sign, or "".
func nameBefore(text []byte, sign int) string {
	window := text[max(0, sign-longestName):sign]
	window = bytes.TrimRight(window, " \t")
	window = bytes.TrimRight(window, `"'\`)
	plain := strings.Map(func(r rune) rune {
		if r == '-' || r == '_' {
			return -1
		}
		return r
	}, strings.ToLower(string(window)))
	for _, n := range names {
		if strings.HasSuffix(plain, n) {
			return n
		}
	}
	if short.Match(window) {
		return "pass"
	}
	return ""
}

// short are names in which other words also end.
var short = regexp.MustCompile(`(?:^|[^A-Za-z]|(?i:db|user|admin|root))(?:[Pp]ass|PASS|[Pp]wd|PWD)$|[a-z](?:Pass|Pwd)$`)

// below returns a YAML value that begins on the line below its key, or else beside.
func below(text []byte, beside string) string {
	block := beside != "" && strings.Trim(beside, "|>+-0123456789 \\") == "" && (beside[0] == '|' || beside[0] == '>')
	if beside != "" && !block {
		return beside
	}
	_, rest, _ := bytes.Cut(text, []byte("\n"))
	for len(rest) > 0 {
		line, more, _ := bytes.Cut(rest, []byte("\n"))
		value := strings.TrimRight(strings.TrimSpace(string(line)), ",;\\ \t")
		switch {
		case value == "":
			rest = more
			continue
		case line[0] != ' ' && line[0] != '\t', // the next key, not indented
			!block && (strings.Contains(value, ": ") || strings.HasSuffix(value, ":") || strings.HasPrefix(value, "- ") ||
				strings.ContainsAny(value, "={}[]")):
			return beside
		}
		return value
	}
	return beside
}

var (
	variable = regexp.MustCompile(`^\$(?:[{(]|[A-Z_][A-Z0-9_]*$)`)
	expanded = regexp.MustCompile(`^\$[A-Za-z0-9_{(@*#?!$-]`)
	pathLike = regexp.MustCompile(`^/[A-Za-z0-9_.@%:${}-]+(?:/[A-Za-z0-9_.@%:${}-]*)+$|^/(?:boot|dev|etc|home|mnt|opt|ostree|proc|root|run|srv|sys|sysroot|tmp|usr|var)\b`)
)

// quotedLiteral reports whether a quoted value is a literal although it begins like a
// variable, path or switch. A shell expands variables in double quotes.
func quotedLiteral(value string, shell bool) bool {
	if len(value) < 3 || strings.Trim(value, "xX*.") == "" {
		return false
	}
	switch value[0] {
	case '$':
		return !variable.MatchString(value) && !(shell && expanded.MatchString(value))
	case '/':
		return !pathLike.MatchString(value)
	case '*', '&', '-', '(':
		return true
	}
	return literal(value)
}

func isComment(before []byte) bool {
	return bytes.HasPrefix(before, []byte("#")) || bytes.HasPrefix(before, []byte("//")) ||
		bytes.HasPrefix(before, []byte(";"))
}

// bootstrapToken reports whether a text contains a Kubernetes bootstrap token: six letters
// and digits, a dot, and sixteen more. Because those are random, they have both kinds.
func bootstrapToken(text []byte) bool {
	plain := func(c byte) bool { return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' }
	boundary := func(i int) bool {
		return i < 0 || i >= len(text) || !plain(text[i]) && !bytes.ContainsRune([]byte("._/-"), rune(text[i]))
	}
	for at := 0; ; at++ {
		next := bytes.IndexByte(text[at:], '.')
		if next < 0 {
			return false
		}
		at += next
		if at < 6 || at+17 > len(text) || !boundary(at-7) || !boundary(at+17) {
			continue
		}
		id, secret := text[at-6:at], text[at+1:at+17]
		if !slices.ContainsFunc(id, func(c byte) bool { return !plain(c) }) &&
			!slices.ContainsFunc(secret, func(c byte) bool { return !plain(c) }) &&
			bytes.ContainsAny(secret, "0123456789") && bytes.ContainsAny(secret, "abcdefghijklmnopqrstuvwxyz") {
			return true
		}
	}
}

// call matches the start of an expression in a script.
var call = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.]*[(\[]`)

// literal reports whether a value is not a variable, path, placeholder or switch.
func literal(value string) bool {
	if len(value) < 3 || strings.ContainsRune("$%{<[(`|>=/&\\-*", rune(value[0])) || call.MatchString(value) {
		return false
	}
	switch strings.ToLower(value) {
	case "true", "false", "yes", "no", "null", "nil", "none", "required", "optional", "disabled", "enabled", "redacted":
		return false
	}
	return strings.Trim(value, "xX*.") != ""
}

// secretHeader reports whether the value of an HTTP header is a secret.
func secretHeader(name string) bool {
	name = strings.ToLower(name)
	return name == "authorization" || name == "proxy-authorization" || name == "cookie" ||
		strings.Contains(name, "token") || strings.Contains(name, "key") || strings.Contains(name, "secret")
}

// argumentName returns the name of a kernel argument, without its value.
func argumentName(argument string) string {
	name, _, _ := strings.Cut(argument, "=")
	return name
}
