// Package text checks names and cleans error texts before they are stored.
package text

import (
	"strings"
	"unicode/utf8"
)

// IsName reports whether s is made of 1 to limit ASCII letters, digits, '_',
// '-', '.' and ':'.
func IsName(s string, limit int) bool {
	if len(s) == 0 || len(s) > limit {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case c == '_', c == '-', c == '.', c == ':':
		default:
			return false
		}
	}
	return true
}

// IsLine reports whether s is at most limit bytes of valid UTF-8 without
// control characters.
func IsLine(s string, limit int) bool {
	if len(s) > limit || !utf8.ValidString(s) {
		return false
	}
	for _, r := range s {
		if r < ' ' || r == 0x7f {
			return false
		}
	}
	return true
}

// Clean makes s valid UTF-8 without NUL, which some databases refuse, and cuts
// it on a rune boundary to at most limit bytes.
func Clean(s string, limit int) string {
	if len(s) > limit {
		s = s[:cut(s, limit)]
	}
	if !strings.ContainsRune(s, 0) && utf8.ValidString(s) {
		return s
	}
	s = strings.ToValidUTF8(s, "\uFFFD")
	s = strings.ReplaceAll(s, "\x00", "\uFFFD")
	// The replacement character is longer than what it replaces.
	return s[:cut(s, limit)]
}

// cut returns the largest n ≤ limit at which s may be cut without splitting a
// rune. Invalid bytes count as runes of their own.
func cut(s string, limit int) int {
	if len(s) <= limit {
		return len(s)
	}
	for back := range min(utf8.UTFMax, limit+1) {
		if utf8.RuneStart(s[limit-back]) {
			return limit - back
		}
	}
	return limit
}
