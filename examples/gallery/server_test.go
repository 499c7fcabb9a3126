package main

import (
	"bytes"
	"context"
	"encoding/json"
	"image/png"
	"io"
	"log/slog"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/sqlite"
	"github.com/pawlq/pawl/task"
	"github.com/pawlq/pawl/worker"
)

// A fixture is a gallery without workers and without network.
type fixture struct {
	t        *testing.T
	queue    *pawl.Queue
	pictures *pictures
	web      http.Handler
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "gallery.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	queue := pawl.New(store, &pawl.Options{Logger: log})
	pics, err := openPictures(t.Context(), store, queue)
	if err != nil {
		t.Fatal(err)
	}
	return &fixture{t, queue, pics, (&server{pics, queue, log}).routes()}
}

// work runs all jobs that are there to their end.
func (f *fixture) work() {
	f.t.Helper()
	var ids []pawl.ID
	for j, err := range f.queue.Jobs(f.t.Context(), pawl.Filter{}) {
		if err != nil {
			f.t.Fatal(err)
		}
		ids = append(ids, j.ID)
	}
	tasks := task.NewMux()
	task.Register(tasks, handler(f.pictures, trouble{}))
	err := together(f.t.Context(), worker.New(f.queue, tasks, nil).Run, func(ctx context.Context) error {
		if _, err := f.queue.Wait(ctx, thumbnails, ids...); err != nil {
			return err
		}
		return errDone
	})
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) do(r *http.Request) (code int, body string, h http.Header) {
	f.t.Helper()
	w := httptest.NewRecorder()
	f.web.ServeHTTP(w, r)
	return w.Code, w.Body.String(), w.Result().Header
}

func (f *fixture) get(path string) (code int, body string, h http.Header) {
	f.t.Helper()
	return f.do(httptest.NewRequestWithContext(f.t.Context(), "GET", path, nil))
}

// upload posts a picture as a program does and returns its ID.
func (f *fixture) upload(name string, content []byte) (code int, id int64) {
	f.t.Helper()
	code, body, _ := f.do(form(f.t, "picture", name, content))
	if code != http.StatusOK && code != http.StatusCreated {
		return code, 0
	}
	var answer uploaded
	if err := json.Unmarshal([]byte(body), &answer); err != nil {
		f.t.Fatal(err)
	}
	return code, answer.ID
}

func form(t *testing.T, field, name string, content []byte) *http.Request {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	part, err := w.CreateFormFile(field, name)
	if err != nil {
		t.Fatal(err)
	}
	part.Write(content)
	w.Close()
	r := httptest.NewRequestWithContext(t.Context(), "POST", "/pictures", &b)
	r.Header.Set("Content-Type", w.FormDataContentType())
	return r
}

func TestUploadToThumbnail(t *testing.T) {
	f := newFixture(t)
	content := encode(t, png.Encode, noise(300, 200))
	code, id := f.upload("a.png", content)
	if code != http.StatusCreated {
		t.Fatalf("upload: status %d", code)
	}
	if code, _, _ := f.get("/pictures/1/thumbnail"); code != http.StatusNotFound {
		t.Errorf("thumbnail before its job ran: status %d", code)
	}
	f.work()
	code, body, h := f.get("/pictures/1/thumbnail")
	if id != 1 || code != http.StatusOK || h.Get("Content-Type") != "image/jpeg" || len(body) == 0 {
		t.Errorf("thumbnail of picture %d: status %d, %s, %d bytes", id, code, h.Get("Content-Type"), len(body))
	}
	if _, body, h := f.get("/pictures/1"); body != string(content) || h.Get("Content-Type") != "image/png" {
		t.Errorf("the original came back as %s with %d bytes, want %d", h.Get("Content-Type"), len(body), len(content))
	}
	if _, body, _ := f.get("/"); !strings.Contains(body, `data-pending="false"`) || !strings.Contains(body, "a.png") {
		t.Errorf("the page does not show the picture at rest:\n%s", body)
	}
}

func TestUploadIsIdempotent(t *testing.T) {
	f := newFixture(t)
	content := encode(t, png.Encode, noise(20, 20))
	_, first := f.upload("a.png", content)
	if code, again := f.upload("a.png", content); code != http.StatusOK || again != first {
		t.Errorf("again: status %d, picture %d; want 200, %d", code, again, first)
	}
	if code, other := f.upload("b.png", content); code != http.StatusCreated || other == first {
		t.Errorf("another name: status %d, picture %d", code, other)
	}
	stats, err := f.queue.Stats(t.Context(), thumbnails)
	if err != nil || stats[0].Ready != 2 {
		t.Errorf("%+v, error %v; want 2 jobs ready", stats, err)
	}
}

// TestUploadIsAtomic lets the enqueue fail: no picture may stay without a job.
func TestUploadIsAtomic(t *testing.T) {
	f := newFixture(t)
	full := pawl.New(f.queue.Storage(), &pawl.Options{Depth: map[string]int{thumbnails: 1}})
	f.pictures.queue = full
	f.upload("a.png", []byte("one"))
	if code, _ := f.upload("b.png", []byte("two")); code != http.StatusInternalServerError {
		t.Errorf("upload to a full queue: status %d", code)
	}
	pics, err := f.pictures.latest(t.Context(), 10)
	if err != nil || len(pics) != 1 || pics[0].Name != "a.png" {
		t.Errorf("pictures %v, error %v; want the first only", pics, err)
	}
}

