package transporttest

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tidemark-log/tidemark/protocol"
)

// The messages of the suite use every exported field of every type that a
// message is made of: whoever adds one has to add it to them.
func TestMessagesUseEveryField(t *testing.T) {
	used := make(map[string]bool)
	for _, m := range messages() {
		m.From, m.To, m.Session = 1, 2, 3
		require.NoError(t, m.Valid())
		visit(reflect.ValueOf(m).Elem(), "", func(name string, v reflect.Value) {
			used[name] = used[name] || !v.IsZero()
		})
	}
	for field, ok := range used {
		require.True(t, ok, "no message of the suite has %s", field)
	}
}

// visit calls f for every field, and all that is in it.
func visit(v reflect.Value, name string, f func(name string, v reflect.Value)) {
	if name != "" {
		f(name, v)
	}
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			visit(v.Elem(), "", f)
		}
	case reflect.Slice:
		for i := range v.Len() {
			visit(v.Index(i), "", f)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if field := v.Type().Field(i); field.IsExported() {
				visit(v.Field(i), v.Type().String()+"."+field.Name, f)
			}
		}
	}
}

// diff notices that any field became zero, however deep it lies, and a copy
// shares nothing.
func TestDiff(t *testing.T) {
	m := data(payload())
	m.Fragment, m.More = []byte{1, 2}, true
	require.Empty(t, diff(m, clone(m)))
	changed := clone(m)
	visit(reflect.ValueOf(changed).Elem(), "", func(name string, v reflect.Value) {
		if v.IsZero() || v.Kind() == reflect.Slice && v.Len() == 0 {
			return
		}
		before := reflect.New(v.Type()).Elem()
		before.Set(v)
		v.SetZero()
		require.NotEmpty(t, diff(m, changed), name)
		v.Set(before)
		if v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Uint8 {
			v.Index(0).SetUint(v.Index(0).Uint() ^ 1)
			require.NotEmpty(t, diff(m, changed), name)
			v.Index(0).SetUint(v.Index(0).Uint() ^ 1)
		}
	})
	require.Empty(t, diff(m, changed))

	m, changed = data(protocol.Payload{}), data(protocol.Payload{})
	changed.Fetches, changed.Fragment = []protocol.Fetch{}, []byte{}
	require.Empty(t, diff(m, changed), "empty is like nil")
}

func TestSized(t *testing.T) {
	for _, n := range []int{2 << 10, 4095, 4096, 4097, 16<<10 + 3, 512 << 10, 16 << 20} {
		m := sized(n)
		m.From, m.To, m.Session = 1, 2, 3
		require.Equal(t, n, m.Size())
		require.NoError(t, m.Valid())
	}
	for n := 5000; n < 40000; n += 7 {
		require.Equal(t, n, sized(n).Size())
	}
}
