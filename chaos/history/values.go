package history

import (
	"crypto/sha256"
	"fmt"
	"strings"
)

// keptText is how much of a value is kept, in bytes, to name it by.
const keptText = 40

// valueID stands for a value, so that a history does not keep the values themselves.
type valueID int32

type digest [16]byte

func digestOf(value string) digest {
	sum := sha256.Sum256([]byte(value))
	return digest(sum[:16])
}

type valueTable struct {
	ids   map[digest]valueID
	texts []string // by id
}

func (t *valueTable) id(d digest, value string) valueID {
	id, ok := t.ids[d]
	if !ok {
		if t.ids == nil {
			t.ids = make(map[digest]valueID)
		}
		id = valueID(len(t.texts))
		t.ids[d] = id
		t.texts = append(t.texts, shorten(value))
	}
	return id
}

func (t *valueTable) text(id valueID) string { return t.texts[id] }

// shorten returns what a value is called in a report. Padding at its end says nothing.
func shorten(value string) string {
	short := strings.TrimRight(value[:min(len(value), keptText)], " ")
	for _, r := range short {
		if r < ' ' || r > '~' {
			return fmt.Sprintf("%q", short)
		}
	}
	return strings.Clone(short)
}
