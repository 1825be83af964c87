package transporttest

import (
	"bytes"
	"fmt"
	"reflect"

	"github.com/tidemark-log/tidemark/protocol"
)

// clone returns a copy of m that shares nothing with it.
func clone(m *protocol.Message) *protocol.Message {
	c := new(protocol.Message)
	copyValue(reflect.ValueOf(c).Elem(), reflect.ValueOf(m).Elem())
	return c
}

func copyValue(dst, src reflect.Value) {
	dst.Set(src)
	switch src.Kind() {
	case reflect.Pointer:
		if !src.IsNil() {
			dst.Set(reflect.New(src.Type().Elem()))
			copyValue(dst.Elem(), src.Elem())
		}
	case reflect.Slice:
		if src.IsNil() {
			return
		}
		dst.Set(reflect.MakeSlice(src.Type(), src.Len(), src.Len()))
		reflect.Copy(dst, src)
		if src.Type().Elem().Kind() == reflect.Uint8 {
			return
		}
		for i := range src.Len() {
			copyValue(dst.Index(i), src.Index(i))
		}
	case reflect.Struct:
		for i := range src.NumField() {
			if src.Type().Field(i).IsExported() {
				copyValue(dst.Field(i), src.Field(i))
			}
		}
	}
}

// diff says where two messages differ; "" if they do not. An empty slice is like
// one that is nil.
func diff(want, got *protocol.Message) string {
	return diffValue("Message", reflect.ValueOf(want).Elem(), reflect.ValueOf(got).Elem())
}

func diffValue(path string, want, got reflect.Value) string {
	switch want.Kind() {
	case reflect.Pointer:
		if want.IsNil() != got.IsNil() {
			return fmt.Sprintf("%s is there, or is not", path)
		}
		if want.IsNil() {
			return ""
		}
		return diffValue(path, want.Elem(), got.Elem())
	case reflect.Slice:
		return diffSlice(path, want, got)
	case reflect.Struct:
		for i := range want.NumField() {
			f := want.Type().Field(i)
			if !f.IsExported() {
				continue
			}
			if d := diffValue(path+"."+f.Name, want.Field(i), got.Field(i)); d != "" {
				return d
			}
		}
		return ""
	}
	if want.Equal(got) {
		return ""
	}
	return fmt.Sprintf("%s is %v, not %v", path, got, want)
}

func diffSlice(path string, want, got reflect.Value) string {
	if want.Len() != got.Len() {
		return fmt.Sprintf("%s has length %d, not %d", path, got.Len(), want.Len())
	}
	if want.Type().Elem().Kind() == reflect.Uint8 {
		if bytes.Equal(want.Bytes(), got.Bytes()) {
			return ""
		}
		return path + " has other bytes"
	}
	for i := range want.Len() {
		if d := diffValue(fmt.Sprintf("%s[%d]", path, i), want.Index(i), got.Index(i)); d != "" {
			return d
		}
	}
	return ""
}
