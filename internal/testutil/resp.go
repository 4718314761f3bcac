package testutil

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// readFrame reads one RESP2 or RESP3 value with all it contains and returns its
// bytes. An attribute comes with the value it precedes. Lines that start with no
// RESP type are inline commands and frames of their own.
func readFrame(r *bufio.Reader) ([]byte, error) {
	var frame []byte
	for todo := 1; todo > 0; todo-- {
		line, err := r.ReadBytes('\n')
		if err != nil {
			return nil, err
		}
		frame = append(frame, line...)
		kind := line[0]
		if !strings.ContainsRune("$!=*~>%|", rune(kind)) {
			continue // a simple type: the line is all of it
		}
		n, err := strconv.Atoi(string(bytes.TrimSpace(line[1:])))
		if err != nil {
			return nil, fmt.Errorf("a RESP length was expected in %q", line)
		}
		if n < 0 {
			continue // a RESP2 null
		}
		switch kind {
		case '$', '!', '=':
			body := make([]byte, n+len("\r\n"))
			if _, err := io.ReadFull(r, body); err != nil {
				return nil, err
			}
			frame = append(frame, body...)
		case '*', '~', '>':
			todo += n
		case '%':
			todo += 2 * n
		case '|':
			todo += 2*n + 1
		}
	}
	return frame, nil
}

// Words returns the words of a request as clients send it, an array of bulk
// strings: Words(request)[0] is the command. It is nil for anything else.
func Words(request []byte) []string {
	line, rest, _ := bytes.Cut(request, []byte("\r\n"))
	if !bytes.HasPrefix(line, []byte("*")) {
		return nil
	}
	var words []string
	for len(rest) > 0 {
		size, body, _ := bytes.Cut(rest, []byte("\r\n"))
		n, err := strconv.Atoi(strings.TrimPrefix(string(size), "$"))
		if err != nil || n < 0 || len(body) < n+len("\r\n") {
			return nil
		}
		words = append(words, string(body[:n]))
		rest = body[n+len("\r\n"):]
	}
	return words
}
