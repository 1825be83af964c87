// Package protocol holds the messages that brokers exchange: plain values with
// their sizes, their validity rules and their binary form. It knows nothing of how
// they travel.
//
// An in-process transport hands the values over as they are. For that reason a
// message, and every byte it refers to, is immutable once it was sent.
//
// # Binary form
//
// For transports that move bytes, every message has one binary form:
//
//	header   form (1), kind, cluster, from, to, both broker epochs, session,
//	         attempt, seq, ack, min and max version
//	body     two flags (this is a fragment; more of it follow), how many bytes
//	         come now, and then: nothing, or the fragment, or a payload
//	payload  version (1), and a section for each type of item that there is
//	section  number of the type, how many items, the items
//
// Numbers are big-endian and of fixed width; UUIDs are 16 bytes. Before bytes, a
// string or a list stand 4 bytes with the length, before what may be missing stands
// a flag. A flag is 0 or 1. Sections come in the order of their numbers. The fields
// and their order are those of wire_items.go, which is the whole table.
//
// # How it changes
//
// The header is read before two brokers have agreed on anything, so its form is one
// for all versions. Hello, Welcome and Reset have nothing else, and every later
// version reads and writes them as they are.
//
// The payload is of the version that the session's Hello has negotiated, which Data
// names. A broker sends what that version has and nothing else. So a reader never
// meets what it does not know, and skips nothing: an item that is dropped in
// silence is one that somebody waits for. What it does not know after all, it
// refuses whole (VersionError, WireError).
//
//   - A field is added behind the last one of its item, and is written and read
//     from its version on. Of an older version it reads as zero, or as the comment
//     at the field says.
//   - A type of item is added with the next number, as the last section. In sessions
//     of older versions it is not sent; whoever would send it does without.
//   - A value of an enumeration (Code, CommandKind and so on) is added behind the
//     last one. In sessions of older versions an older value is sent for it.
//   - No number is used for another meaning. What is needed no more goes when the
//     lowest version spoken has passed it.
//
// testdata/wire holds the bytes of version 1.
package protocol
