// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package journal

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

const (
	lockWait     = time.Second
	compactAbove = 16 << 20 // bytes of a file
	compactBatch = 4 << 20  // bytes in one transaction
	mapped       = 64 << 20 // address space to begin with, so that the map rarely moves
)

// file is a Storage in one bbolt file, a bucket for each table.
type file struct {
	db   *bbolt.DB
	path string
}

// openFile opens or makes the file under an exclusive lock, and compacts it when that halves it.
func openFile(path string, log *slog.Logger) (*file, error) {
	f, err := lockFile(path)
	if err != nil {
		return nil, err
	}
	if err := f.buckets(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	before := f.Size()
	free := int64(f.db.Stats().FreePageN) * int64(f.db.Info().PageSize)
	if before < compactAbove || free <= before/2 {
		return f, nil
	}
	if f, err = f.compact(); err != nil {
		return nil, err
	}
	log.Info("journal: file compacted", "path", path, "before_bytes", before, "after_bytes", f.Size())
	return f, nil
}

// lockFile opens the file that path names while its lock is held.
func lockFile(path string) (*file, error) {
	for range 10 {
		db, fd, err := open(path, &bbolt.Options{Timeout: lockWait, FreelistType: bbolt.FreelistMapType, InitialMmapSize: mapped})
		if err != nil {
			return nil, err
		}
		// A compaction by another process may have replaced the file before the lock was free.
		opened, err1 := fd.Stat()
		now, err2 := os.Stat(path)
		if err1 == nil && err2 == nil && os.SameFile(opened, now) {
			return &file{db, path}, nil
		}
		if err := db.Close(); err != nil {
			return nil, fmt.Errorf("journal: %w", err)
		}
	}
	return nil, fmt.Errorf("journal: %s is replaced again and again", path)
}

// openReadOnly opens an existing file under a shared lock.
func openReadOnly(path string) (*file, error) {
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	db, _, err := open(path, &bbolt.Options{Timeout: lockWait, ReadOnly: true})
	if err != nil {
		return nil, err
	}
	return &file{db, path}, nil
}

// open opens the file under its lock; the descriptor belongs to the database.
func open(path string, o *bbolt.Options) (db *bbolt.DB, fd *os.File, err error) {
	o.OpenFile = func(name string, flag int, mode os.FileMode) (f *os.File, err error) {
		fd, err = os.OpenFile(name, flag, mode)
		return fd, err
	}
	err = guard(path, func() (err error) {
		db, err = bbolt.Open(path, 0o600, o)
		return err
	})
	switch {
	case err == nil:
		return db, fd, nil
	case errors.Is(err, ErrFormat):
		return nil, nil, errors.Join(err, fd.Close()) // bbolt left it open
	case errors.Is(err, bolterrors.ErrTimeout):
		return nil, nil, fmt.Errorf("%w: %s: stop it, or name another file", ErrLocked, path)
	case errors.Is(err, bolterrors.ErrInvalid), errors.Is(err, bolterrors.ErrChecksum), errors.Is(err, bolterrors.ErrVersionMismatch):
		return nil, nil, fmt.Errorf("%w: %s isn't a journal, or is damaged (%w): move it away to begin a new journal", ErrFormat, path, err)
	}
	return nil, nil, fmt.Errorf("journal: open %s: %w", path, err)
}

// buckets makes the tables of a new file.
func (f *file) buckets() error {
	err := f.view(func(tx *bbolt.Tx) error {
		if k, _ := tx.Cursor().First(); k != nil && tx.Bucket([]byte(TableMeta.String())) == nil {
			return fmt.Errorf("%w: %s isn't a router's journal: name another file", ErrFormat, f.path)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return f.update(func(tx *bbolt.Tx) error {
		for t := range tables {
			if _, err := tx.CreateBucketIfNotExists([]byte(t.String())); err != nil {
				return fmt.Errorf("journal: make table %s: %w", t, err)
			}
		}
		return nil
	})
}

// compact rewrites the file. The lock is given up for a moment at its end.
func (f *file) compact() (*file, error) {
	name := f.path + ".compact"
	fail := func(err error) (*file, error) {
		return nil, errors.Join(fmt.Errorf("journal: compact %s: %w", f.path, err), f.Close())
	}
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fail(err)
	}
	to, err := bbolt.Open(name, 0o600, &bbolt.Options{Timeout: lockWait, NoSync: true})
	if err != nil {
		return fail(err)
	}
	err = bbolt.Compact(to, f.db, compactBatch)
	if err == nil {
		err = to.Sync()
	}
	if err := errors.Join(err, to.Close()); err != nil {
		return fail(err)
	}
	if err := os.Rename(name, f.path); err != nil {
		return fail(err)
	}
	if err := syncDir(filepath.Dir(f.path)); err != nil {
		return fail(err)
	}
	if err := f.Close(); err != nil {
		return nil, err
	}
	return lockFile(f.path)
}

func syncDir(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// guard runs f, which touches the mapped file. Damaged or missing pages are an error then, not a panic or a fault.
func guard(path string, f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %s is damaged (%v): move it away to begin a new journal", ErrFormat, path, p)
		}
	}()
	return f()
}

func (f *file) view(do func(*bbolt.Tx) error) error {
	return guard(f.path, func() error { return f.db.View(do) })
}

func (f *file) update(do func(*bbolt.Tx) error) error {
	return guard(f.path, func() error { return f.db.Update(do) })
}

// Load implements Storage.
func (f *file) Load(t Table, each func(key, value []byte) error) error {
	return f.view(func(tx *bbolt.Tx) error {
		b := tx.Bucket([]byte(t.String()))
		if b == nil {
			return nil
		}
		return b.ForEach(each)
	})
}

// Read implements Storage.
func (f *file) Read(t Table, key []byte) (value []byte, err error) {
	err = f.view(func(tx *bbolt.Tx) error {
		if b := tx.Bucket([]byte(t.String())); b != nil {
			value = bytes.Clone(b.Get(key))
		}
		return nil
	})
	return value, err
}

// Commit implements Storage.
func (f *file) Commit(ops []Op) error {
	return f.update(func(tx *bbolt.Tx) error {
		for _, op := range ops {
			b := tx.Bucket([]byte(op.Table.String()))
			var err error
			if op.Value == nil {
				err = b.Delete(op.Key)
			} else {
				err = b.Put(op.Key, op.Value)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", op.Table, err)
			}
		}
		return nil
	})
}

// Size implements Storage.
func (f *file) Size() int64 {
	i, err := os.Stat(f.path)
	if err != nil {
		return 0
	}
	return i.Size()
}

// Close implements Storage.
func (f *file) Close() error { return f.db.Close() }
