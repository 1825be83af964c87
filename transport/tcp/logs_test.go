package tcp

import (
	"crypto/x509"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What goes on is said once a minute, with how often it was not said.
func TestGate(t *testing.T) {
	var g gate
	var said []int
	for now := time.Duration(0); now < 3*time.Minute; now += 10 * time.Second {
		if ok, missed := g.open(now); ok {
			said = append(said, missed)
		}
	}
	require.Equal(t, []int{0, 5, 5}, said)
}

// Changes of a state are said as they come, six in a row, and then one every ten
// seconds.
func TestBurst(t *testing.T) {
	var b burst
	count := func(from, to, every time.Duration) (n int) {
		for now := from; now < to; now += every {
			if ok, _ := b.open(now); ok {
				n++
			}
		}
		return n
	}
	require.Equal(t, 3, count(0, 3*time.Second, time.Second))
	require.LessOrEqual(t, count(3*time.Second, time.Minute+3*time.Second, 100*time.Millisecond), burstLines+3)
	require.LessOrEqual(t, count(2*time.Minute, 62*time.Minute, 100*time.Millisecond), 60*burstLines+burstLines)
	require.Equal(t, 10, count(70*time.Minute, 80*time.Minute, time.Minute))
}

// A dead peer is told of again after a minute, and not before.
func TestReminder(t *testing.T) {
	var log lines
	tr := newRig(t, false).open(1, func(c *Config) { c.Logger = log.logger() }, nobody)
	p := newOutgoing(tr, 2)
	p.address = "nowhere"
	for range 3 {
		p.failed("nowhere", errSilent)
	}
	require.Equal(t, 1, log.count("peer cannot be reached"))
	p.reminded -= remindEvery
	for range 3 {
		p.failed("nowhere", errSilent)
	}
	require.Equal(t, 2, log.count("peer cannot be reached"))
	p.failed("before it moved", errSilent)
	require.EqualValues(t, 6, p.failures)
}

// Messages without a binary form are told of once a minute, whatever their number.
func TestInvalidMessagesStayQuiet(t *testing.T) {
	var log lines
	tr := newRig(t, false).open(1, func(c *Config) { c.Logger = log.logger() }, nobody)
	p := newOutgoing(tr, 2)
	for range 100 {
		p.tellInvalid(errFrame)
	}
	require.Equal(t, 1, log.count("message cannot be sent"))
}

// What a host's VerifyConnection finds wrong with a certificate counts as that.
func TestCauseOfHostsVerification(t *testing.T) {
	for _, err := range []error{x509.CertificateInvalidError{Cert: new(x509.Certificate)}, x509.UnknownAuthorityError{}} {
		require.Equal(t, CauseCertificate, causeOf(fmt.Errorf("TLS: %w", err)))
	}
	require.Equal(t, CauseHandshake, causeOf(errors.New("it is not in the list")))
}
