package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"io"
	"io/fs"
	"mime/multipart"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pawlq/pawl"
)

// stalled is how long the demo waits for anything to happen before it reports
// what there is.
const stalled = 2 * time.Minute

// A demo is a client of the gallery that uploads pictures and looks what
// becomes of them. It knows the service only through HTTP.
type demo struct {
	url     string
	client  *http.Client
	console *console
	uploads map[int64]upload // by the picture's ID
}

// An upload is a picture that the service has accepted.
type upload struct {
	name   string
	broken bool // so no thumbnail can come of it
}

// runDemo uploads the pictures of dir and one that is cut in half, waits until
// the service is done with them and prints a summary. Its error says which sums
// are off.
func runDemo(ctx context.Context, url, dir string, c *console) error {
	files, err := findPictures(ctx, dir)
	if err != nil {
		return err
	}
	d := &demo{url, &http.Client{Timeout: time.Minute}, c, map[int64]upload{}}
	defer d.client.CloseIdleConnections()
	if err := d.uploadAll(ctx, files); err != nil {
		return err
	}
	if err := d.wait(ctx); err != nil {
		return err
	}
	s, err := d.summarize(ctx)
	if err != nil {
		return err
	}
	c.end()
	s.print(c.out)
	return s.check()
}

// findPictures returns the paths of all pictures in dir, or in the Go
// distribution's folder of them.
func findPictures(ctx context.Context, dir string) (files []string, err error) {
	if dir == "" {
		if dir, err = goPictures(ctx); err != nil {
			return nil, fmt.Errorf("find the Go distribution's pictures (or name a folder with -dir): %w", err)
		}
	}
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() && isPicture(path) {
			files = append(files, path)
		}
		return err
	})
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("no pictures in %s", dir)
	}
	return files, err
}

func goPictures(ctx context.Context) (string, error) {
	root, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("go env GOROOT: %w", err)
	}
	dir := filepath.Join(strings.TrimSpace(string(root)), "src", "image", "testdata")
	_, err = os.Stat(dir)
	return dir, err
}

func isPicture(path string) bool {
	ext := strings.ToLower(filepath.Ext(path))
	return slices.Contains([]string{".gif", ".jpeg", ".jpg", ".png"}, ext)
}

// uploadAll uploads the files, and one of them again, cut in half.
func (d *demo) uploadAll(ctx context.Context, files []string) error {
	var halfName string
	var half []byte
	for i, path := range files {
		content, err := readPicture(path)
		if err != nil {
			return err
		}
		name := filepath.Base(path)
		if err := d.upload(ctx, name, content); err != nil {
			return err
		}
		if half == nil {
			halfName, half = "half-of-"+name, cut(content)
		}
		if err := d.progress(ctx, i+1, len(files)+1); err != nil {
			return err
		}
	}
	if half == nil {
		return errors.New("none of the pictures is fit to be cut")
	}
	return d.upload(ctx, halfName, half)
}

func readPicture(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, maxUpload+1))
	if len(content) > maxUpload {
		return nil, fmt.Errorf("%s has more than %d bytes", path, maxUpload)
	}
	return content, err
}

// cut returns the first half of a picture, or nil if that is not broken in the
// way wanted: with a good header, so that only decoding all of it shows.
func cut(content []byte) []byte {
	half := content[:len(content)/2]
	if _, _, err := image.DecodeConfig(bytes.NewReader(half)); err != nil || !isBroken(half) || isBroken(content) {
		return nil
	}
	return half
}

// isBroken tells whether the standard library refuses a picture, which is what
// the service is expected to find too.
func isBroken(content []byte) bool {
	_, err := decode(content)
	return err != nil
}

