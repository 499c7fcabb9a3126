package sqlite_test

import "testing"

// A hand can't write what would stop a queue: it is refused, and the jobs are
// claimed as before.
func TestDamageIsRefused(t *testing.T) {
	s := open(t, nil)
	enqueue(t, s, requests(2)...)
	for _, damage := range []string{
		"attempt = 'many'", "attempt = 9223372036854775807", "lease = 9223372036854775807", "at = 'soon'",
		"umode = 300", "held = 5", "last_verb = 300", "state = 0", "id = x'01'", "kind = x'00ff'", "payload = 'text'",
	} {
		if _, err := s.DB().ExecContext(t.Context(), "UPDATE pawl_job SET "+damage); err == nil {
			t.Errorf("%s was accepted", damage)
		}
	}
	if n := len(claim(t, s, 10)); n != 2 {
		t.Errorf("claimed %d jobs, want 2", n)
	}
}
