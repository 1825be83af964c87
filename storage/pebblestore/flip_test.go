package pebblestore_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/storage"
	"github.com/tidemark-log/tidemark/storage/pebblestore"
)

// disk is what a store has left behind, to be damaged.
type disk struct {
	fs   *crashMem
	span []moment // what a sound one may show, and one with a byte flipped without saying so
}

// closedDisk is one whose store was closed after the mix: it must show all.
func closedDisk(t *testing.T) disk {
	mem := newCrashMem()
	h := newHistory()
	h.all(t, tiny(mem))
	return disk{mem.cut(100, rand.New(rand.NewPCG(0, 0))), []moment{h.now()}}
}

// openedDisk is one of a store that was opened after the mix, wrote nothing, and then
// the power was cut.
func openedDisk(t *testing.T) disk {
	mem := newCrashMem()
	h := newHistory()
	h.all(t, tiny(mem))
	s, err := h.open(tiny(mem))
	require.NoError(t, err)
	d := disk{mem.cut(0, nil), []moment{h.now()}}
	require.NoError(t, s.Fence())
	return d
}

// crashedDisk is one that a power cut has left after the mix, with several WALs that
// are not in tables yet. Of the last group it cannot be told whether the power cut or
// damage has taken it.
func crashedDisk(t *testing.T) disk {
	mem := newCrashMem()
	h := newHistory()
	h.all(t, tiny(mem))
	return unflushed(t, h, mem, 0)
}

// unflushed opens the store, writes a number of groups, each to a log of its own, and
// once they are in tables, as far as they will be, some more that do not get there. It
// runs in a bubble.
func unflushed(t *testing.T, h *history, mem *crashMem, logs int32) disk {
	g := newGate()
	s, err := h.open(tiny(errorfs.Wrap(mem, g)))
	require.NoError(t, err)
	require.NoError(t, h.register(s))
	put := func(op storage.Op) {
		h.write(s, step{ops: []storage.Op{op}, synced: true})
		h.dones.all.Wait()
	}
	for i := range logs {
		put(appendOp(storage.LogID{Partition: i}, 0, batchAt(0, 1, 3_000)))
	}
	synctest.Wait()
	g.hang(of(".sst", errorfs.OpCreate))
	for i := range int64(14) { // two or three WALs: with a fourth Pebble would wait
		size := 3_000
		if i >= 9 {
			size = 100
		}
		put(appendOp(logA, i, batchAt(i, 1, size)))
	}
	_, most := h.bounds()
	d := disk{mem.cut(0, nil), h.span(most-1, most)}
	g.open()
	require.NoError(t, s.Close())
	require.NoError(t, h.problem)
	return d
}

// A manifest that ends early because of a flipped byte is that of an earlier time. All
// the tables that it names may be there, while the WAL that had the rest has been
// recycled.
func TestDamagedManifest(t *testing.T) {
	flips := 0
	for logs := range int32(24) {
		synctest.Test(t, func(t *testing.T) {
			mem, h := newCrashMem(), newHistory()
			h.steps = nil
			d := unflushed(t, h, mem, logs)
			for path, size := range d.files(t, "d") {
				if !strings.Contains(path, "MANIFEST") {
					continue
				}
				for at := range size {
					if at%5 == 0 {
						fs := d.fs.cut(0, nil)
						flip(t, fs, path, int64(at))
						_, err := pebblestore.Open("d", tiny(fs))
						require.ErrorIs(t, err, storage.ErrDamaged, "%d logs, byte %d of %d: %v", logs, at, size, err)
						flips++
					}
				}
			}
		})
	}
	require.Greater(t, flips, 1000)
}

// files lists the files of a disk and their sizes.
func (d disk) files(t *testing.T, dir string) map[string]int {
	out := map[string]int{}
	names, err := d.fs.List(dir)
	require.NoError(t, err)
	for _, n := range names {
		path := d.fs.PathJoin(dir, n)
		info, err := d.fs.Stat(path)
		require.NoError(t, err)
		if !info.IsDir() {
			out[path] = int(info.Size())
			continue
		}
		for p, size := range d.files(t, path) {
			out[p] = size
		}
	}
	return out
}

