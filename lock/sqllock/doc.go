// Package sqllock keeps locks in the SQL database that a service has anyway: PostgreSQL, MySQL 8 or MariaDB, SQLite. It
// uses database/sql alone; the driver is the caller's.
//
// [Backend] keeps a row a lock, (name, owner, token, expires_at), which one statement takes, renews or frees. What may be
// relied on: one holder at a time, as long as the database keeps what it has acknowledged and its clock does not jump; the
// token rises with each grant of a name, over releases, expiry and restarts; a lock whose holder died is free when its TTL
// has passed. All times are those of the database, never of a client, and no session's time zone matters. The clock of
// SQLite is that of its machine.
//
// What may not: a failover to a replica that has not yet seen a grant forgets it, and a clock that is set forward ends
// leases before their holders know. A holder that is frozen does not know that it lost the lock. So protect what the lock
// is for: if that is in another database, by a [Fence] or its like, which refuses a lower token; if it is in the same one,
// by [Backend.Guard], which lets a transaction commit only while nobody else has got the lock.
//
// No session state is used, so that poolers which give each statement another session will do; sessions have to be in
// autocommit mode, as they are by default. Every step needs a connection of the pool: a renewal that waits for one in
// vain loses the lock, so let locks have a [sql.DB] of their own where transactions may use up all connections.
// Waiters poll, in PostgreSQL too, because database/sql has no call that waits for a notification.
//
// [Sessions] makes locks of another kind, that last as long as a session of the database, with other promises: no TTL, no
// token, no renewals.
package sqllock
