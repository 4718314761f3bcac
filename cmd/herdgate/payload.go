package main

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"strings"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"

	"github.com/herdgate/herdgate/codec"
	"github.com/herdgate/herdgate/internal/pack"
	"github.com/herdgate/herdgate/internal/wire"
)

// payload is what an entry holds, as far as it can be shown.
type payload struct {
	Bytes  int             `json:"bytes"`
	Packed int             `json:"packed_bytes,omitempty"` // what it is compressed to
	JSON   json.RawMessage `json:"json,omitempty"`         // msgpack and json
	Hex    string          `json:"hex,omitempty"`          // the beginning of anything else
	Why    string          `json:"why,omitempty"`          // it is not shown as JSON though it should be
	raw    []byte          // what Hex shows
}

// previewed is how many bytes are shown of what is not understood.
const previewed = 256

func preview(data []byte) payload {
	raw := data[:min(len(data), previewed)]
	return payload{Bytes: len(data), Hex: hex.EncodeToString(raw), raw: raw}
}

// protobufID is the id of codec/protocodec, whose module is not linked for it: without
// the type, the payload could not be shown anyhow.
const protobufID = 4

// codecName is the name of one of herdgate's codecs.
func codecName(id byte) string {
	for _, c := range []codec.Codec{codec.Msgpack(), codec.JSON(), codec.Raw()} {
		if c.ID() == id {
			return c.Name()
		}
	}
	switch {
	case id == protobufID:
		return "protobuf"
	case id < codec.FirstUserID:
		return fmt.Sprintf("%d, which this version does not know", id)
	}
	return fmt.Sprintf("%d of the service's own", id)
}

// unpack returns what the codec had made.
func unpack(flags wire.Flags, data []byte) ([]byte, error) {
	var p pack.Packer
	switch {
	case flags&wire.FlagS2 != 0:
		return p.Unpack(pack.S2, data, codec.MaxSize)
	case flags&wire.FlagZstd != 0:
		return p.Unpack(pack.Zstd, data, codec.MaxSize)
	}
	return data, nil
}

// decode shows the payload of a codec.
func decode(id byte, data []byte) payload {
	var text []byte
	var err error
	switch id {
	case codec.JSON().ID():
		// Not through a value: numbers keep their digits, and fields their order.
		var raw json.RawMessage
		err = codec.JSON().Unmarshal(data, &raw)
		text = raw
	case codec.Msgpack().ID():
		text, err = msgpackToJSON(data)
	default:
		return preview(data)
	}
	if err != nil {
		p := preview(data)
		p.Why = err.Error()
		return p
	}
	return payload{Bytes: len(data), JSON: text}
}

func (p payload) write(to page) {
	if p.Why != "" {
		to.line("payload", "%d bytes, which cannot be decoded: %s", p.Bytes, visible(p.Why))
	} else if p.Bytes > 0 || p.JSON != nil {
		packed := ""
		if p.Packed > 0 {
			packed = fmt.Sprintf(", compressed to %d", p.Packed)
		}
		to.line("payload", "%d bytes%s", p.Bytes, packed)
	}
	switch {
	case p.JSON != nil:
		var text bytes.Buffer
		_ = json.Indent(&text, p.JSON, "", "  ") // it was decoded, so it is JSON
		_, _ = fmt.Fprintf(to, "\n%s\n", indented(harmless(text.String())))
	case len(p.raw) > 0:
		_, _ = fmt.Fprintf(to, "\n%s", indented(hex.Dump(p.raw)))
		if p.Bytes > len(p.raw) {
			_, _ = fmt.Fprintf(to, "    and %d bytes more\n", p.Bytes-len(p.raw))
		}
	}
}

func indented(text string) string {
	trimmed := strings.TrimSuffix(text, "\n")
	return "    " + strings.ReplaceAll(trimmed, "\n", "\n    ") + text[len(trimmed):]
}

// harmless is JSON for a terminal. JSON escapes only some of what could steer one.
func harmless(text string) string {
	var b strings.Builder
	for _, r := range text {
		if r >= 0x7f && r < 0xa0 {
			fmt.Fprintf(&b, `\u%04x`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// msgpackToJSON keeps the order of fields. Bytes become base64, as in encoding/json;
// keys that are no strings, the text of their JSON; a number that JSON lacks, its
// name in quotes.
func msgpackToJSON(data []byte) ([]byte, error) {
	// The codec has looked at every length and at the depth before it returns.
	var checked msgpack.RawMessage
	if err := codec.Msgpack().Unmarshal(data, &checked); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := writeJSON(&out, msgpack.NewDecoder(bytes.NewReader(data))); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func writeJSON(out *bytes.Buffer, from *msgpack.Decoder) error {
	code, err := from.PeekCode()
	if err != nil {
		return err
	}
	switch {
	case msgpcode.IsFixedMap(code) || code == msgpcode.Map16 || code == msgpcode.Map32:
		n, err := from.DecodeMapLen()
		if err != nil {
			return err
		}
		return writeAll(out, "{}", n, func() error {
			var key bytes.Buffer
			if err := writeJSON(&key, from); err != nil {
				return err
			}
			if key.Bytes()[0] == '"' {
				out.Write(key.Bytes())
			} else if err := writeValue(out, key.String()); err != nil {
				return err
			}
			out.WriteByte(':')
			return writeJSON(out, from)
		})
	case msgpcode.IsFixedArray(code) || code == msgpcode.Array16 || code == msgpcode.Array32:
		n, err := from.DecodeArrayLen()
		if err != nil {
			return err
		}
		return writeAll(out, "[]", n, func() error { return writeJSON(out, from) })
	}
	v, err := from.DecodeInterface()
	if err != nil {
		return err
	}
	return writeValue(out, v)
}

func writeAll(out *bytes.Buffer, brackets string, n int, write func() error) error {
	out.WriteByte(brackets[0])
	for i := range n {
		if i > 0 {
			out.WriteByte(',')
		}
		if err := write(); err != nil {
			return err
		}
	}
	out.WriteByte(brackets[1])
	return nil
}

func writeValue(out *bytes.Buffer, v any) error {
	switch f := v.(type) {
	case float32:
		v = jsonFloat(float64(f), v)
	case float64:
		v = jsonFloat(f, v)
	}
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		return err
	}
	out.Truncate(out.Len() - 1) // the line's end
	return nil
}

func jsonFloat(f float64, v any) any {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return fmt.Sprint(f)
	}
	return v
}
