package sqlite

import "testing"

func TestIsSeveral(t *testing.T) {
	for text, want := range map[string]bool{
		"":                                false,
		"SELECT 1":                        false,
		"SELECT 1;":                       false,
		"SELECT 1; -- done\n /* and */ ;": false,
		"SELECT ';' || \"a;b\" || [c;d] -- ; x\n/* ; */ || `e;f`": false,
		"SELECT 'it''s; one'": false,
		"SELECT 1; SELECT 2":  true,
		"SELECT 1;'x'":        true,
		";;SELECT 1":          true,
		"CREATE TRIGGER t AFTER DELETE ON a BEGIN DELETE FROM b; END": true,
		"SELECT 'open; SELECT 2": false,
	} {
		if got := isSeveral(text); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}
