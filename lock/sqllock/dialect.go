package sqllock

import (
	"fmt"
	"strconv"
	"strings"
)

// Dialect is the kind of a database.
type Dialect uint8

// The dialects.
const (
	// PostgreSQL is version 12 or later.
	PostgreSQL Dialect = iota + 1
	// MySQL is version 8, or MariaDB 10.6, or later, with InnoDB.
	MySQL
	// SQLite is version 3.35 or later.
	SQLite
)

// String returns the name of the dialect.
func (d Dialect) String() string {
	switch d {
	case PostgreSQL:
		return "PostgreSQL"
	case MySQL:
		return "MySQL"
	case SQLite:
		return "SQLite"
	}
	return "unknown dialect"
}

func (d Dialect) validate() error {
	if d < PostgreSQL || d > SQLite {
		return fmt.Errorf("sqllock: Dialect is %d: must be PostgreSQL, MySQL or SQLite", d)
	}
	return nil
}

// maxIdentifier is the most that PostgreSQL keeps of a name; it cuts off the rest.
const maxIdentifier = 63

// identifier quotes the name of a table or a column. What needs no quotes but for being a word of SQL is the same in all
// dialects, in a migration written by hand too.
func (d Dialect) identifier(field, name string) (string, error) {
	legal := func(r rune) bool { return r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '_' }
	illegal := func(r rune) bool { return !legal(r) }
	if name == "" || len(name) > maxIdentifier || name[0] >= '0' && name[0] <= '9' || strings.ContainsFunc(name, illegal) {
		return "", fmt.Errorf("sqllock: %s is %q: must match [a-z_][a-z0-9_]* and have at most %d bytes", field, name, maxIdentifier)
	}
	if d == MySQL {
		return "`" + name + "`", nil
	}
	return `"` + name + `"`, nil
}

// table quotes the name of a table, which may have that of a schema before it.
func (d Dialect) table(field, name string) (string, error) {
	schema, table, qualified := strings.Cut(name, ".")
	if !qualified {
		return d.identifier(field, name)
	}
	schema, err := d.identifier(field, schema)
	if err != nil {
		return "", err
	}
	table, err = d.identifier(field, table)
	return schema + "." + table, err
}

// params are what statements may ask for.
type params struct {
	name, owner string
	token       int64
	ttl         int64 // µs
	limit       int64 // µs, that a statement may wait in the server
	idle        int64 // µs
	id          any   // of a user's row
}

func (p *params) value(name string) any {
	switch name {
	case ":name":
		return p.name
	case ":owner":
		return p.owner
	case ":token":
		return p.token
	case ":ttl":
		return p.ttl
	case ":limit":
		return p.limit
	case ":idle":
		return p.idle
	default:
		return p.id
	}
}

// statement is SQL with the names of its parameters, in their order.
type statement struct {
	text   string
	params []string
}

func (s statement) args(p params) []any {
	args := make([]any, len(s.params))
	for i, name := range s.params {
		args[i] = p.value(name)
	}
	return args
}

// statement makes a template into what the dialect's drivers take: ":x" becomes a placeholder, "{x}" what replace says.
func (d Dialect) statement(template string, replace ...string) statement {
	text := strings.NewReplacer(append(d.words(), replace...)...).Replace(template)
	var s statement
	var out strings.Builder
	numbers := map[string]int{}
	for {
		at := strings.IndexByte(text, ':')
		if at < 0 {
			break
		}
		end := at + 1
		for end < len(text) && text[end] >= 'a' && text[end] <= 'z' {
			end++
		}
		name := text[at:end]
		out.WriteString(text[:at])
		text = text[end:]
		switch {
		case d != PostgreSQL:
			out.WriteByte('?')
			s.params = append(s.params, name)
			continue
		case numbers[name] == 0:
			s.params = append(s.params, name)
			numbers[name] = len(s.params)
		}
		out.WriteString("$" + strconv.Itoa(numbers[name]))
	}
	out.WriteString(text)
	s.text = out.String()
	return s
}

// words are what the dialects say differently.
//
// {now} is the clock in µs since 1970, {start} what it was when the statement reached the server. {late} tells of a
// statement that waited there for longer than :limit: its client has gone, and what it asked for is nobody's wish any
// more. In MySQL only UTC_TIMESTAMP has no time zone, and it stands still during a statement; that NOW and SYSDATE jump
// by an hour with the local time makes a statement late once, or late by nothing.
func (d Dialect) words() []string {
	switch d {
	case PostgreSQL:
		return []string{
			"{now}", `CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS bigint)`,
			"{late}", `(clock_timestamp() - statement_timestamp() >= CAST(:limit AS bigint) * INTERVAL '1 microsecond')`,
			"{max}", "GREATEST",
			"{share}", "FOR SHARE",
			"{conflict}", "ON CONFLICT (name) DO UPDATE SET",
		}
	case MySQL:
		const start = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
		const waited = "TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6))"
		return []string{
			"{start}", start,
			"{now}", "(" + start + " + GREATEST(0, " + waited + "))",
			"{late}", "(" + waited + " >= :limit)",
			"{max}", "GREATEST",
			"{share}", "LOCK IN SHARE MODE",
			"{conflict}", "ON DUPLICATE KEY UPDATE",
		}
	default:
		return []string{
			"{now}", "(CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000)",
			"{late}", "(:limit < 0)", // who waits is the client, in its own process
			"{max}", "MAX",
			"{conflict}", "ON CONFLICT (name) DO UPDATE SET",
			"{share}", "", // a transaction that reads a row and then writes fails if another one has changed it in between
		}
	}
}

