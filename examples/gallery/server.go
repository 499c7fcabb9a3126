package main

import (
	"bytes"
	"context"
	"database/sql"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime/multipart"
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/pawlq/pawl"
)

const (
	maxUpload  = 16 << 20 // bytes of a picture, which is held in memory
	maxForm    = 4 << 10  // bytes of the form around it
	maxUploads = 8        // at a time, others wait
	maxName    = 200      // bytes of a file name
)

//go:embed web
var web embed.FS

// server is the HTTP side of the gallery.
type server struct {
	pictures *pictures
	queue    *pawl.Queue
	log      *slog.Logger
}

// routes returns the handler of all requests. Browsers' requests that change
// something are accepted from the gallery's own pages only.
func (s *server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /{$}", s.reply(s.page))
	mux.Handle("GET /web/", http.FileServerFS(web))
	mux.Handle("POST /pictures", atMost(maxUploads, s.reply(s.upload)))
	mux.Handle("GET /pictures", s.reply(s.list))
	mux.Handle("GET /pictures/{id}", s.reply(s.original))
	mux.Handle("GET /pictures/{id}/thumbnail", s.reply(s.thumbnail))
	mux.Handle("POST /jobs/{id}/kick", s.reply(s.kick))
	mux.Handle("GET /stats", s.reply(s.stats))
	return http.NewCrossOriginProtection().Handler(secure(mux))
}

// secure keeps pages from loading anything from elsewhere, and uploaded files
// from being taken for pages.
func secure(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'none'; img-src 'self'; style-src 'self'; script-src 'self'; "+
			"connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "same-origin")
		next.ServeHTTP(w, r)
	})
}

// A httpError is an error with a status code.
type httpError struct {
	code int
	text string
}

func (e *httpError) Error() string { return e.text }

// reply lets handlers return their errors.
func (s *server) reply(h func(http.ResponseWriter, *http.Request) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := h(w, r)
		var (
			known   *httpError
			tooLong *http.MaxBytesError
		)
		switch {
		case err == nil, r.Context().Err() != nil:
		case errors.As(err, &known):
			http.Error(w, known.text, known.code)
		case errors.As(err, &tooLong):
			http.Error(w, fmt.Sprintf("a picture may have %d bytes", maxUpload), http.StatusRequestEntityTooLarge)
		case errors.Is(err, sql.ErrNoRows), errors.Is(err, pawl.ErrNotFound):
			http.Error(w, "not found", http.StatusNotFound)
		default:
			s.log.ErrorContext(r.Context(), "request failed", "method", r.Method, "path", r.URL.Path, "err", err)
			http.Error(w, "something went wrong; the log says what", http.StatusInternalServerError)
		}
	})
}

// upload stores the file of the form's field "picture". Browsers are sent back
// to the page, programs get the picture's ID: 201 if it is new, else 200.
func (s *server) upload(w http.ResponseWriter, r *http.Request) error {
	r.Body = http.MaxBytesReader(w, r.Body, maxUpload+maxForm)
	name, content, err := readForm(r)
	if err != nil {
		return err
	}
	id, added, err := s.pictures.add(r.Context(), name, content)
	if err != nil {
		return err
	}
	if strings.Contains(r.Header.Get("Accept"), "text/html") {
		http.Redirect(w, r, "/", http.StatusSeeOther)
		return nil
	}
	code := http.StatusOK
	if added {
		code = http.StatusCreated
	}
	return writeJSON(w, code, uploaded{id})
}

// uploaded answers an upload.
type uploaded struct {
	ID int64 `json:"id"`
}

func readForm(r *http.Request) (name string, content []byte, err error) {
	form, err := r.MultipartReader()
	if err != nil {
		return "", nil, &httpError{http.StatusBadRequest, "send a form with a file named picture: " + err.Error()}
	}
	for {
		part, err := form.NextPart()
		if err == io.EOF {
			return "", nil, &httpError{http.StatusBadRequest, "the form has no file named picture"}
		}
		if err != nil {
			return "", nil, badForm(err)
		}
		if part.FormName() == "picture" {
			return readPart(part)
		}
	}
}

func readPart(part *multipart.Part) (name string, content []byte, err error) {
	name = strings.ToValidUTF8(path.Base(part.FileName()), "")
	if content, err = io.ReadAll(part); err != nil {
		return "", nil, badForm(err)
	}
	switch {
	case name == "." || name == "/" || len(name) > maxName:
		err = &httpError{http.StatusBadRequest, fmt.Sprintf("the file must have a name of at most %d bytes", maxName)}
	case len(content) == 0:
		err = &httpError{http.StatusBadRequest, "the file is empty"}
	case len(content) > maxUpload:
		err = &http.MaxBytesError{Limit: maxUpload}
	}
	return name, content, err
}

func badForm(err error) error {
	if errors.As(err, new(*http.MaxBytesError)) {
		return err
	}
	return &httpError{http.StatusBadRequest, "the form can't be read: " + err.Error()}
}

// list answers with up to pawl.MaxStep pictures whose ID is above "after".
func (s *server) list(w http.ResponseWriter, r *http.Request) error {
	var after int64
	if v := r.FormValue("after"); v != "" {
		var err error
		if after, err = strconv.ParseInt(v, 10, 64); err != nil {
			return &httpError{http.StatusBadRequest, "after must be a number"}
		}
	}
	pics, err := s.pictures.list(r.Context(), after, pawl.MaxStep)
	all, err := s.pictures.withJobs(r.Context(), pics, err)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, all)
}

func (s *server) original(w http.ResponseWriter, r *http.Request) error {
	return serveFile(w, r, s.pictures.content)
}

func (s *server) thumbnail(w http.ResponseWriter, r *http.Request) error {
	return serveFile(w, r, s.pictures.thumbnail)
}

// serveFile answers with what read finds by the ID of the path. It is shown as a
// picture only if it looks like one; whatever else was uploaded is offered as a
// download, for it could be a page with a script.
func serveFile(w http.ResponseWriter, r *http.Request, read func(context.Context, int64) ([]byte, error)) error {
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	if err != nil {
		return sql.ErrNoRows
	}
	content, err := read(r.Context(), id)
	if err != nil {
		return err
	}
	h := w.Header()
	kind := http.DetectContentType(content)
	switch kind {
	case "image/gif", "image/jpeg", "image/png":
	default:
		kind = "application/octet-stream"
		h.Set("Content-Disposition", "attachment")
	}
	h.Set("Content-Type", kind)
	h.Set("Cache-Control", "private, max-age=86400, immutable")
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
	return nil
}

// kick gives a job of the dead-letter queue another try.
func (s *server) kick(w http.ResponseWriter, r *http.Request) error {
	id, err := uuid.Parse(r.PathValue("id"))
	if err != nil {
		return &httpError{http.StatusNotFound, "no such job"}
	}
	err = s.queue.Kick(r.Context(), thumbnails, id)
	if errors.Is(err, pawl.ErrInvalid) {
		err = nil // it was kicked by someone else, which is as good
	}
	if err != nil {
		return err
	}
	http.Redirect(w, r, "/#dead-letters", http.StatusSeeOther)
	return nil
}

func (s *server) stats(w http.ResponseWriter, r *http.Request) error {
	stats, err := s.queue.Stats(r.Context(), thumbnails)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, stats[0])
}

func writeJSON(w http.ResponseWriter, code int, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	// An error here means that the client has gone.
	_, _ = w.Write(text)
	return nil
}
