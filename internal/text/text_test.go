package text

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestIsName(t *testing.T) {
	const limit = 16
	for s, want := range map[string]bool{
		"a": true, "mail.high_2-x:Y": true, strings.Repeat("z", limit): true,
		"": false, strings.Repeat("z", limit+1): false,
		"a b": false, "ä": false, "a\x00": false, "a/b": false, "{a}": false,
	} {
		if IsName(s, limit) != want {
			t.Errorf("IsName(%q) = %v", s, !want)
		}
	}
}

func TestIsLine(t *testing.T) {
	for s, want := range map[string]bool{
		"": true, "grüße": true, "a b/c{}": true,
		"a\nb": false, "\x7f": false, "\xff": false, "123456789": false,
	} {
		if IsLine(s, 8) != want {
			t.Errorf("IsLine(%q, 8) = %v", s, !want)
		}
	}
}

func TestClean(t *testing.T) {
	for _, c := range []struct {
		s     string
		limit int
		want  string
	}{
		{"short", 10, "short"},
		{"aé", 2, "a"},
		{"a\x00b", 10, "a\uFFFDb"},
		{"a\xffb", 10, "a\uFFFDb"},
		{"\xff\xff\xff", 3, "\uFFFD"},
		{"日本語", 7, "日本"},
		{"\xd3", 2, ""}, // the replacement character is three bytes
		{"anything", 0, ""},
	} {
		if got := Clean(c.s, c.limit); got != c.want {
			t.Errorf("Clean(%q, %d) = %q, want %q", c.s, c.limit, got, c.want)
		}
	}
}

func FuzzClean(f *testing.F) {
	f.Add("a\x00\xff日", 4)
	f.Fuzz(func(t *testing.T, s string, limit int) {
		if limit < 0 {
			limit = -(limit + 1)
		}
		got := Clean(s, limit)
		if len(got) > limit || !utf8.ValidString(got) || strings.ContainsRune(got, 0) {
			t.Errorf("Clean(%q, %d) = %q", s, limit, got)
		}
		if utf8.ValidString(s) && !strings.ContainsRune(s, 0) && len(s) <= limit && got != s {
			t.Errorf("Clean changed %q to %q", s, got)
		}
	})
}
