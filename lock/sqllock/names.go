package sqllock

import (
	"crypto/sha256"
	"encoding/hex"
	"net/url"
)

// maxColumn is the size of the columns of names and owners, but for the byte that row puts before a name.
const maxColumn = 254

// column is what stands for a name, or an owner, in the table: ASCII, so that no collation and no character set takes two
// for one. A long one ends in its hash, after a # that no escaped one has.
func column(s string) string {
	escaped := url.PathEscape(s)
	if len(escaped) <= maxColumn {
		return escaped
	}
	sum := sha256.Sum256([]byte(s))
	hash := hex.EncodeToString(sum[:])
	return escaped[:maxColumn-1-len(hash)] + "#" + hash
}

// row is what stands for the name of a lock of LockRow. No escaped name has a !.
func row(s string) string { return "!" + column(s) }