// statements are those of a Backend.
type statements struct {
	peek, probe, take, renew, release, idle, prune, guard, seen, lockRow statement
}

func (d Dialect) statements(table string) statements {
	sql := func(template string) statement { return d.statement(template, "{table}", table) }
	s := statements{
		peek: sql(`SELECT owner, expires_at - {now} FROM {table} WHERE name = :name`),

		probe: sql(`SELECT token FROM {table} WHERE name = :name FOR UPDATE NOWAIT`),

		renew: sql(`UPDATE {table} SET expires_at = {max}(expires_at, {now} + :ttl)` +
			` WHERE name = :name AND owner = :owner AND (token = :token OR :token = 0) AND expires_at > {now} AND NOT {late}`),

		release: sql(`UPDATE {table} SET owner = '', expires_at = 0` +
			` WHERE name = :name AND owner = :owner AND (token = :token OR :token = 0) AND expires_at > {now}`),

		idle: sql(`SELECT name FROM {table} WHERE token > 0 AND token < {now} - :idle AND expires_at <= {now}`),

		prune: sql(`DELETE FROM {table} WHERE name = :name AND token < {now} - :idle AND expires_at <= {now}`),

		guard: sql(`SELECT token FROM {table} WHERE name = :name AND token = :token AND owner <> '' {share}`),

		seen: sql(`SELECT token FROM {table} WHERE name = :name AND token = :token AND owner <> ''`),

		lockRow: sql(`INSERT INTO {table} (name, owner, token, expires_at) VALUES (:name, '', 0, 0) {conflict} expires_at = 0`),
	}
	if d == MySQL {
		// A session may count rows that were found, or only those that were changed. LAST_INSERT_ID with an argument is
		// an answer that comes with the statement itself, whatever is counted: the token, or 0.
		//
		// Assignments see what those before them have set. So whether the lock is given is decided once, by the owner,
		// and by a clock that stands still: if expires_at <= {start} is true for the owner, it is for the token.
		//
		// A name that is NULL makes it fail where nothing would be committed, see errOpen.
		s.take = sql(`INSERT INTO {table} (name, owner, token, expires_at)` +
			` VALUES (IF(@@autocommit, :name, NULL), :owner, LAST_INSERT_ID({start}), {start} + :ttl)` +
			` ON DUPLICATE KEY UPDATE owner = IF(expires_at <= {start} AND NOT {late}, :owner, owner),` +
			` token = GREATEST(token, LAST_INSERT_ID(CASE WHEN owner <> :owner THEN 0` +
			` WHEN expires_at <= {start} THEN GREATEST(token + 1, {start}) ELSE token END)),` +
			` expires_at = IF(owner = :owner, GREATEST(expires_at, {now} + :ttl), expires_at)`)
		s.renew = sql(`UPDATE {table} SET expires_at = GREATEST(expires_at, {now} + :ttl), token = LAST_INSERT_ID(token)` +
			` WHERE name = :name AND owner = :owner AND (token = :token OR :token = 0) AND expires_at > {now} AND NOT {late}`)
		return s
	}
	if d == PostgreSQL {
		// An UPDATE that has waited for a lock of its row looks again only at what has changed in the row meanwhile. The
		// clock is read after the wait if the row is locked first.
		s.renew = sql(`WITH held AS (SELECT name, expires_at FROM {table}` +
			` WHERE name = :name AND owner = :owner AND (token = :token OR :token = 0) FOR UPDATE)` +
			` UPDATE {table} AS lock SET expires_at = GREATEST(lock.expires_at, {now} + :ttl) FROM held` +
			` WHERE lock.name = held.name AND held.expires_at > {now} AND NOT {late}`)
	}
	s.take = sql(`INSERT INTO {table} AS held (name, owner, token, expires_at)` +
		` VALUES (:name, :owner, {now}, {now} + :ttl)` +
		` ON CONFLICT (name) DO UPDATE SET owner = excluded.owner,` +
		` token = CASE WHEN held.owner = excluded.owner AND held.expires_at > {now} THEN held.token ELSE {max}(held.token + 1, {now}) END,` +
		` expires_at = {max}(held.expires_at, {now} + :ttl)` +
		` WHERE (held.expires_at <= {now} OR held.owner = excluded.owner) AND NOT {late}` +
		` RETURNING token`)
	return s
}

// schema makes the table.
func (d Dialect) schema(table string) string {
	switch d {
	case PostgreSQL:
		return `CREATE TABLE IF NOT EXISTS ` + table + ` (
    name       varchar(255) COLLATE "C" PRIMARY KEY,
    owner      varchar(255) COLLATE "C" NOT NULL,
    token      bigint NOT NULL,
    expires_at bigint NOT NULL
) WITH (fillfactor = 50)` // renewals find room in the page of their row
	case MySQL:
		return `CREATE TABLE IF NOT EXISTS ` + table + ` (
    name       VARCHAR(255) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    owner      VARCHAR(255) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    token      BIGINT NOT NULL,
    expires_at BIGINT NOT NULL
) ENGINE = InnoDB`
	default:
		return `CREATE TABLE IF NOT EXISTS ` + table + ` (
    name       TEXT PRIMARY KEY NOT NULL,
    owner      TEXT NOT NULL,
    token      INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
) WITHOUT ROWID`
	}
}
