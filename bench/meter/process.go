package meter

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"
)

// Unknown is the count of what nobody counts here.
const Unknown = -1

// CPU is the processor time that this process has used, in user and in kernel mode.
func CPU() (time.Duration, error) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0, fmt.Errorf("bench: getrusage: %w", err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}

// DiskWritten is how many bytes this process has caused to be written to disks, in
// whole pages, or Unknown where the system does not tell.
func DiskWritten() int64 {
	text, err := os.ReadFile("/proc/self/io")
	if err != nil {
		return Unknown
	}
	for line := range bytes.Lines(text) {
		if value, ok := bytes.CutPrefix(line, []byte("write_bytes: ")); ok {
			if n, err := strconv.ParseInt(string(bytes.TrimSpace(value)), 10, 64); err == nil {
				return n
			}
		}
	}
	return Unknown
}
