package main

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark"
)

func TestDefaultInput(t *testing.T) {
	in, err := loadInput(context.Background(), "")
	require.NoError(t, err)
	require.Equal(t, "go1.txt", filepath.Base(in.path))
	require.Greater(t, len(in.lines), 30000)
}

func TestLines(t *testing.T) {
	for data, want := range map[string][]string{
		"":         nil,
		"\n":       {""},
		"a":        {"a"},
		"a\n":      {"a"},
		"a\n\n":    {"a", ""},
		"a\r\n\nb": {"a\r", "", "b"},
	} {
		in, err := loadInput(context.Background(), write(t, []byte(data)))
		require.NoError(t, err)
		var got []string
		for i := range in.lines {
			got = append(got, string(in.lines[i]))
			line, err := in.line(in.record(i))
			require.NoError(t, err)
			require.Equal(t, i, line)
		}
		require.Equal(t, want, got, "%q", data)
	}
}

func TestLimit(t *testing.T) {
	_, err := loadInput(context.Background(), write(t, []byte(strings.Repeat("x", maxRecordBytes-1))))
	require.NoError(t, err)
	_, err = loadInput(context.Background(), write(t, []byte(strings.Repeat("x", maxRecordBytes))))
	require.ErrorIs(t, err, tidemark.ErrRecordTooLarge)
	require.ErrorAs(t, err, &badInput{})
}

// Only a record that this program could have written is a line.
func TestNoLine(t *testing.T) {
	in, err := loadInput(context.Background(), write(t, []byte("a\nb\n")))
	require.NoError(t, err)
	for name, rec := range map[string]tidemark.Record{
		"other value":      {Key: []byte("1"), Value: []byte("b")},
		"behind the end":   {Key: []byte("3"), Value: []byte("b")},
		"before the start": {Key: []byte("0"), Value: []byte("a")},
		"written oddly":    {Key: []byte("01"), Value: []byte("a")},
		"no number":        {Key: []byte("x"), Value: []byte("a")},
		"no key":           {Value: []byte("a")},
	} {
		_, err := in.line(rec)
		require.ErrorContains(t, err, "no line of", name)
	}
}
