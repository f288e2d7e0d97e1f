#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A client of the attestation contract that shares no code with the agent.
#
# It is written from proto/README.md and proto/mcsattest/v1/attestation.proto,
# with tpm2-tools, openssl, jq and coreutils. It proves that the page is complete: a
# client can be written from the page only. Section numbers are those of the page.
#
# It attests once and does not wait. Exit status 2 tells the caller to wait, even if
# the pool serves a pre-approved config to a node without a token.

set -euo pipefail
umask 077
export LC_ALL=C
trap '' PIPE # A closed connection is reported as a failed write.

readonly VERSION=attest.sh/1
readonly SERVICE=/mcsattest.v1.Attestation
readonly EXPORTER_LABEL=EXPORTER-mcs-attest-v1
readonly MAX_BODY=$((512 * 1024)) MAX_LOG=$((256 * 1024)) MAX_PUBLIC=1024
readonly PATIENCE=60 # seconds for one response

usage() {
	cat <<'USAGE'
Usage: attest.sh --origin https://HOST:PORT --ca FILE --pool POOL [flags]
       attest.sh --identify [--tcti TCTI]

Attests this machine's TPM to the verifier at the origin, and prints the token
for "Authorization: Bearer" at the same origin's /config/POOL.

  --origin URL         the pointer's source: https, the host, and the port
  --connect ADDR:PORT  connect here instead; the name checked is the origin's
  --ca FILE            PEM: exactly the CAs to trust
  --pool POOL          the pool whose config is wanted
  --tcti TCTI          the TPM, as tpm2-tools take it [$TPM2TOOLS_TCTI,
                       else device:/dev/tpmrm0]
  --event-log FILE     the firmware's log, if the verifier asks for it
                       [/sys/kernel/security/tpm0/binary_bios_measurements]
  --identify           print the SHA-256 of the EK's public key and stop
  --help               this text

The token goes to stdout and everything else to stderr. Exit status:
  0  a token, or an empty output where none is needed
  1  denied for good, or this machine cannot do what is asked
  2  denied for now, or the verifier is not to be reached: try again later
  3  there is no verifier at the origin
USAGE
}

step() { printf '%s\n' "$*" >&2; }

# fail STATUS MESSAGE [HINT]
fail() {
	printf 'error: %s\n' "$2" >&2
	[[ -z ${3:-} ]] || printf 'hint: %s\n' "$3" >&2
	exit "$1"
}

# --- bytes: a byte string in a variable is always hexadecimal

hex() { od -An -v -tx1 | tr -d ' \n'; }
unhex() { tr a-f A-F | basenc --base16 -d -w0; }
b64() { printf %s "$1" | unhex | base64 -w0; }
text() { printf %s "$1" | hex; }
sha256() { printf %s "$1" | unhex | sha256sum | cut -c1-64; }
printable() { tr -cd '[:print:]' <<<"$1" | cut -c1-300; }

