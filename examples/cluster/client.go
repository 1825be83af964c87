package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

const topic = "lines"

// client asks one broker over HTTP, as anybody could with curl.
type client struct {
	place
	http *http.Client
}

// errRefused: the append is certainly not in the log. After any other error it may be.
var errRefused = errors.New("refused")

func (c *client) createTopic(ctx context.Context, partitions int) error {
	return c.call(ctx, http.MethodPut, fmt.Sprintf("/%s?partitions=%d", topic, partitions), "", nil)
}

func (c *client) append(ctx context.Context, partition int, value string) (a ack, err error) {
	err = c.call(ctx, http.MethodPost, fmt.Sprintf("/%s/%d", topic, partition), value, &a)
	return a, err
}

func (c *client) status(ctx context.Context, partition int) (s partitionStatus, err error) {
	err = c.call(ctx, http.MethodGet, fmt.Sprintf("/%s/%d/status", topic, partition), "", &s)
	return s, err
}

func (c *client) replica(ctx context.Context, partition int) (s replicaStatus, err error) {
	err = c.call(ctx, http.MethodGet, fmt.Sprintf("/%s/%d/replica", topic, partition), "", &s)
	return s, err
}

// readAll returns the values of a partition from its start to its end.
func (c *client) readAll(ctx context.Context, partition int) (values []string, err error) {
	for {
		got, err := c.read(ctx, partition, int64(len(values)))
		if err != nil || len(got) == 0 {
			return values, err
		}
		for _, l := range got {
			if l.Offset != int64(len(values)) {
				return nil, fmt.Errorf("offset %d came where %d should be", l.Offset, len(values))
			}
			values = append(values, l.Value)
		}
	}
}

// read returns the records from an offset on, not always all of them, or none at the
// log's end.
func (c *client) read(ctx context.Context, partition int, offset int64) ([]line, error) {
	var body bytes.Buffer
	if err := c.call(ctx, http.MethodGet, fmt.Sprintf("/%s/%d?offset=%d", topic, partition, offset), "", &body); err != nil {
		return nil, err
	}
	var lines []line
	for s := bufio.NewScanner(&body); s.Scan(); {
		var l line
		if err := json.Unmarshal(s.Bytes(), &l); err != nil {
			return nil, err
		}
		lines = append(lines, l)
	}
	return lines, nil
}

// call sends a request and decodes the answer into out: as it is if that is a
// buffer, else as JSON.
func (c *client) call(ctx context.Context, method, path, body string, out any) error {
	ctx, cancel := context.WithTimeout(ctx, 2*requestTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://"+c.place.http()+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return err
	case resp.StatusCode == http.StatusServiceUnavailable:
		return fmt.Errorf("broker %d: %w: %s", c.id, errRefused, bytes.TrimSpace(data))
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("broker %d: %s: %s", c.id, resp.Status, bytes.TrimSpace(data))
	}
	switch out := out.(type) {
	case nil:
		return nil
	case *bytes.Buffer:
		_, err := out.Write(data)
		return err
	default:
		return json.Unmarshal(data, out)
	}
}

// pause waits a moment, or less when ctx ends.
func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(10 * time.Millisecond):
		return nil
	}
}
