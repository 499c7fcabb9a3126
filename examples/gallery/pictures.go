package main

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/sqlite"
	"github.com/pawlq/pawl/task"
)

// The business table. Times are microseconds since 1970; made is null until
// there is a thumbnail.
const schema = `
CREATE TABLE IF NOT EXISTS pictures (
	id        INTEGER PRIMARY KEY,
	name      TEXT    NOT NULL,
	hash      TEXT    NOT NULL,
	content   BLOB    NOT NULL,
	job       TEXT    NOT NULL,
	uploaded  INTEGER NOT NULL,
	thumbnail BLOB,
	made      INTEGER,
	UNIQUE (name, hash)
)`

// A picture is a row of the business table without its pixels.
type picture struct {
	ID       int64     `json:"id"`
	Name     string    `json:"name"`
	Size     int64     `json:"size"` // bytes
	Job      pawl.ID   `json:"job"`
	Uploaded time.Time `json:"uploaded"`
	Made     time.Time `json:"made,omitzero"` // when its thumbnail was; zero if there is none
}

// pictures keeps pictures and makes sure that each gets its thumbnail.
type pictures struct {
	store *sqlite.Store
	queue *pawl.Queue
}

func openPictures(ctx context.Context, store *sqlite.Store, queue *pawl.Queue) (*pictures, error) {
	err := store.InTx(ctx, func(tx *sql.Tx, _ pawl.Writer) error {
		_, err := tx.ExecContext(ctx, schema)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("create the table of pictures: %w", err)
	}
	return &pictures{store, queue}, nil
}

// add stores a picture and, in the same transaction, the job that will make its
// thumbnail: there is never one without the other. A picture that is there
// already, by name and content, changes nothing, so that an upload whose answer
// was lost can be repeated.
func (p *pictures) add(ctx context.Context, name string, content []byte) (id int64, added bool, err error) {
	hash := sha256.Sum256(content)
	row := newPicture{name, hex.EncodeToString(hash[:]), content, uuid.Must(uuid.NewV7()), time.Now()}
	err = p.store.InTx(ctx, func(tx *sql.Tx, w pawl.Writer) error {
		if id, added, err = row.insert(ctx, tx); err != nil || !added {
			return err
		}
		job := task.New(makeThumb{Picture: id})
		job.ID = row.job
		job.Meta = map[string]string{"name": name}
		_, err := p.queue.WithTx(w).Enqueue(ctx, job)
		return err
	})
	if err != nil {
		return 0, false, fmt.Errorf("add picture %q: %w", name, err)
	}
	return id, added, nil
}

type newPicture struct {
	name, hash string
	content    []byte
	job        pawl.ID
	uploaded   time.Time
}

func (n *newPicture) insert(ctx context.Context, tx *sql.Tx) (id int64, added bool, err error) {
	err = tx.QueryRowContext(ctx, `
		INSERT INTO pictures (name, hash, content, job, uploaded) VALUES (?, ?, ?, ?, ?)
		ON CONFLICT (name, hash) DO NOTHING RETURNING id`,
		n.name, n.hash, n.content, n.job.String(), n.uploaded.UnixMicro()).Scan(&id)
	if !errors.Is(err, sql.ErrNoRows) {
		return id, err == nil, err
	}
	err = tx.QueryRowContext(ctx, `SELECT id FROM pictures WHERE name = ? AND hash = ?`, n.name, n.hash).Scan(&id)
	return id, false, err
}

// list returns up to limit pictures with an ID above after, oldest first.
func (p *pictures) list(ctx context.Context, after int64, limit int) ([]picture, error) {
	return p.query(ctx, `WHERE id > ? ORDER BY id LIMIT ?`, after, limit)
}

// latest returns up to limit pictures, newest first.
func (p *pictures) latest(ctx context.Context, limit int) ([]picture, error) {
	return p.query(ctx, `ORDER BY id DESC LIMIT ?`, limit)
}

func (p *pictures) query(ctx context.Context, which string, args ...any) ([]picture, error) {
	rows, err := p.store.DB().QueryContext(ctx,
		`SELECT id, name, length(content), job, uploaded, made FROM pictures `+which, args...)
	if err != nil {
		return nil, fmt.Errorf("list pictures: %w", err)
	}
	defer rows.Close()
	var found []picture
	for rows.Next() {
		var (
			pic      picture
			uploaded int64
			made     sql.NullInt64
		)
		if err := rows.Scan(&pic.ID, &pic.Name, &pic.Size, &pic.Job, &uploaded, &made); err != nil {
			return nil, fmt.Errorf("list pictures: %w", err)
		}
		pic.Uploaded = time.UnixMicro(uploaded)
		if made.Valid {
			pic.Made = time.UnixMicro(made.Int64)
		}
		found = append(found, pic)
	}
	return found, rows.Err()
}

// content returns a picture as it was uploaded, or sql.ErrNoRows.
func (p *pictures) content(ctx context.Context, id int64) (content []byte, err error) {
	err = p.store.DB().QueryRowContext(ctx, `SELECT content FROM pictures WHERE id = ?`, id).Scan(&content)
	return content, err
}

// thumbnail returns a picture's thumbnail, or sql.ErrNoRows if there is none.
func (p *pictures) thumbnail(ctx context.Context, id int64) (content []byte, err error) {
	err = p.store.DB().QueryRowContext(ctx,
		`SELECT thumbnail FROM pictures WHERE id = ? AND made IS NOT NULL`, id).Scan(&content)
	return content, err
}

// setThumbnail stores a picture's thumbnail. The first one stays: a job may run
// more than once, and its effect must then be that of one run.
func (p *pictures) setThumbnail(ctx context.Context, id int64, content []byte) error {
	return p.store.InTx(ctx, func(tx *sql.Tx, _ pawl.Writer) error {
		_, err := tx.ExecContext(ctx, `UPDATE pictures SET thumbnail = ?, made = ? WHERE id = ? AND made IS NULL`,
			content, time.Now().UnixMicro(), id)
		return err
	})
}

// A status is a picture and what became of its job.
type status struct {
	picture
	State   string `json:"state"` // of the job, or gone
	Error   string `json:"error,omitempty"`
	Reason  string `json:"reason,omitempty"`
	Retries int    `json:"retries"`
	Rescues int    `json:"rescues"`
}

// gone is the state of a picture without a thumbnail whose job is not there: it
// never comes about unless someone deletes the job.
const gone = "gone"

// withJobs looks up the jobs of up to pawl.MaxStep pictures.
func (p *pictures) withJobs(ctx context.Context, pics []picture, err error) ([]status, error) {
	if err != nil {
		return nil, err
	}
	ids := make([]pawl.ID, len(pics))
	for i, pic := range pics {
		ids[i] = pic.Job
	}
	jobs, err := p.queue.Storage().Get(ctx, thumbnails, ids...)
	if err != nil {
		return nil, fmt.Errorf("look up jobs: %w", err)
	}
	all := make([]status, len(pics))
	for i, pic := range pics {
		all[i] = statusOf(pic, jobs[i])
	}
	return all, nil
}

func statusOf(pic picture, job *pawl.Job) status {
	s := status{picture: pic, State: gone}
	switch {
	case job != nil:
		s.State, s.Reason = job.State.String(), string(job.Reason)
		s.Retries, s.Rescues = job.Counts.Retries, job.Counts.Rescues
		s.Error = lastError(job)
	case !pic.Made.IsZero():
		s.State = pawl.Completed.String() // and its retention is over
	}
	return s
}

func lastError(job *pawl.Job) string {
	if len(job.Failures) == 0 || job.State == pawl.Completed {
		return ""
	}
	return job.Failures[len(job.Failures)-1].Error
}