# hmac KEY MESSAGE: HMAC-SHA256 with a key of at most 64 bytes. openssl would need the
# key as an argument, which every process of the machine can read.
hmac() {
	local key=$1 inner='' outer='' i byte
	while ((${#key} < 128)); do key+=00; done
	for ((i = 0; i < 128; i += 2)); do
		byte=$((16#${key:i:2}))
		inner+=$(printf %02x $((byte ^ 0x36)))
		outer+=$(printf %02x $((byte ^ 0x5c)))
	done
	sha256 "$outer$(sha256 "$inner$2")"
}

# field BYTES: one field of the transcript (section 4).
field() { printf '%08x%s' $((${#1} / 2)) "$1"; }

# --- the TPM

# tpm COMMAND...: run one of tpm2-tools. Without a resource manager the TPM keeps the
# loaded objects, and three keys fill it.
tpm() {
	"$@" >"$work/tpm.out" 2>"$work/tpm.err" ||
		fail 1 "$1: $(printable "$(grep -m1 ERROR "$work/tpm.err" || tail -n1 "$work/tpm.err")")" \
			"is there a TPM 2.0 at $TPM2TOOLS_TCTI?"
	tpm2_flushcontext -t >/dev/null 2>&1 || true
}

make_ek() {
	step "tpm: creating the EK (RSA-2048, default template)"
	tpm tpm2_createek -G rsa -c "$work/ek.ctx" -u "$work/ek.created"
	tpm tpm2_readpublic -c "$work/ek.ctx" -f tpmt -o "$work/ek.tpmt"
	tpm tpm2_readpublic -c "$work/ek.ctx" -f pem -o "$work/ek.pem"
	ek_public=$(hex <"$work/ek.tpmt")
	ek_spki=$(openssl pkey -pubin -in "$work/ek.pem" -outform DER | sha256sum | cut -c1-64)
}

# The AK of section 3: a restricted signing primary key of the endorsement
# hierarchy. It is created each time and stored nowhere.
make_ak() {
	local attributes='fixedtpm|fixedparent|sensitivedataorigin|userwithauth|noda|restricted|sign'
	local algorithm=rsa2048:rsassa-sha256:null
	tpm tpm2_getcap ecc-curves
	if grep -q TPM2_ECC_NIST_P256 "$work/tpm.out"; then algorithm=ecc256:ecdsa-sha256:null; fi
	step "tpm: creating the AK ($algorithm)"
	tpm tpm2_createprimary -C e -g sha256 -G "$algorithm" -a "$attributes" -c "$work/ak.ctx"
	tpm tpm2_readpublic -c "$work/ak.ctx" -f tpmt -o "$work/ak.tpmt"
	ak_public=$(hex <"$work/ak.tpmt")
	ak_name=000b$(sha256 "$ak_public")
	(((${#ak_public} / 2) <= MAX_PUBLIC)) || fail 1 "the AK's public area is over $MAX_PUBLIC bytes"
}

# The banks that have all of PCR 0-23, as TPM_ALG_IDs in JSON.
read_banks() {
	tpm tpm2_getcap pcrs
	local name list ids='' id
	while IFS=: read -r name list; do
		case ${name//[ -]/} in
		sha1) id=4 ;; sha256) id=11 ;; sha384) id=12 ;; sha512) id=13 ;; *) continue ;;
		esac
		list=${list//[^0-9,]/}
		[[ $list == "$(seq -s, 0 23)" ]] || continue
		ids+=${ids:+,}$id
	done <"$work/tpm.out"
	banks="[$ids]"
}

# The certificate of the RSA EK from its NV index, without the padding after
# the outer SEQUENCE; nothing if the TPM has none.
read_ek_certificate() {
	local raw size
	ek_certificates='[]'
	tpm2_nvread 0x01c00002 -o "$work/ek.nv" >/dev/null 2>&1 || return 0
	raw=$(hex <"$work/ek.nv")
	[[ $raw == 3082* ]] || return 0
	size=$((16#${raw:4:4} + 4))
	((size * 2 <= ${#raw})) || return 0
	ek_certificates="[\"$(b64 "${raw:0:size*2}")\"]"
}

# activate CREDENTIAL_BLOB ENCRYPTED_SECRET: sets k. tpm2-tools require a header of a
# magic number and a version before the two structures.
activate() {
	printf %s "badcc0de00000001$1$2" | unhex >"$work/credential"
	tpm tpm2_startauthsession --policy-session -S "$work/session"
	tpm tpm2_policysecret -S "$work/session" -c e
	tpm tpm2_activatecredential -c "$work/ak.ctx" -C "$work/ek.ctx" \
		-i "$work/credential" -o "$work/k" -P "session:$work/session"
	tpm2_flushcontext "$work/session" >/dev/null 2>&1 || true
	k=$(hex <"$work/k")
	rm -f "$work/k"
	[[ ${#k} == 64 ]] || fail 1 "the activated credential has $((${#k} / 2)) bytes, not 32"
}

# quote BANK PCRS TRANSCRIPT: writes quote and signature, sets pcr_values (JSON).
quote() {
	local size=64 values i
	[[ $1 == sha256 ]] || size=96
	tpm tpm2_quote -c "$work/ak.ctx" -l "$1:$2" -q "$3" -f tss -m "$work/quote" -s "$work/signature"
	tpm tpm2_pcrread "$1:$2" -o "$work/pcrs"
	values=$(hex <"$work/pcrs")
	pcr_values=''
	for ((i = 0; i < ${#values}; i += size)); do
		pcr_values+="${pcr_values:+,}\"$(b64 "${values:i:size}")\""
	done
	pcr_values="[$pcr_values]"
}

# --- the connection (section 1)

# dial: one TLS 1.3 connection; sets exporter and server_spki.
dial() {
	local host=${origin#https://} name line='' pem=''
	host=${host%:*}
	name=(-servername "$host" -verify_hostname "$host")
	if [[ $host == \[*\] ]]; then
		host=${host#\[}
		name=(-noservername -verify_ip "${host%\]}")
	elif [[ $host =~ ^[0-9]+(\.[0-9]+){3}$ ]]; then
		name=(-noservername -verify_ip "$host")
	fi
	mkfifo "$work/to" "$work/from"
	openssl s_client -connect "$connect" -tls1_3 -alpn http/1.1 -nocommands \
		-CAfile "$ca" -no-CApath -no-CAstore -verify_return_error "${name[@]}" \
		-keymatexport "$EXPORTER_LABEL" -keymatexportlen 32 \
		<"$work/to" >"$work/from" 2>"$work/tls.err" &
	tls=$!
	exec {out}>"$work/to" {in}<"$work/from"

	exporter=''
	while IFS= read -r -t "$PATIENCE" -u "$in" line; do
		case $line in
		"-----BEGIN CERTIFICATE-----") pem=$line$'\n' ;;
		"    Keying material: "*)
			exporter=${line##* }
			break
			;;
		*) if [[ -n $pem && $pem != *END* ]]; then pem+=$line$'\n'; fi ;;
		esac
	done
	if [[ ! $exporter =~ ^[0-9A-Fa-f]{64}$ ]]; then
		if line=$(grep -m1 -E '^verify error|:(SSL|tls)' "$work/tls.err"); then
			fail 1 "no trusted TLS 1.3 connection to $connect: $(printable "$line")" \
				"compare the CA in $ca and the name in $origin with the server's certificate"
		fi
		fail 2 "no connection to $connect: $(printable "$(head -n1 "$work/tls.err")")"
	fi
	exporter=${exporter,,}
	server_spki=$(openssl x509 -noout -pubkey <<<"$pem" | openssl pkey -pubin -outform DER | sha256sum | cut -c1-64)
	step "tls: connected to $connect, server key $server_spki"
}

hang_up() {
	[[ -z ${tls:-} ]] || kill "$tls" 2>/dev/null || true
	rm -rf "$work"
}

# take N: append N bytes of the connection to the file answer.
take() {
	local before after
	before=$(stat -c %s "$work/answer")
	((before + $1 <= MAX_BODY)) || fail 1 "the answer is over $MAX_BODY bytes"
	timeout "$PATIENCE" head -c "$1" <&"$in" >>"$work/answer" || true
	after=$(stat -c %s "$work/answer")
	((after - before == $1)) || fail 2 "the connection ended within a response"
}

# line_of WHAT: one line of HTTP into $line, without its end.
line_of() {
	IFS= read -r -t "$PATIENCE" -u "$in" line ||
		fail 2 "the connection ended before $1" "the verifier may be restarting; try again"
	line=${line%$'\r'}
}

# receive: read one HTTP/1.1 response into status and the file answer. s_client prints
# session tickets between responses, before the status line.
receive() {
	local line length=0 chunked=''
	: >"$work/answer"
	for (( ; ; )); do
		line_of "the answer"
		[[ $line =~ HTTP/1\.[01]\ ([0-9]{3}) ]] || continue
		status=${BASH_REMATCH[1]}
		while line_of "the end of the header" && [[ -n $line ]]; do
			line=${line,,}
			if [[ $line =~ ^content-length:\ *([0-9]{1,9})\ *$ ]]; then length=$((10#${BASH_REMATCH[1]})); fi
			if [[ $line =~ ^transfer-encoding:\ *chunked\ *$ ]]; then chunked=yes; fi
		done
		((status >= 200)) && break
	done
	if [[ -z $chunked ]]; then
		take "$length"
		return
	fi
	for (( ; ; )); do
		line_of "a chunk"
		[[ $line =~ ^([0-9A-Fa-f]{1,6})(\;.*)?$ ]] || fail 1 "the answer is not HTTP/1.1"
		length=$((16#${BASH_REMATCH[1]}))
		((length > 0)) || break
		take "$length"
		line_of "the end of a chunk"
	done
	while line_of "the end of the answer" && [[ -n $line ]]; do :; done
}

# object FILTER: succeeds if the answer is one JSON object for which the filter is true.
object() { jq -es "length == 1 and (.[0] | type == \"object\" and ($1))" "$work/answer" >/dev/null 2>&1; }

# call METHOD: send the file request. The answer must be a JSON object; otherwise exit.
call() {
	local size
	size=$(stat -c %s "$work/request")
	((size <= MAX_BODY)) || fail 1 "the request is over $MAX_BODY bytes"
	{
		printf 'POST %s/%s HTTP/1.1\r\n' "$SERVICE" "$1"
		printf 'Host: %s\r\n' "${origin#https://}"
		printf 'Content-Type: application/json\r\nConnect-Protocol-Version: 1\r\n'
		printf 'User-Agent: %s\r\nContent-Length: %d\r\n\r\n' "$VERSION" "$size"
		cat "$work/request"
	} 1>&"$out" 2>/dev/null || fail 2 "the connection ended before the request was sent"
	receive
	if [[ $status == 200 ]]; then
		# s_client's final output would complete a truncated answer.
		object '.' || fail 2 "the answer to $1 is not a JSON object, or was truncated"
		return
	fi
	object '.code | type == "string"' || {
		case $status in
		404 | 405)
			# After a verifier answered under Enforce, this is a transport failure.
			[[ ${mode:-} != MODE_ENFORCE ]] || fail 2 "$1: HTTP status $status"
			fail 3 "no verifier here: $origin answers $status" \
			"a plain Machine Config Server does; nothing was sent but public keys" ;;
		408 | 425 | 429 | 499 | 5??) fail 2 "$1: HTTP status $status" ;;
		*) fail 1 "$1: HTTP status $status" ;;
		esac
	}
	denied "$1"
}

# varint: read the next varint of $bytes into $value.
varint() {
	local shift=0 byte=128
	value=0
	while ((byte >= 128)); do
		[[ -n $bytes ]] && ((shift < 63)) || return 1
		byte=$((16#${bytes:0:2}))
		bytes=${bytes:2}
		value=$((value | (byte & 127) << shift))
		shift=$((shift + 7))
	done
}

# denied METHOD: report the Connect error in the answer, and exit (section 7).
# Connect carries a detail as the protobuf message in base64 without padding.
denied() {
	local bytes='' value number class=0 id='' temporary=0 after=0 code message names
	code=$(printable "$(jq -r .code "$work/answer")")
	message=$(printable "$(jq -r '.message // "" | tostring' "$work/answer")")
	value=$(jq -r '[.details[]? | select(.type == "mcsattest.v1.Denial") | .value][0] // ""
		| tostring | gsub("[^A-Za-z0-9+/]"; "")' "$work/answer" 2>/dev/null) || value=''
	while ((${#value} % 4 > 1)); do value+='='; done
	bytes=$(base64 -d <<<"$value" 2>/dev/null | hex) || bytes=''
	while [[ -n $bytes ]]; do
		varint || break
		number=$((value >> 3))
		case $((value & 7)) in
		0) varint || break ;;
		2)
			varint || break
			((value * 2 <= ${#bytes})) || break
			if ((number == 2)); then id=$(unhex <<<"${bytes:0:value*2}" | tr -cd 'A-Za-z0-9._-'); fi
			bytes=${bytes:value*2}
			;;
		*) break ;;
		esac
		case $number in 1) class=$value ;; 3) temporary=$value ;; 4) after=$value ;; esac
	done
	[[ -z $id ]] || message="correlation id $id"
	names=(UNSPECIFIED MALFORMED CHALLENGE EVIDENCE MACHINE TOKEN NOT_YET UNAVAILABLE)
	if [[ ${mode:-MODE_ENFORCE} != MODE_ENFORCE ]] || { ! ((temporary)) && [[ ${unattested:-} == UNATTESTED_PRE_APPROVED ]]; }; then
		step "the pool also serves a node without a token: continue without one"
	fi
	message="$1 denied: ${names[class]:-$class} ($code, HTTP $status), $message"
	((temporary)) || fail 1 "$message" "this is final; look the id up in the verifier's audit log"
	case $class in
	6) step "this machine is not ready: something must happen on the cluster" ;;
	7) step "the verifier has a problem or is overloaded: no action is needed here" ;;
	esac
	((after)) && fail 2 "$message" "this may be temporary; try again in $after s"
	fail 2 "$message" "this may be temporary; try again after 1 s, doubling to 15 s"
}

# get FILTER: print a field of the challenge.
get() { jq -r "$1" "$work/challenge"; }

# bytes_of FILTER: print a bytes field of the challenge as hexadecimal.
bytes_of() { get "$1 // \"\"" | base64 -d | hex; }

# --- the two calls

challenge() {
	jq -n --arg pool "$pool" --arg origin "$origin" --arg version "$VERSION" \
		--arg ek "$(b64 "$ek_public")" --arg ak "$(b64 "$ak_public")" \
		--argjson certificates "$ek_certificates" --argjson banks "$banks" \
		'{pool: $pool, origin: $origin, offered: ["EVIDENCE_KIND_TPM2"], agentVersion: $version,
		tpm: {ekPublic: $ek, akPublic: $ak, ekCertificates: $certificates, banks: $banks}}' >"$work/request"
	step "challenge: asking $origin for pool $pool"
	call Challenge
	mv "$work/answer" "$work/challenge"

	mode=$(get '.mode // ""')
	unattested=$(get '.unattested // ""')
	if [[ $(get '.required // [] | length') == 0 ]]; then
		step "challenge: no evidence is required; continue without a token"
		exit 0
	fi
	get '.required | join(",")' | grep -qx EVIDENCE_KIND_TPM2 ||
		fail 1 "the verifier requires $(printable "$(get '.required | join(", ")')")" "this client supports only a TPM"
	get '"\(.pool) \(.origin)"' | grep -qxF "$pool $origin" ||
		fail 1 "the challenge is for $(printable "$(get '"\(.origin), pool \(.pool)"')"), not what was requested"
	get '.tpm | [.bank] + (.pcrs // []) | map(tostring) | join(" ")' | grep -qxE '(11|12)( [0-9]| 1[0-9]| 2[0-3]){1,24}' ||
		fail 1 "the challenge requests a bank or a PCR that the contract does not define"
}

# transcript CLAIMS: section 4.
transcript() {
	local bound='' binding
	case $(get '.binding // ""') in
	BINDING_MODE_EXPORTER) binding=exporter bound=$exporter ;;
	BINDING_MODE_TERMINATED) binding=terminated ;;
	*) fail 1 "this client does not support the binding of the challenge" ;;
	esac
	sha256 "$(
		field "$(text mcs-attest/transcript/v1)"
		field "$(bytes_of .sealed)"
		field "$(bytes_of .nonce)"
		field "$(text "$binding")"
		field "$bound"
		field "$server_spki"
		field "$(text "$origin")"
		field "$(text "$pool")"
		field "$(text "tpm2;$bank:$pcrs")"
		field "$ek_spki"
		field "$ak_name"
		field ''
		field "$1"
	)"
}

attest() {
	local claims hash
	bank=sha256
	[[ $(get .tpm.bank) == 11 ]] || bank=sha384
	pcrs=$(get '.tpm.pcrs | sort | map(tostring) | join(",")')

	: >"$work/log"
	if [[ $(get '.tpm.eventLog // false') == true ]]; then
		[[ -r $event_log ]] || fail 1 "the verifier requires the firmware's log, and $event_log cannot be read"
		# The kernel's file has size 0, so it is copied first.
		cat "$event_log" >"$work/log"
		(($(stat -c %s "$work/log") <= MAX_LOG)) || fail 1 "the firmware's log is over $MAX_LOG bytes"
	fi

	claims=$(jq -cnj --arg host "$(uname -n)" --arg boot "$(cat /proc/sys/kernel/random/boot_id)" --arg agent "$VERSION" \
		'{hostname: $host, bootID: $boot, agent: $agent}' | hex)
	hash=$(transcript "$claims")
	step "tpm: activating the credential"
	activate "$(bytes_of .tpm.credentialBlob)" "$(bytes_of .tpm.encryptedSecret)"
	step "tpm: quoting $bank:$pcrs"
	quote "$bank" "$pcrs" "$hash"

	base64 -w0 "$work/log" >"$work/log.b64"
	jq -n --arg sealed "$(get .sealed)" --arg spki "$(b64 "$server_spki")" --arg claims "$(b64 "$claims")" \
		--arg quote "$(base64 -w0 "$work/quote")" --arg signature "$(base64 -w0 "$work/signature")" \
		--arg activation "$(b64 "$(hmac "$k" "$(text mcs-attest/activation/v1)$hash")")" \
		--argjson values "$pcr_values" --rawfile log "$work/log.b64" \
		'{sealed: $sealed, serverSpkiSha256: $spki, claims: $claims,
		tpm2: {quote: $quote, signature: $signature, activation: $activation, pcrValues: $values, eventLog: $log}}' >"$work/request"
	step "attest: sending the evidence"
	call Attest
	step "attest: $(printable "$(jq -r '"accepted as \(.machine // "?"), token for \(.tokenLifetimeSeconds // 0) s, correlation id \(.correlationId // "?")"' "$work/answer")")"
	jq -r '.token // empty' "$work/answer"
}

# --- the command line

origin='' connect='' ca='' pool='' identify=''
event_log=/sys/kernel/security/tpm0/binary_bios_measurements
export TPM2TOOLS_TCTI=${TPM2TOOLS_TCTI:-device:/dev/tpmrm0}
while (($#)); do
	case $1 in
	--help | -h)
		usage
		exit 0
		;;
	--identify)
		identify=yes
		shift
		continue
		;;
	--origin | --connect | --ca | --pool | --tcti | --event-log) [[ -n ${2:-} ]] || fail 1 "$1 needs a value" "see --help" ;;
	*) fail 1 "unknown argument $1" "see --help" ;;
	esac
	case $1 in
	--origin) origin=$2 ;;
	--connect) connect=$2 ;;
	--ca) ca=$2 ;;
	--pool) pool=$2 ;;
	--tcti) TPM2TOOLS_TCTI=$2 ;;
	--event-log) event_log=$2 ;;
	esac
	shift 2
done
for tool in tpm2_createek openssl jq basenc od; do
	command -v "$tool" >/dev/null || fail 1 "$tool is not installed" "on Debian: tpm2-tools, openssl, jq, coreutils"
done
if [[ -z $identify ]]; then
	[[ $origin =~ ^https://([a-z0-9.-]+|\[[0-9a-f:.]+\]):[0-9]{1,5}$ ]] ||
		fail 1 "--origin is \"$origin\"" "https://host:port in lower case, and always with the port"
	[[ $pool =~ ^[A-Za-z0-9_.-]{1,63}$ ]] || fail 1 "--pool is \"$pool\"" "letters, digits, -, _ and ., at most 63"
	[[ -r $ca ]] || fail 1 "--ca is \"$ca\", which cannot be read" "a file of PEM certificates"
	connect=${connect:-${origin#https://}}
fi

work=$(mktemp -d)
trap hang_up EXIT
make_ek
if [[ -n $identify ]]; then
	printf '%s\n' "$ek_spki"
	exit 0
fi
make_ak
read_banks
read_ek_certificate
dial
challenge
attest
