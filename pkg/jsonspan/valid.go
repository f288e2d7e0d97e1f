// SPDX-License-Identifier: Apache-2.0

package jsonspan

// maxDepth is the maximum nesting depth, as in encoding/json.
const maxDepth = 10_000

// validValue returns the end of the value that begins at i, or -1 if it is invalid.
func validValue(text []byte, i, depth int) int {
	if i >= len(text) {
		return -1
	}
	switch text[i] {
	case '{', '[':
		return validMembers(text, i, depth+1)
	case '"':
		return validString(text, i)
	case 't':
		return validWord(text, i, "true")
	case 'f':
		return validWord(text, i, "false")
	case 'n':
		return validWord(text, i, "null")
	}
	return validNumber(text, i)
}

// validMembers parses the object or array that begins at i.
func validMembers(text []byte, i, depth int) int {
	object, end := text[i] == '{', byte(']')
	if object {
		end = '}'
	}
	if depth > maxDepth {
		return -1
	}
	i = skipSpace(text, i+1)
	if i < len(text) && text[i] == end {
		return i + 1
	}
	for {
		if object {
			if i >= len(text) || text[i] != '"' {
				return -1
			}
			if i = validString(text, i); i < 0 {
				return -1
			}
			if i = skipSpace(text, i); i >= len(text) || text[i] != ':' {
				return -1
			}
			i = skipSpace(text, i+1)
		}
		if i = validValue(text, i, depth); i < 0 {
			return -1
		}
		i = skipSpace(text, i)
		switch {
		case i >= len(text):
			return -1
		case text[i] == end:
			return i + 1
		case text[i] != ',':
			return -1
		}
		i = skipSpace(text, i+1)
	}
}

// special are the bytes of a string that need special handling.
var special = func() (t [256]bool) {
	for c := range ' ' {
		t[c] = true
	}
	t['"'], t['\\'] = true, true
	return t
}()

func validString(text []byte, i int) int {
	for i++; i < len(text); i++ {
		if !special[text[i]] {
			continue
		}
		switch {
		case text[i] == '"':
			return i + 1
		case text[i] != '\\':
			return -1
		}
		if i++; i >= len(text) {
			return -1
		}
		switch text[i] {
		case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		case 'u':
			for range 4 {
				if i++; i >= len(text) || !isHex(text[i]) {
					return -1
				}
			}
		default:
			return -1
		}
	}
	return -1
}

func validWord(text []byte, i int, word string) int {
	if len(text)-i < len(word) || string(text[i:i+len(word)]) != word {
		return -1
	}
	return i + len(word)
}

func validNumber(text []byte, i int) int {
	if i < len(text) && text[i] == '-' {
		i++
	}
	if i < len(text) && text[i] == '0' {
		i++
	} else if i = validDigits(text, i); i < 0 {
		return -1
	}
	if i < len(text) && text[i] == '.' {
		if i = validDigits(text, i+1); i < 0 {
			return -1
		}
	}
	if i < len(text) && (text[i] == 'e' || text[i] == 'E') {
		if i++; i < len(text) && (text[i] == '+' || text[i] == '-') {
			i++
		}
		return validDigits(text, i)
	}
	return i
}

// validDigits returns the end of one or more digits.
func validDigits(text []byte, i int) int {
	start := i
	for i < len(text) && isDigit(text[i]) {
		i++
	}
	if i == start {
		return -1
	}
	return i
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func isHex(c byte) bool {
	return isDigit(c) || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}