// upload posts one picture, as a form in a browser would.
func (d *demo) upload(ctx context.Context, name string, content []byte) error {
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	file, err := form.CreateFormFile("picture", name)
	if err != nil {
		return err
	}
	file.Write(content) // to memory, which does not fail
	form.Close()
	var answer uploaded
	if err := d.call(ctx, "POST", "/pictures", form.FormDataContentType(), &body, &answer); err != nil {
		return fmt.Errorf("upload %s: %w", name, err)
	}
	d.uploads[answer.ID] = upload{name, isBroken(content)}
	return nil
}

// wait waits until no job is pending.
func (d *demo) wait(ctx context.Context) error {
	var last pawl.QueueStats
	changed := time.Now()
	for {
		var now pawl.QueueStats
		if err := d.get(ctx, "/stats", &now); err != nil {
			return err
		}
		d.console.show(fmt.Sprintf("%d uploaded, %s", len(d.uploads), describe(now)))
		if pending(now) == 0 {
			return nil
		}
		now.OldestReady = 0 // grows by itself
		if now != last {
			last, changed = now, time.Now()
		} else if time.Since(changed) > stalled {
			return nil // the summary will show what is missing
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (d *demo) progress(ctx context.Context, done, of int) error {
	var now pawl.QueueStats
	if err := d.get(ctx, "/stats", &now); err != nil {
		return err
	}
	d.console.show(fmt.Sprintf("%d of %d uploaded, %s", done, of, describe(now)))
	return nil
}

func describe(s pawl.QueueStats) string {
	return fmt.Sprintf("%d completed, %d buried, %d running, %d ready, %d to retry",
		s.Completed, s.Buried, s.Running, s.Ready, s.Scheduled)
}

// summarize asks for all pictures, page by page, and looks at every thumbnail.
func (d *demo) summarize(ctx context.Context) (*summary, error) {
	outcomes := map[int64]outcome{}
	var after int64
	for {
		var page []status
		if err := d.get(ctx, fmt.Sprintf("/pictures?after=%d", after), &page); err != nil {
			return nil, err
		}
		if len(page) == 0 {
			return newSummary(d.uploads, outcomes), nil
		}
		after = page[len(page)-1].ID
		for _, p := range page {
			if _, ours := d.uploads[p.ID]; ours {
				outcomes[p.ID] = outcome{p, d.checkThumbnail(ctx, p)}
			}
		}
	}
}

// checkThumbnail tells whether a picture has a thumbnail that is one.
func (d *demo) checkThumbnail(ctx context.Context, p status) error {
	if p.Made.IsZero() {
		return errors.New("there is none")
	}
	var content []byte
	if err := d.get(ctx, fmt.Sprintf("/pictures/%d/thumbnail", p.ID), &content); err != nil {
		return err
	}
	thumb, _, err := image.Decode(bytes.NewReader(content))
	if err != nil {
		return err
	}
	if size := thumb.Bounds().Size(); max(size.X, size.Y) > thumbSide {
		return fmt.Errorf("it has %d × %d pixels", size.X, size.Y)
	}
	return nil
}

func (d *demo) get(ctx context.Context, path string, answer any) error {
	return d.call(ctx, "GET", path, "", nil, answer)
}

// call makes a request and reads its answer into a *[]byte as it is, or into
// anything else as JSON.
func (d *demo) call(ctx context.Context, method, path, kind string, body io.Reader, answer any) error {
	r, err := http.NewRequestWithContext(ctx, method, d.url+path, body)
	if err != nil {
		return err
	}
	if kind != "" {
		r.Header.Set("Content-Type", kind)
	}
	w, err := d.client.Do(r)
	if err != nil {
		return err
	}
	defer w.Body.Close()
	content, err := io.ReadAll(io.LimitReader(w.Body, maxUpload))
	if err != nil {
		return err
	}
	if w.StatusCode >= 300 {
		return fmt.Errorf("%s %s: %s: %s", method, path, w.Status, bytes.TrimSpace(content))
	}
	if raw, ok := answer.(*[]byte); ok {
		*raw = content
		return nil
	}
	return json.Unmarshal(content, answer)
}
