package record

import (
	"errors"
	"fmt"
)

// Errors of reading, for use with errors.Is. Each comes as a struct with the
// details, for errors.As.
var (
	// ErrTruncated: the bytes end before the batch does. Comes as *TruncatedError.
	ErrTruncated = errors.New("record: batch is truncated")
	// ErrCorrupt: the bytes contradict their checksum or themselves. Comes as *CorruptError.
	ErrCorrupt = errors.New("record: batch is corrupt")
	// ErrUnsupported: a batch that this package does not read. Comes as *UnsupportedError.
	ErrUnsupported = errors.New("record: batch format is not supported")
	// ErrTooLarge: records that decompress to more than MaxDecompressed. Comes as
	// *TooLargeError. From Encode: the batch would exceed 2 GiB.
	ErrTooLarge = errors.New("record: batch is too large")
)

// Errors of Encode, for use with errors.Is.
var (
	ErrEmpty     = errors.New("record: a batch needs at least one record")
	ErrTimestamp = errors.New("record: timestamp is not in the years 1970 to 9999")
)

// TruncatedError says how much of a batch is there.
type TruncatedError struct {
	Have int // bytes given
	Need int // bytes of the whole batch; HeaderSize when not even the header is there
}

func (e *TruncatedError) Error() string {
	return fmt.Sprintf("%v: %d bytes of %d", ErrTruncated, e.Have, e.Need)
}

// Is makes the error match ErrTruncated.
func (e *TruncatedError) Is(target error) bool { return target == ErrTruncated }

// CorruptError says what is wrong with a batch, and where.
type CorruptError struct {
	// Offset is the base offset that the batch claims, plus the index of the
	// record when the fault is in a record.
	Offset int64
	What   string
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("%v at offset %d: %s", ErrCorrupt, e.Offset, e.What)
}

// Is makes the error match ErrCorrupt.
func (e *CorruptError) Is(target error) bool { return target == ErrCorrupt }

// UnsupportedError says what the header asks for. One of its two values is the reason:
// Magic when it is not 2, else Attributes.
type UnsupportedError struct {
	Magic      int8
	Attributes int16 // all of them; not read (0) when Magic is not 2
}

func (e *UnsupportedError) Error() string {
	if e.Magic != magic {
		return fmt.Sprintf("%v: magic %d", ErrUnsupported, e.Magic)
	}
	return fmt.Sprintf("%v: attributes %#x (unknown compression, transactional, control, delete horizon or unknown)", ErrUnsupported, uint16(e.Attributes))
}

// Is makes the error match ErrUnsupported.
func (e *UnsupportedError) Is(target error) bool { return target == ErrUnsupported }

// TooLargeError says which compressed batch holds more than MaxDecompressed.
type TooLargeError struct {
	Offset int64 // base offset that the batch claims
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("%v at offset %d: decompressed, its records exceed %d bytes", ErrTooLarge, e.Offset, MaxDecompressed)
}

// Is makes the error match ErrTooLarge.
func (e *TooLargeError) Is(target error) bool { return target == ErrTooLarge }