func TestUploadRefuses(t *testing.T) {
	f := newFixture(t)
	plain := httptest.NewRequest("POST", "/pictures", strings.NewReader("x"))
	cut := form(t, "picture", "a.png", []byte("content"))
	cut.Body = io.NopCloser(io.LimitReader(cut.Body, 100))
	for _, c := range []struct {
		name string
		r    *http.Request
		want int
	}{
		{"no form", plain, http.StatusBadRequest},
		{"other field", form(t, "file", "a.png", []byte("x")), http.StatusBadRequest},
		{"cut off", cut, http.StatusBadRequest},
		{"empty", form(t, "picture", "a.png", nil), http.StatusBadRequest},
		{"no name", form(t, "picture", "/", []byte("x")), http.StatusBadRequest},
		{"long name", form(t, "picture", strings.Repeat("a", 201), []byte("x")), http.StatusBadRequest},
		{"just too large", form(t, "picture", "a.png", make([]byte, maxUpload+1)), http.StatusRequestEntityTooLarge},
		{"much too large", form(t, "picture", "a.png", make([]byte, 2*maxUpload)), http.StatusRequestEntityTooLarge},
	} {
		t.Run(c.name, func(t *testing.T) {
			if code, body, _ := f.do(c.r); code != c.want {
				t.Errorf("status %d, want %d: %s", code, c.want, body)
			}
		})
	}
	if stats, err := f.queue.Stats(t.Context(), thumbnails); err != nil || pending(stats[0]) != 0 {
		t.Errorf("%+v, error %v; want no jobs", stats, err)
	}
}

func TestBrokenPictureIsBuriedAndKicked(t *testing.T) {
	f := newFixture(t)
	whole := encode(t, png.Encode, noise(60, 60))
	f.upload("<b>half.png", whole[:len(whole)/2])
	f.work()
	_, body, _ := f.get("/")
	if !strings.Contains(body, "decode the png: ") || !strings.Contains(body, "&lt;b&gt;half.png") {
		t.Errorf("the page does not show the dead letter:\n%s", body)
	}
	if strings.Contains(body, "<b>half") {
		t.Error("the page shows a file name as markup")
	}
	job, err := f.queue.Peek(t.Context(), thumbnails, pawl.Buried)
	if err != nil {
		t.Fatal(err)
	}
	kick := "/jobs/" + job.ID.String() + "/kick"

	foreign := httptest.NewRequest("POST", kick, nil)
	foreign.Header.Set("Sec-Fetch-Site", "cross-site")
	if code, _, _ := f.do(foreign); code != http.StatusForbidden {
		t.Errorf("kick from another site: status %d", code)
	}
	own := func() *http.Request {
		r := httptest.NewRequest("POST", kick, nil)
		r.Header.Set("Sec-Fetch-Site", "same-origin")
		return r
	}
	if code, _, h := f.do(own()); code != http.StatusSeeOther || h.Get("Location") != "/#dead-letters" {
		t.Errorf("kick: status %d, to %s", code, h.Get("Location"))
	}
	if code, _, _ := f.do(own()); code != http.StatusSeeOther {
		t.Errorf("kick of a job that was kicked: status %d", code)
	}
	if _, body, _ := f.get("/"); !strings.Contains(body, `data-pending="true"`) {
		t.Error("the page does not wait for the kicked job")
	}
	f.work()
	if _, body, _ := f.get("/"); !strings.Contains(body, "kicked 1×") {
		t.Errorf("the page does not count the kick:\n%s", body)
	}
}

func TestUploadedPageIsNotServedAsPage(t *testing.T) {
	f := newFixture(t)
	f.upload("evil.png", []byte("<html><script>alert(1)</script>"))
	_, _, h := f.get("/pictures/1")
	if h.Get("Content-Type") != "application/octet-stream" || h.Get("Content-Disposition") != "attachment" ||
		h.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("headers %v", h)
	}
}

func TestNotFound(t *testing.T) {
	f := newFixture(t)
	for _, path := range []string{"/nothing", "/pictures/1", "/pictures/x", "/pictures/1/thumbnail"} {
		if code, _, _ := f.get(path); code != http.StatusNotFound {
			t.Errorf("%s: status %d", path, code)
		}
	}
	for _, id := range []string{"x", "0190d5e2-0000-7000-8000-000000000000"} {
		r := httptest.NewRequest("POST", "/jobs/"+id+"/kick", nil)
		if code, _, _ := f.do(r); code != http.StatusNotFound {
			t.Errorf("kick of %s: status %d", id, code)
		}
	}
}

func TestListPages(t *testing.T) {
	f := newFixture(t)
	for _, name := range []string{"a.png", "b.png", "c.png"} {
		f.upload(name, []byte(name))
	}
	var page []status
	if _, body, _ := f.get("/pictures?after=1"); json.Unmarshal([]byte(body), &page) != nil || len(page) != 2 || page[0].Name != "b.png" {
		t.Errorf("after the first came %v", page)
	}
	if code, _, _ := f.get("/pictures?after=x"); code != http.StatusBadRequest {
		t.Errorf("after no number: status %d", code)
	}
}
