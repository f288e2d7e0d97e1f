// SPDX-License-Identifier: Apache-2.0

package provisioning

import (
	"strings"
	"testing"
	"time"
)

func TestRotate_AWeekIsTheLongestGrace(t *testing.T) {
	first := parse(t, KeyToken, tokenA)
	for grace, ok := range map[time.Duration]bool{168 * time.Hour: true, 168*time.Hour + 1: false, 1: true, 0: false} {
		if _, err := first.Rotate(noon, &counter{}, grace); (err == nil) != ok {
			t.Errorf("%s: %v", grace, err)
		}
	}
	if DefaultGrace != time.Hour {
		t.Errorf("docs/operating.md has a default grace of 1h, not %s", DefaultGrace)
	}
}

func TestParse_LimitsOfAToken(t *testing.T) {
	long := strings.Repeat(tokenA, 12)
	for name, c := range map[string]struct {
		token string
		ok    bool
	}{
		"43 characters":          {tokenA[:43], true},
		"two of padding":         {tokenA[:43] + "==", true},
		"42 characters":          {tokenA[:42], false},
		"512 characters":         {long[:512], true},
		"513 characters":         {long[:513], false},
		"8 different characters": {strings.Repeat("abcdefgh", 6), true},
		"7 different characters": {strings.Repeat("abcdefg", 7), false},
	} {
		if _, err := Parse(data(KeyToken, c.token)); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The alphabet of token68 (RFC 9110, section 11.2).
func TestParse_AcceptsToken68(t *testing.T) {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~+/"
	for i := range 256 {
		c := string([]byte{byte(i)})
		if _, err := Parse(data(KeyToken, c+tokenA)); (err == nil) != strings.Contains(alphabet, c) {
			t.Errorf("%q: %v", c, err)
		}
	}
}

func TestParseFile_LimitsItsSize(t *testing.T) {
	file := "token: " + tokenA + "\n#"
	for size, ok := range map[int]bool{65536: true, 65537: false} {
		d, err := ParseFile([]byte(file + strings.Repeat("a", size-len(file))))
		if (err == nil) != ok || ok && string(d[KeyToken]) != tokenA {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
}