// verdict is what became of a store with a flipped byte.
type verdict string

const (
	refused verdict = "refused" // by Open
	partly  verdict = "partly"  // some logs say that they are damaged
	ended   verdict = "ended"   // by a compaction that met the damage
	whole   verdict = "whole"
)

// judge opens the store and looks whether all is there or it says what is not, also
// while it is written on, and closes it.
func (d disk) judge(fs vfs.FS) (v verdict, err error) {
	s, err := pebblestore.Open("d", tiny(fs))
	if err != nil {
		if !errors.Is(err, storage.ErrDamaged) && !errors.Is(err, storage.ErrFormat) && !errors.Is(err, storage.ErrForeign) {
			return refused, fmt.Errorf("Open does not say that it is damage: %w", err)
		}
		return refused, nil
	}
	defer func() {
		written := write(s, appendOp(logB, 0, batchAt(0, 1, 20_000))).Err // a table, and maybe a compaction that meets the damage
		if written != nil && !errors.Is(written, storage.ErrPoisoned) {
			err = errors.Join(err, written)
		}
		if closed := s.Close(); errors.Is(closed, pebblestore.ErrAbandoned) {
			err = errors.Join(err, closed)
		}
	}()
	said := ""
	for _, m := range d.span {
		if v, said = m.orDamaged(s); said == "" {
			return v, nil
		}
	}
	if errors.Is(s.Health().Err, storage.ErrPoisoned) && pebble.IsCorruptionError(s.Health().Err) {
		return ended, nil
	}
	return "", errors.New(said)
}

// orDamaged is at, for a store of which some logs may say that they are damaged.
func (m moment) orDamaged(s storage.Store) (v verdict, said string) {
	v = whole
	said = probed(func(t require.TestingT) {
		require.Equal(t, m.epoch, s.Node().BrokerEpoch)
		logs, err := s.Logs()
		require.NoError(t, err)
		require.Len(t, logs, m.model.Len())
		for id, state := range logs {
			_, err := s.Read(id, state.Start, 1<<30)
			switch {
			case errors.Is(err, storage.ErrDamaged):
				v = partly
			case state.Damaged != nil:
				require.FailNow(t, "can be read, though damaged")
			default:
				m.model.CheckLog(t, s, id, state)
			}
		}
	})
	return v, said
}

// A byte that is flipped in any file of a store, wherever it is: all is there, or the
// store, or the log, says that it is damaged.
func TestEveryByteFlipped(t *testing.T) {
	seed := faultSeed(t)
	theMix()
	for name, made := range map[string]func(*testing.T) disk{"closed": closedDisk, "opened": openedDisk, "crashed": crashedDisk} {
		t.Run(name, func(t *testing.T) {
			var d disk
			synctest.Test(t, func(t *testing.T) { d = made(t) })
			rng := rand.New(rand.NewPCG(seed, 3))
			seen := map[string]int{}
			files := d.files(t, "d")
			for _, path := range slices.Sorted(maps.Keys(files)) {
				size := files[path]
				kind := path[strings.LastIndexAny(path, "./")+1:]
				kind, _, _ = strings.Cut(kind, "-")
				for _, at := range positions(rng, size) {
					mem := d.fs.cut(0, nil)
					mask := byte(1 + rng.IntN(255))
					flipBits(t, mem, path, at, mask)
					v, err := d.judge(mem)
					require.NoError(t, err, "%s, byte %d of %d, mask %02x", path, at, size, mask)
					seen[kind+" "+string(v)]++
				}
			}
			t.Log(seen)
		})
	}
}

// positions are all bytes of a small file, and some of a large one.
func positions(rng *rand.Rand, size int) (at []int64) {
	most := 40
	if *faults == "full" {
		most = 1000
	}
	if size <= max(most, 200) {
		for i := range size {
			at = append(at, int64(i))
		}
		return at
	}
	for range most {
		at = append(at, int64(rng.IntN(size)))
	}
	return at
}
