package sqlite

import "strings"

// isSeveral reports whether a text may hold more than one statement: whether
// anything but space and comments follows a semicolon. The body of a trigger
// counts as several.
func isSeveral(text string) bool {
	ended := false
	for text != "" {
		n := skip(text)
		switch {
		case n > 0:
			if ended && !isBlank(text[:n]) {
				return true
			}
			text = text[n:]
			continue
		case text[0] == ';':
			ended = true
		case ended && !strings.ContainsRune(" \t\r\n\f", rune(text[0])):
			return true
		}
		text = text[1:]
	}
	return false
}

// skip is the length of the comment, string or quoted name that the text
// begins with, 0 if it begins with none.
func skip(text string) int {
	switch {
	case strings.HasPrefix(text, "--"):
		return end(text, 2, "\n")
	case strings.HasPrefix(text, "/*"):
		return end(text, 2, "*/")
	case text[0] == '\'' || text[0] == '"' || text[0] == '`':
		return end(text, 1, text[:1]) // a doubled quote is two strings, which is as good
	case text[0] == '[':
		return end(text, 1, "]")
	}
	return 0
}

// end is where the first mark after the beginning of the text ends.
func end(text string, from int, mark string) int {
	if i := strings.Index(text[from:], mark); i >= 0 {
		return from + i + len(mark)
	}
	return len(text)
}

// isBlank reports whether what skip has found is a comment.
func isBlank(token string) bool { return token[0] == '-' || token[0] == '/' }
