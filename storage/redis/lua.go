package redis

import (
	"embed"
	"regexp"
	"slices"
	"strings"
)

//go:embed lua
var sources embed.FS

// assemble puts a script together of what all share and its own part. Lua runs the whole
// text in each call, and makes all its functions anew. A function that uses locals of the
// text costs a walk over them for each, so constants are written out as numbers, and
// functions that the script does not need are left out: with both a call takes half the
// time.
func assemble(name string) string {
	before, own, found := strings.Cut(readSource(name), libraryLine)
	if !found {
		before, own = "", before
	}
	kept := uncomment(own)
	for _, file := range []string{"wake", "store", "record", "lib"} {
		paragraphs := strings.Split(uncomment(readSource(file)), "\n\n")
		for i := len(paragraphs) - 1; i >= 0; i-- {
			if needed(paragraphs[i], kept) {
				kept = paragraphs[i] + "\n\n" + kept
			}
		}
	}
	return squeeze(writeOut(uncomment(before) + kept))
}

// libraryLine is where what all share comes in a script that does something before.
const libraryLine = "-- library\n"

func readSource(name string) string {
	text, err := sources.ReadFile("lua/" + name + ".lua")
	if err != nil {
		panic(err) // it is compiled in
	}
	return string(text)
}

// uncomment leaves out comments, whose words are no use of anything.
func uncomment(text string) string { return commentPattern.ReplaceAllString(text, "") }

var (
	commentPattern  = regexp.MustCompile(`(?m)^[ \t]*--.*\n| *-- .*$`)
	functionPattern = regexp.MustCompile(`(?m)^local function (\w+)\(`)
)

// needed reports whether text uses one of the functions that a paragraph of the library
// defines, or it defines none. Functions use only those before them.
func needed(paragraph, text string) bool {
	defined := functionPattern.FindAllStringSubmatch(paragraph, -1)
	return len(defined) == 0 || slices.ContainsFunc(defined, func(m []string) bool {
		return hasWord(text, m[1])
	})
}

// hasWord reports whether text has word, and not only as a part of a longer one, or as a
// field.
func hasWord(text, word string) bool {
	for from := 0; ; {
		i := strings.Index(text[from:], word)
		if i < 0 {
			return false
		}
		at, end := from+i, from+i+len(word)
		if (at == 0 || !isWord(text[at-1]) && text[at-1] != '.') && (end == len(text) || !isWord(text[end])) {
			return true
		}
		from = end
	}
}

func isWord(c byte) bool {
	return c == '_' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

var (
	// A declaration of constants, and a token of the rest: what stands in quotes, a
	// field, or a name.
	constantsPattern = regexp.MustCompile(`(?m)^local ([A-Za-z_,\s]+?)=([\d,\s]+)$`)
	constantPattern  = regexp.MustCompile(`^([A-Z_]+|[swu][A-Z]+)$`)
	tokenPattern     = regexp.MustCompile(`'[^']*'|--.*|\.?\b[A-Za-z_]\w*`)
)

// writeOut replaces constants by what they are. Constants are numbers that are declared
// at the left margin and whose names are in capitals, but for a first letter.
func writeOut(text string) string {
	values := make(map[string]string)
	text = constantsPattern.ReplaceAllStringFunc(text, func(declaration string) string {
		m := constantsPattern.FindStringSubmatch(declaration)
		names, numbers := fields(m[1]), fields(m[2])
		if len(names) != len(numbers) || !constantPattern.MatchString(names[0]) {
			return declaration
		}
		for i, name := range names {
			values[name] = numbers[i]
		}
		return ""
	})
	return tokenPattern.ReplaceAllStringFunc(text, func(token string) string {
		if value, ok := values[token]; ok {
			return value
		}
		return token
	})
}

func fields(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' || r == '\n' || r == '\t' })
}

// squeeze leaves out comments and indents, which the server would keep.
func squeeze(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "--") {
			b.WriteString(line)
			b.WriteByte('\n')
		}
	}
	return b.String()
}
